"""What the storage experiments found, as values: passes over the same samples, and what they tell."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self


@dataclass(frozen=True, kw_only=True)
class Pass:
    """So many batches, made one after another by one process. Seconds, bytes and faults are means a batch.

    `asked` is what the process asked of the kernel by read(), all its threads together, `disk` what of it
    came from a disk, `received` what came over TCP; memory maps show as `faults` alone.
    """

    batches: int
    seconds: float
    cpu: float
    asked: float | None = None
    disk: float | None = None
    faults: float | None = None
    received: float | None = None

    @property
    def busy(self) -> float:
        """CPU time over wall time; threads of a library may make it more than 1."""
        return self.cpu / self.seconds if self.seconds else 0.0

    def to_json(self) -> dict[str, Any]:
        """The pass as a message holds it."""
        return asdict(self)

    @classmethod
    def from_json(cls, told: Mapping[str, Any] | None) -> Self | None:
        """The pass that a message told of; None where it was not made."""
        return None if told is None else cls(**{one.name: told[one.name] for one in fields(cls)})


@dataclass(frozen=True, kw_only=True)
class Reread:
    """Samples that the loader had handed out, read again.

    `again` is the first such pass, `warm` one after it, `cold` one after the files were put out of the page
    cache, and shown to be out of it. `held` is how many bytes the files of the dataset hold.
    """

    again: Pass
    warm: Pass | None = None
    cold: Pass | None = None
    held: int | None = None


@dataclass(frozen=True, kw_only=True)
class Stub:
    """Seconds a batch with nothing stubbed, with reads answered from memory, and with whole samples so.

    The last is what collating alone takes. None: what was to be answered could not be intercepted.
    """

    nothing: float
    reads: float | None = None
    samples: float | None = None

    @property
    def reading(self) -> float | None:
        """Seconds a batch that go into reads."""
        return None if self.reads is None else max(0.0, self.nothing - self.reads)


def read_reread(told: Mapping[str, Any]) -> Reread | None:
    """From the message of the experiments."""
    passes = told.get("passes") or {}
    again = Pass.from_json(passes.get("again"))
    if again is None:
        return None
    return Reread(
        again=again,
        warm=Pass.from_json(passes.get("warm")),
        cold=Pass.from_json(passes.get("cold")),
        held=told.get("held"),
    )


def read_stub(told: Mapping[str, Any]) -> Stub | None:
    """From the message of the experiments."""
    seconds = told.get("stub") or {}
    if seconds.get("nothing") is None:
        return None
    return Stub(nothing=seconds["nothing"], reads=seconds.get("reads"), samples=seconds.get("samples"))
