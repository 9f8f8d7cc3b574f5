"""The links between many GPUs, as they are told: `--link nic=100Gbit/s`. Pure.

Each is told, known from the record, or assumed; which of the three it is stands beside it wherever it is
shown.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import isinf
from typing import Any

from stoker.errors import UsageError

ASSUMED, TOLD, MEASURED = "assumed", "told", "measured"
# What a machine with more GPUs has more of.
_WITH_GPUS = ("cores", "ram_room")
_NUMBER = re.compile(r"(\d+(?:\.\d+)?(?:e\d+)?)\s*([a-zA-Zµ/]*)")
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_BYTES = re.compile(r"([kmgtp]?)(i?)(b|bit)", re.IGNORECASE)
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6}
_EXAMPLES = {
    "bytes/s": "100Gbit/s or 12.5GB/s",
    "bytes": "80GB or 512MiB",
    "seconds": "25ms",
    "requests/s": "5500/s",
    "count": "8",
}


@dataclass(frozen=True, kw_only=True)
class Link:
    """What can be told: its unit, what it is taken for where it is not, and what it means."""

    unit: str
    assumed: float | None
    text: str


TELLABLE: Mapping[str, Link] = {
    "per_node": Link(unit="count", assumed=8, text="GPUs a node"),
    "cores": Link(unit="count", assumed=None, text="cores a node"),
    "nic": Link(unit="bytes/s", assumed=12.5e9, text="a node's network, each way"),
    "fabric": Link(unit="bytes/s", assumed=None, text="a node's own network for gradients (none: the nic)"),
    "peer": Link(unit="bytes/s", assumed=25e9, text="between GPUs of a node, each way, a GPU"),
    "store": Link(unit="bytes/s", assumed=12.5e9, text="the store, for all together"),
    "gets": Link(unit="requests/s", assumed=5500, text="the store's requests, for all together"),
    "latency": Link(unit="seconds", assumed=0.025, text="a request at the store, if the record made none"),
    "cache_nodes": Link(unit="count", assumed=None, text="cache nodes (none: one to 8 GPU nodes)"),
    "near": Link(unit="seconds", assumed=0.001, text="a request at a cache node"),
    "disk": Link(unit="bytes/s", assumed=3e9, text="a node's disks, a cache node's too"),
    "disk_room": Link(unit="bytes", assumed=2e12, text="room on a node's disks, or a cache node's"),
    "bus": Link(unit="bytes/s", assumed=25e9, text="from a node's memory to a GPU"),
    "ram_room": Link(unit="bytes", assumed=None, text="room in a node's memory"),
    "vram_room": Link(unit="bytes", assumed=None, text="room on a card, beside what the model needs"),
    "held": Link(unit="bytes", assumed=None, text="a sample held in memory (none: as it is stored)"),
    "sample": Link(unit="bytes", assumed=None, text="a sample as it is stored"),
    "set": Link(unit="bytes", assumed=None, text="all samples as they are stored"),
    "gradients": Link(unit="bytes", assumed=None, text="the gradients of a step"),
}


@dataclass(frozen=True, kw_only=True)
class Links:
    """All of them, in bytes, seconds and counts; `origin` says of each by name where it comes from."""

    per_node: int
    cores: float | None
    nic: float
    fabric: float | None
    peer: float
    store: float
    gets: float
    latency: float
    cache_nodes: int | None
    near: float
    disk: float
    disk_room: float
    bus: float
    ram_room: float | None
    vram_room: float | None
    held: float | None
    origin: Mapping[str, str]


def parse(words: Sequence[str]) -> dict[str, float]:
    """What was typed, by name."""
    found: dict[str, float] = {}
    for word in words:
        name, given, value = (part.strip() for part in word.partition("="))
        if name not in TELLABLE or not given:
            names = ", ".join(TELLABLE)
            raise UsageError(f"--link does not know {word!r}: write NAME=VALUE with one of {names}")
        if name in found:
            raise UsageError(f"--link has {name} twice: give it once")
        found[name] = _value(name, TELLABLE[name].unit, value)
    return found


def links_of(told: Mapping[str, float], measured: Mapping[str, float | None]) -> Links:
    """What was told; else what the record says; else what is assumed."""
    values: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for name in (one.name for one in fields(Links) if one.name != "origin"):
        for source, where in ((told, TOLD), (measured, MEASURED)):
            if source.get(name) is not None:
                values[name], origin[name] = source[name], where
                break
        else:
            values[name], origin[name] = TELLABLE[name].assumed, ASSUMED
    if origin["per_node"] == ASSUMED:  # the record's machine had one GPU: as much for each
        for name in (name for name in _WITH_GPUS if origin[name] == MEASURED):
            values[name], origin[name] = values["per_node"] * values[name], ASSUMED
    made = Links(**values, origin=origin)
    count = None if made.cache_nodes is None else int(made.cache_nodes)
    return replace(made, per_node=int(made.per_node), cache_nodes=count)


def _value(name: str, unit: str, text: str) -> float:
    told = _NUMBER.fullmatch(text)
    value = None if told is None else _in_units(float(told[1]), told[2], unit)
    if told is None or not value:
        raise UsageError(f"--link {name} is {text!r}; it is {unit} and more than 0, like {_EXAMPLES[unit]}")
    if isinf(value):
        raise UsageError(f"--link {name} is {text!r}; more than can be counted with: give a smaller one")
    if told[2].partition("/")[0].endswith("b"):
        ways = " or ".join(told[1] + _spelt(told[2], last) for last in ("bit", "B"))
        raise UsageError(f"--link {name} is {text!r}; its b may be bits or bytes: write {ways}")
    if unit == "count" and (name != "cores" and value != int(value)):
        raise UsageError(f"--link {name} is {text!r}; it is a whole number, like {_EXAMPLES[unit]}")
    return value


def _in_units(number: float, word: str, unit: str) -> float | None:
    """In bytes, seconds or as a count; None where the word is no such unit."""
    if unit == "count":
        return None if word else number
    if unit == "seconds":
        return number * _SECONDS[word] if word in _SECONDS else None
    if unit == "requests/s":
        return number if word in ("", "/s") else None
    size, slash, second = word.partition("/")
    if (slash + second) != ("/s" if unit == "bytes/s" else ""):
        return None
    named = _BYTES.fullmatch(size)
    if named is None:
        return None
    base = 1024 if named[2] else 1000
    return float(number * base ** _POWERS[named[1].lower()] / (8 if named[3].lower() == "bit" else 1))


def _spelt(word: str, last: str) -> str:
    """A unit that ends in b, as bits or as bytes: the case of that letter is all that tells them apart."""
    size, slash, second = word.partition("/")
    prefix = size[:-1]
    return prefix[:1].upper() + prefix[1:] + last + slash + second
