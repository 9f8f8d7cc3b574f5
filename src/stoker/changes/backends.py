"""Settings of torch's backends, over a script's own: scripts set them while they begin, and so after us."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from torch.optim.optimizer import Optimizer


def put_over(setting: Callable[[], None]) -> None:
    """Put a setting in place now, and again whenever an optimizer has been made."""
    setting()
    init = Optimizer.__init__

    @wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        init(self, *args, **kwargs)
        setting()

    Optimizer.__init__ = __init__  # type: ignore[method-assign]
