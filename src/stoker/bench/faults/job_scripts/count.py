"""A job as a user writes one: counts to a number, keeps its place, and says where two of it ran at a time."""

import fcntl
import json
import os
import signal
import sys
import time

last, seconds, every = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
os.chdir(os.environ["STOKER_JOB_FOLDER"])
lock = open("lock", "a")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    open("twice", "w").close()
at = json.load(open("place")) if os.path.exists("place") else 0
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
print(f"from {at}")
with open("metrics.jsonl", "a") as journal:
    while at < last:
        time.sleep(seconds)
        at += 1
        print(
            json.dumps({"t": time.time(), "kind": "train", "step": at, "loss": 1 / at}),
            file=journal,
            flush=True,
        )
        if at % every == 0 or at == last:
            with open("place.part", "w") as part:
                json.dump(at, part)
            os.replace("place.part", "place")
print(f"at {at}")
