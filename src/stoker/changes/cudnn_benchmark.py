"""cuDNN tries its algorithms at each new shape and keeps the fastest."""

from functools import partial

import torch

from stoker.changes.backends import put_over
from stoker.changes.change import Change, Switch


def _set(value: bool) -> None:
    torch.backends.cudnn.benchmark = value


CHANGE = Change(
    id="cudnn_benchmark",
    of="process",
    text="cuDNN tries its algorithms and keeps the fastest",
    kind="numerics",
    values=Switch(),
    apply=lambda value: put_over(partial(_set, value)),
    lacks=lambda value: None if torch.backends.cudnn.is_available() else "no cuDNN",
    backfires="every new shape is tried anew: with shapes that change it is slower; workspaces take memory",
)
