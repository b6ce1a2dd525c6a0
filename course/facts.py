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
            self,
            name=f"{self.name}, {factor:g}x slower",
            bytes_per_s=self.bytes_per_s / factor,
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
# Infinity Fabric of an MI300X: 7 x 64 GB/s per direction, and 64 to any one peer:
# ml-engineering network/README.md. Latency taken as NVLink's.
INFINITY_FABRIC3 = Link("Infinity Fabric, all 7 peers", 3.4e-6, 448 * GB)
INFINITY_FABRIC3_PEER = Link("Infinity Fabric, one peer", 3.4e-6, 64 * GB)
# PCIe x16: stas00/ml-engineering network/README.md.
PCIE4 = Link("PCIe 4.0 x16", 5.7e-6, 31.5 * GB)
PCIE5 = Link("PCIe 5.0 x16", 5.7e-6, 63 * GB)
PCIE6 = Link("PCIe 6.0 x16", 5.7e-6, 121 * GB)
# InfiniBand, 4x port: IBTA roadmap through stas00/ml-engineering network/README.md.
IB_EDR = Link("InfiniBand EDR", 14e-6, 12.5 * GB)
IB_HDR = Link("InfiniBand HDR", 14e-6, 25 * GB)
IB_NDR = Link("InfiniBand NDR", 14e-6, 50 * GB)
IB_XDR = Link("InfiniBand XDR", 14e-6, 100 * GB)
# RoCEv2: the wire rate of InfiniBand of as many Gb/s, same source.
ROCE_200 = Link("RoCEv2 200 GbE", 14e-6, 25 * GB)
ROCE_400 = Link("RoCEv2 400 GbE", 14e-6, 50 * GB)
# AWS EFA, one GPU's share of its node, same source. v1 (P4d): 400 Gb/s for 8 GPUs.
# v2 (P5), v3 (P5en), v4 (P6-B200): 3200 Gb/s. v4 on P6-B300: 6400 Gb/s.
EFA_P4D = Link("EFA v1, P4d", 14e-6, 6.25 * GB)
EFA_P5 = Link("EFA v2 to v4, P5 to P6-B200", 14e-6, 50 * GB)
EFA_P6_B300 = Link("EFA v4, P6-B300", 14e-6, 100 * GB)

# --- GPUs --------------------------------------------------------------------------
# A100: NVIDIA A100 datasheet; efficiency 271.2 / 312 from ml-engineering, MAMF table.
A100_40GB = Gpu("A100 SXM 40GB", 312e12, 40 * GB, 1.555e12, 0.869)
A100_80GB = Gpu("A100 SXM 80GB", 312e12, 80 * GB, 2.039e12, 0.869)
# H100: 1830 MHz x 512 FMA x 2 x 528 tensor cores; MAMF 794.5.
H100 = Gpu("H100 SXM", 989.4e12, 80 * GB, 3.35e12, 0.803)
# H200: the same chip with HBM3e, NVIDIA through ml-engineering accelerator/README.md.
H200 = Gpu("H200 SXM", 989.4e12, 141 * GB, 4.8e12, 0.803)
# B200 as in HGX and DGX boards: 4500 sparse, so 2250 dense; 180 GB as in the Nebius MLPerf
# v6.0 system file. MAMF 1745.
B200 = Gpu("B200 SXM", 2250e12, 180 * GB, 8.0e12, 0.776)
# GB200: one GPU of an NVL72 rack, 5000 sparse; 186 GB, Crusoe MLPerf v6.1. MAMF 1822.
GB200 = Gpu("GB200", 2500e12, 186 * GB, 8.0e12, 0.729)
# RTX 4090: Ada whitepaper v2.02 appendix A, bf16 with fp32 accumulation (330.3 is fp16
# accumulation). No NVLink, no GPU peer access. No matmul ceiling published there.
RTX_4090 = Gpu("RTX 4090", 165.2e12, 24 * GB, 1.008e12)
# MI300X: AMD page through ml-engineering accelerator/README. MAMF 668.4.
MI300X = Gpu("MI300X", 1307.4e12, 192 * GB, 5.3e12, 0.511)

# --- Nodes -------------------------------------------------------------------------
# DGX A100: 8 x HDR for compute, Narayanan et al. 2021 (arXiv 2104.04473) section 5.
DGX_A100 = Node("DGX A100", A100_80GB, 8, NVLINK3, IB_HDR, 8)
# DGX H100: 8 x NDR 400 Gb/s, ml-engineering network/README.md.
DGX_H100 = Node("DGX H100", H100, 8, NVLINK4, IB_NDR, 8)
DGX_H200 = Node("DGX H200", H200, 8, NVLINK4, IB_NDR, 8)
# DGX B200: 8 x ConnectX-7 400 Gb/s, Nebius MLPerf v6.0 system file.
DGX_B200 = Node("DGX B200", B200, 8, NVLINK5, IB_NDR, 8)
# GB200 NVL72: 72 GPUs in one NVLink domain, one 400 Gb/s card each, ml-engineering.
GB200_NVL72 = Node("GB200 NVL72", GB200, 72, NVLINK5, IB_NDR, 72)
# AWS P4d: 8 x A100 40GB, 4 x 100 Gb/s, so 2 GPUs share a card of 12.5 GB/s.
AWS_P4D = Node("AWS P4d", A100_40GB, 8, NVLINK3, Link("EFA v1 card", 14e-6, 12.5 * GB), 4)
# AWS P5: 8 x H100, 3200 Gb/s.
AWS_P5 = Node("AWS P5", H100, 8, NVLINK4, EFA_P5, 8)
# Llama 3's training cluster: 8 x H100, RoCE 400 Gb/s each, arXiv 2407.21783 section 3.3.1.
LLAMA3_NODE = Node("Llama 3 node", H100, 8, NVLINK4, ROCE_400, 8)
