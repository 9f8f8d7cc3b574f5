"""`--on` of `stoker train`, `stoker tune` and `stoker stage`: from parsed words to a cluster at work."""

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from stoker.cluster.address import parse_on
from stoker.cluster.errand import say
from stoker.cluster.nodes import Cluster
from stoker.cluster.retyped import retype
from stoker.errors import UsageError

_STOKER = ("-m", "stoker")


@contextlib.contextmanager
def opened(on: str, tell: Callable[[str], None] = say) -> Iterator[Cluster]:
    """The cluster that `--on` names; what is left running there is killed at the end."""
    address = parse_on(on)
    from stoker.cluster.ray import RayCluster

    cluster = RayCluster(address, tell)
    try:
        yield cluster
    finally:
        cluster.close()


def train(
    context: Any,
    on: str,
    *,
    folder: Path,
    train: Any,
    config: Path | None,
    fresh: bool,
    unread: Sequence[str],
) -> int:
    """Train on a cluster's nodes; `train` are the settings that all workloads share. The exit code."""
    if unread:
        raise UsageError(
            f"{', '.join(unread)} with --on would do nothing: it looks at one machine; leave it out"
        )
    from stoker.cluster.training import Training, Wanted
    from stoker.train import folder as folders

    if fresh:
        # Here, so that it is done once, whichever attempt is the first to come so far.
        with folders.taken(folder):
            if (aside := folders.put_aside(folder)) is not None:
                say(f"what was in {folder} is in {aside}")
    wanted = Wanted(
        words=(*_STOKER, "train", *retype(context, without=("on", "fresh"))),
        folder=folder.absolute(),
        batch_size=train.batch_size,
        per_node=train.devices,
        device=train.device,
        files=() if config is None else (config,),
    )
    with opened(on) as cluster:
        return Training(cluster, wanted, say).run()


def tune(context: Any, on: str, *, budget: float, script: Sequence[str], module: bool) -> int:
    """Tune on a node of a cluster; the exit code."""
    if not script:
        raise UsageError("nothing to tune: give a script (stoker tune --on ray train.py)")
    parse_on(on)
    from stoker.cluster.search import Searching
    from stoker.facts.secrets import hide_secrets
    from stoker.watch.record import default_root

    def words(seconds: float, ledger: Path | None) -> tuple[str, ...]:
        other = {} if ledger is None else {"resume": ledger}
        return (*_STOKER, "tune", *retype(context, without=("on",), budget=seconds, **other))

    if not module and not Path(script[0]).is_file():
        raise UsageError(f"no script {script[0]}: give a file that all nodes see under this path")
    command = ["-m", *script] if module else list(script)
    with opened(on) as cluster:
        return Searching(
            cluster,
            words,
            budget=budget,
            home=default_root().absolute().parent,
            command=hide_secrets(command),
            files=[] if module else [Path(script[0])],
            tell=say,
            resume=context.params.get("resume"),
        ).run()


def stage(
    context: Any, on: str, *, source: str, target: Path, dry_run: bool, quiet: bool, as_json: bool
) -> int:
    """Stage on a cluster's nodes, print what came of it; the exit code."""
    parse_on(on)
    from stoker.cluster.staging import Staging
    from stoker.feed.sources.objects import folder_of, local_folder

    origin = folder_of(source)
    place = str(local_folder(target))
    fixed = {"target": place, "source": source if origin is None else str(origin), "as_json": True}

    def words(**other: Any) -> tuple[str, ...]:
        return (*_STOKER, "stage", *retype(context, without=("on",), **fixed, **other))

    tell = (lambda text: None) if quiet else say
    with opened(on, tell) as cluster:
        staged = Staging(cluster, words, place, tell).run(dry_run=dry_run)
    if as_json:
        json.dump(staged.to_json(), sys.stdout)
        sys.stdout.write("\n")
    elif not quiet:
        sys.stdout.write(f"{staged}\n")
    return 1 if staged.outcome.failed else 0
