"""Tries changes one at a time on the user's own loop, and keeps what is proved."""

from stoker.tune.lr import find_lr

__all__ = ["find_lr"]
