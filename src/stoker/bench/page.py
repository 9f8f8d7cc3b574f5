"""A benchmark's page: Markdown made from the newest result of each kind of hardware, never by hand."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from stoker.bench.result import Result, newest_results, write_text


def write_page(bench: str, make: Callable[[Sequence[Result]], str], folder: Path) -> Path:
    """Make `<bench>.md` again from the files beside it."""
    path = folder / f"{bench}.md"
    write_text(path, make(newest_results(bench, folder)))
    return path


def origin(result: Result) -> str:
    """One line on where a result comes from, linked to its file."""
    versions = ", ".join(f"{name} {value}" for name, value in result.versions.items())
    commit = "an unknown commit" if result.commit is None else f"commit {_shortened(result.commit)}"
    return f"[`{result.file_name}`]({result.file_name}), at {commit}; {versions}."


def _shortened(commit: str) -> str:
    """Of a hash, enough; where the parts of a long benchmark name their own, all of it."""
    return commit if " " in commit else commit[:12]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, its first column words and the rest numbers."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


def number(figures: Mapping[str, float], key: str, digits: int = 0) -> str:
    """A figure with its interval where it has one; `n/a` where it was not measured."""
    if key not in figures:
        return "n/a"
    text = f"{figures[key]:,.{digits}f}"
    if f"{key}_low" in figures and f"{key}_high" in figures:
        text += f" ({figures[f'{key}_low']:,.{digits}f} to {figures[f'{key}_high']:,.{digits}f})"
    return text
