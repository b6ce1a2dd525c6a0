"""Hardware, networks, model shapes. The unit is in each name, the source above each number.

GB is 1e9 bytes, GiB is 2**30. Bandwidth is per direction: vendors quote NVLink and
PCIe for both directions together, every cost formula needs one.
"""

from dataclasses import dataclass, replace

GB = 10**9
GIB = 2**30
MIB = 2**20
KIB = 2**10


@dataclass(frozen=True)
class Link:
    """One port of one kind of wire.

    latency_s:    alpha, seconds before the first byte of a message arrives
    bytes_per_s:  B, bandwidth per direction of one port
    """

    name: str
    latency_s: float
    bytes_per_s: float

    def __post_init__(self):
        if self.latency_s < 0:
            raise ValueError(f"latency_s must be 0 or more, not {self.latency_s}")
        if self.bytes_per_s <= 0:
            raise ValueError(f"bytes_per_s must be positive, not {self.bytes_per_s}")

    def seconds(self, nbytes: float) -> float:
        """Seconds for one message of nbytes: alpha + nbytes / B."""
        return self.latency_s + nbytes / self.bytes_per_s

    def slower(self, factor: float) -> "Link":
        """The same wire with `factor` times less bandwidth."""
        return replace(
            self, name=f"{self.name}, {factor:g}x slower", bytes_per_s=self.bytes_per_s / factor
        )


@dataclass(frozen=True)
class Gpu:
    """One accelerator. Peaks are dense: the sparse marketing number is twice as large."""

    name: str
    bf16_flops_per_s: float
    memory_bytes: int
    memory_bytes_per_s: float
    # share of the bf16 peak that a large matrix product reaches
    matmul_efficiency: float = 1.0

    def flops_per_s(self, itemsize: int) -> float:
        """Dense peak for numbers of so many bytes.

        4 bytes: TF32, half of bf16 (156 of 312 on A100, 494.7 of 989.4 on H100, NVIDIA
        datasheets). 8 bytes: 1/16 (19.5 of 312 on A100). 1 and 2 bytes: the bf16 peak.
        """
        return self.bf16_flops_per_s / {4: 2, 8: 16}.get(itemsize, 1)


@dataclass(frozen=True)
class Node:
    """One server: GPUs on a fabric, and network cards that lead out of it."""

    name: str
    gpu: Gpu
    gpus: int
    fabric: Link
    nic: Link
    nics: int

    def __post_init__(self):
        if self.gpus < 1:
            raise ValueError(f"gpus must be 1 or more, not {self.gpus}")
        if not 1 <= self.nics <= self.gpus:
            raise ValueError(f"nics must be from 1 to gpus ({self.gpus}), not {self.nics}")


# --- Links -------------------------------------------------------------------------
# Latencies: NCCL 2.30.7 src/graph/tuning.cc, ring, Simple protocol, one step:
# NVLink 3.4 us, PCIe 5.7 us, network 14 us.
# NVLink 3: 12 links x 25 GB/s per direction, NVIDIA Ampere whitepaper.
NVLINK3 = Link("NVLink 3", 3.4e-6, 300 * GB)
# NVLink 4: 18 links x 25 GB/s per direction, NVIDIA MLPerf Inference v4.1 system file.
NVLINK4 = Link("NVLink 4", 3.4e-6, 450 * GB)
# NVLink 5: 18 links x 50 GB/s per direction, Nebius MLPerf v6.0 system file.
NVLINK5 = Link("NVLink 5", 3.4e-6, 900 * GB)
# PCIe x16: stas00/ml-engineering network/README.md.
PCIE4 = Link("PCIe 4.0 x16", 5.7e-6, 31.5 * GB)
PCIE5 = Link("PCIe 5.0 x16", 5.7e-6, 63 * GB)
# InfiniBand, 4x port: IBTA roadmap through stas00/ml-engineering network/README.md.
IB_HDR = Link("InfiniBand HDR", 14e-6, 25 * GB)
IB_NDR = Link("InfiniBand NDR", 14e-6, 50 * GB)
IB_XDR = Link("InfiniBand XDR", 14e-6, 100 * GB)

# --- GPUs --------------------------------------------------------------------------
# A100: NVIDIA A100 datasheet; efficiency 271.2 / 312 from ml-engineering, MAMF table.
A100_80GB = Gpu("A100 SXM 80GB", 312e12, 80 * GB, 2.039e12, 0.869)
# H100: 1830 MHz x 512 FMA x 2 x 528 tensor cores; MAMF 794.5.
H100 = Gpu("H100 SXM", 989.4e12, 80 * GB, 3.35e12, 0.803)

# --- Nodes -------------------------------------------------------------------------
# DGX A100: 8 x HDR for compute, Narayanan et al. 2021 (arXiv 2104.04473) section 5.
DGX_A100 = Node("DGX A100", A100_80GB, 8, NVLINK3, IB_HDR, 8)
# DGX H100: 8 x NDR 400 Gb/s, ml-engineering network/README.md.
DGX_H100 = Node("DGX H100", H100, 8, NVLINK4, IB_NDR, 8)
