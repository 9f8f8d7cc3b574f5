"""All samples of the script's dataset: what they take, and whether memory can keep them. Pure."""

from stoker.doctor.evidence import Evidence
from stoker.facts.words import size
from stoker.feed.choice import KEPT_SHARE


def set_bytes(run: Evidence) -> int | None:
    """Bytes of all samples as batches have them; of a dataset that does not say its length, an epoch's."""
    drawn = run.drawn
    if drawn is None or run.streams or not run.batch_bytes:
        return None
    if run.dataset is not None and drawn.batch_size:
        return round(run.dataset / drawn.batch_size * run.batch_bytes)
    return None if drawn.length is None else drawn.length * run.batch_bytes


def why_left_alone(run: Evidence, tier: str) -> str | None:
    """Why a feed would leave the loader as it is, by what was measured; None where nothing says so."""
    if run.streams:
        return "an IterableDataset: its samples have no numbers to be kept by"
    if run.unkept:
        return f"{run.unkept}: kept samples would stay the same"
    need, free = set_bytes(run), run.host.get("memory_free_bytes")
    if tier == "ram" and need is not None and free is not None and need > free * (1 - KEPT_SHARE):
        return f"all samples are {size(need)}, which does not fit {size(free)} of free memory"
    return None


def why_unpredicted(run: Evidence, tier: str | None) -> str | None:
    """Why it cannot be told what the loop takes with its samples kept; None where it can."""
    if tier is None:
        return "it is not told where samples are kept"
    if tier != "ram":
        return f"samples were not tried in the tier {tier}"
    left = why_left_alone(run, tier)
    if left is not None:
        return left
    if set_bytes(run) is None:
        return "how much memory all samples take is not known"
    if run.host.get("memory_free_bytes") is None:
        return "how much memory is free is not known"
    if "from memory" in run.missing:
        return f"the loop was not tried with samples in memory: {run.missing['from memory']}"
    return None
