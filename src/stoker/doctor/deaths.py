"""In the script's process: tells the caller when a loader's worker dies, or a batch cannot be handed over."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from torch.utils.data._utils import signal_handling

from stoker.doctor.ending import DEATH
from stoker.scratch import Child


def tell_of_deaths(child: Child) -> None:
    """Have it told when torch finds a worker dead: it looks at every SIGCHLD, wherever the loop stands."""
    look = vars(signal_handling)["_error_if_any_worker_fails"]

    @wraps(look)
    def _error_if_any_worker_fails() -> None:
        try:
            look()
        except RuntimeError as error:
            child.report(DEATH, text=str(error), signals=[])
            raise

    vars(signal_handling)["_error_if_any_worker_fails"] = _error_if_any_worker_fails


def telling(child: Child, draw: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A loader's `next()` that, where it raises, tells why, and by which signals workers have ended."""

    @wraps(draw)
    def drawn(iterator: Any) -> Any:
        try:
            return draw(iterator)
        except StopIteration:
            raise
        except Exception as error:
            codes = [worker.exitcode or 0 for worker in getattr(iterator, "_workers", ())]
            child.report(DEATH, text=str(error), signals=sorted(-code for code in codes if code < 0))
            raise

    return drawn
