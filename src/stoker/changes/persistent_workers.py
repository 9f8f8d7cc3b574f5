"""Workers that live on from epoch to epoch.

The draws of the process stay those of workers that are started anew (see `loaders`), so shuffles do too.
"""

from stoker.changes.change import Change, Switch
from stoker.changes.loaders import alter

CHANGE = Change(
    id="persistent_workers",
    of="loader",
    text="workers live on from epoch to epoch",
    kind="same",
    values=Switch(),
    apply=lambda value: alter("persistent_workers", value),
    backfires="workers never see what the script changes in its dataset between epochs, such as "
    "set_epoch (starVLA#471)",
)
