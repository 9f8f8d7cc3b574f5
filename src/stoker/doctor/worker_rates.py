"""Batches a second that a loader's workers give, by what was measured of one or two numbers of them. Pure."""

from collections.abc import Sequence


def rate_with(measured: Sequence[tuple[int, float]], workers: int, *, cores: float | None) -> float:
    """The rate of so many workers, from numbers of them and their rates, in order of the numbers.

    Between two measured numbers it is on a line; beyond them the line goes on, but no worker gives more than
    each did where it was measured, and more of them queue for the cores, of which a batch takes `cores`
    seconds.
    """
    rate = _on_a_line(measured, workers)
    last, most = measured[-1]
    if cores is None or workers <= last:
        return rate
    return min(rate, most * _queued(cores, last / most, workers) / _queued(cores, last / most, last))


def _on_a_line(measured: Sequence[tuple[int, float]], workers: int) -> float:
    first, last = measured[0], measured[-1]
    if workers <= first[0]:
        return first[1] * workers / first[0]
    if workers < last[0]:
        return first[1] + (last[1] - first[1]) * (workers - first[0]) / (last[0] - first[0])
    most = last[1] * workers / last[0]
    if last[0] == first[0]:
        return most
    slope = max(0.0, (last[1] - first[1]) / (last[0] - first[0]))
    return min(last[1] + slope * (workers - last[0]), most)


def _queued(cores: float, turn: float, workers: int) -> float:
    """Batches a second of so many workers that wait, then queue for the cores.

    The time of a worker's `turn` in which it waits passes for all workers at once; the other is that of the
    cores, for one at a time (mean value analysis; Reiser and Lavenberg 1980).
    """
    waits = max(0.0, turn - cores)
    rate = length = 0.0
    for number in range(1, workers + 1):
        at_cores = cores * (1 + length)
        rate = number / (waits + at_cores)
        length = rate * at_cores
    return rate
