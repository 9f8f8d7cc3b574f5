"""`fit`: a task in, a trained model out. Puts the parts together, and takes them apart again."""

import contextlib
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from stoker.errors import CheckpointBroken, TrainingFailed, UsageError
from stoker.feed.whole_file import remove_leftovers
from stoker.train import folder, preflight, rng
from stoker.train.checkpoint import Checkpoints, Found
from stoker.train.config import TrainConfig
from stoker.train.config_file import to_values, without_passwords
from stoker.train.devices import is_launched, open_fabric
from stoker.train.ema import Ema
from stoker.train.journal import Journal, open_loggers, plain
from stoker.train.loop import Best, Ended, Loop, Parts, say_on_stderr
from stoker.train.meeting import Meeting
from stoker.train.optimizer import build_optimizer
from stoker.train.precision import cudnn_benchmark, put_channels_last, ready_scaler, tf32
from stoker.train.signals import Stopped, StopSignal
from stoker.train.step import Stepper
from stoker.train.task import Feeds, Task, World

# Shapes of batches that a model is compiled for: images that grow, micro-batches, what ends an epoch.
_FORMS = 32


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """How a training ended: `done`, `early` (no more gain) or `stopped` (by a signal, its state saved)."""

    ended: Ended
    step: int
    steps: int
    metrics: dict[str, float]
    best: Best | None
    # Sustained, of this process; None where it made fewer than two steps.
    samples_per_second: float | None
    # The most of a card's memory that this process had in use; None without one.
    peak_bytes: int | None
    micro_batch: int
    # The step that was gone on from; None for a training from its beginning.
    resumed: int | None
    folder: Path
    pictures: tuple[Path, ...] = ()
    # Of this process; what is written and printed is rank 0's.
    rank: int = 0

    @property
    def exit_code(self) -> int:
        """0; 143 where it was stopped, as the shell tells of a process that SIGTERM ended.

        Ranks that the trainer started itself end with 0 all the same, but for the first: Fabric takes any
        other code for a crash, and kills rank 0, which may still be ending its loggers.
        """
        if self.ended != "stopped" or (self.rank > 0 and not is_launched()):
            return 0
        return 128 + signal.SIGTERM

    def to_json(self) -> dict[str, Any]:
        """All of it, as JSON has it."""
        found = plain(asdict(self))
        return {**found, "folder": str(self.folder), "pictures": [str(path) for path in self.pictures]}


def fit(
    task: Task[Any], *, out: Path, fresh: bool = False, tell: Callable[[str], None] = say_on_stderr
) -> Fitted:
    """Train a task into a folder; goes on from the last good checkpoint there, unless `fresh`.

    With several ranks every one of them calls this, and returns the same.
    """
    config: TrainConfig = task.config.train
    with contextlib.ExitStack() as stack:
        stack.enter_context(tf32(config.precision))
        stack.enter_context(cudnn_benchmark(config.cudnn_benchmark))
        stop = stack.enter_context(StopSignal())
        grouped = dist.is_available() and dist.is_initialized()
        fabric = open_fabric(config)
        meeting = Meeting()
        if meeting.size > 1 and not grouped:
            stack.callback(dist.destroy_process_group)
        if meeting.rank == 0:
            stack.enter_context(folder.taken(out))
            remove_leftovers(out)
            Checkpoints(out / folder.CHECKPOINTS).remove_parts()
            if fresh and (aside := folder.put_aside(out)) is not None:
                tell(f"what was in {out} is in {aside}")
        else:
            tell = _say_nothing
        if config.preflight:
            _look(fabric.device, meeting, tell)
        parts = _assemble(task, fabric, meeting, stop, out, tell, stack)
        loop = Loop(parts)
        resumed = _stand(loop, parts)
        ready_scaler(parts.precision, fabric.device)
        # Importing a logger may draw, and so may a look at the device; a training does not begin with that.
        drawn = rng.read(fabric.device)
        journal = _open_journal(parts, loop, out) if meeting.rank == 0 else None
        if journal is not None:
            stack.callback(journal.close)
        _make_ready(parts, loop, resumed)
        rng.write(drawn, fabric.device)
        ended = loop.run(journal)
        if loop.best is not None and ended != "stopped":
            best, place = loop.best, out / folder.CHECKPOINTS / loop.best.checkpoint
            parts.tell(f"done: the best {best.metric} is {best.value:.5g}, at step {best.step} ({place})")
        pictures: list[Path] = []
        if config.picture and ended != "stopped" and meeting.rank == 0:
            try:
                with stop.at_once():
                    pictures = _draw(parts, loop, out)
            except Stopped:
                ended = "stopped"
        ended = meeting.share(ended)  # rank 0 may have been drawing for hours; all end as it does
        fitted = Fitted(
            ended=ended,
            step=loop.step,
            steps=loop.steps,
            metrics=loop.metrics,
            best=loop.best,
            samples_per_second=loop.pace.samples_per_second,
            peak_bytes=loop.memory.peak(),
            micro_batch=parts.stepper.micro_batch,
            resumed=resumed,
            folder=out,
            pictures=tuple(pictures),
            rank=meeting.rank,
        )
        if meeting.rank == 0:
            folder.write_json(out / "result.json", {"schema": 1, "task": task.name, **fitted.to_json()})
        if ended == "stopped":
            heard = stop.heard or "a signal to another rank"
            where = f"saved at step {loop.step}" if loop.step else "no step was made"
            parts.tell(f"{heard}: {where}; the same command goes on from there")
        meeting.any([False])  # the group ends for all at once
        return fitted


def _stand(loop: Loop, parts: Parts) -> int | None:
    """Stand where the last good checkpoint was made; its step, None at the beginning."""
    found: Found | None = parts.meeting.share(_find(parts) if parts.meeting.rank == 0 else None)
    if found is None:
        rng.seed_all(parts.config.seed, 0, parts.meeting.rank)
        return None
    loop.restore(found.checkpoint)
    parts.tell(f"goes on from step {loop.step} of {loop.steps} ({found.folder})")
    if parts.meeting.rank == 0:
        _name_best(parts.checkpoints, loop)
    return loop.step


def _find(parts: Parts) -> Found | None:
    found = parts.checkpoints.find_last_good()
    if found is not None:
        for name, text in found.passed_over.items():
            aside = parts.checkpoints.put_aside(name)
            parts.tell(f"warning: a checkpoint is broken and passed over: {text} (now {aside})")
    return found


def _open_journal(parts: Parts, loop: Loop, out: Path) -> Journal:
    folder.write_json(out / "config.json", {"task": parts.task.name, **parts.settings})
    names, run = parts.config.loggers, parts.task.name
    loggers = open_loggers(names, folder=out, run=run, config=parts.settings, after=loop.step)
    journal = Journal(out, loggers, after=loop.step, judged=loop.is_judged)
    # Who watches from outside knows by it that the journal is this process's now, where it went on from, and
    # how far there is to go.
    folder.write_json(out / "begun.json", {"pid": os.getpid(), "step": loop.step, "steps": loop.steps})
    return journal


def _make_ready(parts: Parts, loop: Loop, resumed: int | None) -> None:
    """Say what will be trained, whether it will fit, and compile it."""
    device, config = parts.fabric.device, parts.config
    count = sum(weight.numel() for weight in parts.module.parameters())
    parts.tell(
        f"{parts.task.name}: {count:,} weights on {device}, {config.precision}; {parts.feeds.train.why}"
    )
    if config.preflight and preflight.can_measure(device):
        # What an optimizer went on with, it holds already.
        states = 0 if resumed else preflight.bytes_of_states(parts.module, config.optimizer)
        _predict(parts, loop, states)
    if config.compile:
        # Beyond 8, torch would leave the next ones uncompiled: the last sizes of images that grow.
        torch._dynamo.config.recompile_limit = max(_FORMS, torch._dynamo.config.recompile_limit)
        # In place, and after the prediction: sizes that are tried once are not worth compiling for.
        parts.module.compile(mode=config.compile_mode)


def _name_best(checkpoints: Checkpoints, loop: Loop) -> None:
    """A training that went back further than its best no longer has that one."""
    if loop.best is None:
        checkpoints.forget_best()
    else:
        checkpoints.mark_best(
            loop.best.checkpoint, step=loop.best.step, metric=loop.best.metric, value=loop.best.value
        )


def _assemble(
    task: Task[Any],
    fabric: Any,
    meeting: Meeting,
    stop: StopSignal,
    out: Path,
    tell: Callable[[str], None],
    stack: contextlib.ExitStack,
) -> Parts:
    config: TrainConfig = task.config.train
    rng.seed_all(config.seed)
    module = task.build_model()
    if config.channels_last:
        put_channels_last(module)
    model = fabric.setup_module(module)
    optimizer = fabric.setup_optimizers(build_optimizer(task, module, config.optimizer))
    # After the model: what is held on a card is chosen by what is free there.
    feeds = task.open_feeds(World(rank=meeting.rank, size=meeting.size), fabric.device)
    stack.callback(feeds.close)
    share = config.batch_size // meeting.size
    _check_feeds(feeds, config, share)
    stepper = Stepper(
        task,
        fabric=fabric,
        module=module,
        model=model,
        optimizer=optimizer,
        feeds=feeds,
        meeting=meeting,
        micro_batch=min(config.micro_batch or share, share),
        clip=config.clip,
        is_to_stop=stop.is_heard,
    )
    if stepper.waits_in_forward and not feeds.train.drop_last:
        raise UsageError(
            "a model with SyncBatchNorm on several ranks, and a training feed whose last batch may be short: "
            "a rank without a sample would leave the others waiting; open it with drop_last=True"
        )
    return Parts(
        task=task,
        config=config,
        fabric=fabric,
        precision=fabric.strategy.precision,
        module=module,
        model=model,
        optimizer=optimizer,
        feeds=feeds,
        stepper=stepper,
        meeting=meeting,
        ema=Ema(module, config.ema) if config.ema.decay else None,
        checkpoints=Checkpoints(out / folder.CHECKPOINTS, keep=config.save.keep),
        stop=stop,
        settings=without_passwords(to_values(task.config)),
        tell=tell,
    )


def _check_feeds(feeds: Feeds, config: TrainConfig, share: int) -> None:
    if not len(feeds.train):
        raise UsageError(
            f"the training feed has no batch of {config.batch_size}: give it more samples, or a smaller "
            "train.batch_size"
        )
    if feeds.train.batch_size != share:
        raise UsageError(
            f"the training feed hands out {feeds.train.batch_size} samples a step to a rank, and "
            f"train.batch_size asks for {share}: open it with global_batch_size=config.train.batch_size"
        )


def _look(device: torch.device, meeting: Meeting, tell: Callable[[str], None]) -> None:
    """Tell what will hurt on any rank's device; what several of them say, once."""
    warned = meeting.gather(preflight.look(preflight.uuid_of(device)))
    for one in dict.fromkeys(one for found in warned or () for one in found):
        tell(f"warning: {one.text}. {one.fix}")


def _predict(parts: Parts, loop: Loop, states: int) -> None:
    """Whether the largest step will fit the card, before the first; the feed stands then where it stood."""
    feed, device, stepper = parts.feeds.train, parts.fabric.device, parts.stepper
    if stepper.waits_in_forward:
        parts.tell("memory: not predicted, a rank that ran out of it would leave SyncBatchNorm waiting")
        return
    epoch = parts.task.largest_epoch(-(-loop.steps // len(feed)))
    state = feed.state_dict()
    feed.set_epoch(epoch)
    batch = next(iter(feed))
    feed.load_state_dict(state)

    def measure(samples: int) -> int | None:
        return preflight.peak_of(lambda: stepper.accumulate(batch, samples, samples), device)

    with stepper.undone():
        found = preflight.predict(
            measure,
            micro_batch=min(stepper.micro_batch, parts.task.count(batch)),
            states=states,
            room=preflight.room_on(device),
        )
    torch.cuda.empty_cache()
    when = f"in epoch {epoch + 1}, " if epoch else ""
    if epoch > loop.epoch and not isinstance(found, str):
        # The first steps need less than this: a feed would take what is left for its samples.
        feed.expect(found.room if found.need is None else found.need, f"a step {when}as predicted")
    for rank, one in enumerate(parts.meeting.gather(found) or ()):
        if isinstance(one, str):
            told = f"memory: not predicted, {one}"
        else:
            told = f"{'warning: ' if one.overflows else 'memory: '}{when}{one.text}"
        # Rank 0 speaks for all; the others have as much to hold, and their cards may be fuller.
        if rank == 0:
            parts.tell(told)
        elif not isinstance(one, str) and one.overflows:
            parts.tell(f"{told} (rank {rank})")


def _draw(parts: Parts, loop: Loop, out: Path) -> list[Path]:
    """What the best weights make of the data."""
    shown: Mapping[str, torch.Tensor] = {} if parts.ema is None else parts.ema.state()
    if loop.best is not None:
        try:
            best = parts.checkpoints.read(loop.best.checkpoint)
        except CheckpointBroken as error:
            parts.tell(f"warning: pictured are the last weights, not the best: {error}")
        else:
            shown = {**best.model, **(best.mean or {})}
    parts.module.load_state_dict({**parts.module.state_dict(), **shown})
    parts.model.eval()
    try:
        with torch.no_grad():
            pictures = parts.task.picture(parts.model, parts.feeds, out)
    except OSError as error:
        raise TrainingFailed(
            f"the training is done and kept, and what it learnt cannot be drawn: {error}. The same command "
            "draws it again, or ends without it by train.picture=false"
        ) from error
    for path in pictures:
        parts.tell(f"see {path}")
    return pictures


def _say_nothing(text: str) -> None:
    """Rank 0 speaks for all."""
