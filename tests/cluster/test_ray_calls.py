"""What Ray does and raises, in Stoker's words; in place of Ray a module of the same names."""

import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.cluster import ray as on_ray
from stoker.cluster.charge import Charge
from stoker.cluster.nodes import Node
from stoker.cluster.ray import RayHand
from stoker.errors import ClusterFailed, NodeUnfit


class RayError(Exception):
    """As Ray's own."""


class RayTaskError(RayError):
    """An error in a call."""


class TaskOSError(RayTaskError, OSError):
    """Ray makes one that is of the cause's kind as well."""


class ActorUnavailableError(RayError):
    """Not reached for the moment."""


def fake_ray(init: Callable[..., Any] | None = None, error: Exception | None = None) -> Any:
    """One whose `init` is this, and whose calls fail so."""

    def get(asked: object) -> object:
        assert error is not None
        raise error

    return SimpleNamespace(
        init=init,
        wait=lambda asked, timeout: (asked, []),
        get=get,
        exceptions=SimpleNamespace(
            RayError=RayError, RayTaskError=RayTaskError, ActorUnavailableError=ActorUnavailableError
        ),
    )


@pytest.fixture
def closed_port() -> int:
    """One at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_a_stale_ray_address_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch, closed_port: int, scheme: str
) -> None:
    """Before Ray waits for minutes; the variable is named, and nothing is started in its place."""
    address = f"{scheme}127.0.0.1:{closed_port}"
    monkeypatch.setenv("RAY_ADDRESS", address)
    tried: list[object] = []
    told: list[str] = []
    with pytest.raises(
        ClusterFailed, match=rf"at {address}, which RAY_ADDRESS names: .*refused.*unset RAY_ADDRESS"
    ):
        on_ray._connect(fake_ray(lambda *words, **more: tried.append(words)), None, told.append)
    assert told == [f"RAY_ADDRESS is {address}: that cluster is tried"]
    assert tried == []


def test_what_ray_raises_at_a_ray_address_that_listens_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another version, say: no second cluster is started beside the one that was named."""

    def refuse(address: str, **more: object) -> None:
        raise RuntimeError("Version mismatch")

    with socket.create_server(("127.0.0.1", 0)) as head:
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{head.getsockname()[1]}")
        with pytest.raises(ClusterFailed, match="which RAY_ADDRESS names: Version mismatch"):
            on_ray._connect(fake_ray(refuse), None, lambda text: None)


@pytest.mark.parametrize("value", ["head", "head:port", "head:0", ":6379"])
def test_a_ray_address_that_is_none_is_told(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """With the value and what it should be."""
    monkeypatch.setenv("RAY_ADDRESS", value)
    with pytest.raises(ClusterFailed, match=rf"RAY_ADDRESS is '{value}', which is no HOST:PORT"):
        on_ray._connect(fake_ray(), None, lambda text: None)


@pytest.mark.parametrize("value", [None, "", "auto", "local"])
def test_without_an_address_this_machine_s_cluster_is_taken_or_one_started(
    monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    """As Ray reads the variable; that one is started is told."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if value is not None:
        monkeypatch.setenv("RAY_ADDRESS", value)
    tried: list[str] = []

    def init(address: str, **more: object) -> None:
        tried.append(address)
        if address == "auto":
            raise ConnectionError("none")

    told: list[str] = []
    on_ray._connect(fake_ray(init), None, told.append)
    assert tried == (["local"] if value == "local" else ["auto", "local"])
    assert [line.partition(":")[0] for line in told] == ["this machine is part of no Ray cluster"]


def test_an_error_inside_a_call_to_a_node_is_told_with_its_node() -> None:
    """And its cause, in a line; no traceback."""
    error = TaskOSError("ray::Charge.look()\n  File somewhere\nOSError: [Errno 5] Input/output error")
    actor = SimpleNamespace(look=SimpleNamespace(remote=lambda *words: object()))
    hand = RayHand(fake_ray(error=error), Node(id="1", name="10.0.0.7", cpus=1.0), actor)
    with pytest.raises(NodeUnfit, match=r"^the node 10\.0\.0\.7 .*look: OSError: \[Errno 5\] Input/output"):
        hand.look()


def test_a_node_whose_address_is_not_its_own_has_no_port() -> None:
    """Behind a NAT, say: only ranks that are to meet there need one."""
    charge = Charge()
    assert charge.look("192.0.2.1", ()).port is None
    assert charge.look("127.0.0.1", ()).port
