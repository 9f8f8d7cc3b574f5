"""What a scratch run may have left behind, in words: said wherever its result is. Pure."""

from stoker.scratch import Result


def notes_of(result: Result) -> tuple[str, ...]:
    """Of a write shield that was partial, and of processes that could not be ended."""
    notes = []
    if result.shield is not None and result.shield.kind != "full":
        notes.append(f"the write shield is partial: {result.shield.reason}")
    if result.left:
        numbers = ", ".join(str(pid) for pid in result.left)
        notes.append(f"processes that could not be ended, for they stand in the kernel: {numbers}")
    return tuple(notes)
