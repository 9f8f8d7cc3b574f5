"""What may be asked for: a workload with its typed config, or a script of an allowed folder. Nothing else.

    read(parse(b'{"workload": "sar", "config": {"train": {"epochs": 3}}}'), policy).request

A body without `workload` and `script` is the field note's own, which trains Heimdall. Whatever is wrong is
refused with the field's path and what is allowed there (`JobRefused`).
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from stoker.errors import JobRefused, Problem, UsageError, WrongSetting
from stoker.jobs.job import Request
from stoker.jobs.note import in_its_words, is_note, translate
from stoker.jobs.places import Places
from stoker.train.config_file import build, to_values
from stoker.workloads import NAMES, find

# Deeper than any config; and short of what Python's own recursion bears.
_DEEPEST = 16
_LONGEST_NAME, _LONGEST_TEXT, _MOST_ARGUMENTS = 200, 4096, 200
_MOST_BYTES = 1 << 50
_WORKLOAD = ("job_name", "workload", "config", "gpus", "vram_bytes", "ram_bytes")
_SCRIPT = ("job_name", "script", "arguments", "gpus", "vram_bytes", "ram_bytes")
_NOTE = ("job_name", "config")
# Tabs and line breaks may be in an argument; nothing else that does not print, and no half of a character.
_BROKEN = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What this server lets be asked for."""

    places: Places
    # The database of requests that name none; None: a set is made.
    database: str | None = None
    # Cards here: what a training with device "auto" takes one of.
    cards: int = 0


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A request that may be, and what its sender should know of it."""

    request: Request
    notes: tuple[str, ...] = ()


def parse(raw: bytes) -> Any:
    """A body's JSON, which has only what JSON has: no NaN, no number or depth that breaks a reader."""
    try:
        value = json.loads(raw.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        _refuse("", f"the body is not UTF-8: {error.reason} at byte {error.start}")
    except RecursionError:
        _refuse("", f"the body is nested too deep: at most {_DEEPEST} levels")
    except ValueError as error:
        _refuse("", f"the body is no JSON: {error}")
    for path, one in _walk(value, ""):
        if isinstance(one, str) and _BROKEN.search(one):
            _refuse(path, "text with control characters or half of a character: leave them out")
    return value


def read(body: Any, policy: Policy) -> Reading:
    """The request that a body asks for; JobRefused."""
    if not isinstance(body, Mapping):
        _refuse("", f"the body is {_kind(body)}: it must be an object with `workload` or `script`")
    if "workload" in body and "script" in body:
        _refuse("script", "a job is a workload or a script, not both: leave one out")
    if "script" in body:
        return Reading(request=_read_script(body, policy))
    if "workload" in body:
        return Reading(request=_read_workload(body, policy))
    if is_note(body):
        _known(body, _NOTE)
        config, notes = translate(body["config"], policy.database)
        asked = {"job_name": body["job_name"], "workload": "heimdall", "config": config}
        try:
            return Reading(request=_read_workload(asked, policy), notes=notes)
        except JobRefused as error:
            raise JobRefused(*map(in_its_words, error.problems)) from error
    known = (*_WORKLOAD, "script", "arguments")
    _known(body, known)
    told = "missing: say what to train, or name a `script`"
    raise JobRefused(Problem(field="workload", text=told, allowed=NAMES))


def _read_workload(body: Mapping[str, Any], policy: Policy) -> Request:
    _known(body, _WORKLOAD)
    name = body["workload"]
    if not isinstance(name, str) or name not in NAMES:
        _refuse("workload", f"no workload {_shown(name)}", NAMES)
    given = body.get("config", {})
    if not isinstance(given, Mapping):
        _refuse("config", f"it is {_kind(given)}: it must be an object of settings")
    try:
        made = build(find(name).config, given)
    except WrongSetting as error:
        _refuse(".".join(("config", *error.path)), str(error), error.allowed or ())
    except UsageError as error:
        _refuse("config", str(error))
    config = to_values(made)
    policy.places.check(name, config, policy.database)
    devices = int(config["train"]["devices"])
    gpus = {"cpu": 0, "cuda": devices, "auto": devices if policy.cards else 0}[config["train"]["device"]]
    return Request(name=_name(body, name), workload=name, config=config, **_needs(body, gpus))


def _read_script(body: Mapping[str, Any], policy: Policy) -> Request:
    _known(body, _SCRIPT)
    script = policy.places.find_script(body["script"])
    arguments = body.get("arguments", [])
    if not isinstance(arguments, list) or not all(isinstance(one, str) for one in arguments):
        _refuse("arguments", f"it is {_shown(arguments)}: it must be a list of texts")
    if len(arguments) > _MOST_ARGUMENTS or any(len(one) > _LONGEST_TEXT for one in arguments):
        _refuse("arguments", f"at most {_MOST_ARGUMENTS}, each of at most {_LONGEST_TEXT} characters")
    needs = _needs(body, min(policy.cards, 1))
    return Request(name=_name(body, script.stem), script=str(script), arguments=tuple(arguments), **needs)


def _name(body: Mapping[str, Any], otherwise: str) -> str:
    if "job_name" not in body:
        return otherwise
    name = body["job_name"]
    if not isinstance(name, str) or not name.strip():
        _refuse("job_name", f"it is {_shown(name)}: it must be a text that is not empty, or left out")
    if len(name) > _LONGEST_NAME or any(sign in name for sign in "\t\r\n"):
        _refuse("job_name", f"it must be one line of at most {_LONGEST_NAME} characters")
    return name.strip()


def _needs(body: Mapping[str, Any], gpus: int) -> dict[str, Any]:
    """Cards and memory that must be free."""
    found: dict[str, Any] = {"gpus": gpus}
    for name, most in (("gpus", 1024), ("vram_bytes", _MOST_BYTES), ("ram_bytes", _MOST_BYTES)):
        if name in body:
            value = body[name]
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
                _refuse(name, f"it is {_shown(value)}: it must be a whole number from 0 to {most}")
            found[name] = value
    return found


def _known(body: Mapping[str, Any], names: Sequence[str]) -> None:
    for name in body:
        if name not in names:
            _refuse(str(name), "no such field here", names)


def _walk(value: Any, path: str, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Every key and value, with the path of its field."""
    if depth > _DEEPEST:
        _refuse(path, f"nested too deep: at most {_DEEPEST} levels")
    if isinstance(value, dict):
        for name, inner in value.items():
            yield path, name
            yield from _walk(inner, f"{path}.{name}" if path else name, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            yield from _walk(inner, path, depth + 1)
    else:
        yield path, value


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number there")


def _refuse(field: str, text: str, allowed: Sequence[Any] = ()) -> NoReturn:
    raise JobRefused(Problem(field=field, text=text, allowed=tuple(map(_word, allowed))))


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _shown(value: Any) -> str:
    told = repr(value)
    return told if len(told) <= _LONGEST_NAME else f"{told[:_LONGEST_NAME]}…"


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
