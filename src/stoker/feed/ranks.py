"""Which rank this is, of how many: as the process group says, else as the launcher's environment does."""

import os
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from stoker.errors import UsageError
from stoker.feed.arguments import checked_count


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """This rank, the number of ranks, and how many of them share this machine."""

    rank: int = 0
    world_size: int = 1
    on_node: int = 1


def find_ranks(rank: int | None = None, world_size: int | None = None) -> Ranks:
    """What was given, else what the process group or torchrun's environment tells."""
    if (rank is None) != (world_size is None):
        raise UsageError(f"rank is {rank!r} and world_size {world_size!r}: give both, or neither")
    on_node = _number("LOCAL_WORLD_SIZE", 1)
    if rank is not None and world_size is not None:
        rank = checked_count("rank", rank, "ranks before this one", least=0)
        world_size = checked_count("world_size", world_size, "ranks")
        if rank >= world_size:
            raise UsageError(f"no rank {rank} among {world_size}: ranks count from 0 to {world_size - 1}")
        return Ranks(rank=rank, world_size=world_size, on_node=max(1, min(on_node, world_size)))
    if has_group():
        world_size = dist.get_world_size()
        # A trainer that starts its ranks by itself sets no LOCAL_WORLD_SIZE; they may all be here.
        on_node = on_node if "LOCAL_WORLD_SIZE" in os.environ else world_size
        return Ranks(rank=dist.get_rank(), world_size=world_size, on_node=on_node)
    return Ranks(rank=_number("RANK", 0), world_size=_number("WORLD_SIZE", 1), on_node=on_node)


def has_group() -> bool:
    """Whether there is a process group."""
    return dist.is_available() and dist.is_initialized()


def launch_name() -> str:
    """What all ranks of one launch, and no others on this machine, have in common."""
    names = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")
    return "/".join([*(os.environ.get(name, "") for name in names), _process_space()])


def process_name() -> str:
    """What this process, and no other on this machine, is known by."""
    return f"{os.getpid()}/{_process_space()}"


def _process_space() -> str:
    """Containers may share their memory, and each have a process of the same number."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:  # there are none here
        return ""


def _number(name: str, otherwise: int) -> int:
    value = os.environ.get(name, "")
    return int(value) if value.isdigit() else otherwise
