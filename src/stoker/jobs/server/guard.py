"""What stands before every request: who may ask, from where, how much and how often; what a browser may do.

- Loopback needs no token until there is one; any other address demands one (`check_bind`).
- Without a token only this machine's own names are answered: no page elsewhere gets a name that leads here.
- What changes something comes from our own page or brings a token, and is JSON: a form sends neither.
- A body has a limit in size and time, a caller one in requests, and a wrong token one of its own.
"""

import asyncio
import ipaddress
import json
import math
import sys
import time
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import urlsplit

from stoker.errors import UsageError
from stoker.jobs.server.limits import Buckets
from stoker.jobs.server.prometheus import Traffic
from stoker.jobs.server.tokens import Sessions, TokenFile

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

COOKIE = "stoker_session"
SESSION = "/api/training/session"
MOST_BODY_BYTES = 256 * 1024
_BODY_S = 20.0
_OPEN = ("/", "/health", SESSION)
_ASSETS = "/assets/"
_SAFE = ("GET", "HEAD", "OPTIONS")
_OWN_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
# Of one caller: requests a second and at once; wrong tokens likewise.
_RATE, _BURST = 400.0, 1000.0
_WRONG_RATE, _WRONG_BURST = 0.2, 10.0
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
# The doctor's page has its style inside and nothing that runs.
REPORT_POLICY = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'"
)
_HEADERS = {
    b"content-security-policy": POLICY.encode(),
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"cache-control": b"no-store",
}


def is_loopback(host: str) -> bool:
    """Whether nobody but this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_bind(host: str, tokens: TokenFile) -> None:
    """UsageError where others could reach a server that asks nobody for a token."""
    if not is_loopback(host) and not tokens.names():
        raise UsageError(
            f"--host {host} can be reached by others, and there is no token: make one with "
            f"`stoker jobs token NAME --root {tokens.path.parent}`, or leave --host out"
        )


class Refusal(Exception):
    """An answer instead of the API's."""

    def __init__(self, *, status: int, told: str, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        super().__init__(told)
        self.status, self.told, self.headers = status, told, headers


class Guard:
    """An ASGI application around the API's."""

    def __init__(
        self,
        app: App,
        *,
        host: str,
        tokens: TokenFile,
        sessions: Sessions,
        traffic: Traffic,
        rate: float = _RATE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app, self._host, self._tokens, self._sessions = app, host, tokens, sessions
        self._traffic = traffic
        self._calls = Buckets(rate=rate, burst=max(_BURST, rate), clock=clock)
        self._wrong = Buckets(rate=_WRONG_RATE, burst=_WRONG_BURST, clock=clock)
        self._told = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # there are no web sockets here
            await send({"type": "websocket.close", "code": 1008})
            return
        began, status = time.perf_counter(), 500

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                given = list(message.get("headers", ()))
                names = {name.lower() for name, _ in given}
                message["headers"] = given + [one for one in _HEADERS.items() if one[0] not in names]
            await send(message)

        try:
            headers = _headers_of(scope)
            self._check(scope, headers)
            body = await _read_body(scope, headers, receive)
            await self._app(scope, _replay(body, receive), answer)
        except (Refusal, UsageError) as error:
            refusal = error if isinstance(error, Refusal) else self._tell_broken(error)
            told = json.dumps({"detail": refusal.told}).encode()
            kind, size = (b"content-type", b"application/json"), (b"content-length", b"%d" % len(told))
            start = {"type": "http.response.start", "status": refusal.status}
            # What is left of a body that was not read must not be taken for the next request.
            close = (b"connection", b"close")
            await answer({**start, "headers": [kind, size, close, *refusal.headers]})
            await answer({"type": "http.response.body", "body": told})
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self._traffic.add(scope["method"], route, status, time.perf_counter() - began)

    def _tell_broken(self, error: UsageError) -> Refusal:
        """The tokens cannot be read: nobody is let in, and why is for the server's owner alone."""
        if str(error) != self._told:
            sys.stderr.write(f"stoker: {error}; until then nobody is answered\n")
            self._told = str(error)
        return Refusal(status=503, told="the tokens of this server cannot be read: its own log says why")

    def _check(self, scope: Scope, headers: dict[str, str]) -> None:
        caller = (scope.get("client") or ("",))[0]
        if wait := self._calls.take(caller):
            raise _busy("too many requests", wait)
        demands = bool(self._tokens.names()) or not is_loopback(self._host)
        if not demands and _name_of(headers.get("host", "")) not in (*_OWN_NAMES, self._host):
            raise Refusal(
                status=421,
                told=f"{headers.get('host')!r} is none of this server's names: use http://localhost",
            )
        has_token = self._check_token(scope, headers, caller) if demands else False
        if scope["method"] not in _SAFE:
            if not has_token:
                _check_origin(headers)
            _check_kind(headers)

    def _check_token(self, scope: Scope, headers: dict[str, str], caller: str) -> bool:
        """Whether the request brings a token itself; a refusal where it needs one and has none."""
        path = scope["path"]
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            self._check_wrong(caller)
            if self._tokens.is_good(token.strip()):
                return True
            self._wrong.take(caller)
        elif (path in _OPEN or path.startswith(_ASSETS)) or self._sessions.is_good(cookie_of(headers)):
            return False
        raise Refusal(
            status=401,
            told="a token is needed: send it as `Authorization: Bearer TOKEN`",
            headers=((b"www-authenticate", b"Bearer"),),
        )

    def _check_wrong(self, caller: str) -> None:
        if wait := self._wrong.peek(caller):
            raise _busy("too many wrong tokens", wait)

    def begin_session(self, token: str, caller: str) -> str | None:
        """A cookie's value for a good token; None for a wrong one, of which there may be few."""
        self._check_wrong(caller)
        cookie = self._sessions.begin(token)
        if cookie is None:
            self._wrong.take(caller)
        return cookie


def cookie_of(headers: dict[str, str]) -> str:
    """The session's cookie; "" where there is none."""
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return "" if found is None else found.value


def _headers_of(scope: Scope) -> dict[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}


def _name_of(host: str) -> str:
    """A Host header without its port.

    >>> [_name_of(one) for one in ("localhost:8000", "[::1]:8000", "127.0.0.1")]
    ['localhost', '[::1]', '127.0.0.1']
    """
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0].lower()


def _check_origin(headers: dict[str, str]) -> None:
    """Refuse what a page elsewhere makes a browser send."""
    origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
    foreign = site not in ("none", "same-origin")
    if origin is not None:
        try:
            foreign |= urlsplit(origin).netloc != headers.get("host")
        except ValueError:
            foreign = True
    if foreign:
        raise Refusal(status=403, told=f"a request from {origin or site!r}: only this server's page may ask")


def _check_kind(headers: dict[str, str]) -> None:
    kind = headers.get("content-type")
    has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
    if kind is None and not has_body:
        return
    if (kind or "").partition(";")[0].strip().lower() != "application/json":
        raise Refusal(
            status=415, told=f"the body is {kind or 'of no type'}: send `Content-Type: application/json`"
        )


async def _read_body(scope: Scope, headers: dict[str, str], receive: Receive) -> bytes:
    """All of it, within the limits."""
    if scope["method"] in _SAFE:
        return b""
    told = headers.get("content-length", "0")
    if told.isdigit() and int(told) > MOST_BODY_BYTES:
        raise _too_large()
    parts, size = [], 0
    try:
        async with asyncio.timeout(_BODY_S):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Refusal(status=400, told="the body ended early")
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > MOST_BODY_BYTES:
                    raise _too_large()
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError:
        raise Refusal(status=408, told=f"the body did not come within {_BODY_S:g} s") from None


def _replay(body: bytes, receive: Receive) -> Receive:
    """The body that was read, and after it what else comes: that the caller has gone."""
    is_told = False

    async def again() -> Message:
        nonlocal is_told
        if is_told:
            return await receive()
        is_told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def _too_large() -> Refusal:
    return Refusal(status=413, told=f"the body is too large: at most {MOST_BODY_BYTES:,} bytes")


def _busy(told: str, wait: float) -> Refusal:
    seconds = max(1, math.ceil(wait))
    header = (b"retry-after", str(seconds).encode())
    return Refusal(status=429, told=f"{told}: wait {seconds} s", headers=(header,))
