"""The share of a GPU's memory that the script may take, set when the script wakes CUDA and not before.

Setting it at once would make a context in a process that has not chosen its device yet.
"""

from types import ModuleType


def cap(fraction: float, torch: ModuleType) -> None:
    """Have torch's allocator on every visible GPU refuse what goes beyond the fraction."""

    def apply() -> None:
        for device in range(torch.cuda.device_count()):
            torch.cuda.set_per_process_memory_fraction(fraction, device)

    torch.cuda._lazy_call(apply)
