"""`fit`: a task in, a trained model out. Puts the parts together, and takes them apart again."""

import contextlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from stoker.errors import CheckpointBroken, UsageError
from stoker.train import folder, preflight, rng
from stoker.train.checkpoint import Checkpoints, Found
from stoker.train.config import TrainConfig
from stoker.train.config_file import to_values
from stoker.train.devices import open_fabric
from stoker.train.ema import Ema
from stoker.train.journal import Journal, open_loggers
from stoker.train.loop import Best, Ended, Loop, Parts, say_on_stderr
from stoker.train.meeting import Meeting
from stoker.train.optimizer import build_optimizer
from stoker.train.precision import cudnn_benchmark, put_channels_last, tf32
from stoker.train.signals import StopSignal
from stoker.train.step import Stepper
from stoker.train.task import Feeds, Task, World


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
    micro_batch: int
    # The step that was gone on from; None for a training from its beginning.
    resumed: int | None
    folder: Path
    pictures: tuple[Path, ...] = ()
    # Of this process; what is written and printed is rank 0's.
    rank: int = 0

    def to_json(self) -> dict[str, Any]:
        """All of it, as JSON has it."""
        found = asdict(self)
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
        say = tell if meeting.rank == 0 else _say_nothing
        if meeting.rank == 0:
            stack.enter_context(folder.taken(out))
            if fresh and (aside := folder.put_aside(out)) is not None:
                say(f"what was in {out} is in {aside}")
        return _fit(task, config, out, fabric, meeting, stop, say, stack)


def _fit(
    task: Task[Any],
    config: TrainConfig,
    out: Path,
    fabric: Any,
    meeting: Meeting,
    stop: StopSignal,
    say: Callable[[str], None],
    stack: contextlib.ExitStack,
) -> Fitted:
    checkpoints = Checkpoints(out / folder.CHECKPOINTS, keep=config.save.keep)
    found: Found | None = meeting.share(_find(checkpoints, say) if meeting.rank == 0 else None)
    if config.preflight and meeting.rank == 0:
        for warned in preflight.look(fabric.device):
            say(f"warning: {warned.text}. {warned.fix}")
    parts = _assemble(task, config, fabric, meeting, checkpoints, stop, say)
    stack.callback(parts.feeds.close)
    loop = Loop(parts, config)
    if found is not None:
        loop.restore(found.checkpoint)
        say(f"goes on from step {loop.step} of {loop.steps} ({found.folder})")
        if meeting.rank == 0:
            _name_best(checkpoints, loop)
    else:
        rng.seed_all(config.seed, 0, meeting.rank)
    # Importing a logger may draw, and so may a look at the machine; a training does not begin with that.
    drawn = rng.read(fabric.device)
    journal = None
    if meeting.rank == 0:
        folder.write_json(out / "config.json", {"task": task.name, **parts.settings})
        loggers = open_loggers(
            config.loggers, folder=out, run=task.name, config=parts.settings, after=loop.step
        )
        journal = Journal(out, loggers, after=loop.step)
        stack.callback(journal.close)
    say(
        f"{task.name}: {_count(parts.module):,} weights on {fabric.device}, {config.precision}; "
        f"{parts.feeds.train.why}"
    )
    if config.preflight and fabric.device.type == "cuda":
        _predict(parts, config, say)
    if config.compile:
        # In place, and after the prediction: sizes that are tried once are not worth compiling for.
        parts.module.compile(mode=config.compile_mode)
    resumed = None if found is None else loop.step
    rng.write(drawn, fabric.device)
    ended = loop.run(journal)
    pictures = _draw(parts, loop, out, say) if config.picture and ended != "stopped" else []
    fitted = Fitted(
        ended=ended,
        step=loop.step,
        steps=loop.steps,
        metrics=loop.metrics,
        best=loop.best,
        samples_per_second=loop.pace.samples_per_second,
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
        say(f"{heard}: saved at step {loop.step}; the same command goes on from there")
    return fitted


def _find(checkpoints: Checkpoints, say: Callable[[str], None]) -> Found | None:
    checkpoints.remove_parts()
    found = checkpoints.find_last_good()
    if found is not None:
        for name, text in found.passed_over.items():
            say(
                f"warning: a checkpoint is broken and passed over: {text} (now {checkpoints.put_aside(name)})"
            )
    return found


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
    config: TrainConfig,
    fabric: Any,
    meeting: Meeting,
    checkpoints: Checkpoints,
    stop: StopSignal,
    say: Callable[[str], None],
) -> Parts:
    rng.seed_all(config.seed)
    module = task.build_model()
    if config.channels_last:
        put_channels_last(module)
    model = fabric.setup_module(module)
    optimizer = build_optimizer(task, module, config.optimizer)
    feeds = task.open_feeds(World(rank=meeting.rank, size=meeting.size), fabric.device)
    share = config.batch_size // meeting.size
    _check_feeds(feeds, config, share)
    wrapped = fabric.setup_optimizers(optimizer)
    return Parts(
        task=task,
        fabric=fabric,
        precision=fabric.strategy.precision,
        module=module,
        model=model,
        optimizer=wrapped,
        feeds=feeds,
        stepper=Stepper(
            task,
            fabric=fabric,
            module=module,
            model=model,
            optimizer=wrapped,
            feed=feeds.train,
            meeting=meeting,
            micro_batch=min(config.micro_batch or share, share),
            clip=config.clip,
            is_to_stop=stop.is_heard,
        ),
        meeting=meeting,
        ema=Ema(module, config.ema) if config.ema.decay else None,
        checkpoints=checkpoints,
        stop=stop,
        settings=to_values(task.config),
        tell=say,
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


def _predict(parts: Parts, config: TrainConfig, say: Callable[[str], None]) -> None:
    """Whether a step will fit the card, before the first one; the feed stands where it stood after it."""
    feed, device = parts.feeds.train, parts.fabric.device
    state = feed.state_dict()
    batch = next(iter(feed))
    feed.load_state_dict(state)
    with parts.stepper.undone():
        found = preflight.predict(
            lambda samples: preflight.peak_of(
                partial(parts.stepper.accumulate, batch, samples, samples), device
            ),
            micro_batch=min(parts.stepper.micro_batch, parts.task.count(batch)),
            states=preflight.bytes_of_states(parts.module, config.optimizer),
            room=preflight.room_on(device),
        )
    torch.cuda.empty_cache()
    if isinstance(found, str):
        say(f"memory: not predicted, {found}")
    else:
        say(f"{'warning: ' if found.overflows else 'memory: '}{found.text}")


def _draw(parts: Parts, loop: Loop, out: Path, say: Callable[[str], None]) -> list[Path]:
    """What the best weights make of the data."""
    if parts.meeting.rank != 0:
        return []
    if loop.best is not None:
        try:
            best = parts.checkpoints.read(loop.best.checkpoint)
        except CheckpointBroken as error:
            say(f"warning: pictured are the last weights, not the best: {error}")
        else:
            parts.module.load_state_dict({**best.model, **(best.mean or {})})
    parts.model.eval()
    with torch.no_grad():
        pictures = parts.task.picture(parts.model, parts.feeds, out)
    for path in pictures:
        say(f"picture: {path}")
    return pictures


def _count(module: torch.nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())


def _say_nothing(text: str) -> None:
    """Rank 0 speaks for all."""
