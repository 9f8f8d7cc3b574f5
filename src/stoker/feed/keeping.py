"""Where the samples of one feed are kept: in the highest tier that fits, moved as it turns out what does.

It is chosen when a feed is first used, and again when the model's need has shown, when the loop needs the
memory back, or where it cannot be had after all. Several ranks choose together, when an epoch begins: what
does not fit each card may be spread over all of them.
"""

import errno
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map

from stoker.errors import NoRoom
from stoker.facts import host
from stoker.facts.words import size
from stoker.feed.choice import KEPT_SHARE, Choice, Room, Wish, choose, left_on_device
from stoker.feed.company import Company
from stoker.feed.exchange import read_by
from stoker.feed.layout import Layout
from stoker.feed.looks import find_layout, some_of
from stoker.feed.order import Order
from stoker.feed.place import Place
from stoker.feed.prefetch import Prefetch
from stoker.feed.ranks import Ranks, launch_name, process_name
from stoker.feed.sources.base import Indices, Source
from stoker.feed.sources.torch import TorchSource
from stoker.feed.streams import Streams
from stoker.feed.tiers.bus import Bus, open_bus
from stoker.feed.tiers.disk import DiskTier
from stoker.feed.tiers.pack import Content
from stoker.feed.tiers.ram import SharedRows, allocated, path_of, sweep
from stoker.feed.tiers.rows import Rows
from stoker.feed.tiers.spread import SpreadRows, carry
from stoker.feed.tiers.staged_bus import StagedBus

# A smaller part of a source is read by number.
_LEAST_SCANNED = 0.25
# Steps after which the model's need is known.
_STEPS_TO_PEAK = 3
# What may be asked for where samples are to be spread over all ranks.
_SPREADABLE = ("auto", "vram", "spread")
# Of all feeds of this process: a device's memory is one.
_KEEPING: "weakref.WeakSet[Keeping]" = weakref.WeakSet()
# The datasets whose samples were held in this process, by what they are told by.
_ALIKE: dict[str, list[weakref.ref[Any]]] = {}


class Keeping:
    """Keeps the samples of a source as near to a device as they fit.

    `numbers` are the samples that are used at all, ascending; None for all. `why` says where they are.
    `looked` is what is known of the samples already: their layout, or None and why they cannot be held. With
    `one_by_one` a shard is asked for when its batch is (or one batch before: see `Holding.batches`), and by
    whoever asks for that. With `company`, `begin` is called before each epoch, on all ranks: nothing is held
    before they have met there.
    """

    def __init__(
        self,
        source: Source,
        *,
        prefetch: Callable[[Source], Prefetch],
        disk: Callable[[Source, Layout], DiskTier] | None,
        device: torch.device,
        asked: str,
        numbers: Indices | None,
        ranks: Ranks,
        reserve: int | None,
        reserve_said: str,
        cache_random: bool,
        looked: tuple[Layout | None, str] | None = None,
        one_by_one: bool = False,
        company: Company | None = None,
    ) -> None:
        self._source = source
        _KEEPING.add(self)
        self._origin = source
        self._weak = isinstance(source, TorchSource)
        self._device = device
        self._asked = asked
        self._numbers = numbers
        self._count = len(source) if numbers is None else len(numbers)
        self._handed = 0
        self._last_read = np.empty(0, np.int64)
        self._expected = (0, "")
        self._one_by_one = one_by_one
        self._fell = ""
        self._streams = Streams(device)
        self._bus: Bus | StagedBus | None = None
        self._rows: Rows | SpreadRows | None = None
        self._disk: DiskTier | None = None
        needed = asked != "source" or disk is not None
        if looked is None:
            some = some_of(numbers, len(source))
            looked = find_layout(source, some, cache_random) if needed else (None, "asked for")
        self._layout, unheld = looked
        if disk is not None and self._layout is not None:
            self._source = self._disk = disk(source, self._layout)
        self._prefetch = prefetch(self._source)
        held = None if self._layout is None else Rows.bytes_needed(self._layout, self._count)
        self._wish = Wish(
            bytes=held, unheld=unheld, reserve=reserve, reserve_said=reserve_said, ranks=ranks.on_node
        )
        self._choice, self._files = Choice(tier="source", why="source"), ""
        self._begun: tuple[int, int] | None = None  # the epoch that all ranks have met for
        self._arranged = 0  # how often samples that are spread have changed places
        self._company = company if asked in _SPREADABLE and self._room().vram is not None else None
        if self._company is None:
            self._move_to(self._chosen())
        else:
            if self._layout is not None:
                spread = SpreadRows.bytes_needed(self._layout, self._count, ranks.world_size)
                self._wish = replace(self._wish, spread=spread, cards=ranks.world_size)
            here = choose(self._wish, self._room(), asked)
            why = f"source: all ranks agree on a tier when the first epoch begins (here {here.why})"
            self._choice = Choice(tier="source", why=why)

    @property
    def tier(self) -> str:
        """Where samples are held: vram, spread, window, ram, or nowhere (source)."""
        return self._choice.tier

    @property
    def why(self) -> str:
        """Why they are there, in a sentence."""
        by = "" if self._bus is None else f", {self._bus.why}"
        told = self._choice.why + by + self._choice.above + self._fell + self._files + self._read_cost()
        return told if self._disk is None else f"{told}; over a disk cache{_but(self._disk.why)}"

    @property
    def uncached(self) -> str:
        """Why a cache on disk that was asked for cannot be used at all; empty where it can."""
        return "" if self._disk is None else self._disk.refused

    def begin(self, order: Order, place: Place) -> None:
        """An epoch begins here, on all ranks: they agree on a tier, and exchange what is spread over them.

        RanksDisagree where it is not the same epoch of the same order, RankLost where one does not come. Who
        begins an epoch again goes on by itself: the others, who had no need to, would not come.
        """
        company = self._company
        if company is None or self._begun == (place.epoch, place.offset):
            return
        agreed = company.agree(
            order.state(place, self._source.fingerprint()),
            same={"drop_last": order.drop_last, "tier": self._asked},
            left=0 if self._wish.spread is None else left_on_device(self._wish, self._room())[0],
            spread=self.tier == "spread",
        )
        self._begun = (place.epoch, place.offset)
        if agreed.parted:
            self._part(agreed.parted, agreed.below)
            return
        choice = self._choice if self.tier == "spread" else self._chosen(agreed.every)
        if choice.tier != "spread":
            self._move_to(choice)
            if agreed.every is not None:  # there is nothing to learn that would change their minds
                self._leave_company()
            return
        needs = [self._place(samples) for samples in read_by(order, place, company.size)]
        if self.tier != "spread":
            self._spread_out(company, choice, needs[company.rank])
        if isinstance(self._rows, SpreadRows):
            self._exchange(company, self._rows, needs)

    def expect(self, need: int, said: str) -> None:
        """The model will need so many bytes of the device, where its first steps need less."""
        self._expected = max(self._expected, (need, said))

    def shrink(self, why: str) -> None:
        """Give the memory back and go on a tier lower: the loop needs it."""
        if self._rows is not None:
            self._fell = f" (left {self.tier}: {why})"
            self._change(choose(self._wish, self._room(), self._asked, below=_without_window(self.tier)))
            self._wish = replace(self._wish, spread=None)

    def close(self) -> None:
        """Let go of memory and readers."""
        self._prefetch.close()
        if self._files:
            self._source.let_files_go()  # type: ignore[attr-defined]
        _close(self._rows, self._bus)
        self._rows = self._bus = None
        self._leave_company()

    @property
    def on_device(self) -> int:
        """The bytes of the device that samples have, or will have once the window is filled."""
        if self._rows is None:
            return 0
        assert self._wish.bytes is not None
        resident = self._choice.resident
        return min(resident, self._wish.bytes) if self.tier == "window" else resident

    @property
    def on_device_now(self) -> int:
        """The bytes of the device that samples have by now: none of a window that is yet to be filled."""
        if self.tier == "window":
            return self._bus.resident_bytes if isinstance(self._bus, Bus) else 0
        return self._rows.bytes if isinstance(self._rows, SpreadRows) else self.on_device

    def _others(self) -> "list[Keeping]":
        """Those of other feeds on this device."""
        return [one for one in list(_KEEPING) if one is not self and one._device == self._device]

    def _free_vram(self) -> int | None:
        """The device's memory that is nobody else's; what torch has set aside counts as free."""
        if self._device.type != "cuda":
            return None
        free, _ = torch.cuda.mem_get_info(self._device)
        return free + torch.cuda.memory_reserved(self._device)

    def _room(self) -> Room:
        here = host.read()
        vram = self._free_vram()
        if vram is not None:
            # What torch has set aside is the loop's, and part of what `reserve` speaks of; but for the
            # samples of other feeds.
            vram -= sum(one.on_device for one in self._others())
        # What these samples have of it already, be it another rank's doing, is not taken from them.
        theirs = 0 if self._layout is None else allocated(self._content)
        if isinstance(self._rows, SharedRows) and self._rows.path is None:
            theirs = self._rows.memory.nbytes
        ram, shm = here.memory_free_bytes, here.shm_free_bytes
        return Room(
            vram=vram, ram=None if ram is None else ram + theirs, shm=None if shm is None else shm + theirs
        )

    def _chosen(self, every: int | None = None) -> Choice:
        """The highest tier that fits now; `every` is what all ranks have left, where they have said so."""
        choice = choose(self._wish, replace(self._room(), every=every), self._asked)
        if choice.tier == "source" and self._layout is not None and sweep(keep=path_of(self._content)):
            # With what killed runs had left in memory.
            choice = choose(self._wish, replace(self._room(), every=every), self._asked)
        return choice

    def _move_to(self, choice: Choice) -> None:
        """Hold the samples there, and take along those that are held."""
        if choice.tier == self.tier:
            self._choice = choice
        elif choice.tier == "vram" and self._rows is not None:
            self._rise(choice)
        else:
            self._change(choice)
        self._files = self._files or self._hold_files()

    def _settle(self, choice: Choice) -> tuple[Choice, Rows | None, Bus | StagedBus | None]:
        """Take the memory that was chosen; where it cannot be had after all, the next tier's."""
        while choice.tier != "source":
            assert self._layout is not None
            try:
                if choice.tier == "vram":
                    return choice, Rows.allocate(self._layout, self._count, self._device), None
                alone = self._wish.ranks == 1
                shared = SharedRows(self._content, alone=alone, reusable=not self._weak)
                return choice, shared, open_bus(shared, self._device) if self._device.type == "cuda" else None
            except (torch.OutOfMemoryError, NoRoom) as error:
                reason = str(error).splitlines()[0]
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.ENOMEM):
                    raise
                reason = error.strerror or str(error)
            self._fell += f" ({choice.tier} could not be had: {reason})"
            choice = choose(self._wish, self._room(), self._asked, below=_without_window(choice.tier))
        return choice, None, None

    @cached_property
    def _content(self) -> Content:
        """What is held, for all ranks of this machine; what a killed run left of the same is used again."""
        assert self._layout is not None
        told = [self._source.kept_as(), _digest(self._numbers)]
        if self._weak:  # changed data may look the same: nothing of another run's is taken
            told.append(process_name() if self._wish.ranks == 1 else launch_name())
            told.append(str(_number_alike(self._origin, " ".join(told))))
        return Content(fingerprint=" ".join(told), transform="", samples=self._count, layout=self._layout)

    def _hold_files(self) -> str:
        """What cannot be held as it is handed out may be held as it is stored: compressed images."""
        hold = getattr(self._source, "hold_files", None)
        if self.tier != "source" or self._asked == "source" or hold is None:
            return ""
        free = self._room().ram
        said = hold(None if free is None else int(free * (1 - KEPT_SHARE)))
        return f"; {said}" if said else ""

    def _move_up(self, handed: int) -> None:
        """So many more batches were used. Once the model's need has shown, hold what fits beside it."""
        before, self._handed = self._handed, self._handed + handed
        if (
            not (before <= _STEPS_TO_PEAK < self._handed)
            or self._device.type != "cuda"
            or self._wish.reserve is not None
        ):
            return
        reserved = torch.cuda.max_memory_reserved(self._device)
        reserved -= sum(one.on_device_now for one in self._others())
        peak = max(0, reserved), f"peak of {_STEPS_TO_PEAK} steps"
        need, said = max(peak, self._expected)
        self._wish = replace(self._wish, reserve=need, reserve_said=said)
        if self._company is not None:  # they choose together, before the next epoch
            return
        better = choose(self._wish, self._room(), self._asked)
        if better.tier == "vram":
            self._rise(better)
        elif better.tier == "window":
            self._change(better)
        elif better.tier == self.tier:
            self._choice = better  # which says by now why it is no higher one

    def _rise(self, choice: Choice) -> None:
        """Hold the samples in VRAM, and take along those that are held; stay where that cannot be."""
        assert self._layout is not None
        rows, bus = self._rows, self._bus
        try:
            above = Rows.allocate(self._layout, self._count, self._device)
            if rows is not None:
                carry(rows, above)
        except torch.OutOfMemoryError as error:
            self._fell += f" (vram could not be had: {str(error).splitlines()[0]})"
            return
        self._choice, self._rows, self._bus = choice, above, None
        _close(rows, bus)

    def _change(self, choice: Choice) -> None:
        """Hold the samples lower down, and take along those that are held."""
        rows, bus = self._rows, self._bus
        if {choice.tier, self.tier} == {"ram", "window"}:  # in the same rows
            self._choice = choice
            if choice.tier == "ram" and isinstance(bus, Bus):
                bus.drop()
            return
        self._choice, self._rows, self._bus = self._settle(choice)
        if rows is not None and self._rows is not None:
            self._carry(rows, self._rows)
        _close(rows, bus)

    def _carry(self, rows: Rows | SpreadRows, to: Rows | SpreadRows, among: Indices | None = None) -> None:
        """Take along what is held, or some of it; a device may have no memory left even for that."""
        try:
            carry(rows, to, among)
        except torch.OutOfMemoryError as error:
            self._fell += f" (some samples are read again, not taken along: {str(error).splitlines()[0]})"

    # --- spread over all ranks --------------------------------------------------------------------

    def _spread_out(self, company: Company, choice: Choice, own: Indices) -> None:
        """Hold this rank's part alone, if all ranks have the memory for theirs."""
        assert self._layout is not None
        part, reason = None, "another rank has no memory for its part"
        try:
            part = SpreadRows(self._layout, self._count, company.size, self._device)
        except torch.OutOfMemoryError as error:
            reason = str(error).splitlines()[0]
        if not company.all(part is not None) or part is None:
            self._part(f"spread could not be had: {reason}", below="window")
            return
        part.want(own)
        rows, bus = self._rows, self._bus
        if rows is not None:
            self._carry(rows, part, own)
        self._choice, self._rows, self._bus = choice, part, None
        _close(rows, bus)

    def _exchange(self, company: Company, rows: SpreadRows, needs: Sequence[Indices]) -> None:
        self._arranged += 1
        try:
            reason = company.exchange(rows, needs)
        except BaseException:
            rows.close()  # some samples are in no row, or in a wrong one
            self._rows = None
            self._choice = Choice(tier="source", why="source: an exchange of samples broke off")
            self._leave_company()
            raise
        if reason:
            self._part(f"left spread: {reason}", below="window")

    def _part(self, why: str, below: str | None) -> None:
        """Each rank is by itself from now on."""
        self._leave_company()
        self._fell += f" ({why})"
        if self._rows is None or self.tier == "spread":
            self._move_to(choose(self._wish, self._room(), self._asked, below=below))

    def _leave_company(self) -> None:
        if self._company is not None:
            self._company.close()
            self._company = None

    # --- filled -----------------------------------------------------------------------------------

    def _note_read(self, samples: Indices) -> None:
        """A batch of these was read; one that is short, or held in part, is not what others cost."""
        if len(samples) >= len(self._last_read):
            self._last_read = samples

    def _read_cost(self) -> str:
        """What was read over what was used, of a source that can tell; it comes from a cache otherwise."""
        tell = getattr(self._source, "read_cost", None)
        if tell is None or not len(self._last_read):
            return ""
        cost = tell(self._last_read)
        if not cost.chunks:  # all of it is in memory
            return ""
        read, used = size(cost.decoded_bytes), size(cost.used_bytes)
        return f"; a batch reads {read} for {used} used, {cost.amplification:.1f} times as much"

    def _fill_by_scan(self) -> None:
        """A source that gives everything at once faster than by number is read that way, before the start."""
        scan = getattr(self._source, "scan", None)
        if scan is None or not isinstance(self._rows, Rows) or self._wish.ranks > 1 or self._rows.complete:
            return
        if self._count < len(self._source) * _LEAST_SCANNED:
            return
        fill = getattr(self._source, "fill", None)
        if fill is not None and self._numbers is None and self._rows.device.type == "cpu":
            self._rows.fill(fill)
            return
        for samples, batch in scan(in_order=False):
            if self._numbers is None:
                self._rows.put(samples, batch)
            else:
                used = np.flatnonzero(np.isin(samples, self._numbers))
                some = tree_map(partial(_chosen, used), batch)
                self._rows.put(self._place(samples[used]), some)

    def _fill_window(self) -> None:
        """All samples are in RAM: copy those to the device that are to stay there."""
        bus = self._bus
        if self.tier != "window" or (isinstance(bus, Bus) and bus.resident):
            return
        reason = "the device does not read the host's memory"
        if isinstance(bus, Bus):
            assert self._layout is not None
            try:
                if bus.keep(min(self._count, self._choice.resident // Rows.bytes_needed(self._layout, 1))):
                    return
                reason = "the samples are too small for the copy engines, or the driver has no such copies"
            except torch.OutOfMemoryError as error:
                reason = str(error).splitlines()[0]
        self._fell += f" (window could not be had: {reason})"
        self._choice = Choice(tier="ram", why="ram: all of it is there")

    def _missing(self, samples: Indices) -> Indices:
        """Which of these are not held, each once; all of them as they stand where nothing is held."""
        rows = self._rows
        if rows is None:
            return samples
        return np.unique(samples[~rows.held(self._place(samples))])

    def _place(self, samples: Indices) -> Indices:
        """The rows in which these samples are held."""
        return samples if self._numbers is None else np.searchsorted(self._numbers, samples)


def _without_window(tier: str) -> str:
    """What is left of a device's memory that was too small is not filled with a part of the samples."""
    return "window" if tier in ("vram", "spread") else tier


def _close(rows: Rows | SpreadRows | None, bus: Bus | StagedBus | None) -> None:
    """The bus first: it reads from the rows."""
    for one in (bus, rows):
        if one is not None:
            one.close()


def _number_alike(source: Source, told: str) -> int:
    """Which of the datasets that are told by this it is, in the order of their first use here.

    The same on all ranks, which use theirs in the same order; and never again another's.
    """
    known = _ALIKE.setdefault(told, [])
    dataset = getattr(source, "dataset", source)
    for number, reference in enumerate(known):
        if reference() is dataset or reference() is source:
            return number
    try:
        known.append(weakref.ref(dataset))
    except TypeError:  # a list: its feeds are told apart by their sources
        known.append(weakref.ref(source))
    return len(known) - 1


def _chosen(rows: Indices, leaf: Any) -> Any:
    return leaf[rows]


def _but(why: str) -> str:
    return f" ({why})" if why else ""


def _digest(numbers: Indices | None) -> str:
    return "all" if numbers is None else blake2b(numbers.tobytes(), digest_size=16).hexdigest()
