"""What a parameter server costs, to hold beside the ring.

N  workers, P  nbytes of parameters, S  servers that each keep P / S.
"""

from course.costs.bandwidth import Traffic
from course.costs.collectives import Cost, check_nbytes


def _check(workers: int, nbytes: float, servers: int) -> None:
    for name, value in (("workers", workers), ("servers", servers)):
        if value < 1:
            raise ValueError(f"{name} must be 1 or more, not {value}")
    check_nbytes(nbytes)


def push(workers: int, nbytes: float, *, servers: int = 1) -> Cost:
    """Every worker sends P / S to every server; the busier end of the wires decides.

    A server takes N messages in turn, N P / S bytes. With more servers than workers the
    worker is the busier one: S messages, P bytes.
    """
    _check(workers, nbytes, servers)
    messages = max(workers, servers)
    return Cost(messages, messages * nbytes / servers)


def pull(workers: int, nbytes: float, *, servers: int = 1) -> Cost:
    """Every server sends P / S to every worker: a push, turned around."""
    return push(workers, nbytes, servers=servers)


def push_and_pull(
    workers: int, nbytes: float, *, servers: int = 1, overlapped: bool = False
) -> Cost:
    """One step of training: 2 N P / S bytes through each server's port.

    overlapped: pieces are pulled while later ones are still pushed, on a wire that
    carries both directions at once: N P / S.
    """
    one_way = push(workers, nbytes, servers=servers)
    return one_way if overlapped else one_way + pull(workers, nbytes, servers=servers)


def traffic(workers: int, nbytes: float, *, servers: int = 1) -> Traffic:
    """Bytes of one push and pull: servers first, then workers.

    A worker sends P and receives P. All together 2 N P, against a ring's 2 (N - 1) P.
    """
    _check(workers, nbytes, servers)
    each = (workers * nbytes / servers,) * servers + (nbytes,) * workers
    return Traffic(each, each)
