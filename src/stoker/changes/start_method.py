"""How worker processes are started."""

import multiprocessing

from stoker.changes.change import Change, Choice
from stoker.changes.loaders import alter


def _lacks(value: str) -> str | None:
    here = multiprocessing.get_all_start_methods()
    return None if value in here else f"this platform has only {', '.join(here)}"


CHANGE = Change(
    id="start_method",
    of="loader",
    text="how workers are started",
    kind="same",
    values=Choice(("fork", "forkserver", "spawn")),
    apply=lambda value: alter("start_method", value),
    lacks=_lacks,
    backfires="spawn and forkserver pickle the dataset for each worker; fork after CUDA or threads can hang",
)
