"""The loader's side: where a batch's time went, in workers and without, against known truth."""

import http.server
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from warm import WarmStoker

from stoker.watch import Batch, Record

PARTS = 0.03  # points of the time that making a batch takes

SCRIPT = '''
import sqlite3, sys, time
import numpy as np, torch
from pathlib import Path
from torch.utils.data import DataLoader, Dataset, default_collate

def burn(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until: pass

class Parts(Dataset):
    """Reads by a nap, transforms by burning the CPU."""
    def __len__(self): return 32
    def __getitem__(self, index):
        time.sleep(0.010)
        burn(0.005)
        return torch.full((8,), float(index))

class Files(Dataset):
    def __init__(self, folder): self.folder = folder
    def __len__(self): return 32
    def __getitem__(self, index):
        return torch.from_numpy(np.load(f"{self.folder}/{index % 4}.npy")[0])

class Text(Files):
    def __getitem__(self, index):
        with open(f"{self.folder}/words.txt") as file:
            return torch.full((8,), float(len(file.read())))

class Rows(Files):
    connection = None
    def __getitem__(self, index):
        if self.connection is None: self.connection = sqlite3.connect(f"{self.folder}/rows.db")
        (value,) = self.connection.execute("select value from rows where id = ?", (index,)).fetchone()
        return torch.full((8,), value)

class Pages(Files):
    def __getitem__(self, index):
        import http.client
        link = http.client.HTTPConnection(Path(self.folder, "address").read_text())
        link.request("GET", f"/{index}")
        return torch.full((8,), float(len(link.getresponse().read())))

def slow_collate(samples):
    time.sleep(0.020)
    return default_collate(samples)

class Many(Dataset):
    """Forty small tensors a sample: handing them over costs more than making them."""
    def __len__(self): return 64
    def __getitem__(self, index): return {str(i): torch.ones(2) for i in range(40)}

if __name__ == "__main__":
    kind, workers, start = sys.argv[1], int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None
    dataset = {"parts": Parts, "many": Many}[kind]() if kind in ("parts", "many") else \\
        {"files": Files, "text": Text, "rows": Rows, "pages": Pages}[kind](".")
    loader = DataLoader(dataset, batch_size=4, num_workers=workers, multiprocessing_context=start,
                        collate_fn=slow_collate if kind == "parts" else None)
    net = torch.nn.Linear(8, 1); optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for batch in loader:
        x = batch if kind != "many" else torch.ones(4, 8)
        net(x).sum().backward(); optimizer.step()
'''


@pytest.fixture(scope="module")
def stoker() -> Iterator[WarmStoker]:
    server = WarmStoker()
    yield server
    server.close()


def batches_of(stoker: WarmStoker, folder: Path, *words: str) -> list[Batch]:
    """Run the script under Stoker with these words; the batches it tells of."""
    (folder / "train.py").write_text(SCRIPT)
    done = stoker.run("run", "--run-id", "it", "train.py", *words, cwd=folder)
    assert done.returncode == 0, done.stderr
    return list(Record.open(folder / ".stoker/runs/it").ranks[0].batches())


@pytest.mark.quiet
@pytest.mark.parametrize("words", [("0",), ("2", "fork"), ("2", "spawn")])
def test_reads_transforms_and_collate_are_told_apart(
    stoker: WarmStoker, tmp_path: Path, words: tuple[str, ...]
) -> None:
    """Naps in the dataset are reads, burnt CPU is transforms, and collate is neither."""
    batches = batches_of(stoker, tmp_path, "parts", *words)
    assert len(batches) == 8
    assert sum(batch.samples or 0 for batch in batches) == 32
    kept = batches[1:]
    total = sum(batch.read + batch.transform + batch.collate + (batch.queued or 0) for batch in kept)
    shares = {
        name: sum(getattr(batch, name) for batch in kept) / total for name in ("read", "transform", "collate")
    }
    # Four items of 10 ms asleep and 5 ms burning, then 20 ms of collate. On a busy machine burning also
    # stands in the run queue, which is told apart.
    queued = sum(batch.queued or 0 for batch in kept) / total
    assert shares["read"] == pytest.approx(0.5 * (1 - queued), abs=PARTS)
    assert shares["transform"] == pytest.approx(0.25 * (1 - queued), abs=PARTS)
    assert shares["collate"] == pytest.approx(0.25 * (1 - queued), abs=PARTS)
    assert all(batch.calls == {"item": 4} for batch in batches)
    assert {batch.worker for batch in batches} == ({None} if words == ("0",) else {0, 1})
    assert all((batch.handoff is None) == (words == ("0",)) for batch in batches)
    assert all((batch.handoff_cpu is None) == (words == ("0",)) for batch in batches)
    assert all(batch.pin is None for batch in batches)
    cpu = sum(batch.cpu for batch in kept) / len(kept)
    assert cpu >= 4 * 0.005


@pytest.mark.parametrize("words", [("0",), ("1", "fork")])
def test_every_open_and_every_byte_is_counted(
    stoker: WarmStoker, tmp_path: Path, words: tuple[str, ...]
) -> None:
    """`np.load` for every sample shows as an open a sample and the whole file's bytes."""
    for number in range(4):
        np.save(tmp_path / f"{number}.npy", np.zeros((31_250, 8), dtype=np.float32))
    batches = batches_of(stoker, tmp_path, "files", *words)
    size = (tmp_path / "0.npy").stat().st_size
    assert {batch.calls["open"] for batch in batches} == {4}
    assert {batch.calls["item"] for batch in batches} == {4}
    counted = [batch.bytes for batch in batches if batch.bytes is not None]
    assert counted
    assert sum(counted) / len(counted) == pytest.approx(4 * size, rel=0.05)


def test_text_files_read_as_ever(stoker: WarmStoker, tmp_path: Path) -> None:
    """A text file opened while watched gives its text, and is counted."""
    (tmp_path / "words.txt").write_text("grüße\nzwei\n", encoding="utf-8")
    batches = batches_of(stoker, tmp_path, "text", "0")
    assert {batch.calls["open"] for batch in batches} == {4}


@pytest.mark.parametrize("words", [("0",), ("2", "spawn")])
def test_a_query_a_sample_is_seen(stoker: WarmStoker, tmp_path: Path, words: tuple[str, ...]) -> None:
    """SQL statements are counted, in workers too."""
    with sqlite3.connect(tmp_path / "rows.db") as connection:
        connection.execute("create table rows (id integer primary key, value real)")
        connection.executemany("insert into rows values (?, ?)", [(i, i / 2) for i in range(32)])
    connection.close()
    batches = batches_of(stoker, tmp_path, "rows", *words)
    assert {batch.calls["query"] for batch in batches} == {4}


class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "50000")
        self.end_headers()
        self.wfile.write(b"x" * 50_000)

    def log_message(self, *words: object) -> None:
        """Nothing."""


def test_answers_of_http_are_counted(stoker: WarmStoker, tmp_path: Path) -> None:
    """One a sample, however many pieces it comes in, and its bytes are counted."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        (tmp_path / "address").write_text(f"127.0.0.1:{server.server_address[1]}")
        batches = batches_of(stoker, tmp_path, "pages", "1", "fork")
        server.shutdown()
    assert {batch.calls["http"] for batch in batches} == {4}
    assert all(batch.calls["recv"] >= 4 for batch in batches)
    assert all(batch.bytes is None or batch.bytes > 200_000 for batch in batches)


@pytest.mark.quiet
def test_handing_over_many_small_tensors_shows(stoker: WarmStoker, tmp_path: Path) -> None:
    """With forty small tensors a sample the hand-off costs more than the dataset."""
    batches = batches_of(stoker, tmp_path, "many", "2", "fork")[2:]
    handoff = sum(batch.handoff or 0 for batch in batches)
    made = sum(batch.read + batch.transform for batch in batches)
    assert handoff > made


def test_a_hand_over_that_waits_for_the_worker_is_told_from_one_at_work(
    stoker: WarmStoker, tmp_path: Path
) -> None:
    """Of handing over, what was spent on a core is told apart, and is never more than all of it."""
    batches = batches_of(stoker, tmp_path, "many", "2", "fork")
    assert batches
    assert all(0 < (batch.handoff_cpu or 0) <= (batch.handoff or 0) for batch in batches)
