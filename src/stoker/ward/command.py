"""`stoker ward`: the rounds from the command line."""

from pathlib import Path
from typing import Any

import torch
import typer

from stoker import __version__
from stoker.bench.page import write_page
from stoker.bench.result import Result, commit_here, hardware_word, versions_here, write_result
from stoker.doctor import calibration
from stoker.errors import UsageError
from stoker.ward import score
from stoker.ward.case import Case
from stoker.ward.catalogue import cases, injectable
from stoker.ward.cures import read_tried, try_cures
from stoker.ward.rounds import make_rounds
from stoker.watch.record import default_root


def go(*, wanted: list[str], out: Path, renamed: bool, listed: bool) -> None:
    """List the cases, or show them to the doctor and write what came of it."""
    chosen = _choose(wanted)
    if listed:
        for case in chosen:
            reason = injectable(case)
            typer.echo(f"{case.id}: {case.variant}" + (f" [not here: {reason}]" if reason else ""))
        return
    version = (commit_here() or __version__) + ("-renamed" if renamed else "")
    seen = make_rounds(chosen, out / "ward", version=version, renamed=renamed, tell=typer.echo)
    figures = score.figures_of(seen, chosen) | score.figures_of_cures(read_tried(_cures(out), version))
    for name, value in figures.items():
        typer.echo(f"  {name} = {value:.6g}")
    if wanted:
        return  # a part of the cases is no score
    _write("ward", figures, [one.to_json() for one in seen], version, out)
    write_page("ward", score.page, out)


def try_all(*, wanted: list[str], out: Path) -> None:
    """Apply the doctor's cures, and write how good its predictions were, with those tried before."""
    version = commit_here() or __version__
    scores = default_root().absolute().parent / calibration.NAME
    try_cures(_choose(wanted), _cures(out), version=version, tell=typer.echo, scores=scores)
    tried = read_tried(_cures(out), version)
    figures = score.figures_of_cures(tried)
    for name, value in figures.items():
        typer.echo(f"  {name} = {value:.6g}")
    if figures:
        _write("cures", figures, [one.to_json() for one in tried], version, out)
        write_page("cures", score.page_of_cures, out)


def _cures(out: Path) -> Path:
    return out / "ward" / "cures"


def _write(
    bench: str, figures: dict[str, float], runs: list[dict[str, Any]], version: str, out: Path
) -> None:
    hardware = hardware_word("cuda" if torch.cuda.is_available() else "cpu")
    result = Result(
        bench=bench, hardware=hardware, figures=figures, runs=runs, versions=versions_here(), commit=version
    )
    typer.echo(f"{write_result(result, out)}")


def _choose(wanted: list[str]) -> list[Case]:
    """Those named by their id or by their cause; all of them where none is."""
    known = cases()
    names = {case.id for case in known} | {case.cause for case in known}
    unknown = [word for word in wanted if word not in names]
    if unknown:
        raise UsageError(f"no case and no cause {unknown[0]!r} in the ward; `stoker ward --list` has them")
    return [case for case in known if not wanted or case.id in wanted or case.cause in wanted]
