"""Published pipeline measurements."""

from __future__ import annotations

from dataclasses import dataclass

BUBBLE_COLUMNS = ("1F1B", "1F1B-I", "ZB-H1", "ZB-H2", "ZB-1p", "ZB-2p")


@dataclass(frozen=True)
class ZeroBubbleRow:
    """One row of Table 5: times of one micro-batch on one rank, and the bubble rates.

    chunks: of 1F1B-I, a layer each: the layers the authors' script counts, by ranks
    rates:  in the order of BUBBLE_COLUMNS, of the rank that takes longest
    """

    model: str
    ranks: int
    micro_batches: int
    chunks: int
    forward_s: float
    input_gradient_s: float
    weight_gradient_s: float
    message_s: float
    rates: tuple[float, ...]

    def rate(self, column: str) -> float:
        """The published bubble rate."""
        return self.rates[BUBBLE_COLUMNS.index(column)]


def _row(model: str, ranks: int, micro_batches: int, chunks: int, us, rates):
    seconds = (round(t * 1e-6, 9) for t in us)
    return ZeroBubbleRow(model, ranks, micro_batches, chunks, *seconds, rates)


# Qi et al. 2023, "Zero Bubble Pipeline Parallelism", arXiv 2401.10241, Table 5: rates that
# the authors computed from profiled times, not measured ones. The times in microseconds
# (forward, input gradient, weight gradient, message) are those of the script that made the
# table: megatron/core/pipeline_parallel/efficiency.py in
# github.com/sail-sg/zero-bubble-pipeline-parallelism, commit f68d387.
# The script's 1F1B-I lets a chunk begin before the last rank's message about the chunk
# before it has come, but for the first micro-batch of each group. Its rates are therefore
# 2 to 4 % too low; with that wait left out, all twelve come out to the last digit.
ZERO_BUBBLE_TABLE_5 = (
    _row(
        *("1.5B", 8, 24, 3, (18522, 18086, 9337, 601)),
        (0.2431, 0.1055, 0.1585, 0.1083, 0.1585, 0.0433),
    ),
    _row(
        *("1.5B", 8, 32, 3, (18513, 18086, 9331, 626)),
        (0.1985, 0.0818, 0.1242, 0.0837, 0.1242, 0.0039),
    ),
    _row(
        *("1.5B", 8, 64, 3, (18546, 18097, 9321, 762)),
        (0.1240, 0.0443, 0.0674, 0.0444, 0.0674, 0.0026),
    ),
    _row(
        *("6.2B", 8, 24, 4, (29718, 29444, 19927, 527)),
        (0.2347, 0.0808, 0.1323, 0.0698, 0.1323, 0.0029),
    ),
    _row(
        *("6.2B", 8, 32, 4, (29802, 29428, 19530, 577)),
        (0.1898, 0.0628, 0.1045, 0.0559, 0.1045, 0.0022),
    ),
    _row(
        *("6.2B", 8, 64, 4, (29935, 29621, 19388, 535)),
        (0.1091, 0.0320, 0.0554, 0.0294, 0.0554, 0.0010),
    ),
    _row(
        *("14.6B", 16, 48, 3, (11347, 11248, 8132, 377)),
        (0.2552, 0.1104, 0.1397, 0.0672, 0.1397, 0.0066),
    ),
    _row(
        *("14.6B", 16, 64, 3, (11307, 11254, 8101, 379)),
        (0.2082, 0.0852, 0.1088, 0.0516, 0.1088, 0.0054),
    ),
    _row(
        *("14.6B", 16, 128, 3, (11325, 11308, 8109, 378)),
        (0.1251, 0.0445, 0.0576, 0.0266, 0.0576, 0.0028),
    ),
    _row(
        *("28.3B", 32, 96, 2, (10419, 10207, 7715, 408)),
        (0.2646, 0.1493, 0.1421, 0.0641, 0.1421, 0.0038),
    ),
    _row(
        *("28.3B", 32, 128, 2, (10408, 10204, 7703, 408)),
        (0.2168, 0.1164, 0.1106, 0.0490, 0.1106, 0.0029),
    ),
    _row(
        *("28.3B", 32, 256, 2, (10402, 10248, 7698, 460)),
        (0.1352, 0.0624, 0.0594, 0.0257, 0.0594, 0.0018),
    ),
)
