"""float32 products by TensorFloat-32 on the cards that have it: 10 bits of mantissa in place of 23."""

from functools import partial

import torch

from stoker.changes.backends import put_over
from stoker.changes.change import Change, Switch


def _lacks(value: bool) -> str | None:
    if not torch.cuda.is_available():
        return "no CUDA device"
    return None if torch.cuda.is_tf32_supported() else "this card has no TF32"


def _set(value: bool) -> None:
    torch.set_float32_matmul_precision("high" if value else "highest")
    torch.backends.cudnn.allow_tf32 = value


CHANGE = Change(
    id="tf32",
    of="process",
    text="TF32 for float32 products and convolutions",
    kind="numerics",
    values=Switch(),
    apply=lambda value: put_over(partial(_set, value)),
    lacks=_lacks,
    backfires="what needs more than three digits of a product (solvers, long sums) may no longer converge",
)
