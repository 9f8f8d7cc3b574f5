"""What tuning does not do with several ranks. That is said, with what does work."""

from stoker.errors import UsageError


def refuse_sweep(ranks: int) -> None:
    """Refuse a sweep of the learning rate over several ranks: each has a loss of its own."""
    if ranks > 1:
        raise UsageError(
            f"--lr with {ranks} ranks: the loss that a sweep follows is that of one process. What to do: "
            "sweep the script as one process, with the batch that all ranks have together"
        )


def refuse_spawned(ranks: int) -> None:
    """Refuse a script that starts its ranks itself, as the diagnosis has seen."""
    if ranks > 1:
        raise UsageError(
            f"the script starts {ranks} ranks itself, and only ranks that a launcher starts are tuned. "
            f"What to do: let a launcher start them (torchrun), then stoker tune --nproc {ranks} SCRIPT"
        )
