"""Files harmed on purpose: bytes flipped, blanked, cut off, files gone or replaced; each by chance."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

Harm = Callable[[Path, Random], str]


def flip(path: Path, chance: Random) -> str:
    """Some bits of some bytes."""
    data = bytearray(path.read_bytes())
    if not data:
        return "nothing to flip"
    count = chance.randint(1, 4)
    for _ in range(count):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    _write(path, bytes(data))
    return f"{count} bits flipped in {path.name}"


def blank(path: Path, chance: Random) -> str:
    """Zeros over a part of it, as a power cut leaves blocks that were never written."""
    data = bytearray(path.read_bytes())
    begin = chance.randrange(max(1, len(data)))
    end = min(len(data), begin + chance.randint(1, 4096))
    data[begin:end] = bytes(end - begin)
    _write(path, bytes(data))
    return f"bytes {begin} to {end} of {path.name} zeroed"


def cut(path: Path, chance: Random) -> str:
    """All from some byte on."""
    size = chance.randrange(max(1, path.stat().st_size))
    os.truncate(path, size)
    return f"{path.name} cut to {size} bytes"


def empty(path: Path, chance: Random) -> str:
    """All of it."""
    os.truncate(path, 0)
    return f"{path.name} emptied"


def remove(path: Path, chance: Random) -> str:
    """It is gone."""
    path.unlink()
    return f"{path.name} removed"


def garble(path: Path, chance: Random) -> str:
    """Other bytes, as many."""
    _write(path, chance.randbytes(max(1, path.stat().st_size)))
    return f"{path.name} replaced by noise"


def age(path: Path, chance: Random) -> str:
    """Of JSON, another version's: its number is raised, lowered or left out."""
    text = path.read_text(errors="surrogateescape")
    for name in ('"schema"', '"format"', '"version"'):
        if name in text:
            other = chance.choice((f'{name}: 0, "was"', f'{name}: 99, "was"', '"unknown"'))
            path.write_text(text.replace(name, other), errors="surrogateescape")
            return f"{path.name} of another version"
    return flip(path, chance)


ALL: tuple[Harm, ...] = (flip, flip, blank, cut, empty, remove, garble, age)


def harm(paths: Sequence[Path], chance: Random, ways: Sequence[Harm] = ALL) -> str:
    """One of these files, in one of these ways; what was done."""
    return chance.choice(ways)(chance.choice(sorted(paths)), chance)


def _write(path: Path, data: bytes) -> None:
    """In place: whoever has it open sees it, and the file keeps its number."""
    with path.open("r+b") as file:
        file.write(data)
