"""What others wrote, as it may be shown and kept: without passwords, with nothing that a terminal obeys."""

import re
from collections.abc import Sequence

HIDDEN = "***"
_IN_URL = re.compile(r"(?<=://)([^:/@\s]*):[^@/\s]*@")
# Signed addresses let in whoever has them; a token only where it stands in an address.
_IN_QUERY = re.compile(
    r"((?:password|secret|x-amz-[\w-]+|(?<=[?&;])(?:[\w-]*token|sig|[\w-]*signature|api[-_]?key|access[-_]?key))=)[^&\s]*",
    re.IGNORECASE,
)
# Of tokens only those that let somebody in: --pad-token and --max-tokens are of a text.
_SECRET = re.compile(
    r"(?:^|[-_.])(?:pass|passwd|password|passphrase|secret|(?:secret|api|access|private)[-_]?key)$"
    r"|^-*(?:\w+[-_.])??(?:(?:access|api|auth|bearer|github|hf|hub|refresh|secret|session)[-_])token$|^-*token$",
    re.IGNORECASE,
)


def hide_password(url: str) -> str:
    """A URL, or a text that names some, as it may be shown."""
    return _IN_QUERY.sub(rf"\1{HIDDEN}", _IN_URL.sub(rf"\1:{HIDDEN}@", url))


def hide_secrets(words: Sequence[str]) -> list[str]:
    """A command's words as they may be kept: passwords in URLs, and values of options named so, are hidden.

    >>> hide_secrets(["train.py", "--db", "postgresql://u:p@h/d", "--api-key", "k", "--hf_token=t"])
    ['train.py', '--db', 'postgresql://u:***@h/d', '--api-key', '***', '--hf_token=***']
    """
    shown: list[str] = []
    follows = False  # the word before names a secret
    for word in words:
        name, given, _ = word.partition("=")
        if follows and not word.startswith("-"):
            shown.append(HIDDEN)
        elif given and _SECRET.search(name):
            shown.append(f"{name}={HIDDEN}")
        else:
            shown.append(hide_password(word))
        follows = word.startswith("-") and not given and _SECRET.search(word) is not None
    return shown


def is_hidden(text: str) -> bool:
    """Whether a text has a secret as `hide_password` and `hide_secrets` leave it.

    >>> [is_hidden(text) for text in ("postgresql://u:***@h/d", "--token=***", "***", "a*b", "u:p@h")]
    [True, True, True, False, False]
    """
    return text == HIDDEN or f":{HIDDEN}@" in text or f"={HIDDEN}" in text


def printable(text: str) -> str:
    """The text with control characters written out, but for line ends and tabs.

    Another user's command line, a file's or an object's name may hold any: an escape would be obeyed.
    """
    return "".join(
        one if one.isprintable() or one in "\n\t" else one.encode("unicode_escape").decode() for one in text
    )
