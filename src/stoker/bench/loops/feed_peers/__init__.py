"""The loaders and clients that Stoker's feed is measured beside: one script a peer, run by `turn.py`.

Each has `open_epochs(**plan)`, which makes the peer's own files where it needs some and gives back a
function: a call of it is an epoch, an iterable of (samples, labels). They run in the peer's environment and
import nothing of Stoker.
"""
