"""Several processes of one script on this host, with the variables that torchrun would give each of them."""

import socket
from collections.abc import Mapping

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


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port
