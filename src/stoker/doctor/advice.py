"""What is known of changes beside their speed: how they are applied, how they backfire, what they entail.

The reports are of others' projects, by their names on GitHub.
"""

from math import ceil, sqrt
from typing import Any

from stoker.changes import ALL

# How a change can backfire: settings say so themselves, what only the script's author can do is told here.
MIND = {
    **{name: change.backfires for name, change in ALL.items()},
    "bucket": "batches of the longest need more memory than any did (pocket-tts#309: 41.5 to 51 GiB)",
}
# What a change of the optimization means for the rest of a training.
CONSEQUENCES = {
    "batch_size": "k times the batch makes k times fewer updates an epoch: begin with k times the learning "
    "rate for SGD, its root for Adam, and a warm-up; schedules that count steps must be given k times fewer "
    "of them (transformers#21521)",
    "accumulate": "k micro-batches a step: the loss is divided by k, the scheduler steps once an update; "
    "batch norm still sees the micro-batch",
    "bucket": "samples of a length come together: shuffle within windows, then the batches; the learning "
    "rate may stay, but batches differ more from each other, and a mean over tokens is to be weighed by them",
    "block_order": "samples of a block come together: batches are more alike in themselves, and differ more "
    "from each other; learning rate and schedule stay, blocks are to be shuffled too",
    "own_feed": "the same samples, shuffled by Feed and not by the script's sampler: learning "
    "rate and schedule stay",
    "pad": "padded places must be masked in loss and attention; learning rate and schedule stay",
}
# Why the workers of a stream are left as many as they are.
OF_STREAMS = (
    "an IterableDataset decides itself what each worker reads: with others samples come twice or not at "
    "all, unless it shares itself out (torch.utils.data.get_worker_info), and only its author knows"
)
_LINES = {
    "num_workers": "DataLoader(..., num_workers={value})",
    "prefetch_factor": "DataLoader(..., prefetch_factor={value})",
    "persistent_workers": "DataLoader(..., persistent_workers=True)",
    "pin_memory": "DataLoader(..., pin_memory=True)  # and batch.to(device, non_blocking=True)",
    "batch_size": "DataLoader(..., batch_size={value})",
    "threads": "torch.set_num_threads({value})  # or OMP_NUM_THREADS={value} in the environment",
    "worker_threads": "DataLoader(..., worker_init_fn=lambda _: torch.set_num_threads({value}))",
    "stage": "stoker stage SRC DST  # then give the script DST",
    "feed": '[changes]  # in stoker.toml\nfeed = "{value}"\nstoker run --with stoker.toml SCRIPT',
    "accumulate": "(loss / {value}).backward()  # of {value} micro-batches, then one optimizer.step()",
    "own_feed": "loader = stoker.Feed(dataset, batch_size=..., shuffle=True)  # where the DataLoader stood",
    "block_order": "loader = stoker.Feed(dataset, batch_size=..., shuffle='blocks')  # the same",
    "dynamic": "model = torch.compile(model, dynamic=True)",
    "dtype": "model = model.float()  # and data as float32",
    "worker_affinity": "os.sched_setaffinity(0, range(os.cpu_count()))  # before workers start",
}


def consequences_of(
    change: str, value: Any, *, batch: int | None = None, epoch_steps: float | None = None
) -> str:
    """What a change means for the rest of a training, by the script's own batch and steps an epoch."""
    told = CONSEQUENCES.get(change, "")
    if value is None or not batch:
        return told
    if change == "accumulate":
        each = ceil(batch / value)
        return (
            f"{value} micro-batches of {each} samples a step: the loss is divided by {value}, the scheduler "
            f"steps once an update; batch norm sees {each} samples"
        )
    if change != "batch_size":
        return told
    times = value / batch
    fewer = "fewer" if times > 1 else "more"
    steps = f"{_number(max(times, 1 / times))} times {fewer} steps an epoch"
    if epoch_steps:
        steps = f"{epoch_steps:,.0f} steps an epoch become {epoch_steps / times:,.0f}"
    return (
        f"{_number(times)} times the batch ({batch} to {value}), and {steps}: begin with {_number(times)} "
        f"times the learning rate for SGD (the linear rule), {_number(sqrt(times))} times for Adam (the rule "
        "of the root), and a warm-up; schedules that count steps must be given as many as there are then "
        "(transformers#21521)"
    )


def _number(value: float) -> str:
    return f"{value:.3g}"


def lines_for(change: str, value: Any, text: str) -> tuple[str, ...]:
    """The lines or commands that apply a change; its cure in words where it has none of its own."""
    line = _LINES.get(change)
    if line is None or (value is None and "{value}" in line):
        return (text,)
    return tuple(line.format(value=value).split("\n"))
