"""`stoker doctor`, as it is typed; the command line has it from here."""

from math import isnan
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from stoker.errors import UsageError


def check_seconds(value: float) -> float:
    """Refuse what not every typer's range refuses: nan is neither more nor less than any number."""
    if isnan(value):
        raise typer.BadParameter(f"{value} is no number of seconds")
    return value


class DoctorCommand(TyperCommand):
    """What follows a script is the script's own; what follows a record is for the doctor."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """A record is told from a script by the first word that is no option."""
        given = list(args)
        left = super().parse_args(ctx, list(given))
        words: list[str] = ctx.params.get("script") or []
        if len(words) < 2 or ctx.params.get("module") or Path(words[0]).is_file():
            return left
        from stoker.doctor.command import is_record

        if not is_record(words[0], ctx.params.get("runs")):
            return left
        ctx.params.clear()
        ctx.allow_interspersed_args, ctx.ignore_unknown_options = True, False
        return super().parse_args(ctx, given)


def doctor(
    script: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SCRIPT [ARGS]... | NOTEBOOK | RUN",
            help="The script and its arguments; a notebook; or a record.",
        ),
    ] = None,
    module: Annotated[
        bool, typer.Option("-m", help="The first word is a module: doctor -m pkg.train ARGS, as python does.")
    ] = False,
    nproc: Annotated[
        int | None, typer.Option(min=1, help="Ranks to start, as torchrun --nproc-per-node does.")
    ] = None,
    budget: Annotated[
        float, typer.Option(min=15, callback=check_seconds, help="Seconds that a diagnosis may take.")
    ] = 90.0,
    offline: Annotated[
        bool, typer.Option("--offline", help="Cut the script off the network while it is run aside.")
    ] = False,
    runs: Annotated[
        Path | None, typer.Option(help="Where records are kept (default: .stoker/runs, or $STOKER_RUNS).")
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(help="The report's file, .html or .md (default: report.html beside the record)."),
    ] = None,
    no_report: Annotated[bool, typer.Option("--no-report", help="Write no report.")] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="The report as Markdown on stdout, for an issue tracker.")
    ] = False,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps in the whole run, for its times.")] = None,
    asked: Annotated[
        str | None,
        typer.Option("--fits", help="Does it fit: batch=32,vram=8GB or workers=8,ram=16GB, or one of each."),
    ] = None,
    calibration: Annotated[
        bool, typer.Option("--calibration", help="How good predictions were so far; no diagnosis.")
    ] = False,
    scale: Annotated[
        bool, typer.Option("--scale", help="From a RUN: what many GPUs would be fed by; no diagnosis.")
    ] = False,
    link: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="With --scale: nic=100Gbit/s, store=5GB/s, …; repeatable."),
    ] = None,
    gpus: Annotated[
        list[int] | None, typer.Option(min=1, help="With --scale: how many (8, 64 and 1024); repeatable.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Name what makes a training script slow, by experiments in a scratch run of it."""
    from stoker.doctor import command

    if calibration:
        if script:
            raise UsageError(
                f"--calibration tells of earlier scores and diagnoses nothing: leave out {script[0]}"
            )
        command.tell_calibration(runs=runs, as_json=as_json)
        return
    if scale:
        command.tell_scale(
            script or [], links=link or [], gpus=gpus or [], runs=runs, as_json=as_json, markdown=markdown
        )
        return
    if link or gpus:
        raise UsageError("--link and --gpus tell of many GPUs: give --scale too")
    command.diagnose(
        script or [],
        steps=steps,
        asked=asked,
        module=module,
        runs=runs,
        budget=budget,
        as_json=as_json,
        markdown=markdown,
        report=report,
        no_report=no_report,
        nproc=nproc,
        offline=offline,
    )
