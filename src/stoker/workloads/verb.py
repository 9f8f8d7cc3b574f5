"""`stoker train`, as it is typed; the command line has it from here."""

from pathlib import Path
from typing import Annotated

import typer

from stoker.workloads import NAMES, find


def train(
    context: typer.Context,
    workload: Annotated[str, typer.Argument(help=f"{', '.join(NAMES[:-1])} or {NAMES[-1]}.")],
    setting: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Settings: train.epochs=3 train.batch_size=16"),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="Settings from a .yaml or .toml file.")] = None,
    out: Annotated[Path | None, typer.Option(help="The training's folder (default: runs/WORKLOAD).")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Begin anew; what is there is put aside.")] = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Its models on equal budgets, compared.")
    ] = False,
    find_lr: Annotated[bool, typer.Option("--find-lr", help="Sweep the learning rate, and stop.")] = False,
    show_config: Annotated[bool, typer.Option("--show-config", help="Print all settings, and stop.")] = False,
    on: Annotated[
        str | None, typer.Option(help="A cluster to train on, all its nodes: ray, or ray://HOST:PORT.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Train one of the four reference workloads; goes on where it stopped. Made data need no path."""
    if on is not None:
        from stoker.cluster import command as cluster
        from stoker.cluster.address import parse_on
        from stoker.train.config_file import load

        parse_on(on)  # before torch is imported, for the settings
        others = {"--compare": compare, "--find-lr": find_lr, "--show-config": show_config}
        known = find(workload)
        task = known.task(load(known.config, config, setting or []))  # whose batch is settled
        code = cluster.train(
            context, on, folder=out or Path("runs") / workload,
            train=task.config.train, config=config, fresh=fresh,
            unread=[name for name, given in others.items() if given],
        )  # fmt: skip
        raise typer.Exit(code)
    from stoker.train import command

    code = command.go(
        find(workload), settings=setting or [], config=config, out=out, fresh=fresh,
        compare=compare, find_lr=find_lr, show_config=show_config, as_json=as_json,
    )  # fmt: skip
    raise typer.Exit(code)
