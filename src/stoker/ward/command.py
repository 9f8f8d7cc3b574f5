"""`stoker ward`: the rounds from the command line."""

from pathlib import Path

import torch
import typer

from stoker import __version__
from stoker.bench.page import write_page
from stoker.bench.result import Result, commit_here, hardware_word, versions_here, write_result
from stoker.errors import UsageError
from stoker.ward import score
from stoker.ward.case import Case
from stoker.ward.catalogue import cases, injectable
from stoker.ward.rounds import make_rounds


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
    figures = score.figures_of(seen, chosen)
    for name, value in figures.items():
        typer.echo(f"  {name} = {value:.6g}")
    if wanted:
        return  # a part of the cases is no score
    result = Result(
        bench="ward",
        hardware=hardware_word("cuda" if torch.cuda.is_available() else "cpu"),
        figures=figures,
        runs=[one.to_json() for one in seen],
        versions=versions_here(),
        commit=version,
    )
    typer.echo(f"{write_result(result, out)}")
    write_page("ward", score.page, out)


def _choose(wanted: list[str]) -> list[Case]:
    """Those named by their id or by their cause; all of them where none is."""
    known = cases()
    names = {case.id for case in known} | {case.cause for case in known}
    unknown = [word for word in wanted if word not in names]
    if unknown:
        raise UsageError(f"no case and no cause {unknown[0]!r} in the ward; `stoker ward --list` has them")
    return [case for case in known if not wanted or case.id in wanted or case.cause in wanted]
