"""The finder of workers and prefetch, which stands on its own: `stoker tune --workers`.

Its search is tune's, of these two changes alone: from where the model says that workers are best, and not at
all where the evidence says that more won't help.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from stoker.tune.finding import DEFAULT_BUDGET, Found, find
from stoker.watch.record import default_root


def find_workers(
    command: Sequence[str],
    *,
    budget: float = DEFAULT_BUDGET,
    home: Path | None = None,
    ranks: int = 1,
    offline: bool = False,
    tell: Callable[[str], None] = lambda line: None,
) -> Found:
    """Find them for a script: `find_workers(["train.py", "--lr", "0.1"]).tuned.settings`.

    The settings are empty where the script's own are not beaten; `tuned.not_tried` says what was not tried,
    and why. Trials are kept under `home`, the `.stoker` of this folder unless told otherwise. Workers are
    those of each of the `ranks`. `offline` cuts the script off the network.
    """
    place = default_root().absolute().parent if home is None else home
    return find(command, home=place, budget=budget, finds="workers", ranks=ranks, offline=offline, tell=tell)
