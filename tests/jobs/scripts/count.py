"""A script as a user would write one: counts, keeps its place, writes a curve, saves when told to stop."""

import fcntl
import json
import os
import signal
import sys
import time
from pathlib import Path

steps, seconds, every = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
folder = Path(os.environ["STOKER_JOB_FOLDER"])
kept = folder / "state.json"
step = json.loads(kept.read_text())["step"] if kept.exists() else 0
told_to_stop: list[bool] = []
signal.signal(signal.SIGTERM, lambda *_: told_to_stop.append(True))


def save() -> None:
    part = folder / "state.part"
    part.write_text(json.dumps({"step": step}))
    part.replace(kept)


alone = (folder / "alone.lock").open("a")
try:
    fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    (folder / "twice").write_text("two processes of this job were alive at once")
with (folder / "ran.jsonl").open("a") as ran:
    ran.write(json.dumps({"pid": os.getpid(), "from": step, "t": time.time()}) + "\n")
print(f"goes on from step {step}")
with (folder / "metrics.jsonl").open("a") as journal:
    while step < steps and not told_to_stop:
        time.sleep(seconds)
        step += 1
        journal.write(json.dumps({"t": time.time(), "kind": "train", "step": step, "loss": 1 / step}) + "\n")
        journal.flush()
        if step % every == 0:
            save()
save()
print(f"at step {step}")
sys.exit(143 if told_to_stop else 0)
