"""PNGs of few colours in a fraction of the bytes, every pixel as it was.

plotly draws a heatmap as a PNG of four bytes a pixel. Its few colours fit in a palette of
one byte a pixel. Format: W3C, Portable Network Graphics (Third Edition).
"""

from __future__ import annotations

import base64
import re
import struct
import zlib

import numpy as np

SIGNATURE = b"\x89PNG\r\n\x1a\n"
RGBA, PALETTE = 6, 3
DATA_URI = re.compile(r"data:image/png;base64,([A-Za-z0-9+/=]+)")


def shrink_data_uris(text: str) -> str:
    """Each PNG in a `data:` address repacked; one that cannot be made smaller stays."""
    return DATA_URI.sub(_smaller, text)


def _smaller(match: re.Match) -> str:
    packed = base64.b64encode(with_palette(base64.b64decode(match[1]))).decode()
    return f"data:image/png;base64,{packed}" if len(packed) < len(match[1]) else match[0]


def with_palette(png: bytes) -> bytes:
    """The same pixels by a palette; unchanged unless 8-bit RGBA of at most 256 colours."""
    chunks = _chunks(png)
    width, height, depth, kind, *_, interlaced = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    if (depth, kind, interlaced) != (8, RGBA, 0):
        return png
    pixels = _pixels(zlib.decompress(chunks[b"IDAT"]), width, height)
    colors, index = np.unique(pixels.reshape(-1, 4), axis=0, return_inverse=True)
    if len(colors) > 256:
        return png
    lines = np.zeros((height, width + 1), np.uint8)  # each begins with filter 0: as it is
    lines[:, 1:] = index.reshape(height, width)
    parts = {
        b"IHDR": struct.pack(">IIBBBBB", width, height, 8, PALETTE, 0, 0, 0),
        b"PLTE": colors[:, :3].tobytes(),
        b"tRNS": colors[:, 3].tobytes(),
        b"IDAT": zlib.compress(lines.tobytes(), 9),
        b"IEND": b"",
    }
    return SIGNATURE + b"".join(_chunk(name, data) for name, data in parts.items())


def _chunks(png: bytes) -> dict[bytes, bytes]:
    """{name: data}; the parts of the image data are joined."""
    found: dict[bytes, bytes] = {}
    at = len(SIGNATURE)
    while at < len(png):
        size, name = struct.unpack(">I4s", png[at : at + 8])
        found[name] = found.get(name, b"") + png[at + 8 : at + 8 + size]
        at += size + 12
    return found


def _chunk(name: bytes, data: bytes) -> bytes:
    checksum = struct.pack(">I", zlib.crc32(name + data))
    return struct.pack(">I", len(data)) + name + data + checksum


def _pixels(raw: bytes, width: int, height: int) -> np.ndarray:
    """uint8 [height, width, 4]: undo the filter that each line names in its first byte."""
    lines = np.frombuffer(raw, np.uint8).reshape(height, 1 + 4 * width)
    above = np.zeros((width, 4), np.uint8)
    rows = []
    for line in lines:
        above = _unfiltered(line[0], line[1:].reshape(width, 4), above)
        rows.append(above)
    return np.stack(rows)


def _unfiltered(kind: int, line: np.ndarray, above: np.ndarray) -> np.ndarray:
    if kind == 0:
        return line
    if kind == 1:  # each pixel is what it adds to its left neighbour
        return np.cumsum(line, axis=0, dtype=np.uint8)
    if kind == 2:  # to the one above it
        return line + above
    row = np.zeros_like(line).astype(int)
    for x, rest in enumerate(line.astype(int)):
        left = row[x - 1] if x else np.zeros(4, int)
        corner = above[x - 1].astype(int) if x else np.zeros(4, int)
        up = above[x].astype(int)
        guess = (left + up) // 2 if kind == 3 else _nearest(left, up, corner)
        row[x] = (rest + guess) % 256
    return row.astype(np.uint8)


def _nearest(left: np.ndarray, up: np.ndarray, corner: np.ndarray) -> np.ndarray:
    """Paeth: of the three neighbours the one nearest to left + up - corner."""
    target = left + up - corner
    near = [abs(target - neighbour) for neighbour in (left, up, corner)]
    first = np.where((near[0] <= near[1]) & (near[0] <= near[2]), left, corner)
    return np.where((near[1] < near[0]) & (near[1] <= near[2]), up, first)
