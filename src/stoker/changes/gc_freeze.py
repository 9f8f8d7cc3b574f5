"""What lives when training begins is not looked through by the garbage collector any more."""

import gc

from torch.optim.optimizer import register_optimizer_step_post_hook

from stoker.changes.change import Change, Switch

# Steps after which what is there stays: states of the optimizer, the loader's workers.
_SETTLED = 10


def _apply(value: bool) -> None:
    if not value:
        return
    made = 0

    def stepped(*_: object) -> None:
        nonlocal made
        made += 1
        if made == _SETTLED:
            gc.collect()
            gc.freeze()

    # It stays: torch goes through all such hooks, and one that goes as it is called ends the script.
    register_optimizer_step_post_hook(stepped)


CHANGE = Change(
    id="gc_freeze",
    of="process",
    text="what lives after 10 steps is not looked through for garbage any more",
    kind="same",
    values=Switch(),
    apply=_apply,
    backfires="cycles among what was frozen are never freed",
)
