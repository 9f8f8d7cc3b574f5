"""Measures epochs of one loader whenever it is told to, and sleeps in between.

    python turn.py MODULE '{"data": …, "batch": 256}' [CLASSES]

`MODULE` has `open_epochs(**plan)` (see the package). An epoch that is not timed comes first: every sample
must come once, with its own number (`read_number`) and label: its number too, or its class where there are
so many classes. Then, for a line {"seconds": s, "warm": false} on stdin, whole
epochs are timed until s seconds have passed; an epoch's time is from asking the loader for its iterator to
its end. With "warm": true an epoch that is not timed comes right before those: while others had their turns,
the system may have taken the loader's pages back.
"""

import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

Epoch = Callable[[], Iterable[Any]]


def main() -> None:
    """Check, say so, and take turns until stdin ends."""
    # Libraries print to stdout; answers go where it led.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    warnings.filterwarnings("ignore", message=".*not writable.*")
    module, plan = import_module(sys.argv[1]), json.loads(sys.argv[2])
    open_epoch: Epoch = module.open_epochs(**plan)
    classes = int(sys.argv[3]) if len(sys.argv) > 3 else None
    tell(answers, check(open_epoch, classes))
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["warm"]:
            run(open_epoch, 0.0)
        tell(answers, run(open_epoch, asked["seconds"]))


def check(open_epoch: Epoch, classes: int | None = None) -> dict[str, int]:
    """One epoch in which every sample comes once, with its own label."""
    seen: list[int] = []
    for samples, labels in open_epoch():
        numbers = [read_number(sample) for sample in samples]
        due = [number % classes if classes else number for number in numbers]
        if labels is not None and due != [read_number(label) for label in labels]:
            raise SystemExit("a sample came with another's label")
        seen += numbers
    if sorted(seen) != list(range(len(seen))):
        raise SystemExit(f"{len(seen)} samples came, {len(set(seen))} of them different: not each once")
    return {"samples": len(seen)}


def read_number(sample: Any) -> int:
    """Which sample this is: by its first 8 bytes; a label by itself, a picture by its squares.

    A picture of 224 x 224 has 12 squares of 14 pixels in its middle, light for a bit that is set.
    """
    shape = getattr(sample, "shape", None)
    if isinstance(sample, int) or shape in ((), (1,)):
        return int(sample)
    if shape is not None and len(shape) == 3:
        row = sample[0][119].tolist()
        return sum(1 << bit for bit in range(12) if row[35 + 14 * bit] > 127)
    return int.from_bytes(bytes(sample[:8] if shape is None else sample.reshape(-1)[:8]), "little")


def run(open_epoch: Epoch, seconds: float) -> dict[str, float]:
    """Whole epochs for about that long."""
    spent, cpu, samples, size, epochs = 0.0, 0.0, 0, 0, 0
    while not epochs or spent < seconds:
        batches = open_epoch()
        began, began_cpu = time.perf_counter(), time.process_time()
        for batch in batches:
            samples += len(batch[0])
            size += count_bytes(batch)
        spent += time.perf_counter() - began
        cpu += time.process_time() - began_cpu
        epochs += 1
    return {"epochs": epochs, "samples": samples, "bytes": size, "seconds": spent, "cpu_seconds": cpu}


def count_bytes(batch: Any) -> int:
    """What a batch holds: tensors, or bytes as a client gives them."""
    samples, labels = batch
    held = sum(map(len, samples)) if isinstance(samples, list) else samples.nbytes
    return int(held + (0 if labels is None else labels.nbytes))


def tell(answers: Any, value: dict[str, Any]) -> None:
    """One line."""
    answers.write(json.dumps(value) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
