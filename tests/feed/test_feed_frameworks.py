"""The feed inside trainers: real scripts, each with two ranks under torchrun and alone."""

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler

from stoker.errors import UsageError
from stoker.feed import Feed, Order
from stoker.feed.trainers import BatchSampler

from .test_feed import Numbered, Plain
from .trainers.told import GLOBAL_BATCH, LENGTH, SAVED_AT, STEPS

pytest.importorskip("lightning")
pytest.importorskip("transformers")

TESTS = Path(__file__).parent.parent
SCRIPTS = TESTS / "feed" / "trainers"
LOOPS = ["plain_loop", "lightning_loop", "fabric_loop", "accelerate_loop", "transformers_loop"]
ORDER = Order(length=LENGTH, batch_size=GLOBAL_BATCH, shuffle=True, seed=3)
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
# Every warning is an error, but one of a name that Lightning takes from torch and torch has renamed.
WARNINGS = "error,ignore:`isinstance(treespec"
# transformers, when the number of ranks is another than when the checkpoint was kept: true, and no harm.
SIZES_DIFFER = "[transformers] Warning: The following arguments do not match the ones in"

Batches = list[list[int]]


@dataclass(frozen=True, kw_only=True)
class Told:
    """What the ranks of one run were handed, and what rank 0 saw besides."""

    folder: Path
    ranks: list[dict[tuple[str, int], Batches]]
    facts: dict[str, list[Any]]

    def joined(self, training: str, epoch: int) -> Batches:
        """The ranks' batches of each step in a row."""
        parts = [rank[training, epoch] for rank in self.ranks]
        assert len({len(part) for part in parts}) == 1, "a rank made more steps than another"
        return [list(chain.from_iterable(step)) for step in zip(*parts, strict=True)]


def run(folder: Path, script: str, *arguments: str, launcher: tuple[str, ...] = ()) -> Told:
    """Run a script that must end well and warn of nothing."""
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, *launcher, str(SCRIPTS / f"{script}.py"), str(folder), *arguments],
        env={**os.environ, "PYTHONPATH": str(TESTS), "PYTHONWARNINGS": WARNINGS, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=150,
        cwd=folder,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Warning:" not in done.stderr.replace(SIZES_DIFFER, "")
    ranks = []
    for path in sorted(folder.glob("rank*.jsonl")):
        handed: dict[tuple[str, int], Batches] = defaultdict(list)
        for line in map(json.loads, path.read_text().splitlines()):
            handed[line["training"], line["epoch"]].append(line["numbers"])
        ranks.append(handed)
    facts: dict[str, list[Any]] = defaultdict(list)
    kept = folder / "facts.jsonl"
    for line in kept.read_text().splitlines() if kept.exists() else ():
        for name, value in json.loads(line).items():
            facts[name].append(value)
    return Told(folder=folder, ranks=ranks, facts=facts)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Told, Told]]:
    """Runs of a script, made once: two ranks, and one that resumes from the two ranks' checkpoint."""
    made: dict[str, tuple[Told, Told]] = {}

    def runs(script: str) -> tuple[Told, Told]:
        if script not in made:
            folder = tmp_path_factory.mktemp(script)
            two = run(folder / "two", script, launcher=TORCHRUN)
            made[script] = two, run(folder / "one", script, str(folder / "two"))
        return made[script]

    return runs


def global_batches(epoch: int, start: int = 0) -> Batches:
    return [ORDER.batch(epoch, step).tolist() for step in range(start, STEPS)]


def assert_same_batches(found: Batches, expected: Batches) -> None:
    """Step by step; a short last batch may be padded with its own first samples again, declared as such."""
    assert found[:-1] == expected[:-1]
    last = expected[-1]
    assert found[-1] in (last, last + last[:1])


@pytest.mark.parametrize("script", LOOPS)
def test_two_ranks_share_the_batches_of_one(script: str, told: Any) -> None:
    """Every sample once an epoch but for the padding of the last batch, in the same global batches."""
    two, one = told(script)
    assert (len(two.ranks), len(one.ranks)) == (2, 1)
    for epoch in range(2):
        alone = one.joined("whole", epoch)
        assert alone == global_batches(epoch)
        assert sorted(chain.from_iterable(alone)) == list(range(LENGTH))
        shared = two.joined("whole", epoch)
        assert_same_batches(shared, alone)
        assert len(list(chain.from_iterable(shared))) == LENGTH + 1  # 5 samples in the last batch: 3 each
    assert one.joined("whole", 0) != one.joined("whole", 1)
    assert {key[1] for key in one.ranks[0]} == {0, 1}


@pytest.mark.parametrize("script", LOOPS)
def test_a_resume_in_mid_epoch_goes_on_with_the_next_batch(script: str, told: Any) -> None:
    """With as many ranks as before, and with one that takes up the checkpoint of two."""
    for runs in told(script):
        assert ("resumed", 0) not in runs.ranks[0]
        assert_same_batches(runs.joined("resumed", 1), global_batches(1, start=SAVED_AT - STEPS))


def test_lightning_trains_and_validates_on_the_feeds_themselves(told: Any) -> None:
    """Not on loaders that it made of them; and each validation has every sample."""
    for runs in told("lightning_loop"):
        assert runs.facts["trains on the feed"] == [True]
        assert runs.facts["states kept"] == [1]
        ascending = [list(range(at, min(at + GLOBAL_BATCH, LENGTH))) for at in range(0, LENGTH, GLOBAL_BATCH)]
        for training, epochs in (("whole validation", (0, 1)), ("resumed validation", (1,))):
            for epoch in epochs:
                assert_same_batches(runs.joined(training, epoch), ascending)


def test_fabric_finds_in_its_loader_what_it_reads_of_one(told: Any) -> None:
    """Length, this rank's batch size and the dataset."""
    two, one = told("fabric_loop")
    assert two.facts["as Fabric sees it"] == [[STEPS, GLOBAL_BATCH // 2, LENGTH]] * 2
    assert one.facts["as Fabric sees it"] == [[STEPS, GLOBAL_BATCH, LENGTH]] * 2


def test_accelerate_leaves_the_feed_alone_and_knows_its_last_batch(told: Any) -> None:
    """Gradients accumulated by 4 are used at the end of an epoch; metrics see each sample once."""
    for runs in told("accelerate_loop"):
        assert runs.facts["the feed is left alone"] == [True] * 3
        assert runs.facts["updates"] == [[False, False, False, True, False, True]] * 2
        for epoch, gathered in enumerate(runs.facts["gathered"]):
            assert gathered == list(chain.from_iterable(global_batches(epoch)))


def test_accelerate_may_skip_what_the_state_has_skipped_already(told: Any) -> None:
    """skip_first_batches counts from the epoch's first batch: after load_state nothing is skipped twice."""
    for runs in told("accelerate_loop"):
        found = runs.joined("resumed by skipping", 1)
        assert_same_batches(found, global_batches(1, start=SAVED_AT - STEPS))


def test_transformers_resumes_at_an_epoch_s_end_with_the_next_epoch(told: Any) -> None:
    """By its own count of epochs, which it tells the feed."""
    for runs in told("transformers_loop"):
        assert ("resumed at the epoch's end", 0) not in runs.ranks[0]
        assert_same_batches(runs.joined("resumed at the epoch's end", 1), global_batches(1))


def test_transformers_evaluates_each_sample_once(told: Any) -> None:
    """The padding of the last batch is left out of the metrics."""
    for runs in told("transformers_loop"):
        assert runs.facts["evaluated"] == [list(range(LENGTH))]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "ddp_spawn"])
def test_ranks_that_lightning_starts_by_itself(strategy: str, tmp_path: Path) -> None:
    """The feed is made before there are ranks (and pickled to them), and is split among them all the same."""
    two = run(tmp_path / "two", "lightning_own_ranks", strategy)
    for epoch in range(2):
        assert_same_batches(two.joined("whole", epoch), global_batches(epoch))


def make_feed(**options: Any) -> Feed:
    settings = {"batch_size": 8, "shuffle": True, "seed": 3, "device": "cpu", "tier": "source"}
    return Feed(Numbered(), **{**settings, **options})


def numbers(batches: Any) -> Batches:
    return [batch["n"].tolist() for batch in batches]


def test_a_trainer_may_say_which_epoch_comes() -> None:
    """Otherwise the next does; and a feed that was loaded into that epoch stays where it stands in it."""
    epochs = [numbers(feed) for feed in [make_feed()] * 3]
    feed = make_feed()
    feed.set_epoch(2)
    assert numbers(feed) == epochs[2]
    feed.set_epoch(np.int64(0))  # type: ignore[arg-type]  # of np.arange, say; a checkpoint has plain numbers
    assert numbers(feed) == epochs[0]
    assert numbers(feed) == epochs[1]
    batches = iter(feed)
    begun = numbers([next(batches), next(batches)])
    resumed = make_feed()
    resumed.load_state_dict(feed.state_dict())
    resumed.set_epoch(2)
    assert begun + numbers(resumed) == epochs[2]
    other = make_feed()
    other.load_state_dict(feed.state_dict())
    other.set_epoch(1)
    assert numbers(other) == epochs[1]
    with pytest.raises(UsageError, match="epoch is -1"):
        feed.set_epoch(-1)


def test_a_loader_has_what_trainers_read_of_one() -> None:
    """Length, dataset, this rank's batch size, and the samples of the batches that come."""
    feed = make_feed(batch_size=1, global_batch_size=8, rank=1, world_size=2)
    assert (len(feed), feed.batch_size, feed.drop_last) == (13, 4, False)
    assert isinstance(feed.dataset, Numbered)
    assert isinstance(feed.sampler, DistributedSampler)
    assert isinstance(feed.batch_sampler, BatchSampler)
    assert (len(feed.sampler), len(feed.batch_sampler)) == (52, 13)
    for _ in range(2):
        samples = list(feed.sampler)
        assert samples == list(chain.from_iterable(numbers(feed)))
    assert feed.num_workers == 2  # threads
    assert make_feed(workers=3).num_workers == 3
    assert Feed(Plain(), workers=0, device="cpu").num_workers == 0


def test_a_loader_built_from_a_feed_s_parts_gives_the_same_batches() -> None:
    """And the feed goes on with the epoch after; but not where a transform would be left out."""
    feed, truth = make_feed(), make_feed()
    for _ in range(2):
        built: Any = DataLoader(feed.dataset, batch_sampler=feed.batch_sampler)
        assert numbers(built) == numbers(truth)
        assert numbers(feed) == numbers(truth)
    changed = make_feed(transform=torch.neg)
    with pytest.raises(UsageError, match="would leave out its transform: keep"):
        list(BatchSampler(changed))


@pytest.mark.parametrize(
    ("act", "settings"), [("predict", {}), ("fit", {"overfit_batches": 2, "max_epochs": 1})]
)
@pytest.mark.filterwarnings("ignore:You requested to overfit but enabled train dataloader shuffling")
@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning")
def test_a_trainer_that_would_replace_the_order_is_stopped(act: str, settings: dict[str, Any]) -> None:
    """With what to do; the batches themselves can be predicted on."""
    import lightning.pytorch as lightning

    class Model(lightning.LightningModule):  # type: ignore[misc]
        def training_step(self, batch: Any, batch_idx: int) -> None: ...

        def predict_step(self, batch: Any, batch_idx: int) -> list[int]:
            return batch["n"].tolist()  # type: ignore[no-any-return]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])

    def make_trainer() -> Any:
        quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        return lightning.Trainer(accelerator="cpu", devices=1, **quiet, **settings)

    feed = make_feed(shuffle=False)
    with pytest.raises(UsageError, match="the order of a feed cannot be replaced"):
        getattr(make_trainer(), act)(Model(), feed)
    if act == "predict":
        predicted = make_trainer().predict(Model(), (batch for batch in feed))
        assert list(chain.from_iterable(predicted)) == list(range(103))
