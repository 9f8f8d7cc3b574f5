"""What a case of the ward is: a plain script, how it is run, and what is wrong with it."""

from dataclasses import dataclass, replace
from typing import Literal

# What a cause costs: time in every step, memory (the rate stays), or the run itself.
Effect = Literal["time", "memory", "death"]
# Verdicts that name nothing to cure.
NO_ALARM = ("healthy", "compute-bound")


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Something around the script while it runs, by the name of its maker in `surroundings.py`."""

    name: str
    value: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Data:
    """Files that a script of `cases/data` makes in the case's folder; cold: out of the page cache."""

    maker: str
    args: tuple[str, ...]
    cold: bool = False


@dataclass(frozen=True, kw_only=True)
class Neutral:
    """The same script without its cause: what differs, `None` for what stays as it is."""

    args: tuple[str, ...] | None = None
    data: tuple[Data, ...] | None = None
    setup: tuple[Setup, ...] | None = None
    # Steps of the case for each of these: where the batch differs, rates are compared by samples.
    steps: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run whose cause is known, because it was put there."""

    id: str
    # The name of a file in `cases/`, and what it is started with.
    script: str
    args: tuple[str, ...] = ()
    # An id of the catalogue of causes, or `healthy` or `compute-bound`.
    cause: str
    # Which of the cause's variants this is, in words.
    variant: str
    # Of a cause with several reasons, the change that cures this one: what the doctor must propose first.
    cure: str | None = None
    # Causes that are true of it as well, in order; not to be named first.
    also: tuple[str, ...] = ()
    # The look-alike pairs that it is one half of.
    lookalikes: tuple[int, ...] = ()
    # What the machine must have; see `needs.py`.
    needs: tuple[str, ...] = ()
    setup: tuple[Setup, ...] = ()
    data: tuple[Data, ...] = ()
    neutral: Neutral | None = None
    effect: Effect = "time"
    # Processes that torchrun starts; 1: the script alone.
    ranks: int = 1
    # The field note whose situation it is.
    seed: str | None = None

    def without_cause(self) -> "Case":
        """The same run with nothing wrong, to measure what the cause costs."""
        if self.neutral is None:
            raise ValueError(f"case {self.id} has no neutral form: give it one in the register")
        changed = {
            name: value
            for name in ("args", "data", "setup")
            if (value := getattr(self.neutral, name)) is not None
        }
        named = replace(self, id=f"{self.id}-neutral", cause="healthy", also=(), neutral=None, lookalikes=())
        return replace(named, **changed)
