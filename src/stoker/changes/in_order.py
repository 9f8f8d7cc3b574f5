"""Batches in the sampler's order, or as they are ready."""

from stoker.changes.change import Change, Switch
from stoker.changes.loaders import alter

CHANGE = Change(
    id="in_order",
    of="loader",
    text="hand batches out in the sampler's order",
    kind="optimization",
    values=Switch(),
    apply=lambda value: alter("in_order", value),
    backfires="without it slow samples come later than they were drawn, and no run is like another",
)
