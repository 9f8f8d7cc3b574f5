"""Workers on every core that there is, whatever mask they inherit."""

import os

from stoker.changes.change import Change, Choice
from stoker.changes.loaders import alter_in_workers


def _lacks(value: str) -> str | None:
    return None if hasattr(os, "sched_setaffinity") else "this platform has no affinity mask"


CHANGE = Change(
    id="worker_affinity",
    of="loader",
    text="workers may run on every core, whatever mask they inherit",
    kind="same",
    values=Choice(("all",)),
    apply=lambda value: alter_in_workers("affinity", value),
    lacks=_lacks,
    backfires="a mask that was set on purpose, to keep other jobs' cores free, is undone",
)
