"""The learning rate as a function of the step. Pure, so that a resume needs no state of it."""

import math

from stoker.train.config import ScheduleConfig


def rate_factor(config: ScheduleConfig, step: int, *, steps: int, steps_per_epoch: int) -> float:
    """What the full rate is multiplied with for update `step`, counted from 0, of `steps`.

    >>> cosine = ScheduleConfig(name="cosine", warmup=2)
    >>> [round(rate_factor(cosine, step, steps=6, steps_per_epoch=3), 3) for step in range(6)]
    [0.5, 1.0, 1.0, 0.854, 0.5, 0.146]
    """
    warm = config.warmup if config.warmup >= 1 else config.warmup * steps
    if step < warm:
        return min(1.0, (step + 1) / warm)
    if config.name == "cosine":
        done = min(1.0, (step - warm) / max(1.0, steps - warm))
        return config.floor + (1 - config.floor) * 0.5 * (1 + math.cos(math.pi * done))
    if config.name == "step":
        return float(config.gamma ** sum(step >= each * steps_per_epoch for each in config.milestones))
    return 1.0
