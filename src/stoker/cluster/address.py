"""What `--on` names: the cluster that this machine is part of, or one by its address. Pure."""

from urllib.parse import urlsplit

from stoker.errors import ClusterFailed, UsageError

# Where Ray's head listens for clients, unless it was started with another --ray-client-server-port.
CLIENT_PORT = 10001
_CLIENT = "ray://"
# Ports of a head that are taken for the client's: of its own nodes, and of its dashboard.
_OTHERS = {6379: "the port by which nodes join", 8265: "that of the dashboard and of Ray's jobs"}


def parse_on(text: str) -> str | None:
    """The address of a cluster; None for `ray`, which is the one that this machine is part of.

    >>> parse_on("ray"), parse_on("ray://head"), parse_on("ray://10.0.0.1:9999")
    (None, 'ray://head:10001', 'ray://10.0.0.1:9999')
    """
    if text == "ray":
        return None
    if not text.startswith(_CLIENT):
        raise UsageError(_wrong(text, "it is neither"))
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(_wrong(text, str(error))) from None
    if not host:
        raise UsageError(_wrong(text, "it names no host"))
    if parts.username is not None or parts.path.strip("/") or parts.query or parts.fragment:
        raise UsageError(_wrong(text, "it has more than a host and a port"))
    if port == 0:
        raise UsageError(_wrong(text, "port 0 is none"))
    return f"{_CLIENT}{f'[{host}]' if ':' in host else host}:{port or CLIENT_PORT}"


def parse_named(value: str) -> tuple[str, int]:
    """Host and port of what RAY_ADDRESS has.

    >>> parse_named("10.0.0.1:6379"), parse_named("ray://head")
    (('10.0.0.1', 6379), ('head', 10001))
    """
    is_client = value.startswith(_CLIENT)
    try:
        parts = urlsplit(value if is_client else f"//{value}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if port is None and is_client:
        port = CLIENT_PORT
    if not host or not port:
        raise ClusterFailed(
            f"RAY_ADDRESS is {value!r}, which is no HOST:PORT and no ray://HOST:PORT: set it to a head's, or "
            "unset it, or name the cluster with --on ray://HOST:PORT"
        )
    return host, port


def port_hint(address: str) -> str:
    """What may be wrong with an address that does not answer; empty where nothing seems to be."""
    other = _OTHERS.get(urlsplit(address).port or 0)
    return "" if other is None else f"; {other} stands in it, and clients have {CLIENT_PORT}"


def _wrong(text: str, why: str) -> str:
    return (
        f"--on {text!r} names no cluster ({why}): give ray, the cluster that this machine is part of, or "
        f"ray://HOST:PORT, another's head and its port for clients ({CLIENT_PORT})"
    )
