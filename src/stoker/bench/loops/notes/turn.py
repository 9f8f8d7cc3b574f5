"""Measures steps of one of these scripts whenever it is told to: `python turn.py SCRIPT CYCLE WORDS…`.

A cycle of so many steps comes first, and a line that says so. Then, for a line {"seconds": s} on stdin, steps
are made in whole cycles until s seconds have passed: batches of several workers come in bursts.
"""

import json
import os
import sys
import time
from itertools import islice

import torch


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the script prints
    path, cycle = sys.argv[1], int(sys.argv[2])
    # As a module of its name, which workers that are spawned can find again.
    sys.path.insert(0, os.path.dirname(path))
    script = __import__(os.path.splitext(os.path.basename(path))[0])
    steps = script.train(script.parse(sys.argv[3:]))
    tell(answers, {"samples": sum(islice(steps, cycle))})
    for line in sys.stdin:
        tell(answers, measure(steps, cycle, json.loads(line)["seconds"]))


def measure(steps, cycle, seconds):
    finish()
    began, cpu, samples, made = time.perf_counter(), time.process_time(), 0, 0
    while not made or time.perf_counter() - began < seconds:
        samples += sum(islice(steps, cycle))
        made += cycle
    finish()
    spent = time.perf_counter() - began
    return {"steps": made, "samples": samples, "seconds": spent, "cpu_seconds": time.process_time() - cpu}


def finish():
    """Wait for the card; only at the ends, since a loop may load the next batch while the card computes."""
    if torch.cuda.is_initialized():
        done = torch.cuda.Event(blocking=True)
        done.record()
        done.synchronize()


def tell(answers, value):
    answers.write(json.dumps(value) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
