"""Several processes of one script on this host: torchrun's variables for each, and which one is spoken of."""

import socket
from collections.abc import Iterable, Mapping

import psutil

from stoker.facts.words import size

_RUN = "stoker"
# Of a torchrun that the caller itself stands under: its store is not this run's.
_ELASTIC = "TORCHELASTIC_"


def environments(env: Mapping[str, str], count: int) -> tuple[dict[str, str], ...]:
    """One for each process; of a script alone, as it is."""
    if count == 1:
        return (dict(env),)
    own = {name: value for name, value in env.items() if not name.startswith(_ELASTIC)}
    own.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does
    own |= {
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        # By these trainers know that their ranks are started already.
        "TORCHELASTIC_RUN_ID": _RUN,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        # There is no agent: rank 0 holds the store.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }
    return tuple(
        {**own, "RANK": str(rank), "LOCAL_RANK": str(rank), "ROLE_RANK": str(rank)} for rank in range(count)
    )


def no_progress(seconds: float, made: Mapping[int, int | None]) -> str:
    """Why ranks that were not heard of for so long are ended, and which of them are behind the others."""
    least = min(-1 if step is None else step for step in made.values())
    behind = sorted(rank for rank, step in made.items() if step is None or step == least)
    who = f"rank {', '.join(map(str, behind))}: " if len(behind) < len(made) else ""
    return f"{who}no progress for {seconds:g} s, at step {'n/a' if least < 0 else least}"


def most_of_it(processes: Iterable[psutil.Process]) -> str:
    """Which of several ranks holds the most memory, with its workers; nothing of a script alone."""
    held: dict[str, int] = {}
    for process in processes:
        try:
            rank = process.environ().get("RANK")
            if rank is not None:
                held[rank] = held.get(rank, 0) + process.memory_info().rss
        except psutil.Error:
            continue  # it ended meanwhile, or is not ours to look into
    if len(held) < 2:
        return ""
    most = max(held, key=lambda rank: held[rank])
    return f"; rank {most} holds most of it, {size(held[most])}"


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port
