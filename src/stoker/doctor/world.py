"""How many ranks are to be examined, and whether this process is the one that does it."""

from collections.abc import Mapping

import torch.distributed as dist

from stoker.errors import UsageError


def ranks_to_start(nproc: int | None, env: Mapping[str, str]) -> int | None:
    """Ranks of the scratch run; None where this is torchrun's second process or a later one.

    Under torchrun the first process starts all ranks aside, in one scratch run behind one write shield: they
    see each other's files, and end together. The others have nothing to do.
    """
    world = _number(env, "WORLD_SIZE", 1)
    if world == 1:
        return nproc or 1
    if nproc is not None:
        raise UsageError(
            f"--nproc {nproc} under a launcher that has started {world} ranks: leave one of the two out"
        )
    here = _number(env, "LOCAL_WORLD_SIZE", world)
    if here != world:
        raise UsageError(
            f"{here} of {world} ranks are on this host, and a diagnosis starts ranks of one host: examine "
            "those of one (torchrun --nnodes 1), or observe all (torchrun … -m stoker run --run-id NAME "
            "train.py), then stoker doctor NAME"
        )
    return world if _number(env, "RANK", 0) == 0 else None


def world_size() -> int:
    """Ranks that this process trains with; 1 where it trains alone."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def _number(env: Mapping[str, str], name: str, default: int) -> int:
    value = env.get(name, "")
    if not value:
        return default
    if not value.isdigit():
        raise UsageError(f"{name} is {value!r}: a launcher sets it to a number; unset it, or use torchrun")
    return int(value)
