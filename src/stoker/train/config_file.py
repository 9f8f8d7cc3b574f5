"""A typed config from a YAML or TOML file and from `key=value` on the command line.

    load(SarConfig, Path("sar.yaml"), ["train.epochs=3", "train.optimizer.lr=1e-3"])

Every key is checked against the dataclass: a misspelt one is answered with those there are.
"""

import dataclasses
import difflib
import json
import math
import re
import tomllib
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from stoker.errors import MissingExtra, UsageError, WrongSetting, WrongSettings
from stoker.facts.secrets import hide_password

T = TypeVar("T")


def load(kind: type[T], path: Path | None = None, overrides: Sequence[str] = ()) -> T:
    """A config: its defaults, over them the file's values, over them those of the command line."""
    return build(kind, values_of(path, overrides))


def values_of(path: Path | None = None, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The values of a file, over them those of the command line; of whatever config."""
    values = {} if path is None else read_file(path)
    for override in overrides:
        _put(values, override)
    return values


def build(kind: type[T], values: Mapping[str, Any]) -> T:
    """A config from nested values; the defaults of a nested config are those of its field.

    WrongSettings names all that are wrong, so that nobody has to mend them one by one.
    """
    wrong: list[WrongSetting] = []
    made: T = _over(kind(), values, (), wrong)
    if wrong:
        raise WrongSettings(wrong)
    return made


def to_values(config: Any) -> dict[str, Any]:
    """A config as plain values, as JSON has them."""
    found = {}
    for entry in dataclasses.fields(config):
        value = getattr(config, entry.name)
        if dataclasses.is_dataclass(value):
            value = to_values(value)
        elif isinstance(value, tuple):
            value = list(value)
        elif isinstance(value, Path):
            value = str(value)
        found[entry.name] = value
    return found


def without_passwords(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values to be shown or kept: a password in a URL is for nobody's files."""
    return {
        name: without_passwords(value)
        if isinstance(value, Mapping)
        else hide_password(value)
        if isinstance(value, str)
        else value
        for name, value in values.items()
    }


def differences(before: Mapping[str, Any], now: Mapping[str, Any], above: str = "") -> list[str]:
    """What two configs, as values, do not have in common: "train.epochs 3 -> 5"."""
    found = []
    for name in sorted({*before, *now}):
        old, new = before.get(name), now.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found += differences(old, new, f"{above}{name}.")
        elif old != new:
            found.append(f"{above}{name} {json.dumps(old)} -> {json.dumps(new)}")
    return found


def read_file(path: Path) -> dict[str, Any]:
    """The values in a .yaml, .yml or .toml file."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"cannot read the config {path}: {error.strerror or error}; check the path"
        ) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is no text in UTF-8: {error}; save it as such") from error
    if path.suffix == ".toml":
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise UsageError(f"{path} is no TOML: {error}; mend it there") from error
    if path.suffix not in (".yaml", ".yml"):
        raise UsageError(f"{path}: a config must be a .yaml, .yml or .toml file")
    found = _parse_yaml(text, str(path))
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise UsageError(
            f"{path} holds a {type(found).__name__}: a config has keys, as in `train: {{epochs: 3}}`"
        )
    return found


def _parse_yaml(text: str, told: str) -> Any:
    try:
        import yaml
    except ImportError as error:
        raise MissingExtra("pyyaml", "train", "A YAML config") from error
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:  # such as the 30th of February
        raise UsageError(f"{told} is no YAML: {' '.join(str(error).split())}; mend it there") from error


def _put(values: dict[str, Any], override: str) -> None:
    """`train.epochs=3` into nested values."""
    name, is_given, text = override.partition("=")
    words = name.strip().split(".")
    if not is_given or not all(words):
        raise UsageError(f"{override!r} is no setting: write it as train.epochs=3")
    inner = values
    for word in words[:-1]:
        inner = inner.setdefault(word, {})
        if not isinstance(inner, dict):
            raise UsageError(f"{override!r}: {word} is {inner!r} and has nothing under it")
    inner[words[-1]] = _scalar(text.strip())


def _scalar(text: str) -> Any:
    """A value as it is typed: JSON where it is (numbers, true, null, lists), text otherwise.

    >>> [_scalar(text) for text in ("3", "true", "null", "[1, 2]", "bf16")]
    [3, True, None, [1, 2], 'bf16']
    """
    try:
        return json.loads(text, parse_float=_Typed)
    except ValueError:
        return text


class _Typed(float):
    """A number that knows how it was written: as a name, 1.10 is not 1.1."""

    text: str

    def __new__(cls, text: str) -> "_Typed":
        """The number that this text is."""
        typed = super().__new__(cls, text)
        typed.text = text
        return typed


def _over(config: Any, values: Mapping[str, Any], above: tuple[str, ...], wrong: list[WrongSetting]) -> Any:
    """A config with some values replaced; what is wrong with them is added to `wrong`."""
    hints = get_type_hints(type(config))
    names = [entry.name for entry in dataclasses.fields(config) if entry.init]
    before, changed = len(wrong), {}
    for name, value in values.items():
        path = (*above, str(name))
        try:
            if name not in names:
                raise WrongSetting(_unknown(path, names), path=path, allowed=names)
            inner = getattr(config, name)
            if not dataclasses.is_dataclass(inner) or isinstance(inner, type):
                changed[name] = _typed(hints[name], value, path)
            elif isinstance(value, Mapping):
                changed[name] = _over(inner, value, path, wrong)
            else:
                told = f"{_told(path, value)}: it has keys of its own, {', '.join(_keys(inner))}"
                raise WrongSetting(told, path=path, allowed=_keys(inner))
        except WrongSetting as error:
            wrong.append(error)
    return _checked(config, changed, above, wrong, is_whole=len(wrong) == before)


def _checked(
    config: Any,
    changed: dict[str, Any],
    above: tuple[str, ...],
    wrong: list[WrongSetting],
    *,
    is_whole: bool,
) -> Any:
    """A config with values of the right types, by its own checks, which tell the first that they refuse.

    Each that is refused is left out and the rest looked at again. A check that names two settings is told
    only of the values as they were given: later one of the two may be the default in place of a wrong one.
    """
    names = {entry.name for entry in dataclasses.fields(config)}
    while True:
        try:
            return dataclasses.replace(config, **changed)
        except UsageError as error:
            # A config's own checks begin with the setting's name.
            first = str(error).partition(" ")[0].rpartition(".")[2]
            others = names.intersection(re.findall(r"\w+", str(error))) - {first}
            if is_whole or not others:
                path = (*above, first) if first in names else above
                told = f"{'.'.join(above)}: {error}" if above else str(error)
                wrong.append(WrongSetting(told, path=path))
            is_whole = False
            if first not in changed:
                return config
            del changed[first]


def _unknown(path: tuple[str, ...], names: list[str]) -> str:
    near = difflib.get_close_matches(path[-1], names, n=1)
    guess = f"did you mean {'.'.join((*path[:-1], near[0]))}? " if near else ""
    where = f"under {'.'.join(path[:-1])}" if path[1:] else "at the top"
    return f"no setting {'.'.join(path)}: {guess}{where} there are {', '.join(names)}"


def _keys(config: Any) -> list[str]:
    return [entry.name for entry in dataclasses.fields(config)]


def _typed(kind: Any, value: Any, path: tuple[str, ...]) -> Any:
    """A value as its field has it; UsageError where it is none of that type."""
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _one_of(get_args(kind), value, path)
    if origin is Literal:
        allowed = get_args(kind)
        # `false` and `off` are words to a person and truth values to YAML; no choice here is one.
        if value not in allowed or isinstance(value, bool) not in {isinstance(one, bool) for one in allowed}:
            told = f"{_told(path, value)}: it is one of {', '.join(map(str, allowed))}"
            raise WrongSetting(told, path=path, allowed=allowed)
        return value
    if origin is tuple:
        return _sequence(get_args(kind), value, path)
    if kind is float:
        return _number(value, path)
    if kind in (str, Path) and _is(value, (int, float)):
        value = value.text if isinstance(value, _Typed) else str(value)
    if kind is Path and isinstance(value, str):
        try:
            return Path(value).expanduser()
        except RuntimeError as error:  # ~ of a user that there is not
            raise WrongSetting(f"{_told(path, value)}: there is no such home", path=path) from error
    # A whole number that 64 bits cannot hold is none to torch or a database.
    if kind in (int, str, bool) and _is(value, kind) and not (kind is int and abs(value) >= 1 << 63):
        return value
    raise WrongSetting(f"{_told(path, value)}: it must be {_NAMES.get(kind, kind)}", path=path)


def _number(value: Any, path: tuple[str, ...]) -> float:
    found = math.nan
    # YAML takes 1e-3 for text: it wants 1.0e-3.
    if _is(value, (int, float, str)):
        try:
            found = float(value)
        except (ValueError, OverflowError):
            pass  # told below, as what is not finite is
    if not math.isfinite(found):
        raise WrongSetting(f"{_told(path, value)}: it must be a number", path=path)
    return found


def _is(value: Any, kinds: Any) -> bool:
    """Like isinstance, where a truth value is no number."""
    if isinstance(value, bool):
        return kinds is bool
    return isinstance(value, kinds)


def _one_of(kinds: tuple[Any, ...], value: Any, path: tuple[str, ...]) -> Any:
    if value is None and type(None) in kinds:
        return None
    told = []
    for kind in kinds:
        if kind is not type(None):
            try:
                return _typed(kind, value, path)
            except WrongSetting as error:
                told.append(error)
    allowed = told[0].allowed
    if type(None) not in kinds:
        raise told[0]
    allowed = None if allowed is None else (*allowed, None)
    raise WrongSetting(f"{told[0]}, or null", path=told[0].path, allowed=allowed)


def _sequence(kinds: tuple[Any, ...], value: Any, path: tuple[str, ...]) -> tuple[Any, ...]:
    if isinstance(value, str):
        value = [_scalar(part.strip()) for part in value.split(",") if part.strip()]
    if not isinstance(value, (list, tuple)):
        raise WrongSetting(f"{_told(path, value)}: it must be a list", path=path)
    if kinds[-1] is Ellipsis:
        kinds = (kinds[0],) * len(value)
    if len(kinds) != len(value):
        raise WrongSetting(f"{_told(path, value)}: it must have {len(kinds)} values", path=path)
    return tuple(_typed(kind, one, path) for kind, one in zip(kinds, value, strict=True))


def _told(path: tuple[str, ...], value: Any) -> str:
    shown = repr(value)
    return f"{'.'.join(path)} is {shown if len(shown) <= _SHOWN else f'{shown[:_SHOWN]}…'}"


# Of a wrong value, so many characters are told.
_SHOWN = 200
_NAMES: dict[Any, str] = {
    int: "a whole number",
    str: "text",
    bool: "true or false",
    Path: "a path",
}
