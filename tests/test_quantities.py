"""Numbers with units: what people write is read as they mean it, and comes back."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course.quantities import (
    in_unit,
    read,
    unit,
    write,
    write_bytes,
    write_rate,
    write_seconds,
)

AS_WRITTEN = [
    ("49 GB", "GB", 49e9),
    ("49GB", "GB", 49e9),
    ("49 gb", "GB", 49e9),
    ("49", "GB", 49e9),
    ("49e9", "GB", 49e9),
    ("2^20", "MiB", 2**20),
    ("2**20 B", "B", 2**20),
    ("45.6 GiB", "GB", 45.6 * 2**30),
    ("1,234.5 MB", "GB", 1234.5e6),
    ("8 Gb", "GB", 1e9),
    ("1.2 ms", "ms", 1.2e-3),
    ("1200 us", "ms", 1.2e-3),
    ("1200 μs", "ms", 1.2e-3),
    (".5 s", "s", 0.5),
    ("5. s", "s", 5.0),
    ("2 min", "s", 120.0),
    ("400 Gb/s", "GB/s", 50e9),
    ("400 Gbps", "GB/s", 50e9),
    ("450 GB/s", "GB/s", 450e9),
    ("989 TFLOPS", "TFLOP/s", 989e12),
    ("6e21", "FLOP", 6e21),
    ("7B", "parameters", 7e9),
    ("7 B parameters", "parameters", 7e9),
    ("14 messages", "messages", 14),
    ("1 message", "messages", 1),
    ("12 %", "", 0.12),
    ("12", "%", 0.12),
    ("1.75x", "x", 1.75),
    ("7/4", "", 1.75),
    ("-3", "", -3),
    (112, "GB", 112e9),
]


@pytest.mark.parametrize(("text", "asked", "expected"), AS_WRITTEN)
def test_reads_what_people_write(text, asked, expected):
    assert read(text, asked) == pytest.approx(expected, rel=1e-12)


REFUSED = [
    ("", "GB", "is not a number"),
    ("GB", "GB", "is not a number"),
    ("about 3", "GB", 'write it as "12.5 GB"'),
    ("12 s", "GB", "is in seconds: the question asks for GB"),
    ("12 GB/s", "GB", "is in rate"),
    ("12 quux", "GB", "unit 'quux' is not known: use GB"),
    ("12 bananas", "messages", "write a number of messages"),
    ("1/0", "", "is not a finite number"),
    ("1e999", "", "is not a finite number"),
    ("10^999", "", "is not a finite number"),
    (float("nan"), "", "is not a finite number"),
    (None, "s", "is not a number"),
    (True, "s", "is not a number"),
]


@pytest.mark.parametrize(("text", "asked", "message"), REFUSED)
def test_refuses_with_a_reason(text, asked, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        read(text, asked)


UNITS = ["B", "KiB", "MB", "MiB", "GB", "GiB", "TB", "s", "ms", "us", "ns", "min", "h"]
UNITS += ["GB/s", "Gb/s", "GiB/s", "TFLOP", "PFLOP/s", "messages", "%", "x", ""]


@given(
    st.floats(1e-6, 1e9),
    st.sampled_from(UNITS),
    st.sampled_from(["{} {}", "{}{}", " {}  {} "]),
)
def test_what_is_written_is_read_back(value, name, form):
    text = form.format(f"{value:.12f}", name)
    assert in_unit(text, name) == pytest.approx(value, rel=1e-6, abs=1e-12)
    assert read(text, name) == pytest.approx(value * unit(name).factor, rel=1e-6, abs=1e-18)


@given(st.floats(1e-4, 1e12), st.sampled_from(UNITS))
def test_write_keeps_three_digits(value, name):
    assert in_unit(write(value, name), name) == pytest.approx(value, rel=6e-3)


@given(st.floats(1, 2**50))
def test_sizes_come_back(nbytes):
    assert read(write_bytes(nbytes), "B") == pytest.approx(nbytes, rel=6e-3)


@given(st.floats(1e-9, 1e5))
def test_times_come_back(seconds):
    assert read(write_seconds(seconds), "s") == pytest.approx(seconds, rel=6e-3)


@given(st.floats(1, 1e15))
def test_rates_come_back(rate):
    assert read(write_rate(rate), "B/s") == pytest.approx(rate, rel=6e-3)


def test_sizes_and_times_are_short():
    assert [write_bytes(b) for b in (0, 512, 1023.9, 4096, 1.5 * 2**20)] == [
        *("0 B", "512 B", "1 KiB", "4 KiB", "1.5 MiB"),
    ]
    assert [write_seconds(s) for s in (0, 3.4e-6, 999.96e-6, 0.012, 125)] == [
        *("0 s", "3.4 µs", "1 ms", "12 ms", "125 s"),
    ]
    assert write_rate(450e9) == "450 GB/s"
    assert math.isclose(unit("Gb").factor, 1e9 / 8)
