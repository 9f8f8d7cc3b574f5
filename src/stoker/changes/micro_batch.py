"""Batches go through the model in parts, and one update is made of all parts of a batch."""

from stoker.changes import held
from stoker.changes.change import Change, Whole


def _told(value: int) -> list[str]:
    parts = held.installed()
    if parts is None or not parts.largest:
        return ["no loader was iterated for training: micro_batch had no effect"]
    if not parts.divided:
        return [f"no batch had more than {parts.largest} samples: micro_batch had no effect"]
    lines = [f"changed: {parts.divided} batches of up to {parts.largest} samples in parts of up to {value}"]
    if parts.batch_norm:
        lines.append(
            f"{parts.batch_norm} sees a part, not a batch: with it micro_batch is of kind optimization"
        )
    if parts.left_out:
        lines.append(f"{parts.left_out} batches were left out: the loop trained on some of their parts only")
    return lines


CHANGE = Change(
    id="micro_batch",
    of="update",
    text="batches go through the model in parts; step, zero_grad, schedulers and clipping wait for the last",
    kind="numerics",
    values=Whole(1, 1 << 24),
    apply=held.install,
    told=_told,
    check="weights",
    backfires="a loss that is no mean over samples is weighed wrongly; dropout draws otherwise; what a loop "
    "counts itself (steps, losses averaged over len(loader), a moving average of weights) counts parts",
)
