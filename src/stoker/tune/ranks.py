"""What tuning does not do: trials of several ranks. That is said, with what does work."""

from collections.abc import Mapping

from stoker.doctor.world import ranks_to_start
from stoker.errors import UsageError


def refuse_launched(env: Mapping[str, str]) -> bool:
    """Refuse to tune under a launcher of several ranks; whether this is one of those that say nothing."""
    ranks = ranks_to_start(None, env)
    if ranks is not None and ranks > 1:
        raise refusal(f"a launcher has started {ranks} ranks of stoker tune", ranks)
    return ranks is None


def refusal(what: str, ranks: int) -> UsageError:
    """What is not done, and what is."""
    return UsageError(
        f"{what}, and its trials are of one process: only its micro-batch finder runs several ranks (stoker "
        f"tune --micro-batch --nproc {ranks} SCRIPT). What to do: tune the script as one process (stoker "
        f"tune SCRIPT), then use what is kept for all ranks: torchrun --nproc-per-node {ranks} -m stoker run "
        "--with stoker.toml SCRIPT"
    )


def refuse_spawned(ranks: int) -> None:
    """Refuse a script that starts its ranks itself, as the diagnosis has seen."""
    if ranks > 1:
        raise UsageError(
            f"the script starts {ranks} ranks itself, and trials are of one process. What to do: have it "
            "start one rank, and tune that"
        )
