"""NCCL's compiled-in constants, and all-reduce curves that others have published.

Constants: NVIDIA/nccl 2.30.7 (commit 5067397), src/graph/tuning.cc and topo.h. Units as
there: microseconds and GB/s (1e9 bytes). Protocols in the order LL, LL128, Simple.
"""

from course.facts import GIB, KIB, MIB

PROTOCOLS = ("LL", "LL128", "Simple")

# Once per collective: baseLatencies.
BASE_LATENCY_US = {"Tree": (6.8, 14.0, 8.4), "Ring": (6.6, 14.0, 8.4)}
# For every step: hwLatencies.
STEP_LATENCY_US = {
    ("Tree", "NVLink"): (0.6, 1.25, 4.0),
    ("Ring", "NVLink"): (0.6, 1.9, 3.4),
    ("Tree", "PCIe"): (1.0, 1.9, 4.0),
    ("Ring", "PCIe"): (1.0, 2.5, 5.7),
    ("Tree", "network"): (5.0, 8.5, 14.0),
    ("Ring", "network"): (2.7, 4.0, 14.0),
}
# What posting to the network costs the CPU, on each step of a ring over several nodes;
# three times as much with Simple: getNetOverhead.
NET_OVERHEAD_US = {"Intel": 1.0, "AMD": 2.0}

# Three numbers each: 1 node, 2 nodes, 3 or more.
# Most that LL carries, all channels together: llMaxBws, by GPU on one node, else by CPU.
LL_GB_PER_S = {
    "Ampere": (87.7,),
    "Hopper": (141.0,),
    "Blackwell": (282.0,),
    "Intel": (39.0, 39.0, 20.4),
    "AMD": (87.7, 22.5, 19.0),
}
# Most that one channel carries: perChMaxRingLL128Bws, perChMaxTreeLL128Bws,
# perChMaxTreeBws (Simple).
RING_LL128_GB_PER_S = {
    "Ampere": (20.0, 20.0, 20.0),
    "Hopper": (36.7, 36.7, 36.7),
    "Blackwell": (40.0, 40.0, 40.0),
}
TREE_LL128_GB_PER_S = {
    "Ampere": (20.0, 20.0, 20.0),
    "Hopper": (36.7, 36.7, 29.0),
    "Blackwell": (55.6, 31.67, 20.0),
}
TREE_GB_PER_S = {
    "Ampere": (24.0, 23.6, 17.8),
    "Hopper": (38.7, 41.4, 36.0),
    "Blackwell": (70.0, 42.8, 24.0),
}
# "Trees are not perfectly sticking to the model for medium sizes": treeCorrectionFactor,
# by log2(bytes / 64), from 64 B on; used below index 23.
TREE_CORRECTION = {
    "LL": (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5)
    + (0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1, 1),
    "LL128": (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6)
    + (0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1, 1, 1),
    "Simple": (0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5)
    + (0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9, 0.9),
}
# Speed of one NVLink that the topology search counts with, GB/s: topo.h.
NVLINK_GB_PER_S = {"Ampere": 20.0, "Hopper": 20.6, "Blackwell": 40.1}
NVLINKS = {"Ampere": 12, "Hopper": 18, "Blackwell": 18}

# --- Published curves -----------------------------------------------------------------
# All from stas00/ml-engineering network/README.md (commit 744d01e): {bytes: number}.

# 8 x A100 (NVLink 3), all_reduce_perf -b 32k -e 16G -f 2 -g 8 -n 50: microseconds.
A100_8_ALL_REDUCE_US = {
    32 * KIB: 43.83,
    64 * KIB: 46.80,
    128 * KIB: 51.76,
    256 * KIB: 61.38,
    512 * KIB: 80.40,
    1 * MIB: 101.9,
    2 * MIB: 101.4,
    4 * MIB: 101.5,
    8 * MIB: 133.5,
    16 * MIB: 276.6,
    32 * MIB: 424.0,
    64 * MIB: 684.6,
    128 * MIB: 1327.6,
    256 * MIB: 2420.6,
    512 * MIB: 4218.4,
    1 * GIB: 8203.9,
    2 * GIB: 16240,
    4 * GIB: 32136,
    8 * GIB: 64074,
    16 * GIB: 127997,
}
_SIZES = tuple(A100_8_ALL_REDUCE_US)
# 8 x H200, all_reduce_bench.py, NCCL 2.27.7: busbw GB/s. NVLS from 2 MiB up: the switch
# adds, so it passes the 450 GB/s of the wire.
H200_8_BUSBW_GB_PER_S = dict(
    zip(
        _SIZES,
        (1.44, 2.93, 5.73, 11.74, 23.94, 39.93, 64.53, 107.16, 155.53, 219.89)
        + (275.84, 346.51, 401.93, 436.15, 450.29, 463.58, 469.17, 473.10, 477.45, 482.26),
        strict=True,
    )
)
# The same box at 16 GiB with rings only: nccl-tests.
H200_8_RING_BUSBW_GB_PER_S = {16 * GIB: 367.2}
# 8 x B200 (AWS P6-B200, 8 x 50 GB/s EFA), busbw GB/s: one node, then four.
B200_8_BUSBW_GB_PER_S = dict(
    zip(
        _SIZES,
        (1.20, 2.17, 4.86, 9.54, 18.71, 36.06, 63.09, 76.48, 126.49, 254.96)
        + (325.97, 400.60, 568.38, 646.11, 688.99, 723.34, 734.97, 740.64, 839.07, 845.67),
        strict=True,
    )
)
B200_32_BUSBW_GB_PER_S = dict(
    zip(
        _SIZES,
        (0.01, 0.04, 0.45, 1.33, 2.84, 5.37, 10.38, 18.90, 35.12, 64.43)
        + (91.19, 156.74, 197.94, 229.09, 326.90, 361.99, 372.42, 377.34, 380.39, 381.80),
        strict=True,
    )
)
