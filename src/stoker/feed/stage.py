"""Staging: a local copy of a remote or slow set; parallel, resumable, verified, whole files only.

    stage = Stage(Store("s3://bucket/imagenet/train"), Path("/scratch/imagenet"), Selection(classes=100))
    outcome = stage.run()

A file gets its name when all of it is on disk and its digest is right. Where the store's tag is an MD5, the
bytes received must have it; else the file is read back and must be what was received. A killed run leaves
only parts under names of their own, which the next run removes, and that run goes on where it ended.
"""

import contextlib
import errno
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stoker.errors import (
    NoSpace,
    NoSuchObject,
    NotPermitted,
    StageFailed,
    StoreUnreachable,
    UsageError,
)
from stoker.facts.words import size
from stoker.feed.arguments import checked_count
from stoker.feed.manifest import Line, Manifest
from stoker.feed.sources.class_folders import Globs, pick_classes
from stoker.feed.sources.listing import Entry, Listing
from stoker.feed.sources.objects import Store, local_folder
from stoker.feed.stage_copy import Copier
from stoker.feed.stage_plan import LOCK, Plan, Target, in_part, is_ours, make_plan, require_room
from stoker.feed.stage_view import Cancelled, Progress, SilentView, View, view_for
from stoker.feed.whole_file import remove_leftovers

if sys.platform != "win32":
    import fcntl

__all__ = ["Outcome", "Selection", "Stage", "Store", "parse_classes", "parse_part", "summary", "view_for"]

_TICK_S = 0.2


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What is staged, and how. `classes`: a number by the seed, or names of first-level folders.

    `part`: one of so many, counted from 0; the others are staged by other processes, here or elsewhere.
    """

    classes: int | Sequence[str] | None = None
    seed: int = 0
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    jobs: int = 16
    verify: bool = False
    ignore_etags: bool = False
    delete: bool = False
    part: tuple[int, int] | None = None


@dataclass(kw_only=True)
class Outcome:
    """What a run came to. `changed` and `gone` are objects that were so while they were being copied."""

    source: str
    target: str
    files: int = 0
    bytes: int = 0
    copied: int = 0
    copied_bytes: int = 0
    checked: int = 0
    kept: int = 0
    changed: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    deleted: int = 0
    skipped: list[str] = field(default_factory=list)
    leftovers: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    dry_run: bool = False

    def to_json(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {"schema": 1, **vars(self)}


class Stage:
    """One source staged into one folder."""

    def __init__(
        self, store: Store, folder: Path, selection: Selection | None = None, view: View | None = None
    ) -> None:
        self.store = store
        self.folder = local_folder(folder)
        self.selection = selection or Selection()
        self.view = view or SilentView()
        checked_count("jobs", self.selection.jobs, "files at a time")
        if self.folder.exists() and not self.folder.is_dir():
            raise UsageError(f"{self.folder} is a file; give a folder, which need not be there yet")
        origin = store.folder
        if origin is not None and self.folder.resolve().is_relative_to(origin.resolve()):
            raise UsageError(f"{self.folder} lies in {origin} and would be a copy of it; give another folder")
        self._globs = Globs(self.selection.include, self.selection.exclude)
        self._target = Target(self.folder)
        self._manifest = Manifest(self.folder, store.url, part=self.selection.part is not None)
        self._lock = threading.Lock()
        self._copier = Copier(store, self._target, ignore_etags=self.selection.ignore_etags)

    def run(self, *, dry_run: bool = False) -> Outcome:
        """Copy what is missing or changed. `failed` in the outcome names the files that could not be."""
        started = time.monotonic()
        outcome = Outcome(source=self.store.url, target=str(self.folder), dry_run=dry_run)
        if dry_run:
            self._tell(outcome, self._plan(dry_run=True))
        else:
            with self._alone():
                if self.selection.part is None:
                    outcome.leftovers = remove_leftovers(self.folder)
                    if self._manifest.has_parts:
                        self._manifest.fold()
                plan = self._plan(dry_run=False)
                self._tell(outcome, plan)
                self._carry_out(plan, outcome)
        outcome.seconds = time.monotonic() - started
        return outcome

    def watch(self, *, every_s: float, stop: threading.Event | None = None) -> Outcome:
        """Run again and again until `stop` or Ctrl-C; a store that does not answer is asked again later."""
        stop = stop or threading.Event()
        outcome = Outcome(source=self.store.url, target=str(self.folder))
        try:
            while True:
                try:
                    before, outcome = outcome, self.run()
                    if outcome.copied or outcome.failed or outcome.gone or outcome.removed != before.removed:
                        self.view.say(summary(outcome))
                except StoreUnreachable as error:
                    self.view.say(f"{error}; next try in {every_s:g} s")
                if stop.wait(every_s):
                    return outcome
        except KeyboardInterrupt:
            return outcome

    def _plan(self, *, dry_run: bool) -> Plan:
        with self.view.busy(f"listing {self.store.url}"):
            chosen = self.selection.classes
            taken = None if chosen is None else pick_classes(self.store, chosen, self.selection.seed)
            found = self.store.gather(taken)
        listing, skipped = self._select(found)
        self._target.check(listing.keys, probe=not dry_run)
        self._manifest.require_source()
        lines = self._manifest.lines()
        removed = tuple(
            key
            for key in lines
            if self.selection.part is None  # the run for the whole set looks after those
            and found.find(key) is None
            and self._globs.match(key)
            and (taken is None or key.partition("/")[0] in taken)
        )
        plan = make_plan(
            listing, self._target, lines, verify=self.selection.verify, removed=removed, skipped=skipped
        )
        require_room(plan, self.folder)
        return plan

    def _select(self, found: Listing) -> tuple[Listing, tuple[str, ...]]:
        """What is wanted; and names that are staging's own, and empty objects that stand for folders."""
        part = self.selection.part
        folders = {key.rpartition("/")[0] for key in found.keys}
        wanted: list[int] = []
        skipped: list[str] = []
        for number, key in enumerate(found.keys):
            if not self._globs.match(key) or (part is not None and not in_part(key, part)):
                continue
            if is_ours(key) or (found.sizes[number] == 0 and key in folders):
                skipped.append(key)
            else:
                wanted.append(number)
        if not wanted and part is None:
            raise UsageError(
                f"nothing to stage from {self.store.url}: {len(found):,} objects, none of them chosen; check "
                "the address and the patterns"
            )
        return found.take(wanted), tuple(skipped)

    @staticmethod
    def _tell(outcome: Outcome, plan: Plan) -> None:
        outcome.files, outcome.bytes = len(plan.listing), int(plan.listing.sizes.sum())
        outcome.kept, outcome.checked = plan.kept, len(plan.check)
        outcome.removed, outcome.skipped = list(plan.removed), list(plan.skipped)
        if outcome.dry_run:
            outcome.copied, outcome.copied_bytes = len(plan.copy), plan.copy_bytes

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """One run at a time in a folder; its parts side by side, each with a manifest of its own."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            file = (self.folder / LOCK).open("a+b")
        except OSError as error:
            raise NotPermitted(
                f"cannot write to {self.folder}: {error.strerror}; give a folder that this user may write to"
            ) from error
        with file:
            if sys.platform != "win32" and self.selection.part is None:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    raise UsageError(
                        f"another `stoker stage` is at work in {self.folder}; wait for it, or end it"
                    ) from None
            try:
                yield
            finally:
                self._manifest.close()

    def _carry_out(self, plan: Plan, outcome: Outcome) -> None:
        progress = Progress(files=len(plan.copy) + len(plan.check), bytes=plan.copy_bytes)
        work = iter([*plan.check, *plan.copy.tolist()])

        def labour() -> None:
            while not progress.cancelled.is_set():
                with self._lock:
                    number = next(work, None)
                if number is None:
                    return
                self._do(plan.listing[number], plan.check.get(number), outcome, progress)
                progress.add_file()

        if not progress.files and not (self.selection.delete and outcome.removed):
            return
        with ThreadPoolExecutor(self.selection.jobs, thread_name_prefix="stoker-stage") as pool:
            self.view.start(progress)
            try:
                self._await([pool.submit(labour) for _ in range(self.selection.jobs)], progress)
            finally:
                progress.cancelled.set()
                self.view.finish(progress)
        if self.selection.part is not None:
            return
        if self.selection.delete:
            self._delete(outcome)
        try:
            self._manifest.fold()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            # No room for another copy of it: the lines as they were appended say the same.

    def _await(self, labours: list[Future[None]], progress: Progress) -> None:
        """Until all are done, or one fails."""
        waiting = set(labours)
        while waiting:
            done, waiting = wait(waiting, timeout=_TICK_S, return_when=FIRST_EXCEPTION)
            for one in done:
                one.result()
            self.view.tick(progress)

    def _do(self, entry: Entry, digest: str | None, outcome: Outcome, progress: Progress) -> None:
        """One file. What is wrong with it alone is noted; what would be wrong with all of them is raised."""
        try:
            if digest is not None and self._copier.is_right(entry, digest):
                self._manifest.add(Line.of(entry, digest))
                return
            line, changed = self._copier.copy(entry, progress)
            self._manifest.add(line)
        except NoSpace:
            raise
        except Cancelled:
            return
        except NoSuchObject:
            with self._lock:
                outcome.gone.append(entry.key)
            return
        except StageFailed as error:
            with self._lock:
                outcome.failed[entry.key] = str(error)
            return
        except OSError as error:
            raise self._copier.explain(error, entry) from error
        with self._lock:
            outcome.copied += 1
            outcome.copied_bytes += line.size
            outcome.changed += [entry.key] * changed

    def _delete(self, outcome: Outcome) -> None:
        """Remove the files whose objects are gone. Only what the manifest tells of is ever removed."""
        for key in outcome.removed:
            self._target.remove(key)
            self._manifest.remove(key)
            outcome.deleted += 1


def parse_classes(text: str | None) -> int | list[str] | None:
    """`--classes` as it was given: a number, or names with commas between them (`7,` is one name)."""
    if text is None:
        return None
    return int(text) if text.isdecimal() else [name for name in text.split(",") if name]


def parse_part(text: str | None) -> tuple[int, int] | None:
    """`--part` as it was given: `0/16` is the first of sixteen."""
    if text is None:
        return None
    number, is_given, count = text.partition("/")
    if not (is_given and number.isdecimal() and count.isdecimal() and int(number) < int(count)):
        raise UsageError(f"--part {text} is no part: write 0/16 for the first of sixteen, 15/16 for the last")
    return int(number), int(count)


def summary(outcome: Outcome) -> str:
    """What a run came to, in a line or a few."""
    did = "would copy" if outcome.dry_run else "copied"
    rate = outcome.copied_bytes / outcome.seconds if outcome.seconds else None
    said = [
        f"{did} {outcome.copied:,} files, {size(outcome.copied_bytes)}"
        + ("" if outcome.dry_run else f", in {outcome.seconds:.1f} s ({size(rate)}/s)")
        + f"; {outcome.kept + outcome.checked:,} were there; {outcome.files:,} files, {size(outcome.bytes)}, "
        f"in {outcome.target}"
    ]
    if outcome.changed:
        said.append(f"{len(outcome.changed):,} changed while staging, and are there as they are now")
    if outcome.gone:
        said.append(
            f"{len(outcome.gone):,} were removed from the source while staging: {_some(outcome.gone)}"
        )
    if outcome.removed and not outcome.deleted:
        said.append(
            f"{len(outcome.removed):,} are no longer in the source, and are kept here (--delete removes them)"
            f": {_some(outcome.removed)}"
        )
    if outcome.deleted:
        said.append(f"{outcome.deleted:,} that are no longer in the source were removed here")
    if outcome.skipped:
        said.append(
            f"{len(outcome.skipped):,} skipped, being markers of folders or staging's own files: "
            f"{_some(outcome.skipped)}"
        )
    said += [f"failed: {key}: {why}" for key, why in list(outcome.failed.items())[:10]]
    if len(outcome.failed) > 10:
        said.append(f"and {len(outcome.failed) - 10:,} more that failed")
    return "\n".join(said)


def _some(keys: Sequence[str]) -> str:
    return ", ".join(keys[:5]) + (", …" if len(keys) > 5 else "")
