"""What nodes must have in common with this machine, looked at before anything is started there."""

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from stoker import __version__
from stoker.cluster.charge import FOLDER, digest_of
from stoker.cluster.errand import TICK_S
from stoker.cluster.nodes import Cluster, Hand, Look
from stoker.errors import ClusterFailed, NodeLost, NodeUnfit, NotPermitted

_MARK = ".stoker-on-"
T = TypeVar("T")


@contextmanager
def marked(folder: Path, others: Sequence[Path] = ()) -> Iterator[Mapping[str, str]]:
    """Files that a node must see as they are here, by their digests: one put into the folder, and others.

    Beside them the folder that the command is typed in: it is where commands are started.
    """
    mark = folder / f"{_MARK}{secrets.token_hex(8)}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        mark.write_text(mark.name)
    except OSError as error:
        raise NotPermitted(f"cannot write to {folder}: {error.strerror or error}") from error
    try:
        found = {str(path.absolute()): digest_of(path) for path in (mark, *others, Path.cwd())}
        yield {path: digest for path, digest in found.items() if digest is not None}
    finally:
        mark.unlink(missing_ok=True)


def fault_of(name: str, look: Look, wanted: Mapping[str, str]) -> str | None:
    """What a node lacks, and what to do; None where it has all."""
    if look.version != __version__:
        return f"the node {name} has Stoker {look.version}, and this machine {__version__}: install the same"
    for path, digest in wanted.items():
        if look.digests.get(path) == digest:
            continue
        folder = Path(path).parent
        if Path(path).name.startswith(_MARK):
            return (
                f"the node {name} does not see what is written to {folder} here: what is trained or tuned on "
                "several machines goes on from files, so that folder must be on storage that all nodes and "
                "this machine share (NFS, say), under the same path; name such a one, or start there"
            )
        if digest == FOLDER:
            return (
                f"the node {name} has no folder {path}, which the command was typed in and is started in "
                "there: type it in a folder that all nodes have"
            )
        state = "is another file" if look.digests.get(path) else "is not there"
        return f"{path} {state} on the node {name}: it must be on storage that all nodes share"
    return None


def look_at(cluster: Cluster, hand: Hand, wanted: Mapping[str, str]) -> Look | None:
    """What is true on a node, once it answers; NodeUnfit where it lacks something, NodeLost if it is gone."""
    try:
        look = hand.look(tuple(wanted))
    except NodeLost as error:
        if hand.node.id in {node.id for node in cluster.nodes()}:  # it would be so again
            raise NodeUnfit(f"on the node {hand.node.name} nothing can be started: {error}") from error
        raise
    if look is not None and (fault := fault_of(hand.node.name, look, wanted)):
        raise NodeUnfit(fault)
    return look


def port_of(name: str, look: Look) -> int:
    """Where ranks can meet on a node; NodeUnfit where they cannot."""
    if look.port is None:
        raise NodeUnfit(
            f"the node {name} cannot listen on {name}, its address in the cluster, and ranks have to meet "
            "there: start its Ray with --node-ip-address=ADDRESS, one that the machine has and others reach"
        )
    return look.port


def await_answer(ask: Callable[[], T | None], hand: Hand, *, within: float) -> T:
    """The answer of a node, waited for; ClusterFailed where none comes in so many seconds."""
    until = time.monotonic() + within
    while (found := ask()) is None:
        if time.monotonic() > until:
            raise ClusterFailed(f"the node {hand.node.name} gave no answer in {within:g} s")
        time.sleep(TICK_S)
    return found
