"""`stoker.toml` written: the changes that were kept, with what was measured beside each."""

import contextlib
import json
import re
import shlex
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stoker.errors import NotPermitted, UsageError
from stoker.tune.comparison import Ratio
from stoker.tune.tuned import Tuned, ratio_as_json

_OURS = re.compile(r"\s*\[\s*changes\s*\]\s*(#.*)?$")


def check(path: Path) -> None:
    """Refuse a place at which settings cannot be written; nothing there is changed."""
    if path.is_dir():
        raise UsageError(f"--out {path} is a folder: name a file in it, {path / 'stoker.toml'}")
    if not path.parent.is_dir():
        raise UsageError(f"--out {path}: there is no folder {path.parent}: make it, or name another place")
    _rest(path)
    part = _part(path)
    try:
        part.touch()
        part.unlink()
    except OSError as error:
        raise _unwritable(path, error) from None


def write(path: Path, tuned: Tuned, command: str, ledger: Path, ranks: int = 1) -> None:
    """Whole or not at all; what a settings file says beside changes is kept. `command` is quoted."""
    made_by = f"stoker tune {command}" if ranks == 1 else f"stoker tune --nproc {ranks} {command}"
    rest = _rest(path)
    notes = [
        _note(f"Made by `{made_by}`; trials: {ledger}"),
        _note(
            f"{tuned.baseline:.5g} {tuned.unit}s/s as it was, {tuned.best:.5g} with these"
            + (f": {_times(tuned.ratio)}" if tuned.ratio is not None else "")
        ),
        _note(f"Use them: {use(path.name, command, ranks)}. Undo them: remove this file."),
    ]
    text = rest.around(notes, as_lines(tuned))
    _read_back(path, text, tuned)
    part = _part(path)
    try:
        part.write_text(text, encoding="utf-8", errors="backslashreplace")
        part.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):  # the error above tells what is wrong with that folder
            part.unlink(missing_ok=True)
        raise _unwritable(path, error) from None


def _note(text: str) -> str:
    """A comment, of one line whatever it tells: TOML has no control characters in it."""
    return f"# {''.join(_escaped(one) for one in text)}"


def _read_back(path: Path, text: str, tuned: Tuned) -> None:
    """Refuse a text from which the settings would not come back; the file is as it was then."""
    try:
        said = tomllib.loads(text).get("changes")
    except tomllib.TOMLDecodeError as error:
        said = str(error)
    if said != dict(tuned.settings):
        raise UsageError(
            f"settings for {path} would not be read back as they are ({said}), so it is not written: put "
            f"them there by hand: {dict(tuned.settings)}"
        )


def _part(path: Path) -> Path:
    return path.with_name(f".{path.name}.part")


def _unwritable(path: Path, error: OSError) -> NotPermitted:
    return NotPermitted(f"settings cannot be written to {path} ({error.strerror}): name another --out FILE")


def use(path: str, command: str, ranks: int) -> str:
    """How settings are put over a script, whose command is words for a shell."""
    run = "stoker run" if ranks == 1 else f"torchrun --nproc-per-node {ranks} -m stoker run"
    return f"{run} --with {as_words([path])} {command}"


def as_words(command: Sequence[str]) -> str:
    """A command as it is typed, in one line that shows: `train.py --name 'two words' $'a\\nb'`."""
    return " ".join(shlex.quote(word) if word.isprintable() else _quoted(word) for word in command)


def _quoted(word: str) -> str:
    """As bash and zsh take what does not show: what is escaped, between $' and '."""
    escaped = "".join(f"\\{one}" if one in "\\'" else _escaped(one) for one in word)
    return f"$'{escaped}'"


def _escaped(one: str) -> str:
    """A character that shows as it is, others by their number; of a byte that is no text, the byte."""
    at = ord(one)
    if one.isprintable():
        return one
    if 0xDC80 <= at <= 0xDCFF:
        return f"\\x{at - 0xDC00:02x}"
    plain = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return plain.get(one) or (
        f"\\x{at:02x}" if at < 0x80 else f"\\u{at:04x}" if at < 1 << 16 else f"\\U{at:08x}"
    )


def as_lines(tuned: Tuned) -> list[str]:
    """The changes that are kept, each with what it gained over those before it, and what it means."""
    lines = ["[changes]"]
    for name, value in tuned.settings.items():
        one = next(
            one
            for one in tuned.tried
            if one.outcome == "kept" and (one.candidate.change, one.candidate.value) == (name, value)
        )
        gained = "" if one.ratio is None else f"{_times(one.ratio)} as fast; "
        lines += [_note(f"{gained}{one.reason}"), f"{name} = {_toml(value)}"]
    return lines


@dataclass(frozen=True, kw_only=True)
class _Rest:
    """What is in the file apart from its table of changes and our own notes: before it, and behind.

    TOML has keys of no table before the first one.
    """

    keys: list[str]
    tables: list[str]

    def around(self, notes: list[str], changes: list[str]) -> str:
        """All of it, whole."""
        parts = (notes, self.keys, changes, self.tables)
        return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _rest(path: Path) -> _Rest:
    if not path.exists():
        return _Rest(keys=[], tables=[])
    try:
        text = path.read_text()
        said = tomllib.loads(text)
        lines = text.strip().splitlines()
        while lines and lines[0].startswith("#"):  # our notes, or those of whoever wrote it before us
            del lines[0]
        kept: dict[str, list[str]] = {"keys": [], "tables": [], "changes": []}
        now = "keys"
        for line in lines:
            if line.lstrip().startswith("["):
                now = "changes" if _OURS.match(line) else "tables"
            kept[now].append(line)
        rest = _Rest(keys=_trimmed(kept["keys"]), tables=_trimmed(kept["tables"]))
        again = tomllib.loads(rest.around([], []))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(
            f"{path} cannot be read, so it is not written over: {error}; mend it, or name another --out"
        ) from None
    said.pop("changes", None)
    if again != said:  # `changes.feed = …`, or a line of a long string that looks like a table's
        raise UsageError(
            f"what {path} says beside its changes cannot be told from them, so it is not written over: give "
            "them a table, [changes], or name another --out"
        )
    return rest


def _trimmed(lines: list[str]) -> list[str]:
    return "\n".join(lines).strip().splitlines()


def _toml(value: Any) -> str:
    return json.dumps(value)  # numbers, words, true and false are written alike


def _times(ratio: Ratio) -> str:
    return f"{ratio.mid:.3g} times ({ratio.within})"


def as_json(tuned: Tuned) -> dict[str, Any]:
    """The search as `stoker tune --json` prints it."""
    return {
        "schema": 1,
        "baseline": tuned.baseline,
        "best": tuned.best,
        "unit": tuned.unit,
        "ratio": ratio_as_json(tuned.ratio),
        "last_pair": None if tuned.last_pair is None else asdict(tuned.last_pair),
        "trials": [one.to_json() for one in tuned.tried],
        "runs": tuned.runs,
        "not_tried": list(tuned.not_tried),
        "stopped": tuned.stopped,
        "settings": dict(tuned.settings),
    }
