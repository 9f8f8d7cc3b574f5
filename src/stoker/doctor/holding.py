"""Cures that keep a loader's samples once they are read, in the order of the script's own sampler."""

from stoker.doctor.finding import Cure

IN_MEMORY = Cure(
    change="feed",
    value="ram",
    text='keep the samples in memory: feed = "ram" under [changes] in stoker.toml, and stoker run --with it; '
    "they come in the order of the script's own sampler",
    risk="memory for all samples",
)
ON_DISK = Cure(
    change="feed",
    value="disk",
    text='keep what was read in a local file: feed = "disk" under [changes] in stoker.toml, and stoker run '
    "--with it; it comes in the order of the script's own sampler",
    risk="room on the disk for all samples",
)
# Ways that only the script's author can go, and that are of more than one cause.
BLOCK_ORDER = Cure(
    change="block_order",
    text="stoker.Feed(..., shuffle='blocks'): samples that lie together come together",
    kind="optimization",
    risk="samples come in another order",
)
