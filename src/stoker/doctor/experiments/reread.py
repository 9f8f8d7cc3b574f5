"""Samples that the loader handed out a moment ago, read again: warm, and cold where that can be shown.

A first reading that came from a disk and a second that does not say that the cache was cold. A second that
is as slow says that storage is read every time. How much is asked for in all, beside what the files hold,
says how often an epoch reads them.
"""

from collections.abc import Generator, Iterator

from stoker.doctor.experiments import files
from stoker.doctor.experiments.making import Maker, Telling
from stoker.doctor.experiments.passes import Pass

# Of what the first pass asked for: with less, the dataset answers from a memory of its own.
_ASKED = 0.5
# Of what was asked for, from a disk: less is a pass from memory.
_FROM_DISK = 0.1


def reread(maker: Maker, seconds: float) -> Generator[Telling, None, tuple[Pass, set[str]]]:
    """The same samples, and once more where they came from a disk; return the first pass, and its files."""
    maker.make(maker.indices[0])  # what is opened, imported or connected once is no part of a batch
    opened = files.OpenedFiles()
    opened.listening = True
    again = maker.over(maker.indices, seconds)
    opened.listening = False
    yield "again", again.to_json()
    paths = opened.paths | files.open_here()
    yield "held", files.held_by(maker.dataset, paths)
    warm = again if _from_memory(again) else maker.over(maker.indices[: again.batches], seconds)
    if _from_memory(warm):
        yield from _counting("warm", warm, again)
    else:
        yield "not warm", "what was read a moment before is not known to come from memory"
    return again, paths


def reread_cold(maker: Maker, again: Pass, paths: set[str], seconds: float) -> Iterator[Telling]:
    """The same samples after their files were put out of the page cache; or why not."""
    why = files.evict(paths)
    if why is not None:
        yield "not cold", why
    else:
        yield from _counting("cold", maker.over(maker.indices[: again.batches], seconds), again)


def _from_memory(made: Pass) -> bool:
    """Whether it is known that next to nothing came from a disk."""
    if made.disk is None or made.faults is None:
        return False
    return made.disk <= _FROM_DISK * (made.asked or 0.0) and made.faults < 1


def _counting(name: str, made: Pass, again: Pass) -> Iterator[Telling]:
    """A pass, unless the dataset had what it needed without asking for it."""
    if again.asked and (made.asked or 0.0) < _ASKED * again.asked:
        yield f"not {name}", "the dataset remembers what it has read"
    else:
        yield name, made.to_json()
