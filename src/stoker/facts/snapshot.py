"""Everything at once: ask each reader, and join what they say of the same process."""

import os
import platform
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path

from stoker.facts import framework, gpu, host, notebooks, nvml, process, storage
from stoker.facts.nvml import GpuSource
from stoker.facts.process import Seen
from stoker.facts.secrets import printable
from stoker.facts.values import Facts, Gpu, Holder, Notebook, Process, Stray, StrayKind, Warned

SCHEMA = 1


def collect(*, data: Path | None = None, source: GpuSource | None = None) -> Facts:
    """Take all facts now. `data` is a path whose storage is measured; `source` stands in for NVML."""
    # First, since a wrong path is the user's mistake and should not cost two seconds.
    found_storage = None if data is None else storage.read(Path(data))
    family = process.family()
    seen = process.see_all()
    by_pid = {one.pid: one for one in seen}
    kernels = notebooks.find(seen, family=family)
    cards, reason = _read_gpus(source, family)
    cards = tuple(_name_notebooks(card, kernels, by_pid) for card in cards)
    return Facts(
        taken_at=time.time(),
        process=_own_process(kernels),
        host=host.read(),
        gpus=cards,
        gpu_reason=reason,
        notebooks=tuple(kernels),
        strays=find_strays(seen, cards),
        torch=framework.read(),
        storage=found_storage,
    )


def to_json(facts: Facts, warnings: Iterable[Warned] = ()) -> dict[str, object]:
    """Return the facts and warnings as the object that `stoker check --json` prints."""
    return {"schema": SCHEMA, **asdict(facts), "warnings": [asdict(warning) for warning in warnings]}


def _read_gpus(source: GpuSource | None, family: frozenset[int]) -> tuple[tuple[Gpu, ...], str | None]:
    opened, reason = (source, None) if source is not None else nvml.connect()
    if opened is None:
        return (), gpu.explain_absence(reason)
    try:
        cards = gpu.read(opened, family=family, own_contexts=framework.own_contexts())
    finally:
        opened.close()
    if sys.platform == "win32":
        from stoker.facts import windows

        cards = windows.add_counters(cards, windows.read_counters())
    return cards, None if cards else "the NVIDIA driver runs and shows no card"


def _own_process(kernels: list[Notebook]) -> Process:
    own = os.getpid()
    seen = process.see(own)
    return Process(
        pid=own,
        user=None if seen is None else seen.user,
        python=platform.python_version(),
        in_kernel=any(kernel.pid == own for kernel in kernels),
    )


def _name_notebooks(card: Gpu, kernels: list[Notebook], by_pid: dict[int, Seen]) -> Gpu:
    """Give each holder the notebook whose kernel it is, or whose kernel started it."""
    if card.holders is None:
        return card
    known = {kernel.pid: kernel for kernel in kernels}
    holders = []
    for holder in card.holders:
        kernel = _kernel_above(holder, known, by_pid)
        if kernel is None:
            holders.append(holder)
            continue
        named = replace(
            holder,
            notebook=None if kernel.path is None else printable(kernel.path),
            notebook_state=kernel.state,
            idle_s=kernel.idle_s,
        )
        holders.append(
            replace(named, parent_alive=kernel.parent_alive) if kernel.pid == holder.pid else named
        )
    return replace(card, holders=tuple(holders))


def _kernel_above(holder: Holder, known: dict[int, Notebook], by_pid: dict[int, Seen]) -> Notebook | None:
    pid: int | None = holder.pid
    for _ in range(64):  # no real family is deeper, and a reused number could make a ring
        if pid is None or pid in known:
            break
        pid = by_pid[pid].parent if pid in by_pid else None
    return None if pid is None else known.get(pid)


def find_strays(seen: Iterable[Seen], cards: Iterable[Gpu]) -> tuple[Stray, ...]:
    """List this user's Python zombies, and GPU holders of any user whose parent is dead."""
    held: dict[int, int | None] = {}
    orphans: dict[int, Holder] = {}
    for card in cards:
        for holder in card.holders or ():
            before = held.get(holder.pid)
            held[holder.pid] = holder.bytes if before is None else before + (holder.bytes or 0)
            if holder.parent_alive is False and not holder.zombie:
                orphans[holder.pid] = holder
    processes = {one.pid: one for one in seen}
    own = processes.get(os.getpid())
    strays = [
        _stray(one, "zombie", held.get(one.pid))
        for one in processes.values()
        if one.zombie and one.is_python and own is not None and one.user == own.user
    ]
    for pid, holder in orphans.items():
        one = processes.get(pid)
        if one is not None and one.is_python:
            strays.append(_stray(one, holder.role, held[pid]))
    return tuple(sorted(strays, key=lambda stray: stray.pid))


def _stray(one: Seen, kind: StrayKind, held: int | None) -> Stray:
    return Stray(
        pid=one.pid,
        kind=kind,
        parent=one.parent,
        user=one.user,
        command=one.command,
        age_s=one.age_s,
        gpu_bytes=held,
    )
