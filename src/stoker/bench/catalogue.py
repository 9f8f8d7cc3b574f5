"""Which benchmarks there are, and what running one comes to: measure, write the file, make the page."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from stoker.bench.page import write_page
from stoker.bench.result import Result, newest_results, write_result
from stoker.errors import UsageError

# Name to the module that measures it; imported only when asked for.
BENCHES = {
    "overhead": "stoker.bench.overhead",
    "truth": "stoker.bench.truth",
    "holders": "stoker.bench.holders",
    "feed": "stoker.bench.feed",
    "tune": "stoker.bench.tune",
    "workloads": "stoker.bench.workloads",
    "learning": "stoker.bench.learning",
    "scale": "stoker.bench.scale",
    "jobs": "stoker.bench.jobs",
    "resumes": "stoker.bench.resumes",
    "faults": "stoker.bench.faults",
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """What every benchmark is told.

    `seconds` bounds the measuring of one device. `peer_python` is the interpreter of an environment
    that has the peer; `peer_path` a folder to put on the peer's PYTHONPATH instead. `sizes` and `parts`
    narrow a benchmark that has several to the ones named. One that goes on where it was broken off keeps
    what it has measured in `state`, and breaks off itself after `stop_after` seconds.
    """

    seconds: float = 240.0
    device: str = "all"
    peers: bool = True
    peer_python: Path | None = None
    peer_path: Path | None = None
    sizes: Sequence[int] = ()
    parts: Sequence[str] = ()
    commit: str | None = None
    state: Path | None = None
    stop_after: float | None = None


class Bench(Protocol):
    """What a benchmark's module offers.

    And `join(new, old)`, where its parts may be measured apart: the newest result's others are kept.
    """

    measure: Callable[[Options], Iterator[Result]]
    page: Callable[[Sequence[Result]], str]


def run(name: str, options: Options, folder: Path) -> list[tuple[Path, Result]]:
    """Measure; write a file for each device and the benchmark's page. Returns files and results."""
    if name not in BENCHES:
        raise UsageError(f"no benchmark named {name!r}; there are: {', '.join(BENCHES)}")
    bench = cast(Bench, import_module(BENCHES[name]))
    join = getattr(bench, "join", None)
    before = {} if join is None else {one.hardware: one for one in newest_results(name, folder)}
    written: dict[Path, Result] = {}
    for measured in bench.measure(options):
        result = measured
        if join is not None and measured.hardware in before:
            result = join(measured, before[measured.hardware])
        # Written at once: what comes next may fail, and must not cost these figures.
        written[write_result(result, folder)] = result
        write_page(name, bench.page, folder)
    return list(written.items())
