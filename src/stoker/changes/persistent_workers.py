"""Workers that live on from epoch to epoch.

The draws of the process stay those of workers that are started anew (see `loaders`), so shuffles do too. Once
the script has set an attribute of its dataset to something else, they are started anew.
"""

from stoker.changes.change import Change, Switch
from stoker.changes.loaders import alter

CHANGE = Change(
    id="persistent_workers",
    of="loader",
    text="workers live on from epoch to epoch",
    kind="same",
    late=True,
    values=Switch(),
    apply=lambda value: alter("persistent_workers", value),
    backfires="what the script changes between epochs within lists, arrays or objects of its dataset workers "
    "never see; a number or a text that it sets, as set_epoch does, has them started anew (starVLA#471)",
)
