"""The ward's rounds: every case that this machine can run is shown to the doctor, who is not told its cause.

Each case leaves a result file of its own, so that rounds can be broken off and gone on with; beside it stands
the doctor's whole answer.
"""

import json
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from stoker.bench.result import write_text
from stoker.ward.case import Case
from stoker.ward.catalogue import injectable, prepared
from stoker.ward.results import NOT_RUN, Seen, Stamp, keep, kept, unseen

# Seconds that a verdict may take, and that the whole of a case may on top of it.
BUDGET = 30.0
_PATIENCE = 150.0
# Seconds after which a doctor who was interrupted would not have come to a verdict either: where rounds are
# made in short parts, the case would be begun again in each, and none after it.
_ENOUGH = 3 * BUDGET
# Seconds that must be left to begin another case: the longest of 22 on an H200 took 27, most 16 to 20.
_LEAST = 28.0


def make_rounds(
    cases: Iterable[Case],
    folder: Path,
    *,
    stamp: Stamp,
    renamed: bool,
    tell: Callable[[str], None],
    stop_after: float | None = None,
) -> list[Seen]:
    """Show each case to the doctor, unless its result for this version and machine is there already.

    What the seconds do not suffice for is not run: no case is begun shortly before their end, and the one
    that is under way then leaves no result, unless it has had three times what a verdict may take.
    """
    end = float("inf") if stop_after is None else time.monotonic() + stop_after
    all_seen = []
    for case in cases:
        seen = kept(folder, case, stamp)
        if seen is None:
            seen = _show_in_time(case, folder, renamed, end)
            if seen.reason != NOT_RUN:
                keep(folder, seen, stamp)
        tell(line_of(seen))
        all_seen.append(seen)
    return all_seen


def answer_kept(folder: Path, case: Case, stamp: Stamp) -> dict[str, Any] | None:
    """The doctor's whole answer to a case for this version and machine; None where he came to none."""
    seen = kept(folder, case, stamp)
    if seen is None or seen.said is None or not _told(folder, case).exists():
        return None
    answer: dict[str, Any] = json.loads(_told(folder, case).read_text())
    return answer


def _told(folder: Path, case: Case) -> Path:
    return folder / "told" / f"{case.id}.json"


def _show_in_time(case: Case, folder: Path, renamed: bool, end: float) -> Seen:
    left = end - time.monotonic()
    if left < _LEAST:
        return unseen(case, NOT_RUN)
    return show(case, renamed=renamed, told=_told(folder, case), patience=left)


def show(case: Case, *, renamed: bool = False, told: Path | None = None, patience: float = _PATIENCE) -> Seen:
    """Run the doctor on a case; its whole answer goes to `told`, or what it said on its errors' stream."""
    reason = injectable(case)
    if reason is not None:
        return unseen(case, reason)
    began = time.monotonic()
    seconds = min(_PATIENCE, patience)
    with prepared(case, renamed=renamed) as ready:
        command = ready.command("-m", "stoker", "doctor", "--json", "--budget", str(BUDGET))
        try:
            done = subprocess.run(
                command, env=ready.env, cwd=ready.cwd, capture_output=True, text=True,
                timeout=seconds, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            if seconds < _ENOUGH:
                return unseen(case, NOT_RUN)
            return unseen(case, f"no verdict within {seconds:.0f} s", seconds=time.monotonic() - began)
    if told is not None:
        write_text(told, done.stdout or json.dumps({"stderr": done.stderr}) + "\n")
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["nothing was said"])[-1]
        reason = f"exit code {done.returncode}: {last}"
        return unseen(case, reason, seconds=time.monotonic() - began)
    answer = json.loads(done.stdout)
    cures = [cure["change"] for cure in answer["verdict"]["cures"]]
    return Seen(
        case=case.id,
        truth=case.cause,
        also=case.also,
        said=answer["verdict"]["cause"],
        said_also=tuple(one["cause"] for one in answer["verdict"]["also"]),
        seconds=answer["seconds"],
        cure=case.cure,
        said_cure=cures[0] if cures else None,
    )


def line_of(seen: Seen) -> str:
    """A result in a line."""
    if seen.right is None:
        return f"n/a    {seen.case}: {seen.reason}"
    also = f" (also {', '.join(seen.said_also)})" if seen.said_also else ""
    said = seen.said or seen.reason
    if seen.cure is not None and seen.said == seen.truth:
        said = f"{said} by {seen.said_cure}"
    return f"{'right' if seen.right else 'WRONG'}  {seen.case}: {seen.truth}, said {said}{also}"
