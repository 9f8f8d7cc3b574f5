"""Batches over which a worker takes ten seconds come in bursts: few are seen, and still it is told why."""

import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.bench.workloads_systems import serving

pytestmark = [pytest.mark.slow, pytest.mark.quiet]
SCRIPT = """
    import http.client, sys, torch
    from torch.utils.data import DataLoader, Dataset

    class Objects(Dataset):
        link = None
        def __len__(self):
            return 4000
        def __getitem__(self, at):
            self.link = self.link or http.client.HTTPConnection(sys.argv[1])
            self.link.request("GET", f"/{at % 50}")
            return torch.frombuffer(bytearray(self.link.getresponse().read()), dtype=torch.uint8).float()

    def main():
        model = torch.nn.Linear(4096, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
        for epoch in range(100):
            for batch in DataLoader(Objects(), batch_size=64, num_workers=4, shuffle=True):
                optimizer.zero_grad()
                model(batch).square().mean().backward()
                optimizer.step()

    main()
"""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[str]:
    """An HTTP store whose every answer is late by 150 ms."""
    folder = tmp_path / "objects"
    folder.mkdir()
    for number in range(50):
        (folder / str(number)).write_bytes(bytes(4096))
    with serving(folder, 150) as address:
        yield address


def test_a_store_that_is_far_is_named_after_two_bursts(store: str, tmp_path: Path) -> None:
    """With a rate of the loader's, and one of steps whose data cost nothing."""
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SCRIPT))
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "stoker",
            "doctor",
            "--json",
            "--no-report",
            "--budget",
            "75",
            str(script),
            store,
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["verdict"]["cause"] == "storage-latency"
    assert told["step_seconds"] == pytest.approx(64 * 0.15 / 4, rel=0.2)
    assert told["verdict"]["ceiling_after"] > 10
    assert not {"replay", "drain"} & told["not_measured"].keys()
