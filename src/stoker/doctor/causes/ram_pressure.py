"""Workers, caches and queues need more memory than there is."""

from stoker.doctor.evidence import Evidence
from stoker.doctor.finding import ALARM, Cure, Found, Judgement, RuledOut
from stoker.doctor.resources import Memory
from stoker.facts.words import size
from stoker.watch.words import percent

ID = "ram-pressure"
CURES = (
    Cure(change="num_workers", text="fewer workers, or leaner ones: each holds its own caches and buffers"),
    Cure(
        change="memory_map",
        text="memory-map what is kept (np.memmap): its pages are shared and can be let go",
    ),
    Cure(change="prefetch_factor", text="a smaller queue: prefetch_factor=1"),
)
# Seconds in which what is held grows by a tenth, for it to fill any memory soon.
_SOON = 300.0
# Of its limit, for a group to be full.
_FULL = 0.9
# Of what came from a disk, for it to have been in memory before.
_AGAIN = 0.2


def judge(run: Evidence) -> Judgement:
    """By kills and pages that were pushed out and needed again, beside the limit of the memory group."""
    memory, ending = run.memory, run.ending
    if ending is not None and ending.lacked == "memory":
        fills = _fills(memory) if ending.held else True
        if fills is False:
            return None  # the diagnosis kept more free than the script needs
        told = (ending.why, *_words(memory))
        return Found(share=None, certainty=0.98 if ending.sure and fills else 0.6, evidence=told)
    if memory is None or memory.came_back is None or (memory.filled is None and memory.stalled is None):
        return None
    again = memory.came_back / memory.read if memory.read else 0.0
    told = (
        f"{size(memory.came_back)} a second had been pushed out of memory and were read again, "
        f"{percent(min(1.0, again))} of what came from the disk",
        *_words(memory),
    )
    pressed = (memory.filled or 0.0) >= _FULL or (memory.stalled or 0.0) >= ALARM
    if not pressed or again < _AGAIN:
        return RuledOut(by="; ".join(told))
    if run.lost < ALARM:
        return RuledOut(by=f"{percent(run.lost)} of the step is lost to waiting for batches")
    return Found(share=run.lost, certainty=0.95, evidence=told)


def _fills(memory: Memory | None) -> bool | None:
    """Whether the process and its workers were growing when they were stopped; None where nobody saw."""
    if memory is None or memory.growing is None or not memory.held:
        return None
    return memory.growing * _SOON > 0.1 * memory.held


def _words(memory: Memory | None) -> tuple[str, ...]:
    if memory is None:
        return ()
    told = []
    if memory.filled is not None:
        told.append(f"the memory group was {percent(memory.filled)} full of {size(memory.limit)}")
    if memory.growing is not None and memory.growing > 0:
        told.append(f"the process and its workers grew by {size(memory.growing)} a second")
    if memory.stalled:
        told.append(f"some task waited for memory {percent(memory.stalled)} of the time")
    return tuple(told)
