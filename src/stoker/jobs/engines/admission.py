"""May a job start now: by slots, by cards that are free, by who else holds them, by memory. Pure.

A job that needs a card gets one that no other job here has and that has room for it. How much it needs is
what it was asked for with, or what its earlier run was seen to take; where neither is known, a card that
others hold is not used. So it is with the machine's memory, of which that is not free which those that run
were promised and have not taken yet; where neither is known, none is waited for.
"""

from collections.abc import Collection, Iterable, Sequence

from stoker.facts.gpu import NOBODYS_BYTES
from stoker.facts.values import Gpu, Holder
from stoker.facts.words import ago, size
from stoker.jobs.engines.engine import Place
from stoker.jobs.job import Job


def find_place(
    job: Job,
    *,
    cards: Sequence[Gpu],
    no_cards: str | None,
    taken: Collection[str],
    without_card: int,
    slots: int,
    memory_free: int | None,
    memory_promised: int = 0,
    alone: bool = False,
) -> Place | str:
    """A place, or why there is none.

    `taken` are cards of jobs that run, `without_card` how many run without one, `no_cards`
    why there are no cards. `memory_promised` is what those that run may still take; `alone`: none does.
    """
    asked = job.request
    # With nobody to wait for, what it once took is no reason not to try: it may have been all there was.
    need = asked.ram_bytes if alone else need_of(job)
    if need is not None and memory_free is not None and memory_free - memory_promised < need:
        return f"waits for memory: it needs {size(need)}, and {_left(memory_free, memory_promised)}"
    if not asked.gpus:
        return Place() if without_card < slots else f"waits for a slot: {without_card} of {slots} are taken"
    if len(cards) < asked.gpus:
        reason = f" ({no_cards})" if no_cards else ""
        return f"waits for {_cards(asked.gpus)}: this machine has {len(cards)}{reason}"
    vram = asked.vram_bytes or _told(job, "device_peak_bytes")
    free, told = [], []
    for card in cards:
        why = _why_not(card, taken, vram)
        if why is None and card.uuid is not None:
            free.append(card.uuid)
        elif why is not None:
            told.append(why)
    if len(free) < asked.gpus:
        return f"waits for {_cards(asked.gpus)}: {'; '.join(told)}"
    return Place(gpus=tuple(free[: asked.gpus]))


def need_of(job: Job) -> int | None:
    """Memory of the machine that it needs: as asked for, or as it was seen to take; None: not known."""
    return job.request.ram_bytes or _told(job, "peak_bytes")


def promised(running: Iterable[Job]) -> int:
    """Memory that those that run were promised, and have not taken yet: it is free, and theirs."""
    return sum(max(0, _promise_to(job) - _taken_by(job)) for job in running)


def _promise_to(job: Job) -> int:
    # Of one that asked for nothing, a peak of this attempt is past, and may have been its start alone.
    return (job.request.ram_bytes if _has_told(job) else need_of(job)) or 0


def _taken_by(job: Job) -> int:
    return (_told(job, "rss_bytes") or 0) if _has_told(job) else 0


def _has_told(job: Job) -> bool:
    """Whether what is known of its memory is of this attempt, and not of an earlier one."""
    return bool(job.attempts) and job.attempts[-1].last_step is not None


def _left(free: int, promised: int) -> str:
    if not promised:
        return f"{size(free)} are free"
    less = f"{size(free)}, less {size(promised)} that those that run may still take"
    return f"{size(max(0, free - promised))} are free: {less}"


def _why_not(card: Gpu, taken: Collection[str], need: int | None) -> str | None:
    name = f"GPU {card.index}"
    if card.uuid is None:
        return f"{name} cannot be told apart from others: the driver gives it no id"
    if card.uuid in taken:
        return f"{name} has a job"
    if card.visible is False:
        return f"{name} is hidden by CUDA_VISIBLE_DEVICES"
    if need is not None:
        if card.free_bytes is None or card.free_bytes >= need:
            return None
        return f"{name} has {size(card.free_bytes)} free of the {size(need)} it needs{_held_by(card)}"
    if card.holders is None:
        used = card.used_bytes
        if used is None or used <= NOBODYS_BYTES:
            return None
        return f"{name} has {size(used)} in use, by whom cannot be seen: tell the job's need by vram_bytes"
    others = [one for one in card.holders if not one.graphics_only and not one.ours]
    return f"{name} is in use{_held_by(card)}" if others else None


def _held_by(card: Gpu) -> str:
    others = [one for one in card.holders or () if not one.graphics_only and not one.ours]
    return f": {', '.join(_name(one) for one in others)}" if others else ""


def _name(holder: Holder) -> str:
    told = [one for one in (holder.user, holder.notebook or holder.command) if one]
    idle = f", idle for {ago(holder.idle_s)}" if holder.idle_s else ""
    held = f" holds {size(holder.bytes)}" if holder.bytes is not None else " holds it"
    return f"pid {holder.pid} ({', '.join(told)}{idle}){held}" if told else f"pid {holder.pid}{held}"


def _told(job: Job, name: str) -> int | None:
    """A figure of the memory that this job, or an earlier attempt of it, was seen to take."""
    found = (job.memory or {}).get(name)
    return int(found) if found else None


def _cards(count: int) -> str:
    return "a GPU" if count == 1 else f"{count} GPUs"
