"""What was told of the GPU in a diagnosis, as values: messages, counters beside the run, cards before it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from stoker.doctor.allocations import MOST_EVENTS, Allocations
from stoker.doctor.device import (
    Allocator,
    Card,
    Clocks,
    Copied,
    Others,
    Overflow,
    SizePoint,
    Sync,
    Trace,
)
from stoker.doctor.workspaces import Probed
from stoker.scratch import Message

Lines = Sequence[Mapping[str, Any]]
# A card at rest lowers its clock; readings of that say nothing.
_AT_WORK_PERCENT = 50
UNPROBED, AUTOTUNE = "convolutions alone", "autotune"
# Sizes of a loop whose shapes stay: its own, and that of an epoch's last batch.
_FEW_SIZES = 2
# By how much updates a step may be off a whole number for the first or last step that was cut.
_AT_THE_ENDS = 0.1


def read_device(
    messages: Sequence[Message],
    lines: Lines,
    cards: Sequence[Card],
    *,
    steps: int,
    updates: int | None = None,
) -> dict[str, Any]:
    """The fields of `Evidence` that speak of the GPU; `lines` are counters while the loop was observed.

    Experiments count every optimizer's update, and of `updates` so many made the observed `steps`.
    """
    each = _updates_a_step(updates, steps)
    told = {message.kind: message.body for message in messages}
    about = told.get("device") or told.get("overflow")
    card = _card(about, cards)
    return {
        "resized": read_sizes_that_ran(messages, each),
        "fresh": read_fresh(messages),
        "copied": Copied(**told["copied"]) if "copied" in told else None,
        "trace": Trace(**_of_steps(told["trace"], each)) if "trace" in told else None,
        "syncs": _syncs(told.get("syncs"), each),
        "variants": {one["name"]: one["seconds"] * each for one in _all(messages, "variant")} or None,
        "others": None if card is None else card.others,
        "allocator": _allocator(lines, told.get("device"), steps, each),
        "clocks": _clocks(lines, card),
        "overflow": _overflow(told.get("overflow"), steps),
    }


def _updates_a_step(updates: int | None, steps: int) -> float:
    """Of a loop with several optimizers more than one; a step at either end of those observed is neither."""
    if not updates or not steps:
        return 1.0
    each = updates / steps
    whole = max(1, round(each))
    return float(whole) if abs(each / whole - 1) < _AT_THE_ENDS else max(1.0, each)


def _of_steps(trace: Mapping[str, Any], each: float) -> dict[str, Any]:
    """What was told of an update, of a step; a kernel takes as long in either."""
    return {
        name: told if told is None or name in ("steps", "kernel") else told * each
        for name, told in trace.items()
    }


def read_sizes_that_ran(messages: Sequence[Message], each: float = 1.0) -> tuple[SizePoint, ...]:
    """Steps of so many updates with batches of other sizes, the loop's own first."""
    return tuple(
        SizePoint(samples=one["samples"], seconds=one["seconds"] * each, peak=one["peak"])
        for one in _all(messages, "resized")
    )


def read_fresh(messages: Sequence[Message]) -> tuple[Allocations, ...]:
    """The first steps of a process, before anything was changed in it; none where no peak was read."""
    return tuple(
        Allocations(
            samples=one["samples"],
            events=tuple(one["events"]),
            streams=dict(one["streams"]),
            peak=one["peak"],
            probed=_probed(messages),
        )
        for one in _all(messages, "allocations")
        if one["peak"] is not None
    )


def _probed(messages: Sequence[Message]) -> tuple[Probed, ...]:
    """Calls that ran alone, by their words."""
    found: dict[str, dict[int, tuple[int, ...]]] = {}
    for told in _all(messages, "probed"):
        for call, events in told["calls"]:
            found.setdefault(call, {})[told["samples"]] = tuple(events)
    return tuple(Probed(call=call, events=events) for call, events in found.items())


def context_bytes(messages: Sequence[Message], others: Others | None) -> int | None:
    """Bytes of the card that the process holds beside torch's allocator: its context, and libraries' own."""
    about = next((message.body for message in messages if message.kind == "device"), None)
    if about is None or about["reserved"] is None or others is None or others.bytes is None:
        return None
    return max(0, int(about["used"]) - int(about["reserved"]) - others.bytes)


def missing_of(messages: Sequence[Message]) -> dict[str, str]:
    """What could not be held, and why."""
    told = {message.kind: message.body for message in messages}
    names = {
        "untraced": "trace",
        "unresized": "resize",
        "allocations": "allocations",
        "device": "context",
        "unprobed": UNPROBED,
    }
    found = {name: told[kind].get("why") for kind, name in names.items() if kind in told}
    events = len(told.get("allocations", {}).get("events", ()))
    if events > MOST_EVENTS:
        found["allocations"] = f"{events} in the first steps are not played, more than {MOST_EVENTS}"
    found[AUTOTUNE] = _why_not_tuned(told.get("observed", {}))
    return {name: str(why) for name, why in found.items() if why is not None}


def _why_not_tuned(process: Mapping[str, Any]) -> str | None:
    """Why it is not known what cuDNN's tries cost, where it makes them again for each new shape."""
    sizes = len(set(process.get("work") or ()))
    if not process.get("on_gpu") or not process.get("autotune") or 0 < sizes <= _FEW_SIZES:
        return None
    seen = f"{sizes} sizes of input were seen" if sizes else "the sizes of its inputs were not seen"
    return f"cudnn.benchmark is on and {seen}: what trying each of them out costs is not timed"


def _all(messages: Sequence[Message], kind: str) -> list[Mapping[str, Any]]:
    return [message.body for message in messages if message.kind == kind]


def _card(about: Mapping[str, Any] | None, cards: Sequence[Card]) -> Card | None:
    """The one that the script is on; of a single card it is that."""
    if about is None:
        return None
    uuid = str(about["uuid"]).removeprefix("GPU-")
    same = [card for card in cards if card.uuid is not None and card.uuid.removeprefix("GPU-") == uuid]
    return same[0] if same else cards[0] if len(cards) == 1 else None


def _syncs(told: Mapping[str, Any] | None, by: float) -> tuple[Sync, ...] | None:
    return None if told is None else tuple(Sync(line=line, each=each * by) for line, each in told["lines"])


def _allocator(lines: Lines, about: Mapping[str, Any] | None, steps: int, each: float) -> Allocator | None:
    counted = [line["allocator"] for line in lines if line.get("allocator")]
    if len(counted) < 2 or not steps:
        return None
    first, last = counted[0], counted[-1]
    before, after = first.get("device_allocs"), last.get("device_allocs")
    emptied = None if about is None else about.get("empty_cache")  # calls an update
    # Of the steps between the two readings, which are a little fewer.
    return Allocator(
        retries=last["retries"] - first["retries"],
        device_allocs=None if before is None or after is None else (after - before) / steps,
        empty_cache=None if emptied is None else emptied * each,
        empty_cache_line=None if about is None else about.get("empty_cache_line"),
        reserved_peak=last.get("reserved_peak"),
    )


def _clocks(lines: Lines, card: Card | None) -> Clocks | None:
    if card is None or not card.clock_mhz:
        return None
    readings = [
        gpu
        for line in lines
        for gpu in line.get("gpus") or []
        if gpu.get("index") == card.index
        and gpu.get("sm_clock_mhz")
        and gpu.get("clock_reasons") is not None
        and (gpu.get("utilisation_percent") or 0) >= _AT_WORK_PERCENT
    ]
    if len(readings) < 2:
        return None
    held = Counter(reason for gpu in readings for reason in gpu["clock_reasons"])
    return Clocks(
        mhz=fmean(gpu["sm_clock_mhz"] for gpu in readings),
        most_mhz=card.clock_mhz,
        held=tuple((reason, count / len(readings)) for reason, count in held.most_common()),
        power_limit_w=card.power_limit_w,
        power_default_w=card.power_default_w,
    )


def _overflow(told: Mapping[str, Any] | None, steps: int) -> Overflow | None:
    if told is None:
        return None
    loaders = [loader for loader in told.get("loaders") or [] if loader.get("batch_size")]
    loader = loaders[0] if loaders else {}
    return Overflow(
        asked=told["asked"],
        reserved=told["reserved"],
        allowed=told["allowed"],
        text=told["text"],
        samples=loader.get("batch_size"),
        workers=loader.get("num_workers"),
        steps=steps,
    )
