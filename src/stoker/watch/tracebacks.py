"""Tracebacks without Stoker's own frames: what a user sees is the user's."""

from pathlib import Path
from types import TracebackType

_HERE = str(Path(__file__).resolve().parent.parent)


def without_stoker(trace: TracebackType | None) -> TracebackType | None:
    """The same traceback with the frames of this package taken out."""
    kept: list[TracebackType] = []
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(_HERE):
            kept.append(trace)
        trace = trace.tb_next
    chain: TracebackType | None = None
    for link in reversed(kept):
        chain = TracebackType(chain, link.tb_frame, link.tb_lasti, link.tb_lineno)
    return chain
