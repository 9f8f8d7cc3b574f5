"""The live view: where a run's time goes while it runs, beside whatever the script prints.

On a terminal the view keeps the last lines of the screen for itself (a scroll region), so that the
script's own output, progress bars included, goes on above it untouched: nothing of the script's
stdout or stderr is replaced. Without a terminal it is a plain line now and then.
"""

import io
import os
import sys
import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from stoker.facts.words import size
from stoker.watch.account import Account
from stoker.watch.phases import PHASES
from stoker.watch.words import duration, percent, rate

if TYPE_CHECKING:
    from stoker.watch.session import Session

COLOURS = {
    "wait": "red",
    "copy": "magenta",
    "forward": "green",
    "backward": "blue",
    "update": "cyan",
    "other": "yellow",
}
_HEIGHT = 3
_PLAIN_EVERY = 10.0
_FIRST_PLAIN = 2.0


class LiveView:
    """Draws on the terminal's last lines, or prints plain lines where there is no terminal."""

    def __init__(self, descriptor: int = 2) -> None:
        self._out = descriptor
        self._terminal = os.isatty(descriptor) and os.environ.get("TERM", "dumb") != "dumb"
        self._size = (0, 0)
        self._next = time.monotonic() + _FIRST_PLAIN

    def start(self) -> None:
        """The run begins."""
        if self._terminal:
            self._claim()

    def tick(self, account: Account) -> None:
        """Something may have changed."""
        if self._terminal:
            if self._size != _terminal_size(self._out):
                self._claim()
            self._draw(lines(account, self._size[0]))
        elif time.monotonic() >= self._next:
            self._next = time.monotonic() + _PLAIN_EVERY
            self._write(f"stoker: {plain_line(account)}\n")

    def finish(self) -> None:
        """The run is over: give the screen back."""
        if self._terminal and self._size[1]:
            rows = self._size[1]
            self._write(f"\x1b7\x1b[r\x1b[{rows - _HEIGHT + 1};1H\x1b[J\x1b8")
            self._size = (0, 0)

    def _claim(self) -> None:
        """Keep the last rows: scroll what is there up, then scroll only above them."""
        if self._size[1]:
            self._write(f"\x1b7\x1b[r\x1b[{self._size[1] - _HEIGHT + 1};1H\x1b[J\x1b8")
        self._size = _terminal_size(self._out)
        rows = self._size[1]
        if rows > _HEIGHT + 4:
            room = "\n" * _HEIGHT + f"\x1b[{_HEIGHT}A"
            self._write(f"{room}\x1b7\x1b[1;{rows - _HEIGHT}r\x1b8")

    def _draw(self, shown: list[str]) -> None:
        rows = self._size[1]
        if rows <= _HEIGHT + 4:
            return
        at = rows - _HEIGHT + 1
        body = "".join(f"\x1b[{at + i};1H\x1b[2K{line}" for i, line in enumerate(shown[:_HEIGHT]))
        self._write(f"\x1b7{body}\x1b8")

    def _write(self, text: str) -> None:
        try:
            os.write(self._out, text.encode(errors="replace"))
        except OSError:
            self._terminal = False  # the terminal went away; the run goes on


def _terminal_size(descriptor: int) -> tuple[int, int]:
    try:
        size = os.get_terminal_size(descriptor)
        return size.columns, size.lines
    except OSError:  # it went away
        return (0, 0)


def lines(account: Account, width: int) -> list[str]:
    """The view as lines of exactly this width, with terminal colours."""
    console = Console(
        file=io.StringIO(), width=width, force_terminal=True, color_system="standard", legacy_windows=False
    )
    rule = Text("─" * width, style="dim", no_wrap=True)
    for part in (rule, _bar(account, width), _figures(account)):
        part.truncate(width, overflow="ellipsis")
        console.print(part, end="\n")
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def _bar(account: Account, width: int) -> Text:
    """The step as one bar, a colour a phase, with the shares named."""
    shares = account.tally.recent_shares()
    labels = Text()
    for name in PHASES:
        share = shares[name]
        if share is None or share >= 0.005 or name == "wait":
            labels.append(f" {name} ", style=COLOURS[name])
            labels.append(percent(share), style="bold " + COLOURS[name])
    bar = Text()
    room = max(0, min(40, width - labels.cell_len - 2))
    for name in PHASES:
        bar.append("█" * round((shares[name] or 0.0) * room), style=COLOURS[name])
    bar.append(labels)
    return bar


def _figures(account: Account) -> Text:
    return Text(" " + plain_line(account, shares=False))


def plain_line(account: Account, *, shares: bool = True) -> str:
    """The run in one line."""
    tally, steps = account.tally, account.steps
    if not steps:
        elapsed = duration(time.time() - account.started)
        return f"{elapsed}, no optimizer step yet"
    parts = [
        f"step {steps:,}",
        f"{rate(tally.sustained, 'step')} sustained, {rate(tally.burst, 'step')} burst",
    ]
    if tally.samples_per_second is not None:
        parts.append(rate(tally.samples_per_second, "sample"))
    if shares:
        known = {n: s for n, s in tally.shares().items() if s is None or s >= 0.005 or n == "wait"}
        parts.append(", ".join(f"{name} {percent(share)}" for name, share in known.items()))
    left = tally.eta(account.remaining_steps())
    if left is not None:
        parts.append(f"{'run' if account.goal is not None else 'epoch'} ends in {duration(left)}")
    parts.extend(_machine(account))
    return " · ".join(parts)


def _machine(account: Account) -> list[str]:
    """Device and memory, as last read."""
    latest = account.latest
    said = []
    for gpu in latest.get("gpus") or []:
        used, busy = gpu.get("used_bytes"), gpu.get("utilisation_percent")
        said.append(f"gpu{gpu.get('index', '')} {'n/a' if busy is None else f'{busy:.0f}%'} {size(used)}")
    if latest.get("rss_bytes") is not None:
        said.append(f"rss {size(latest['rss_bytes'])}")
    return said


def making_lines(account: Account) -> list[str]:
    """What making a batch costs, for every loader that feeds steps."""
    said = []
    for loader in account.loaders:
        making = account.making.get(loader.id)
        if making is None or not loader.fed:
            continue
        total = sum(making.spent.values())
        named = {**making.spent}
        named["waiting for a core"] = named.pop("queued", 0.0)
        parts = ", ".join(f"{n} {percent(s / total)}" for n, s in named.items() if s > 0.005 * total)
        calls = ", ".join(f"{t / making.batches:,.4g} {c}s" for c, t in sorted(making.calls.items()))
        read = f", {size(making.bytes / making.counted)} asked of the kernel" if making.counted else ""
        workers = loader.settings.get("num_workers") or "no"
        said.append(
            f"a batch of {loader.name} ({workers} workers) takes {duration(total / making.batches)} to make: "
            f"{parts}; {calls}{read}; CPU busy {percent(making.cpu / total)}"
        )
    return said


def summary(session: "Session", console: Console | None = None) -> None:
    """What the run came to, printed at its end."""
    console = console or Console(file=sys.stderr)
    account = session.account
    tally, steps = account.tally, account.steps
    console.print()
    if session.failure:
        console.print(escape(session.failure), style="yellow", highlight=False)
    if not steps:
        if session.failure:
            return
        console.print(
            f"[bold]stoker[/]: no optimizer step was seen in {duration(time.time() - session.started)}. "
            "A loop that updates its weights without torch.optim is observed by stoker.Watch and its step()."
        )
        console.print(f"record: {session.folder}", highlight=False, soft_wrap=True)
        return
    console.print(
        f"[bold]stoker[/]: {steps:,} steps in {duration(tally.wall)} after the first "
        f"({duration(tally.first.seconds if tally.first else None)}); "
        f"{rate(tally.sustained, 'step')} sustained, {rate(tally.burst, 'step')} in bursts"
        + (f", {rate(tally.samples_per_second, 'sample')}" if tally.samples_per_second else ""),
        highlight=False,
    )
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_column(justify="right")
    table.add_column()
    for name in PHASES:
        share = tally.shares()[name]
        each = tally.by_phase[name] / tally.steps * 1e3 if tally.steps and share is not None else None
        table.add_row(
            name,
            percent(share),
            "n/a" if each is None else f"{each:.2f} ms",
            Text("█" * round((share or 0) * 40), style=COLOURS[name]),
        )
    console.print(table)
    if tally.startup > 0.01 * tally.seconds:
        console.print(
            f"of the wait, {percent(tally.startup / tally.seconds)} of the step is loaders starting up"
        )
    for line in making_lines(account):
        console.print(line, highlight=False)
    overhead = session.overhead()
    console.print(
        f"observing cost at least {overhead['hooks_us_per_step']:.0f} us a step on the training thread and "
        f"{percent(overhead['recorder_cpu_share'])} of a core beside it",
        highlight=False,
    )
    console.print(f"record: {session.folder}", highlight=False, soft_wrap=True)
    if session.world_size > 1:
        console.print(
            f"this was rank {session.rank}; all {session.world_size} beside one another: "
            f"stoker doctor {session.id}",
            highlight=False,
            soft_wrap=True,
        )
