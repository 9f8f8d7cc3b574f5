"""Tries changes one at a time on the user's own loop, and keeps what is proved."""

from stoker.tune.lr import find_lr
from stoker.tune.micro_batch import find_micro_batch
from stoker.tune.workers import find_workers

__all__ = ["find_lr", "find_micro_batch", "find_workers"]
