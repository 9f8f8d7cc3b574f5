"""The micro-batch finder: what others are known to get wrong, over fake machines, then for real."""

import textwrap
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from stoker.errors import TrialFailed
from stoker.scratch import Guards
from stoker.tune import find_micro_batch
from stoker.tune.meaning import Meaning
from stoker.tune.micro_batch import _Search
from stoker.tune.micro_found import MicroBatch
from stoker.tune.micro_proof import check
from stoker.tune.micro_trial import MicroTrial, hold


def machine(batch: int, limit: int, rate: Callable[[int], float] = lambda size: 100.0 * size) -> _Search:
    """A machine on which parts of up to `limit` samples fit, and run at a rate."""

    def hold(size: int) -> MicroTrial:
        size = min(size, batch)
        fits = size <= limit
        return MicroTrial(
            size=size,
            outcome="ran" if fits else "too large",
            reason="" if fits else "OutOfMemoryError",
            batch=batch,
            rate=rate(size) if fits else None,
            vram=None,
        )

    return _Search(hold=hold, in_time=lambda: True)


def ran(found: MicroBatch) -> dict[int, float | None]:
    return {one.size: one.rate for one in found.trials if one.outcome == "ran"}


@pytest.mark.parametrize("batch", [8192, 10_000, 16_384, 60_000, 5001])
def test_a_true_limit_of_5000_is_never_passed(batch: int) -> None:
    """The answer ran, at the rate that is told; it is not the next power of two."""
    found = machine(batch, 5000).find()
    assert found.size is not None
    assert found.size <= 5000
    assert ran(found)[found.size] == found.rate
    assert len(found.trials) <= 12


def test_it_comes_near_the_limit() -> None:
    """Where larger is faster: 60,000 samples in 12 parts of 5,000, not in 16."""
    assert machine(60_000, 5000).find().size == 5000


def test_nothing_fits_is_said() -> None:
    """Not 0, and no crash; with the reason of the smallest that was tried."""
    found = machine(64, 0).find()
    assert (found.size, found.rate, found.whole) == (None, None, None)
    assert found.reason == "nothing fits, not even 1: OutOfMemoryError"


def test_the_largest_is_not_the_fastest() -> None:
    """A cliff above 256: 384 fits and gives 4,000 samples a second, 256 gives 7,000."""
    found = machine(1536, 400, lambda size: 4000.0 if size > 256 else 7000.0 * size / 256).find()
    assert found.size == 256
    assert ran(found)[384] == 4000.0


def test_a_whole_batch_that_is_as_fast_is_left_whole() -> None:
    """Parts that gain less than two in a hundred are not worth it."""
    found = machine(64, 64, lambda size: 101.0 if size == 32 else 100.0).find()
    assert (found.size, found.whole) == (64, 100.0)


def test_of_alike_sizes_the_smaller_is_taken() -> None:
    """It leaves memory free."""
    found = machine(64, 32, lambda size: 100.0 if size >= 16 else 50.0).find()
    assert found.size == 16


def test_a_script_that_cannot_be_tried_is_an_error() -> None:
    """With what it said."""
    failed = MicroTrial(
        size=8, outcome="failed", reason="exit code 1: KeyError", batch=8, rate=None, vram=None
    )
    with pytest.raises(TrialFailed, match="KeyError"):
        _Search(hold=lambda size: failed, in_time=lambda: True).find()


def test_sizes_that_mean_another_thing_are_refused() -> None:
    """The whole batch is the answer where it ran; otherwise there is none, and the lines to write."""
    wrong = Meaning(kind="optimization", by="weights are apart", holds=False)
    slow_whole = machine(64, 64, lambda size: 50.0 if size == 64 else 100.0).find()
    kept = check(slow_whole, 64, lambda size, beside: wrong)
    assert (kept.size, kept.rate) == (64, 50.0)
    none = check(machine(64, 32).find(), 16, lambda size, beside: wrong)
    assert none.size is None
    assert "x.split(32)" in none.reason


@pytest.mark.parametrize(("limit", "answer"), [(64, 64), (32, None)])
def test_sizes_whose_meaning_is_not_known_are_refused(limit: int, answer: int | None) -> None:
    """Where the probe fails, or nothing else ran to hold it beside: with the reason, and lines to write."""

    def fails(size: int, beside: int | None) -> Meaning:
        raise TrialFailed("the first 3 steps could not be looked at (failed: KeyError)")

    found = machine(64, limit, lambda size: 50.0 if size == 64 else 100.0).find()
    assert found.size not in (None, 64)
    for reference, says in ((64, "KeyError"), (None, "no other size ran")):
        refused = check(found, reference, fails)
        assert refused.size == answer
        assert says in refused.reason
        assert "refused" in refused.reason
        assert f"x.split({found.size})" in refused.reason


SCRIPT = """
    import os, sys, torch
    from torch import nn
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    limit, mib = int(sys.argv[1]), int(sys.argv[2])
    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 1)
        def forward(self, x):
            if len(x) > limit - rank:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
            self.held = torch.ones(len(x), mib << 18) if mib else None
            return self.inner(x)

    data = TensorDataset(torch.linspace(-1, 1, 1600 * 4).reshape(1600, 4).sin())
    model = Model()
    given = {"shuffle": True}
    if ranks > 1:
        torch.distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
        given = {"sampler": DistributedSampler(data)}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(100):
        for (x,) in DataLoader(data, batch_size=8, **given):
            optimizer.zero_grad()
            (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
            optimizer.step()
"""


def script(folder: Path) -> str:
    path = folder / "train.py"
    path.write_text(textwrap.dedent(SCRIPT))
    return str(path)


def children() -> set[int]:
    return {one.pid for one in psutil.Process().children(recursive=True)}


def test_after_a_size_that_runs_out_of_memory_a_smaller_one_runs(tmp_path: Path) -> None:
    """Each is a process of its own: its memory is back, and no process is left."""
    before = children()
    command = [script(tmp_path), "5", "0"]
    large = hold(command, 8, folder=tmp_path / "8", seconds=0.2)
    small = hold(command, 4, folder=tmp_path / "4", seconds=0.2)
    assert (large.outcome, large.batch, large.rate) == ("too large", 8, None)
    assert "OutOfMemoryError" in large.reason
    assert (small.outcome, small.batch) == ("ran", 8), small.reason
    assert small.rate is not None
    assert children() == before


@pytest.mark.slow
def test_a_real_script_gets_a_size_that_ran(tmp_path: Path) -> None:
    """With the weights that other parts make."""
    found = find_micro_batch([script(tmp_path), "5", "0"], seconds=0.2)
    assert [(one.size, one.outcome) for one in found.trials[:2]] == [(8, "too large"), (4, "ran")]
    assert "OutOfMemoryError" in found.trials[0].reason
    assert found.size in ran(found)
    assert found.whole is None
    assert found.check is not None
    assert found.check.holds, found.check


@pytest.mark.slow
def test_host_memory_limits_the_size(tmp_path: Path) -> None:
    """300 MiB a sample and a guard at 2 GiB: the trial is stopped, not the machine."""
    found = find_micro_batch([script(tmp_path), "99", "300"], seconds=0.2, guards=Guards(ram_bytes=2 << 30))
    assert found.trials[0].outcome == "too large"
    assert "of memory, over the" in found.trials[0].reason
    assert found.size is not None
    assert found.size <= 4


@pytest.mark.slow
def test_nothing_fits_a_real_script(tmp_path: Path) -> None:
    """Said, after the size of one sample was tried."""
    found = find_micro_batch([script(tmp_path), "0", "0"], seconds=0.2)
    assert (found.size, [one.size for one in found.trials]) == (None, [8, 4, 2, 1])


@pytest.mark.slow
def test_two_ranks_take_what_fits_both(tmp_path: Path) -> None:
    """The second has room for one sample less."""
    found = find_micro_batch([script(tmp_path), "4", "0"], seconds=0.2, ranks=2)
    assert found.size is not None
    assert found.size <= 3
    assert [one.outcome for one in found.trials if one.size == 4] == ["too large"]
    assert next(one.reason for one in found.trials if one.size == 4).startswith("rank 1: ")
    assert found.check is not None
    assert found.check.holds, found.check
