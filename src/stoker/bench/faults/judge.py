"""What a trial came to, judged by what was seen of it alone. Pure.

An error is clear when whoever sees it knows what is wrong, with which value, and what to do: one line, last
of all that was said. Whether the value is named is told by the row (`Ended.names`); whether there is
something to do, by the words that such a sentence has.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Outcome = Literal["goes_on", "clear_error", "unclear", "traceback", "left", "lost", "hung", "missed"]
OUTCOMES: tuple[Outcome, ...] = (
    "goes_on", "clear_error", "unclear", "traceback", "left", "lost", "hung", "missed",
)  # fmt: skip
GOOD: frozenset[Outcome] = frozenset({"goes_on", "clear_error"})
Speaks = Literal["verb", "library", "source", "script"]
_TRACEBACK = "Traceback (most recent call last)"
# What Python prints of errors that nobody hears.
_UNHEARD = (_TRACEBACK, "Exception ignored in", "Fatal Python error")
_VERB = re.compile(r"stoker: (?P<text>.+)")
_LIBRARY = re.compile(r"stoker\.errors\.\w+: (?P<text>.+)")
_OUR_FRAME = re.compile(r'File "[^"]*/stoker/(?!bench/)[^"]*", line')
# A sentence or a part of one that tells what to do, or what would be right.
_ADVICE = re.compile(
    r"(?:^|[.;:,(?!] |\bor (?:to )?|\band |\bto |`)(?:then )?"
    r"(?:ask|begin|cast|change|check|choose|close|convert|copy|cut|delete|did you mean|end|find|fit|free|"
    r"give|go on|install|is (?:it|its|the)|keep|leave|let|list|load|look|lower|make|measure|mend|mount|name|"
    r"open|pip|put|raise|read it|record|remove|resume|run|save|say|see|send|set|start|stoker|take|"
    r"the same command|there are|try|turn|use|wait|what to do|write)\b"
    r"|\bmust\b|\bat least\b|\bat most\b|\bneeded\b|[:;] it (?:is|has) |\b(?:go|count|counted) from\b"
    r"|\b(?:formats|columns) are\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a process that was left to itself came to its end; `code` is None where it did not in time.

    `speaks` is who explains an end that is no success. "verb": a command of Stoker's, in a line that begins
    with `stoker:`. "library": a script that uses Stoker, by an error of its tree. "source": the same, by an
    error of the user's own source, in which `own` is found. "script": a script of the user's that is
    observed, by an error of its own, with no frame of ours before it.
    What the explanation must name is the pattern `names`.
    """

    code: int | None
    said: str = ""
    speaks: Speaks = "verb"
    own: str = ""
    names: str = ""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What was seen of a trial.

    `counts` has for each thing how many there must be, and how many were found whole. `left` is what lies
    or runs there still. `met` says whether the fault fell on something: a kill after the end is none.
    """

    ended: tuple[Ended, ...]
    counts: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    left: tuple[str, ...] = ()
    met: bool = True
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What it came to, and why in a line."""

    outcome: Outcome
    why: str

    def to_json(self) -> dict[str, Any]:
        """Both."""
        return {"outcome": self.outcome, "why": self.why}


def judge(seen: Seen) -> Judged:
    """The worst that was seen."""
    for one in seen.ended:
        if one.code is None:
            return Judged(outcome="hung", why=f"no end in time; it last said: {last_line(one.said)}")
    for what, (expected, found) in seen.counts.items():
        if expected != found:
            return Judged(outcome="lost", why=f"{found} {what} of {expected}")
    for one in seen.ended:
        if (fault := _fault_of(one)) is not None:
            return fault
    if seen.left:
        return Judged(outcome="left", why=", ".join(seen.left))
    if not seen.met:
        return Judged(outcome="missed", why="the fault fell on nothing")
    told = [last_line(one.said) for one in seen.ended if one.code]
    if told:
        return Judged(outcome="clear_error", why=told[0])
    return Judged(outcome="goes_on", why=seen.note)


def last_line(said: str) -> str:
    """The last that was said; of several lines, what a person looks at."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _fault_of(one: Ended) -> Judged | None:
    """What is wrong with an end; None where nothing is."""
    last, is_ours = last_line(one.said), one.speaks in ("verb", "library")
    if one.code == 0:
        unheard = next((word for word in _UNHEARD if is_ours and word in one.said), None)
        return None if unheard is None else Judged(outcome="traceback", why=f"went on after: {last}")
    assert one.code is not None
    if one.code < 0:
        return Judged(outcome="unclear", why=f"died by signal {-one.code}; it last said: {last}")
    if not is_ours:
        if one.speaks == "script" and _OUR_FRAME.search(one.said):
            return Judged(outcome="traceback", why=f"frames of ours in the script's own error: {last}")
        if not re.search(one.own, last):
            return Judged(outcome="unclear", why=f"not the script's own error ({one.own}): {last}")
        return None
    if one.speaks == "verb" and _TRACEBACK in one.said:
        return Judged(outcome="traceback", why=last)
    found = (_VERB if one.speaks == "verb" else _LIBRARY).match(last)
    if found is None:
        outcome: Outcome = "traceback" if _TRACEBACK in one.said else "unclear"
        return Judged(outcome=outcome, why=last or f"code {one.code}, without a word")
    lacks = _lacks(found["text"], one.names)
    return None if lacks is None else Judged(outcome="unclear", why=f"{lacks}: {last}")


def _lacks(text: str, names: str) -> str | None:
    """What a message does not tell."""
    if names and not re.search(names, text):
        return f"it does not name {names}"
    if not _ADVICE.search(text):
        return "it does not say what to do"
    return None
