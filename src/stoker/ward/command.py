"""`stoker ward`: the rounds from the command line."""

from collections.abc import Sequence
from datetime import date
from pathlib import Path

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
from stoker.ward.cures import read_tried, try_all_cures
from stoker.ward.needs import of_card
from stoker.ward.results import NOT_RUN, Seen, Stamp, join
from stoker.ward.rounds import answer_kept, line_of, make_rounds
from stoker.watch.record import default_root


def go(
    *,
    wanted: list[str],
    out: Path,
    renamed: bool = False,
    listed: bool = False,
    device: str | None = None,
    commit: str | None = None,
    stop_after: float | None = None,
) -> None:
    """List the cases, or show them to the doctor and write what came of it."""
    chosen = _choose(wanted, device)
    if listed:
        for case in chosen:
            reason = injectable(case)
            typer.echo(f"{case.id}: {case.variant}" + (f" [not here: {reason}]" if reason else ""))
        return
    version = (commit or _version()) + ("-renamed" if renamed else "")
    stamp = _stamp_here(version, device)
    seen = make_rounds(
        chosen, out / "ward", stamp=stamp, renamed=renamed, tell=typer.echo, stop_after=stop_after
    )
    left = sum(one.reason == NOT_RUN for one in seen)
    if left:
        typer.echo(f"{left} of {len(seen)} cases not run: the same command again goes on with them")
        return
    figures = score.figures_of(seen, chosen) | score.figures_of_cures(read_tried(_cures(out), version))
    _tell(figures)
    if not wanted:  # a part of the cases is no score
        _write_rounds(figures, seen, stamp, out)


def join_all(
    *, folder: Path, out: Path, device: str | None, commit: str | None, hardware: str | None
) -> None:
    """Score results that were made elsewhere, or by and by; a case that has none is told as not run."""
    chosen = _choose([], device)
    stamp, seen = join(folder, chosen, version=commit, hardware=hardware)
    for one in seen:
        typer.echo(line_of(one))
    figures = score.figures_of(seen, chosen)
    figures |= score.figures_of_cures(read_tried(folder / "cures", stamp.version))
    _tell(figures)
    _write_rounds(figures, seen, stamp, out)


def try_all(*, wanted: list[str], out: Path) -> None:
    """Apply the doctor's cures, and write how good its predictions were, with those tried before."""
    version = _version()
    stamp = _stamp_here(version, None)
    try_all_cures(
        _choose(wanted, None),
        _cures(out),
        version=version,
        tell=typer.echo,
        scores=default_root().absolute().parent / calibration.NAME,
        answer_of=lambda case: answer_kept(out / "ward", case, stamp),
    )
    tried = read_tried(_cures(out), version)
    figures = score.figures_of_cures(tried)
    _tell(figures)
    if figures:
        result = Result(
            bench="cures",
            hardware=stamp.hardware,
            figures=figures,
            runs=[one.to_json() for one in tried],
            versions=stamp.versions,
            commit=version,
        )
        typer.echo(f"{write_result(result, out)}")
        write_page("cures", score.page_of_cures, out)


def _write_rounds(figures: dict[str, float], seen: Sequence[Seen], stamp: Stamp, out: Path) -> None:
    result = Result(
        bench="ward",
        hardware=stamp.hardware,
        figures=figures,
        runs=[one.to_json() for one in seen],
        versions=stamp.versions,
        commit=stamp.version,
        date=stamp.date,
    )
    typer.echo(f"{write_result(result, out)}")
    write_page("ward", score.page, out)


def _tell(figures: dict[str, float]) -> None:
    for name, value in figures.items():
        typer.echo(f"  {name} = {value:.6g}")


def _cures(out: Path) -> Path:
    return out / "ward" / "cures"


def _version() -> str:
    return commit_here() or __version__


def _stamp_here(version: str, device: str | None) -> Stamp:
    word = hardware_word(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    return Stamp(version=version, hardware=word, versions=versions_here(), date=date.today().isoformat())


def _choose(wanted: list[str], device: str | None) -> list[Case]:
    """Those named by their id or by their cause, all where none is; of one device where it is given."""
    known = cases()
    names = {case.id for case in known} | {case.cause for case in known}
    unknown = [word for word in wanted if word not in names]
    if unknown:
        raise UsageError(f"no case and no cause {unknown[0]!r} in the ward; `stoker ward --list` has them")
    if device not in (None, "cpu", "cuda"):
        raise UsageError(f"no cases for the device {device!r}: --device is cpu or cuda")
    return [
        case
        for case in known
        if (not wanted or case.id in wanted or case.cause in wanted)
        and (device is None or of_card(case) == (device == "cuda"))
    ]
