"""Tokens: who may speak to the server. Kept as digests only, in a file that can be edited while it runs.

    ROOT/tokens      a line for each: NAME sha256 DIGEST

A token is 256 random bits: a plain digest cannot be turned back, and a look-up tells nothing by its time.
"""

import hashlib
import re
import secrets
import time
from pathlib import Path

from stoker.errors import NotPermitted, UsageError
from stoker.feed.whole_file import whole_file

NAME = "tokens"
_LINE = re.compile(r"(\S+) sha256 ([0-9a-f]{64})")
_WORD = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SESSION_S = 30 * 24 * 3600.0
_MOST_SESSIONS = 1000


def digest(secret: str) -> str:
    """What is kept of a token."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


class TokenFile:
    """The tokens of a server; read again when the file changes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp: tuple[int, int] | None = None
        self._known: dict[str, str] = {}

    def names(self) -> dict[str, str]:
        """Names by digest; UsageError where a line is none."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise NotPermitted(f"cannot read the tokens in {self.path}: {error.strerror}") from error
        stamp = (found.st_mtime_ns, found.st_size)
        if stamp != self._stamp:
            self._known = _read(self.path)
            self._stamp = stamp
        return self._known

    def is_good(self, token: str) -> bool:
        """Whether a token is one of these."""
        return digest(token) in self.names()

    def add(self, name: str) -> str:
        """A new token, told this once."""
        if not _WORD.fullmatch(name):
            raise UsageError(f"a token's name is letters, digits, '.', '-' and '_', and not {name!r}")
        known = self.names()
        if name in known.values():
            raise UsageError(
                f"there is a token {name!r}: take another name, or remove its line from {self.path}"
            )
        token = secrets.token_urlsafe(32)
        lines = [f"{one} sha256 {value}\n" for value, one in {**known, digest(token): name}.items()]
        try:
            with whole_file(self.path) as file:
                file.write("".join(lines).encode())
            self.path.chmod(0o600)
        except OSError as error:
            raise NotPermitted(
                f"cannot keep the token in {self.path}: {error.strerror or error}; choose another --root"
            ) from error
        return token


class Sessions:
    """Browsers that showed a token: a cookie stands for it, since a link cannot send one."""

    def __init__(self, tokens: TokenFile) -> None:
        self._tokens = tokens
        self._open: dict[str, tuple[str, float]] = {}

    def begin(self, token: str) -> str | None:
        """A cookie's value for a good token."""
        if not self._tokens.is_good(token):
            return None
        while len(self._open) >= _MOST_SESSIONS:
            self._open.pop(next(iter(self._open)))
        cookie = secrets.token_urlsafe(32)
        self._open[digest(cookie)] = (digest(token), time.monotonic() + _SESSION_S)
        return cookie

    def is_good(self, cookie: str) -> bool:
        """Whether a cookie stands for a token that is still one."""
        token, until = self._open.get(digest(cookie), ("", 0.0))
        return time.monotonic() < until and token in self._tokens.names()

    def end(self, cookie: str) -> None:
        """Forget it."""
        self._open.pop(digest(cookie), None)


def _read(path: Path) -> dict[str, str]:
    found = {}
    try:
        text = path.read_text(errors="replace")
    except OSError as error:
        raise NotPermitted(f"cannot read the tokens in {path}: {error.strerror}") from error
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            match = _LINE.fullmatch(line.strip())
            if match is None:
                raise UsageError(f"line {number} of {path} is no token: `stoker jobs token NAME` writes them")
            found[match[2]] = match[1]
    return found
