"""How much of the machine others took from a run: what was measured then is not the run's alone. Pure.

No more than what they used, and no more than the run's own threads stood in the run queue: on a machine with
cores to spare, or where the run comes before others, they take nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Any

# Seconds of all cores in which they did something, or were lent to another machine.
_BUSY = tuple(f"machine_{name}_s" for name in ("user", "nice", "system", "irq", "softirq", "steal"))
# Of the process, of children that it has waited for, and of those that it has beside its workers.
_OWN = ("cpu_s", "children_cpu_s", "beside_cpu_s")
# Cores that others may use without the figures being called theirs too.
FEW = 0.2


def foreign_cores(
    lines: Sequence[Mapping[str, Any]], began: float | None = None, ended: float | None = None
) -> float | None:
    """Cores that other processes may have taken from a run between two moments.

    By lines of `resources.jsonl`; None where there are not two with such counters.
    """
    known = [
        line
        for line in lines
        if line.get("machine_user_s") is not None
        and line.get("cpu_s") is not None
        and (began is None or line["t"] >= began)
        and (ended is None or line["t"] <= ended)
    ]
    if len(known) < 2 or known[-1]["t"] <= known[0]["t"]:
        return None
    first, last = known[0], known[-1]
    all_busy = sum((last.get(name) or 0.0) - (first.get(name) or 0.0) for name in _BUSY)
    own = sum((last.get(name) or 0.0) - (first.get(name) or 0.0) for name in _OWN)
    before = {one["pid"]: one.get("cpu_s") or 0.0 for one in first.get("processes") or []}
    own += sum((one.get("cpu_s") or 0.0) - before.get(one["pid"], 0.0) for one in last.get("processes") or [])
    used = max(0.0, float(all_busy - own))
    waited = _queued(first, last)
    return (used if waited is None else min(used, waited)) / float(last["t"] - first["t"])


def _queued(first: Mapping[str, Any], last: Mapping[str, Any]) -> float | None:
    """Seconds that the process and its workers stood in the run queue; None where one did not tell."""
    before = {one.get("pid"): one.get("queued_s") for one in (first, *(first.get("processes") or ()))}
    now = {one.get("pid"): one.get("queued_s") for one in (last, *(last.get("processes") or ()))}
    if any(value is None for value in (*before.values(), *now.values())):
        return None
    return sum(max(0.0, float(value or 0.0) - float(before.get(pid) or 0.0)) for pid, value in now.items())
