"""Bodies that no well-behaved client sends: what a fuzzer finds in an hour, by a seed."""

import json
import random
from typing import Any

from .servers import BASE, NOTE, Live

_VALID: tuple[dict[str, Any], ...] = (
    NOTE,
    {"workload": "sar", "config": {"train": {"epochs": 3, "optimizer": {"lr": 1e-3}}, "tier": "ram"}},
    {"workload": "vesuvius", "config": {"patch": [32, 48, 48], "widths": [8, 16, 32]}},
    {"workload": "imagenet", "config": {"crop": [0.25, 1.0], "classes": 10, "data": "s3://bucket/set"}},
    {"workload": "heimdall", "config": {"heads": 4, "width": 64}},
    {"script": "scripts/count.py", "arguments": ["1", "2"], "gpus": 0},
)
_STRANGE: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63) - 1, 10**100, 0.5, -0.0, 1e308, -1e308, 1e-320,
    "", " ", "a" * 5000, "\x00", "\x1b[2J", "\ud800", "é" * 300, "../../etc/passwd", "/etc/passwd", "~root",
    "~nobody-here/x",
    "'; DROP TABLE jobs; --", "<script>alert(1)</script>", "${jndi:ldap://x}", "%s%n", "env:HOME", "nan",
    "Infinity", "1e999", "0x10", [], {}, [[]], {"": {}}, [None], ["a"] * 1000, {"__proto__": 1},
    {"train": None}, "\u202e", "\r\nSet-Cookie: a=b", "file:///etc/passwd", "sqlite:////etc/x", "*",
)  # fmt: skip
_RAW = (
    b"", b"{", b"}", b"[", b"null", b"NaN", b"-", b'"', b"{]", b"\xff\xfe{\x00}\x00", b"\xef\xbb\xbf{}",
    b"{" * 5000, b"[" * 100_000, b'{"a":' * 2000, b"\x00" * 100, b'{"workload": NaN}', b'{"gpus": Infinity}',
    b"1" * 5000, b'{"workload":"sar","workload":"sax"}', b"'{}'", b"{'a': 1}", b'{"a": 1,}', b"\x80abc",
    b'"\\ud800"', b'{"gpus": 1' + b"0" * 5000 + b"}",
)  # fmt: skip


class Malformed:
    """Bodies one after the other."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    def next(self) -> bytes:
        """One more: raw bytes, a broken text of a good body, or a good body with something strange in it."""
        kind = self._chance.random()
        if kind < 0.15:
            return self._chance.choice(_RAW)
        if kind < 0.25:
            return self._chance.randbytes(self._chance.randrange(200))
        body = json.loads(json.dumps(self._chance.choice(_VALID)))
        for _ in range(self._chance.randint(1, 3)):
            body = self._spoil(body)
        text = json.dumps(body).encode()
        if kind < 0.4:  # cut, or with bytes of it changed
            at = self._chance.randrange(len(text))
            return text[:at] + (b"" if kind < 0.33 else self._chance.randbytes(1) + text[at + 1 :])
        return text

    def send(self, server: Live, count: int) -> dict[int, int]:
        """Send so many over one connection after the other; the answers by status, none of them a 5xx."""
        found: dict[int, int] = {}
        connection = server.connect()
        for number in range(count):
            body = self.next()
            connection.request("POST", f"{BASE}/jobs", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            raw = answer.read()
            assert answer.status in (201, 413, 422), (
                f"{number}: {answer.status} to {body[:500]!r}: {raw[:500]!r}"
            )
            told = json.loads(raw)
            assert "id" in told if answer.status == 201 else told["detail"]
            found[answer.status] = found.get(answer.status, 0) + 1
        connection.close()
        assert server.ask("GET", "/health").json["status"] == "ok"
        return found

    def _spoil(self, value: Any) -> Any:
        """A value with something strange in one place of it."""
        chance = self._chance
        if isinstance(value, dict) and value and chance.random() < 0.85:
            name = chance.choice(sorted(value))
            what = chance.random()
            if what < 0.1:
                return {one: inner for one, inner in value.items() if one != name}
            if what < 0.2:
                return {**value, str(chance.choice(_STRANGE)): chance.choice(_STRANGE)}
            if what < 0.25:
                return {**value, "workload": chance.choice(_STRANGE)}
            return {**value, name: self._spoil(value[name])}
        if isinstance(value, list) and value and chance.random() < 0.5:
            at = chance.randrange(len(value))
            return [*value[:at], self._spoil(value[at]), *value[at + 1 :]]
        return chance.choice(_STRANGE)
