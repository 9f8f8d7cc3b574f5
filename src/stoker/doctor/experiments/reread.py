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
    opened = files.OpenedFiles()
    opened.listening = True
    again = maker.over(maker.indices, seconds)
    opened.listening = False
    yield "again", again.to_json()
    paths = opened.paths | files.open_here()
    yield "held", files.held_by(maker.dataset, paths)
    if again.disk is not None and again.asked and again.disk < _FROM_DISK * again.asked:
        yield "warm", again.to_json()
    else:
        yield from _counting("warm", maker.over(maker.indices[: again.batches], seconds), again)
    return again, paths


def reread_cold(maker: Maker, again: Pass, paths: set[str], seconds: float) -> Iterator[Telling]:
    """The same samples after their files were put out of the page cache; or why not."""
    why = files.evict(paths)
    if why is not None:
        yield "not cold", why
    else:
        yield from _counting("cold", maker.over(maker.indices[: again.batches], seconds), again)


def _counting(name: str, made: Pass, again: Pass) -> Iterator[Telling]:
    """A pass, unless the dataset had what it needed without asking for it."""
    if again.asked and (made.asked or 0.0) < _ASKED * again.asked:
        yield f"not {name}", "the dataset remembers what it has read"
    else:
        yield name, made.to_json()
