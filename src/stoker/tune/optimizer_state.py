"""An optimizer's state kept aside and put back in place, bit by bit.

`load_state_dict` does not: it casts what an optimizer holds to the type of its parameter, and makes new
groups, where a scheduler or a script may hold the old ones.
"""

import copy
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch.optim import Optimizer


def keep(optimizer: Optimizer) -> Callable[[], None]:
    """Keep groups and state as they are now; what is returned puts them back, into the same objects.

    The parameters themselves are not kept here.
    """
    own = {id(one) for group in optimizer.param_groups for one in group["params"]}
    groups, state = _keep(optimizer.param_groups, own), _keep(optimizer.state, own)

    def put_back() -> None:
        with torch.no_grad():
            groups()
            state()

    return put_back


def _keep(value: Any, own: Collection[int]) -> Callable[[], Any]:
    """What gives a value back as it is now: the same object, with what was in it."""
    if isinstance(value, torch.Tensor):
        return _keep_tensor(value, own)
    if isinstance(value, dict):
        return _keep_dict(value, own)
    if isinstance(value, list):
        return _keep_list(value, own)
    kept = copy.deepcopy(value)
    return lambda: kept


def _keep_tensor(value: torch.Tensor, own: Collection[int]) -> Callable[[], torch.Tensor]:
    if id(value) in own:
        return lambda: value
    kept = value.detach().clone()
    return lambda: value.copy_(kept)


def _keep_dict(value: dict[Any, Any], own: Collection[int]) -> Callable[[], dict[Any, Any]]:
    items = {key: _keep(one, own) for key, one in value.items()}

    def put_back() -> dict[Any, Any]:
        value.clear()
        value.update({key: one() for key, one in items.items()})
        return value

    return put_back


def _keep_list(value: list[Any], own: Collection[int]) -> Callable[[], list[Any]]:
    items = [_keep(one, own) for one in value]

    def put_back() -> list[Any]:
        value[:] = [one() for one in items]
        return value

    return put_back
