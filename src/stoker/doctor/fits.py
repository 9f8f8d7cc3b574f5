"""Whether something fits: `--fits batch=32,vram=8GB` answered from the memory budget. Pure."""

import re
from dataclasses import dataclass, replace
from typing import Any

from stoker.doctor.budget import Budget, is_too_much, largest_batch, most_workers, ram_with, vram_for
from stoker.errors import UsageError
from stoker.facts.words import size

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_ASKED = ("batch", "vram", "workers", "ram")
_EXAMPLE = "write it as batch=32,vram=8GB or workers=8,ram=16GB"


@dataclass(frozen=True, kw_only=True)
class Question:
    """A batch and workers that are to fit, into so many bytes; None: into what is free."""

    batch: int | None = None
    vram: int | None = None
    workers: int | None = None
    ram: int | None = None


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Whether it fits, with what it needs and what there is; None where that was not measured."""

    asked: str
    fits: bool | None
    need: int | None
    room: int | None
    most: int | None
    text: str

    def to_json(self) -> dict[str, Any]:
        """All of it, by name."""
        return dict(vars(self))


def parse(text: str) -> Question:
    """A question as it was typed."""
    found: dict[str, int] = {}
    for part in text.split(","):
        name, is_given, value = (word.strip() for word in part.partition("="))
        if name not in _ASKED or not is_given:
            raise UsageError(f"--fits cannot be asked {part.strip()!r}: {_EXAMPLE}")
        if name in found:
            raise UsageError(f"--fits has {name} twice: give it once")
        found[name] = _bytes(name, value) if name in ("vram", "ram") else _count(name, value)
    return Question(**found)


def _count(name: str, value: str) -> int:
    if not value.isascii() or not value.isdigit() or not int(value):
        raise UsageError(f"--fits {name} is {value!r}; it is a whole number from 1 on: {_EXAMPLE}")
    return int(value)


def _bytes(name: str, value: str) -> int:
    told = _SIZE.fullmatch(value)
    if told is None or not float(told[1]):
        raise UsageError(f"--fits {name} is {value!r}; it is a size like 8GB or 800MiB: {_EXAMPLE}")
    return int(float(told[1]) * (1024 if told[3] else 1000) ** _POWERS[told[2].lower()])


def answer(question: Question, budget: Budget) -> tuple[Answer, ...]:
    """One answer for the card, one for the host, as far as they were asked for."""
    answers = []
    if question.batch is not None or question.vram is not None:
        answers.append(_of_card(question, budget))
    if question.workers is not None or question.ram is not None:
        answers.append(_of_host(question, budget))
    return tuple(answers)


def _of_card(question: Question, budget: Budget) -> Answer:
    vram = budget.vram
    room = vram.free if question.vram is None else question.vram
    need = None if question.batch is None else vram_for(vram, question.batch)
    most = None if room is None else largest_batch(vram, room)
    into = "what is free on the card" if question.vram is None else size(question.vram)
    if most is None:
        reason = vram.why or ("how much is free is not known" if room is None else "no line was found")
        return _untold(question, "batch", into, reason)
    unsure = f" (not sure: {vram.why})" if vram.why else ""
    if question.batch is None or need is None or room is None:
        text = f"the largest batch for {into} is {most}{unsure}"
        return Answer(asked=f"batch in {into}", fits=None, need=None, room=room, most=most, text=text)
    fits = not is_too_much(need, room)
    told = f"needs {size(need.mid)} ({size(need.low)} to {size(need.high)})"
    if question.batch in vram.ran:
        told = f"has run with {size(need.mid)}"
    largest = f"the largest that does is {most}"
    if fits != (question.batch <= most):
        largest = f"needs do not grow evenly, and by those around it the largest that fits is {most}"
    text = (
        f"a batch of {question.batch} {told}: it {'fits' if fits else 'does not fit'} {into}; "
        f"{largest}{unsure}"
    )
    asked = f"batch {question.batch} in {into}"
    return Answer(asked=asked, fits=fits, need=need.mid, room=room, most=most, text=text)


def _of_host(question: Question, budget: Budget) -> Answer:
    ram = budget.ram
    if question.ram is not None:
        ram = replace(ram, free=question.ram // ram.ranks)
    need = None if question.workers is None else ram_with(ram, question.workers)
    most, by = most_workers(ram)
    into = "the memory that is free" if question.ram is None else size(question.ram)
    whose = "" if ram.tried is None else f" (a worker's memory is that of the {ram.tried} that were tried)"
    into += "" if ram.ranks == 1 else f" with {ram.ranks} ranks in it, each with as many"
    if most is None or (question.workers is not None and need is None):
        return _untold(question, "workers", into, ram.why or "no worker's memory was read")
    if question.workers is None or need is None:
        text = f"{most} workers fit {into}; {by} ends first{whose}"
        return Answer(asked=f"workers in {into}", fits=None, need=None, room=ram.free, most=most, text=text)
    fits = question.workers <= most
    text = (
        f"{question.workers} workers need {size(need)} in all: they {'fit' if fits else 'do not fit'} "
        f"{into}; {most} do, {by} ends first{whose}"
    )
    asked = f"workers {question.workers} in {into}"
    return Answer(asked=asked, fits=fits, need=need, room=ram.free, most=most, text=text)


def _untold(question: Question, what: str, into: str, reason: str) -> Answer:
    number = getattr(question, what)
    asked = f"{what}{'' if number is None else f' {number}'} in {into}"
    return Answer(
        asked=asked, fits=None, need=None, room=None, most=None, text=f"{asked}: cannot be told, {reason}"
    )
