"""The verbs, thin: parse, call, print. What they do lives in the packages they call."""

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer

from stoker import __version__
from stoker.doctor.verb import DoctorCommand, check_seconds, doctor
from stoker.errors import StokerError, UsageError
from stoker.facts.secrets import printable
from stoker.jobs.verbs import jobs, serve
from stoker.workloads.verb import train

app = typer.Typer(
    name="stoker",
    help="Finds out why a PyTorch training run is slow, by measurement.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


# Typer carries Click inside it or beside it, by version; either way this is Click's own base.
_WrongUse: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"stoker {__version__}")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Finds out why a PyTorch training run is slow, by measurement."""


@app.command()
def check(
    data: Annotated[
        Path | None, typer.Option(help="Where the training data lies: its file system is measured too.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Tell what is true of this machine now, and warn of what will hurt. Exits 1 when it warns."""
    from rich.console import Console

    from stoker import facts

    # Importing torch and reading from the data path take seconds; a terminal is told that something happens.
    with Console(stderr=True).status("looking at this machine"):
        found = facts.collect(data=data)
    warnings = facts.warnings_of(found)
    if as_json:
        _print_json(facts.to_json(found, warnings))
    else:
        facts.show(found, warnings)
    raise typer.Exit(1 if warnings else 0)


@app.command(
    cls=DoctorCommand,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    no_args_is_help=True,
)
def run(
    script: Annotated[
        list[str] | None, typer.Argument(metavar="SCRIPT [ARGS]...", help="The script and its arguments.")
    ] = None,
    module: Annotated[
        bool, typer.Option("-m", help="The first word is a module: run -m pkg.train ARGS, as python does.")
    ] = False,
    runs: Annotated[
        Path | None, typer.Option(help="Where records are kept (default: .stoker/runs, or $STOKER_RUNS).")
    ] = None,
    run_id: Annotated[
        str | None, typer.Option(help="The run's id; the same on every node of a multi-node run.")
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps in the whole run, for its ETA.")] = None,
    settings: Annotated[
        Path | None, typer.Option("--with", help="Changes to put over the script's own: a stoker.toml.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No live view and no summary.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object on stdout; the script's stdout goes to stderr.")
    ] = False,
) -> Callable[[], None]:
    """Observe a training script nobody edited. Exits as the script does."""
    from stoker.watch import command

    altered = None
    if settings is not None:
        from stoker import changes

        altered = changes.from_file(settings)
    return command.prepare(
        script or [],
        module=module,
        runs=runs,
        run_id=run_id,
        steps=steps,
        quiet=quiet,
        as_json=as_json,
        altered=altered,
    )


app.command(
    cls=DoctorCommand,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    no_args_is_help=True,
)(doctor)


@app.command(
    cls=DoctorCommand,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    no_args_is_help=True,
)
def tune(
    script: Annotated[
        list[str] | None, typer.Argument(metavar="SCRIPT [ARGS]...", help="The script and its arguments.")
    ] = None,
    module: Annotated[
        bool, typer.Option("-m", help="The first word is a module: tune -m pkg.train ARGS, as python does.")
    ] = False,
    budget: Annotated[
        float, typer.Option(min=30, callback=check_seconds, help="Seconds that it may take.")
    ] = 300.0,
    strict: Annotated[
        bool, typer.Option("--strict", help="Only changes that leave every loss bit-identical.")
    ] = False,
    allow: Annotated[
        list[str] | None, typer.Option(help="Also changes of this kind: numerics, optimization.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where the settings go (stoker.toml).")] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Go on with a search that was cut off: its folder.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be tried; try nothing.")] = False,
    offline: Annotated[
        bool, typer.Option("--offline", help="Cut the script off the network while it is run aside.")
    ] = False,
    workers: Annotated[
        bool, typer.Option("--workers", help="Find loader workers and prefetch alone; writes no settings.")
    ] = False,
    micro_batch: Annotated[
        bool, typer.Option("--micro-batch", help="Find the fastest micro-batch that fits instead.")
    ] = False,
    nproc: Annotated[
        int | None, typer.Option(min=1, help="Ranks, as torchrun --nproc-per-node starts them.")
    ] = None,
    lr: Annotated[
        bool, typer.Option("--lr", help="Find a learning rate instead: it rises from step to step.")
    ] = False,
    lr_range: Annotated[
        str | None, typer.Option(metavar="LOW:HIGH", help="With --lr: from where to where (1e-7:10).")
    ] = None,
    lr_steps: Annotated[int | None, typer.Option(help="With --lr: in how many steps (100).")] = None,
    on: Annotated[
        str | None, typer.Option(help="A cluster to tune on, a node of it: ray, or ray://HOST:PORT.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
    context: typer.Context = None,  # type: ignore[assignment]  # typer gives it
) -> None:
    """Try one change at a time on a training script, and keep what is proved."""
    if lr + micro_batch + workers > 1:
        raise UsageError("--workers, --micro-batch and --lr are a finder each: give one of them")
    if on is not None:
        from stoker.cluster.address import parse_on

        parse_on(on)  # before what takes seconds to import
    from stoker.doctor.world import ranks_to_start
    from stoker.tune import command

    command.refuse_unread(
        "--lr" if lr else "--micro-batch" if micro_batch else "--workers" if workers else "",
        {"--strict": strict, "--allow": allow, "--out": out, "--resume": resume, "--dry-run": dry_run,
         "--lr-range": lr_range, "--lr-steps": lr_steps},
    )  # fmt: skip
    if on is not None:
        from stoker.cluster import command as cluster

        raise typer.Exit(cluster.tune(context, on, budget=budget, script=script or [], module=module))
    ranks = ranks_to_start(nproc, os.environ)
    if ranks is None:  # under torchrun the first process tunes, and starts all ranks aside
        return
    held: Any = {"module": module, "budget": budget, "offline": offline, "as_json": as_json}
    if micro_batch:
        from stoker.tune import micro_command

        micro_command.find(script or [], allow=allow or [], ranks=ranks, **held)
        return
    if lr:
        from stoker.tune import lr_command
        from stoker.tune.ranks import refuse_sweep

        refuse_sweep(ranks)
        lr_command.sweep(script or [], within=lr_range, steps=lr_steps, **held)
        return
    if workers:
        command.tune_workers(script or [], dry_run=dry_run, ranks=ranks, **held)
        return
    command.tune(
        script or [],
        strict=strict,
        allow=allow or [],
        out=out,
        resume=resume,
        dry_run=dry_run,
        ranks=ranks,
        **held,
    )


@app.command(no_args_is_help=True)
def export(
    run: Annotated[str, typer.Argument(help="A record's folder, a run's id, or `latest`.")],
    to: Annotated[str, typer.Option(help="tensorboard or prometheus.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Where to (default: tensorboard/ in the record; prometheus to stdout)."),
    ] = None,
    runs: Annotated[
        Path | None, typer.Option(help="Where records are kept (default: .stoker/runs, or $STOKER_RUNS).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Write a run's record for another tool."""
    from stoker.watch import Record
    from stoker.watch import export as exports

    if as_json and to == "prometheus" and out is None:
        raise UsageError("--json and the Prometheus text both want stdout: give the text a file with --out")
    record = Record.open(run, root=runs)
    place = exports.export(record, to, out)
    if as_json:
        _print_json({"schema": 1, "run": record.folder.name, "to": to, "out": str(place)})
    elif place is not None:
        typer.echo(f"{place}")


@app.command(no_args_is_help=True)
def stage(
    source: Annotated[str, typer.Argument(metavar="SRC", help="s3://, gs://, az://, https://, or a folder.")],
    target: Annotated[Path, typer.Argument(metavar="DST", help="The local folder to fill.")],
    classes: Annotated[
        str | None,
        typer.Option(help="Some first-level folders: how many (by --seed), or names: a,b,c."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Which classes, when --classes is a number.")] = 0,
    include: Annotated[
        list[str] | None, typer.Option(help="Only files like this (*.jpg, train/*); repeatable.")
    ] = None,
    exclude: Annotated[list[str] | None, typer.Option(help="No files like this; repeatable.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Files copied at a time.")] = 16,
    verify: Annotated[bool, typer.Option("--verify", help="Read and check what is already there.")] = False,
    ignore_etags: Annotated[
        bool, typer.Option("--ignore-etags", help="The store's tags are no MD5 digests (KMS encryption).")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Keep in step until Ctrl-C.")] = False,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between looks with --watch.")] = 30.0,
    delete: Annotated[
        bool, typer.Option("--delete", help="Remove staged files that are no longer in the source.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be copied.")] = False,
    endpoint: Annotated[str | None, typer.Option(help="The store's address, for stores of your own.")] = None,
    region: Annotated[str | None, typer.Option(help="The store's region.")] = None,
    anonymous: Annotated[bool, typer.Option("--anonymous", help="The bucket is public.")] = False,
    on: Annotated[
        str | None, typer.Option(help="A cluster whose nodes share it out: ray, or ray://HOST:PORT.")
    ] = None,
    part: Annotated[str | None, typer.Option(metavar="NUMBER/COUNT", hidden=True)] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no summary.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
    context: typer.Context = None,  # type: ignore[assignment]  # typer gives it
) -> None:
    """Copy a set, or a seeded part of it, to local disk: verified, resumable, whole files only."""
    from stoker.feed import stage as stages

    if watch and dry_run:
        raise UsageError("--watch copies and --dry-run does not: give one of them")
    if on is not None:
        from stoker.cluster import command as cluster

        if watch:
            raise UsageError("--watch with --on: nodes stage once; run it again to keep in step")
        raise typer.Exit(
            cluster.stage(
                context, on, source=source, target=target, dry_run=dry_run, quiet=quiet, as_json=as_json
            )
        )
    given = {"endpoint": endpoint, "region": region, "skip_signature": True if anonymous else None}
    store = stages.Store(source, options={name: value for name, value in given.items() if value is not None})
    selection = stages.Selection(
        classes=stages.parse_classes(classes),
        seed=seed,
        include=include or (),
        exclude=exclude or (),
        jobs=jobs,
        verify=verify,
        ignore_etags=ignore_etags,
        delete=delete,
        part=stages.parse_part(part),
    )
    work = stages.Stage(store, target, selection, stages.view_for(quiet=quiet))
    outcome = work.watch(every_s=every) if watch else work.run(dry_run=dry_run)
    if as_json:
        _print_json(outcome.to_json())
    elif not quiet and not watch:
        typer.echo(stages.summary(outcome))
    raise typer.Exit(1 if outcome.failed else 0)


@app.command(no_args_is_help=True)
def bench(
    name: Annotated[
        str,
        typer.Argument(
            help="Which one: overhead, truth, holders, feed, tune, workloads, learning, scale, jobs, resumes "
            "or faults."
        ),
    ],
    device: Annotated[str, typer.Option(help="cpu, cuda, or all that are here.")] = "all",
    seconds: Annotated[float, typer.Option(min=0, help="Time to measure in, for each device.")] = 240.0,
    out: Annotated[Path, typer.Option(help="Where the results and the page go.")] = Path("benchmarks"),
    size: Annotated[
        list[int] | None,
        typer.Option(
            help="overhead: only steps of so many ms, repeatable; feed: percent of the full sets; "
            "resumes: how many events."
        ),
    ] = None,
    part: Annotated[
        list[str] | None,
        typer.Option(
            "--part",
            "--only",
            help="feed: only disk, npy, torch, images, volume, sql, s3; "
            "on cuda vram, ram, window, images, disk; tune: a case; "
            "workloads and learning: sar, imagenet, vesuvius, heimdall; "
            "scale: a case; jobs: a store; faults: a row; repeatable.",
        ),
    ] = None,
    peers: Annotated[bool, typer.Option(help="Measure the peers too.")] = True,
    peer_python: Annotated[
        Path | None, typer.Option(help="An interpreter that has the peer (default: under .peers/).")
    ] = None,
    peer_path: Annotated[
        Path | None, typer.Option(help="A folder with the peer's packages, put on its PYTHONPATH.")
    ] = None,
    commit: Annotated[str | None, typer.Option(help="The commit measured, where git cannot tell.")] = None,
    state: Annotated[
        Path | None,
        typer.Option(help="Of those that go on: where what was measured is kept."),
    ] = None,
    stop_after: Annotated[
        float | None,
        typer.Option(min=0, help="Of those that go on: stop after so many seconds; run again."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Run one of Stoker's own benchmarks, its peers beside it, and write the result."""
    from stoker import bench as benches

    options = benches.Options(
        seconds=seconds,
        device=device,
        peers=peers,
        peer_python=peer_python,
        peer_path=peer_path,
        sizes=tuple(size or ()),
        parts=tuple(part or ()),
        commit=commit,
        state=state,
        stop_after=stop_after,
    )
    written = benches.run(name, options, out)
    if as_json:
        results = [{"file": str(path), **result.to_json()} for path, result in written]
        _print_json({"schema": 1, "results": results})
        return
    for path, result in written:
        typer.echo(f"{path}")
        for key, value in result.figures.items():
            typer.echo(f"  {key} = {value:g}")


app.command()(train)
app.command()(serve)
app.add_typer(jobs)


@app.command()
def ward(
    case: Annotated[
        list[str] | None, typer.Argument(metavar="[CASE | CAUSE]...", help="Some cases only; no score then.")
    ] = None,
    listed: Annotated[
        bool, typer.Option("--list", help="Name the cases, and which cannot be run here.")
    ] = False,
    renamed: Annotated[
        bool, typer.Option("--renamed", help="Give scripts, classes, functions and options other names.")
    ] = False,
    cures: Annotated[
        bool,
        typer.Option("--cures", help="Apply the cures that are proposed, and score the rates predicted."),
    ] = False,
    join: Annotated[
        Path | None, typer.Option(help="Run nothing: score the results in this folder, of one version.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu or cuda: the cases that need no card, or those that need one.")
    ] = None,
    stop_after: Annotated[
        float | None,
        typer.Option(min=0, help="Stop after so many seconds (120 or more); run it again to go on."),
    ] = None,
    commit: Annotated[str | None, typer.Option(help="The commit judged, where git cannot tell.")] = None,
    hardware: Annotated[
        str | None, typer.Option(help="--join: the machine's word, where results do not say it.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Where results go.")] = Path("benchmarks"),
) -> None:
    """Inject each cause here, let the doctor judge, and score it."""
    from stoker.ward import command

    if cures and (renamed or listed or join):
        raise UsageError("--cures applies cures: it goes neither with --list, --renamed nor --join")
    if join is not None and (case or renamed or listed):
        raise UsageError("--join scores all results of a folder: it goes with no case, --list or --renamed")
    if cures:
        command.try_all(wanted=case or [], out=out)
    elif join is not None:
        command.join_all(folder=join, out=out, device=device, commit=commit, hardware=hardware)
    else:
        command.go(
            wanted=case or [], out=out, renamed=renamed, listed=listed, device=device, commit=commit,
            stop_after=stop_after,
        )  # fmt: skip


@contextlib.contextmanager
def _any_name() -> Iterator[None]:
    """Names of files that are no UTF-8 can be printed in the block; a script after it finds all as it was."""
    out = sys.stdout
    if not isinstance(out, TextIOWrapper):  # a test's or a notebook's own
        yield
        return
    before = out.errors
    out.reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        out.reconfigure(errors=before)


def _print_json(value: dict[str, Any]) -> None:
    json.dump(value, sys.stdout)
    sys.stdout.write("\n")


def main() -> None:
    """Run the command line. A script under `stoker run` starts only after parsing has been left behind."""
    try:
        with _any_name():
            launch = app(standalone_mode=False)
    except typer.Abort:
        sys.exit(130)
    except _WrongUse as error:
        error.show()
        sys.exit(error.exit_code)
    except StokerError as error:
        sys.stderr.write(f"stoker: {printable(str(error))}\n")
        sys.exit(error.exit_code)
    if isinstance(launch, int):
        sys.exit(launch)
    if launch is not None:
        # Outside every frame of the parser, so that what the script raises ends the interpreter as
        # it would have without Stoker: exit code, traceback and signal.
        launch()
