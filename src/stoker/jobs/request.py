"""What may be asked for: a workload with its typed config, or a script of an allowed folder. Nothing else.

    read(parse(b'{"workload": "sar", "config": {"train": {"epochs": 3}}}'), policy).request

A body without `workload` and `script` is the field note's own, which trains Heimdall. Whatever is wrong is
refused with the field's path and what is allowed there (`JobRefused`).
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from stoker.errors import JobRefused, Problem, WrongSettings
from stoker.facts.secrets import is_hidden
from stoker.jobs.job import Request
from stoker.jobs.note import in_its_words, is_note, translate
from stoker.jobs.places import Places
from stoker.train.config_file import build, to_values
from stoker.workloads import NAMES, find

# Deeper than any config; and short of what Python's own recursion bears.
_DEEPEST = 16
_LONGEST_NAME, _LONGEST_TEXT, _MOST_ARGUMENTS, _MOST_TOLD = 200, 4096, 200, 50
_MOST_BYTES = 1 << 50
_WORKLOAD = ("job_name", "workload", "config", "gpus", "vram_bytes", "ram_bytes")
_SCRIPT = ("job_name", "script", "arguments", "gpus", "vram_bytes", "ram_bytes")
_NOTE = ("job_name", "config")
# The workload whose data are the server's database, unless it is told of others by one of these.
_RADIO, _OTHER_DATA = "heimdall", frozenset({"database", "made", "fill"})
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
    # What the machine has that jobs run on; None: they run elsewhere, or it is not known.
    most_gpus: int | None = None
    most_ram_bytes: int | None = None
    # Of the largest card.
    most_vram_bytes: int | None = None

    def check(self, request: Request) -> None:
        """JobRefused where a request that was taken once is not allowed now."""
        self.places.check(request, self.database)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A request that may be, and what its sender should know of it."""

    request: Request
    notes: tuple[str, ...] = ()


def notes_of(request: Request, policy: Policy) -> tuple[str, ...]:
    """What its sender should know of a request that was taken before."""
    return _made_instead(request, policy)


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
    told = "text with control characters or half of a character: leave them out"
    found = _walk(value, "")
    _raise([_problem(path, told) for path, one in found if isinstance(one, str) and _BROKEN.search(one)])
    return value


def read(body: Any, policy: Policy) -> Reading:
    """The request that a body asks for; JobRefused, with all that is wrong with it."""
    if not isinstance(body, Mapping):
        _refuse("", f"the body is {_kind(body)}: it must be an object with `workload` or `script`")
    if "workload" in body and "script" in body:
        _refuse("script", "a job is a workload or a script, not both: leave one out")
    if "script" in body:
        return Reading(request=_read_script(body, policy))
    if "workload" in body:
        return _read_workload(body, policy)
    if is_note(body):
        return _read_note(body, policy)
    missing = _problem("workload", "missing: say what to train, or name a `script`", NAMES)
    raise _refusal([*_unknown(body, (*_WORKLOAD, "script", "arguments")), missing])


def _read_note(body: Mapping[str, Any], policy: Policy) -> Reading:
    """Its settings in their places; what is wrong with them by the note's own names."""
    config, notes, problems = translate(body["config"], policy.database)
    asked = {"job_name": body["job_name"], "workload": "heimdall", "config": config}

    def reading() -> Reading:
        try:
            return _read_workload(asked, policy)
        except JobRefused as error:
            raise JobRefused(*map(in_its_words, error.problems)) from error

    _, made = _together(lambda: _raise([*_unknown(body, _NOTE), *problems]), reading)
    return Reading(request=made.request, notes=(*notes, *made.notes))


def _read_workload(body: Mapping[str, Any], policy: Policy) -> Reading:
    name = body["workload"]
    is_known = isinstance(name, str) and name in NAMES

    def config() -> dict[str, Any]:
        if not is_known:
            _refuse("workload", f"no workload {_shown(name)}", NAMES)
        return _read_config(name, body.get("config", {}), policy)

    _, values, called, needs = _together(
        lambda: _raise(_unknown(body, _WORKLOAD)), config, lambda: _name(body, name), lambda: _needs(body)
    )
    devices = int(values["train"]["devices"])
    gpus = {"cpu": 0, "cuda": devices, "auto": devices if policy.cards else 0}[values["train"]["device"]]
    request = Request(name=called, workload=name, config=values, **{"gpus": gpus, **needs})
    _raise(_too_much(request, policy, "gpus" if "gpus" in needs else "config.train.devices"))
    return Reading(request=request, notes=_made_instead(request, policy))


def _read_config(workload: str, given: Any, policy: Policy) -> dict[str, Any]:
    """All settings of a workload."""
    if not isinstance(given, Mapping):
        _refuse("config", f"it is {_kind(given)}: it must be an object of settings")
    problems, values = _hidden(given, "config"), dict(given)
    if workload == _RADIO and policy.database is not None and _OTHER_DATA.isdisjoint(given):
        given = {**given, "database": policy.database}
    try:
        values = to_values(build(find(workload).config, given))
    except WrongSettings as error:
        paths = [(".".join(("config", *one.path)), one) for one in error.each]
        problems += [_problem(path, str(one), one.allowed or ()) for path, one in paths]
    settled, outside = policy.places.settle(workload, values, policy.database)
    _raise([*problems, *outside])
    return settled


def _made_instead(request: Request, policy: Policy) -> tuple[str, ...]:
    """What is said to who asked for a training of measurements, and gets one of made ones."""
    if request.workload != _RADIO or request.config["database"] is not None:
        return ()
    made = request.config["made"]["id"]
    stands = "a made set stands in" + (f" for {made}" if made in request.config["dataset_ids"] else "")
    if policy.database is None:
        return (f"the server has no database (stoker serve --database URL): {stands}",)
    return (f"{stands}: the server's database is for those who leave out `database` and `made`",)


def _read_script(body: Mapping[str, Any], policy: Policy) -> Request:
    _, script, arguments, needs = _together(
        lambda: _raise(_unknown(body, _SCRIPT)),
        lambda: policy.places.find_script(body["script"]),
        lambda: _arguments(body),
        lambda: _needs(body),
    )
    name = _name(body, script.stem)
    request = Request(
        name=name, script=str(script), arguments=arguments, **{"gpus": min(policy.cards, 1), **needs}
    )
    _raise(_too_much(request, policy, "gpus"))
    return request


def _arguments(body: Mapping[str, Any]) -> tuple[str, ...]:
    given = body.get("arguments", [])
    if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
        _refuse("arguments", f"it is {_shown(given)}: it must be a list of texts")
    if len(given) > _MOST_ARGUMENTS or any(len(one) > _LONGEST_TEXT for one in given):
        _refuse("arguments", f"at most {_MOST_ARGUMENTS}, each of at most {_LONGEST_TEXT} characters")
    _raise(_hidden(given, "arguments"))
    return tuple(given)


def _name(body: Mapping[str, Any], otherwise: str) -> str:
    if "job_name" not in body:
        return otherwise
    name = body["job_name"]
    if not isinstance(name, str) or not name.strip():
        _refuse("job_name", f"it is {_shown(name)}: it must be a text that is not empty, or left out")
    if len(name) > _LONGEST_NAME or any(sign in name for sign in "\t\r\n"):
        _refuse("job_name", f"it must be one line of at most {_LONGEST_NAME} characters")
    return name.strip()


def _needs(body: Mapping[str, Any]) -> dict[str, int]:
    """Cards and memory that must be free, as far as it is said."""
    most = {"gpus": 1024, "vram_bytes": _MOST_BYTES, "ram_bytes": _MOST_BYTES}
    given = {name: body[name] for name in most if name in body}
    _raise(
        [
            _problem(name, f"it is {_shown(value)}: it must be a whole number from 0 to {most[name]}")
            for name, value in given.items()
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most[name]
        ]
    )
    return given


def _too_much(request: Request, policy: Policy, field: str) -> list[Problem]:
    """More than the machine has: such a job would wait for ever, and hold up those behind it."""
    found = []
    if policy.most_gpus is not None and request.gpus > policy.most_gpus:
        told = f"it needs {request.gpus} GPUs, and this machine has {policy.most_gpus}: ask for fewer"
        found.append(_problem(field, told))
    if policy.most_ram_bytes is not None and (request.ram_bytes or 0) > policy.most_ram_bytes:
        told = f"it is {request.ram_bytes}, and this machine has {policy.most_ram_bytes} bytes: ask for less"
        found.append(_problem("ram_bytes", told))
    most, vram = policy.most_vram_bytes, request.vram_bytes or 0
    if request.gpus and most is not None and vram > most:
        told = f"it is {vram}, and the largest card of this machine has {most} bytes: ask for less"
        found.append(_problem("vram_bytes", told))
    return found


def _unknown(body: Mapping[str, Any], names: Sequence[str]) -> list[Problem]:
    return [_problem(str(name), "no such field here", names) for name in body if name not in names]


def _hidden(value: Any, field: str) -> list[Problem]:
    """Passwords as the API shows them, copied from an answer: no job can use such a one."""
    told = "its password is hidden, as answers show it: write it out, or leave the setting out"
    found = {path for path, one in _walk(value, field) if isinstance(one, str) and is_hidden(one)}
    return [_problem(path, told) for path in sorted(found)]


def _together(*parts: Callable[[], Any]) -> list[Any]:
    """What each part reads; JobRefused with the problems of all of them, where there are some."""
    found: list[Any] = []
    problems: list[Problem] = []
    for part in parts:
        try:
            found.append(part())
        except JobRefused as error:
            problems += error.problems
    _raise(problems)
    return found


def _raise(problems: Sequence[Problem]) -> None:
    if problems:
        raise _refusal(problems)


def _refusal(problems: Sequence[Problem]) -> JobRefused:
    """Of each field the first that is wrong with it, and not more of them than a person reads."""
    found: dict[str, Problem] = {}
    for one in problems:
        found.setdefault(one.field, one)
    return JobRefused(*list(found.values())[:_MOST_TOLD])


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
    raise JobRefused(_problem(field, text, allowed))


def _problem(field: str, text: str, allowed: Sequence[Any] = ()) -> Problem:
    return Problem(field=field, text=text, allowed=tuple(map(_word, allowed)))


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _shown(value: Any) -> str:
    told = repr(value)
    return told if len(told) <= _LONGEST_NAME else f"{told[:_LONGEST_NAME]}…"


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
