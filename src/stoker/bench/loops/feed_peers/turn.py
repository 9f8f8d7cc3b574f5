"""Measures epochs of one loader whenever it is told to, and sleeps in between.

    python turn.py MODULE '{"data": …, "batch": 256}'

`MODULE` has `open_epochs(**plan)` (see the package). An epoch that is not timed comes first: every sample
must come once, with its own number and label. Then, for a line {"seconds": s, "warm": false} on stdin, whole
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
    tell(answers, check(open_epoch))
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["warm"]:
            run(open_epoch, 0.0)
        tell(answers, run(open_epoch, asked["seconds"]))


def check(open_epoch: Epoch) -> dict[str, int]:
    """One epoch in which every sample comes once; its first 8 bytes are its label, and its number."""
    seen: list[int] = []
    for samples, labels in open_epoch():
        numbers = [int.from_bytes(bytes(sample[:8]), "little") for sample in samples]
        if labels is not None and numbers != [int(label) for label in labels]:
            raise SystemExit("a sample came with another's label")
        seen += numbers
    if sorted(seen) != list(range(len(seen))):
        raise SystemExit(f"{len(seen)} samples came, {len(set(seen))} of them different: not each once")
    return {"samples": len(seen)}


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
