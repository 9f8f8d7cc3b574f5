"""The LR finder on a task: its own model, optimizer, batches and precision, and nothing of them kept."""

from typing import Any

from stoker.errors import TrainingFailed, UsageError
from stoker.train import rng
from stoker.train.config import TrainConfig
from stoker.train.devices import count_ranks, open_fabric
from stoker.train.microbatch import is_out_of_memory
from stoker.train.optimizer import build_optimizer
from stoker.train.precision import put_channels_last, tf32
from stoker.train.task import Task, World
from stoker.tune.lr import Finder
from stoker.tune.lr_curve import Curve

# Rates below and above these are no use to any of the optimizers here, and a sweep has 100 steps for all.
_LOW, _HIGH, _STEPS = 1e-5, 10.0, 100


def find_rate(task: Task[Any], *, low: float = _LOW, high: float = _HIGH, steps: int = _STEPS) -> Curve:
    """Sweep the rate over a new model of the task; `Curve.lr` is what to give train.optimizer.lr."""
    config: TrainConfig = task.config.train
    if (devices := count_ranks(config)) > 1 or config.precision == "fp16":
        raise UsageError(
            f"a sweep over {devices} devices in {config.precision}: it takes one device, and fp32, "
            "tf32 or bf16, whose losses need no scaling; the rate holds for the others too"
        )
    with tf32(config.precision):
        fabric = open_fabric(config)
        rng.seed_all(config.seed)
        module = task.build_model()
        if config.channels_last:
            put_channels_last(module)
        model = fabric.setup_module(module)
        optimizer = build_optimizer(task, module, config.optimizer)
        feeds = task.open_feeds(World(), fabric.device)
        try:
            finder = Finder(model, optimizer, lambda model, batch: task.loss(model, batch).total, feeds.train)
            return finder.find(low=low, high=high, steps=steps)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise TrainingFailed(
                f"out of memory with a whole batch of {config.batch_size}, which a sweep takes at once: "
                "lower train.batch_size for it; a rate for a smaller batch is a careful one for a larger"
            ) from error
        finally:
            feeds.close()
