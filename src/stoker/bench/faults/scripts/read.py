"""Reads numbered samples through a Feed and notes each that it was handed, as a training's checkpoint would.

`read.py SPEC` with a file of JSON: what is read and how (`stoker.bench.faults.reading` writes it). The note
is written whole after every batch, with the feed's own state beside it, and whoever is started again goes on
from it: so a sample that was handed out and is not in the end noted once was lost or came twice.
"""

import json
import sys
import time
from pathlib import Path

import torch
from torch.utils._pytree import tree_map

from stoker import Feed
from stoker.bench.faults import samples
from stoker.feed.whole_file import whole_file


def main() -> None:
    """Read all epochs."""
    spec = json.loads(Path(sys.argv[1]).read_text())
    kept = Path(spec["note"])
    kind = spec["kind"]
    feed = Feed(
        samples.open_source(kind, spec["where"], spec),
        spec["batch"],
        shuffle=True,
        seed=spec["seed"],
        device=spec["device"],
        tier=spec["tier"],
        cache=spec["cache"],
        workers=spec["workers"],
    )
    note = json.loads(kept.read_text()) if kept.exists() else {"feed": None, "epochs": {}}
    if note["feed"]:
        feed.load_state_dict(note["feed"])
    while len(done(note, len(feed))) < spec["epochs"]:
        for batch in feed:
            state = feed.state_dict()
            here = tree_map(lambda leaf: leaf.cpu() if isinstance(leaf, torch.Tensor) else leaf, batch)
            found = samples.numbers_of(kind, here, nan=bool(spec.get("nan")))
            note["epochs"].setdefault(str(state["epoch"]), []).append(found)
            note["feed"] = state
            with whole_file(kept) as out:
                out.write(json.dumps(note).encode())
            time.sleep(spec["hold_s"])
        if not len(feed):
            break
    sys.stdout.write(f"{feed.why}\n")
    feed.close()


def done(note: dict[str, dict[str, list[list[int]]]], steps: int) -> list[str]:
    """The epochs that are whole."""
    return [epoch for epoch, batches in note["epochs"].items() if len(batches) >= steps]


if __name__ == "__main__":
    main()
