"""How much of the machine others used beside a run: what was measured then is not the run's alone. Pure."""

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
    """Cores that other processes used between two moments, by lines of `resources.jsonl`.

    None where there are not two lines with such counters.
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
    return max(0.0, float(all_busy - own)) / float(last["t"] - first["t"])
