"""`stoker bench resumes`: its judge finds what is wrong, its sums are exact, and a small campaign runs."""

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from stoker.bench import Options, run
from stoker.bench.resumes_draws import AIMS, BLOWS, WAYS, Room, Start, draw_blow, draw_plan, draw_start
from stoker.bench.resumes_judge import (
    LIMIT,
    Trained,
    Verdict,
    count_samples,
    count_steps_off,
    judge,
    read_trained,
)
from stoker.bench.resumes_page import WRONG, figures_of, page, wrongs_of
from stoker.bench.resumes_places import Page, Telling
from stoker.bench.resumes_task import (
    BATCH,
    EPOCHS,
    SAMPLES,
    STEPS,
    STEPS_PER_EPOCH,
    Ledger,
    LedgerConfig,
    LedgerModel,
    make_rows,
    settings,
    write_shards,
)  # fmt: skip
from stoker.errors import BenchFailed, UsageError
from stoker.feed import Order
from stoker.train.checkpoint import Checkpoints
from stoker.train.fit import fit


def make_journal() -> Any:
    """The ledger of a training that nobody hit."""
    order = Order(length=SAMPLES, batch_size=BATCH, shuffle=True, seed=4)
    journal = np.zeros((STEPS, SAMPLES), np.float32)
    for update in range(STEPS):
        batch = order.batch(*divmod(update, STEPS_PER_EPOCH))
        journal[update, batch] = 1 / len(batch)
    return journal


def make_trained() -> Trained:
    """All of such a training."""
    lines = {("train", step): {"exact": step / 4, "plain": step / 3} for step in range(1, STEPS + 1)}
    state = {
        "model.exact": torch.ones(8), "model.plain.0.weight": torch.rand(4, 4),
        "drawn.0.torch": torch.ones(3), "plain.settings.workers": 0, "plain.step": STEPS,
    }  # fmt: skip
    return Trained(step=STEPS, journal=make_journal(), lines=lines, again=0, state=state)


TRAINED = make_trained()


def with_journal(change: Callable[[Any], None]) -> Trained:
    """The same, but for its ledger."""
    journal = TRAINED.journal.copy()
    change(journal)
    return replace(TRAINED, journal=journal)


def with_line(step: int, **values: float) -> Trained:
    """The same, but for a line of its log."""
    lines = {**TRAINED.lines, ("train", step): {**TRAINED.lines["train", step], **values}}
    return replace(TRAINED, lines=lines)


def with_state(name: str, value: Any) -> Trained:
    """The same, but for a part of its checkpoint."""
    return replace(TRAINED, state={**TRAINED.state, name: value})


def lose(journal: Any) -> None:
    journal[9, np.flatnonzero(journal[9])[3]] = 0


def double(journal: Any) -> None:
    """A sample of an epoch's first update, again in its second."""
    journal[8, np.flatnonzero(journal[7])[0]] = 1 / BATCH


def double_within(journal: Any) -> None:
    """As a repeat that fills a short batch of four ranks would count."""
    journal[6, np.flatnonzero(journal[6])[0]] = 1.0


def exchange(journal: Any) -> None:
    journal[[8, 9]] = journal[[9, 8]]


def halve(journal: Any) -> None:
    journal[9, np.flatnonzero(journal[9])[0]] /= 2


def test_an_undisturbed_training_is_clean() -> None:
    """Every sample once an epoch, and all that can be compared is compared."""
    verdict = judge(TRAINED, TRAINED, TRAINED)
    assert verdict.is_clean
    assert (verdict.samples, verdict.exact_compared, verdict.bits_off) == (SAMPLES * EPOCHS, STEPS + 1, 0)
    assert verdict.bits_compared == 2 * STEPS + 4  # all but the settings


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lose, {"lost": 1, "misplaced": 1}),
        (double, {"doubled": 1, "misplaced": 1}),
        (double_within, {"doubled": 1}),
        (exchange, {"misplaced": 2}),
        (halve, {"uneven": 1, "lost": 1, "misplaced": 1}),
    ],
    ids=["lost", "doubled", "doubled within an update", "in another order", "half of a sample"],
)
def test_a_wrong_sample_is_found(change: Callable[[Any], None], found: dict[str, int]) -> None:
    """Counted by its number, and by the update it stands in."""
    changed = with_journal(change)
    nothing = dict.fromkeys(("lost", "doubled", "misplaced", "uneven"), 0)
    assert count_samples(changed.journal, TRAINED.journal) == nothing | found
    assert count_steps_off(changed.journal, TRAINED.journal) > 0
    assert not judge(changed, TRAINED, None).is_clean


def test_updates_that_are_missing_or_too_many_are_found() -> None:
    """A training that ended early has lost samples, and one that went on has doubled some."""
    assert count_samples(TRAINED.journal[:-2], TRAINED.journal)["lost"] == BATCH + 2
    longer = np.concatenate([TRAINED.journal, TRAINED.journal[:1]])
    assert count_samples(longer, TRAINED.journal)["doubled"] == BATCH
    assert count_steps_off(TRAINED.journal[:5], TRAINED.journal) == 0


@pytest.mark.parametrize(
    ("changed", "wrong"),
    [
        (with_line(5, exact=np.nextafter(1.25, 2)), {"exact_off": 1}),
        (with_state("model.exact", torch.ones(8).nextafter(torch.zeros(8))), {"exact_off": 1}),
        (with_line(6, plain=2 * (1 + 2 * LIMIT)), {"plain_off": pytest.approx(2 * LIMIT)}),
        (with_line(6, plain=float("nan")), {"plain_off": float("inf")}),
        (replace(TRAINED, lines={}), {"exact_off": STEPS, "plain_off": float("inf")}),
        (replace(TRAINED, again=1), {"again": 1}),
    ],
    ids=["exact loss", "exact weight", "plain loss", "no number", "no log", "line twice"],
)  # fmt: skip
def test_a_wrong_loss_or_weight_is_found(changed: Trained, wrong: dict[str, Any]) -> None:
    """Exact ones by their last bit, plain ones beyond the limit."""
    verdict = judge(changed, TRAINED, None)
    assert not verdict.is_clean
    assert {name: getattr(verdict, name) for name in wrong} == wrong


def test_only_where_ranks_stayed_must_all_bits_be_the_same() -> None:
    """A last bit of a plain weight or of a generator counts there, and elsewhere only the limit does."""
    plain = TRAINED.state["model.plain.0.weight"]
    near = with_state("model.plain.0.weight", plain.nextafter(plain + 1))
    drawn = with_state("drawn.0.torch", torch.zeros(3))
    for changed in (near, drawn):
        assert judge(changed, TRAINED, None).is_clean
        assert judge(changed, TRAINED, TRAINED).bits_off == 1
    assert judge(with_state("plain.settings.workers", 2), TRAINED, TRAINED).is_clean


# --- what is trained --------------------------------------------------------------------------------


def gradients(model: LedgerModel, rows: torch.Tensor, parts: list[list[int]]) -> dict[str, torch.Tensor]:
    """Of one update whose samples come in these parts, as the trainer weighs them."""
    model.zero_grad()
    whole = sum(map(len, parts))
    for part in parts:
        losses = model(rows[part])
        (sum(loss.mean() for loss in losses) * (len(part) / whole)).backward()
    found = {"exact": model.exact.grad, "entered": model.entered.grad}
    return {name: grad.clone() for name, grad in found.items() if grad is not None}


def test_sums_are_exact_in_any_order_and_any_parts() -> None:
    """The gradient of an update is the same bits, and says which samples it is made of."""
    rows, chance = torch.from_numpy(make_rows(3, "cpu")), Random(5)
    model = LedgerModel()
    with torch.no_grad():
        model.exact.copy_(torch.randn(8, generator=torch.Generator().manual_seed(1)))
    batch = chance.sample(range(SAMPLES), BATCH)
    expected = gradients(model, rows, [batch])
    assert expected["exact"].count_nonzero() == 8
    assert torch.equal(expected["entered"].nonzero()[:, 0], torch.tensor(sorted(batch)))
    for size in (1, 2, 4, 8):
        chance.shuffle(batch)
        found = gradients(model, rows, [batch[at : at + size] for at in range(0, BATCH, size)])
        assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("resumes") / "data"
    write_shards(folder, 7, "cpu")
    return folder


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """With others, sums have another order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def train(folder: Path, data: Path, *, micro_batch: int = BATCH, stop_at: int = 0) -> Trained:
    """Train here; told to stop after so many updates."""

    def told(phase: str, updates: int, tier: str) -> None:
        if stop_at and updates == stop_at and phase == "wait":
            signal.raise_signal(signal.SIGTERM)

    config = LedgerConfig(
        data=data, salt=7, train=settings(device="cpu", seed=1, micro_batch=micro_batch)
    )  # fmt: skip
    with closing(Ledger(config, told)) as task:
        fit(task, out=folder, tell=lambda text: None)
    found = read_trained(folder)
    assert found is not None
    return found


def put_on(folder: Path, samples: int) -> None:
    """Have the last checkpoint say that the feed has handed out so many samples more."""
    checkpoints = Checkpoints(folder / "checkpoints")
    name = checkpoints.names()[0]
    kept = checkpoints.read(name)
    feed = {**kept.plain["feed"], "samples": kept.plain["feed"]["samples"] + samples}
    shutil.rmtree(folder / "checkpoints")
    checkpoints.save(name, replace(kept, plain={**kept.plain, "feed": feed}))


def test_a_training_that_was_stopped_is_clean_and_one_whose_feed_skips_is_not(
    tmp_path: Path, data: Path
) -> None:
    """Gone on with in other micro-batches it is exact to the bit; a batch that is skipped shows."""
    alone = train(tmp_path / "alone", data)
    stopped = train(tmp_path / "stopped", data, stop_at=9)
    assert stopped.step in (9, 10)
    assert count_steps_off(stopped.journal, alone.journal) == 0
    shutil.copytree(tmp_path / "stopped", tmp_path / "skipped")
    put_on(tmp_path / "skipped", BATCH)
    gone_on = judge(train(tmp_path / "stopped", data, micro_batch=4), alone, None)
    assert gone_on.is_clean and gone_on.exact_compared == 46, gone_on
    assert gone_on.plain_off > 0, "other parts, and so another order of sums"
    assert not judge(train(tmp_path / "stopped", data), alone, alone).is_clean, "to all bits it is not"
    skipped = judge(train(tmp_path / "skipped", data), alone, None)
    assert skipped.lost >= BATCH and skipped.misplaced and skipped.exact_off and not skipped.is_clean


def test_a_sample_that_is_not_as_it_was_written_ends_the_training(tmp_path: Path) -> None:
    """One number of one row: it is named."""
    write_shards(tmp_path / "data", 7, "cpu")
    shard = tmp_path / "data" / "3.npy"
    rows = np.load(shard)
    rows[2, 1000] += 1
    np.save(shard, rows)
    with pytest.raises(BenchFailed, match=rf"samples .*{rows[2, 0]}.* not as they were written"):
        train(tmp_path / "out", tmp_path / "data")


# --- what is drawn, told and counted ------------------------------------------------------------------


def test_a_chain_is_drawn_by_its_seed_and_number() -> None:
    """The same again for the same; over some chains everything comes up, and steady ones stay as they are."""
    assert draw_plan(8, 5, Room())[0] == draw_plan(8, 5, Room())[0] != draw_plan(8, 6, Room())[0]
    seen: set[Any] = set()
    for number in range(40):
        plan, chance = draw_plan(8, number, Room())
        for _ in range(10):
            start = draw_start(chance, plan.steady, Room())
            blow = draw_blow(chance, start)
            assert start.micro_batch * start.ranks <= BATCH and blow.rank < start.ranks
            assert blow.kind != "reader" or start.workers
            if plan.steady is not None:
                same = (plan.steady.ranks, plan.steady.micro_batch)
                assert (start.ranks, start.micro_batch, bool(plan.dropout)) == (*same, True)
            seen |= {start.ranks, start.way, blow.kind, blow.aim}
    assert seen >= {1, 2, 4, *WAYS, *BLOWS, *AIMS}


def test_without_a_card_nothing_is_drawn_for_one() -> None:
    """And with one, its memory is a way for the samples to come."""
    for room, there in ((Room(), False), (Room(ranks=1, cards=True), True)):
        chance = Random(1)
        drawn = [draw_start(chance, None, room) for _ in range(200)]
        assert ("vram" in {start.way for start in drawn}) == there
        assert ({start.ranks for start in drawn} == {1}) == there
    ways = {"vram": "vram", "ram over disk": "ram", "direct": "source"}
    assert {way: Start(ranks=1, micro_batch=2, way=way, workers=0).tier for way in ways} == ways


def test_a_page_says_where_a_process_is(tmp_path: Path) -> None:
    """What it does counts before the phase that it does it in; a write begins with its first byte."""
    page = Page(tmp_path / "page")
    assert (page.where, page.updates, page.tier) == ("start", 0, None)
    telling = Telling(Page(tmp_path / "page"))
    telling.enter_phase("start")
    telling.enter_phase("step", 5, "ram")
    assert (page.where, page.updates, page.tier) == ("step", 5, "ram")
    with telling.doing("disk", at_once=False):
        assert page.where == "step"
        assert telling.begin()
        assert page.where == "disk"
    assert page.where == "step" and page.entered("disk") == 1
    assert page.seconds("disk") is not None and page.seconds("step") is None


def test_who_is_to_be_hit_waits_for_it_amid_a_write(tmp_path: Path) -> None:
    """At the piece that was ordered, until it is released; where nobody comes, it goes on by itself."""
    page = Page(tmp_path / "page")
    telling = Telling(Page(tmp_path / "page"))
    page.order("ram", nth=2, after=2)

    def write() -> None:
        for _ in range(2):
            with telling.doing("ram", at_once=False):
                assert telling.begin() and telling.begin()

    writer = threading.Thread(target=write)
    writer.start()
    while page.held is None:
        assert writer.is_alive()
        time.sleep(0.001)
    assert (page.held, page.where, page.entered("ram")) == (os.getpid(), "ram", 2)
    page.release()
    writer.join(60)
    assert not page.is_inside("ram")
    assert Page(tmp_path / "page").held is None


EVENT = {
    "blow": "rank", "aim": "save", "fell": "save", "reached": 7, "stopped": False, "damaged": 0, "forced": 0,
    "start": 0, "kept": 6, "off": 0, "back": 0,
}  # fmt: skip
START = {"ranks": 1, "micro_batch": 4, "way": "disk", "workers": 0, "bare": False, "fresh": False}
STARTS = [
    {**START, "tier": "source", "direct": 3}, {**START, "ranks": 2, "way": "ram", "tier": "ram", "direct": 0},
]  # fmt: skip


def make_chain(**changes: Any) -> dict[str, Any]:
    """A line of the state."""
    clean = judge(TRAINED, TRAINED, None)
    events = [EVENT, {"blow": "staging", "aim": "copy", "fell": "copy", "damaged": 0}]
    return {
        "chain": 0, "seed": 1, "shuffle": "full", "steady": False, "failed": None, "verdict": vars(clean),
        "seconds": 9.0, "events": events, "starts": STARTS, **changes,
    }  # fmt: skip


def test_figures_count_events_places_and_changes() -> None:
    """A chain's starts are compared with those before them, and steps that were lost to a kill are told."""
    figures = figures_of([make_chain(), make_chain()])
    counted = {
        "events": 4,
        "hit_rank": 2,
        "hit_staging": 2,
        "fell_save": 2,
        "fell_copy": 2,
        "changed_ranks": 2,
    }
    counted |= {"changed_way": 2, "changed_workers": 0, "steps_again": 2, "starts_ram": 2, "direct_rows": 6}
    assert {name: figures[f"resumes_{name}"] for name in counted} == counted
    assert wrongs_of(figures) == []


@pytest.mark.parametrize("name", [*WRONG, "plain_off"])
def test_whatever_is_wrong_is_told(name: str) -> None:
    """Each count that must be 0, once it is not, in words."""
    verdict: dict[str, Any] = {**vars(judge(TRAINED, TRAINED, TRAINED))}
    event, failed = dict(EVENT), None
    if name in ("damaged", "off", "back"):
        event[name] = 1
    elif name == "stop_lost":
        event |= {"stopped": True, "reached": 7, "kept": 6}
    elif name == "failed":
        failed = "it ended with [1]"
    else:
        verdict[{"log_again": "again"}.get(name, name)] = 1
    wrongs = wrongs_of(figures_of([make_chain(verdict=verdict, events=[event], failed=failed)]))
    assert len(wrongs) == 1 and WRONG.get(name, "plain losses or weights off by 1") in wrongs[0]


def options(state: Path, **named: Any) -> Options:
    return Options(device="cpu", state=state, commit="abc", **named)


def test_finished_chains_of_this_commit_count(tmp_path: Path) -> None:
    """Nothing is run where there are events enough; those of another commit do not count."""
    lines = [{"commit": "abc", **make_chain()}, {"commit": "abd", **make_chain()}]
    (tmp_path / "chains-cpu.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    [(path, result)] = run("resumes", options(tmp_path, sizes=(2,)), tmp_path / "out")
    assert (path.name, result.figures["resumes_events"]) == (f"resumes_cpu_{result.date}.json", 2)
    assert "| a checkpoint being written | 1 |" in (tmp_path / "out" / "resumes.md").read_text()
    with pytest.raises(BenchFailed, match="2 of 4 events: run it again with --state"):
        run("resumes", options(tmp_path, sizes=(4,), stop_after=0), tmp_path / "out")
    with pytest.raises(BenchFailed, match="no chain was finished"):
        run("resumes", options(tmp_path / "new", stop_after=0), tmp_path / "out")


def test_what_was_lost_is_not_passed_over(tmp_path: Path) -> None:
    """The result is written, and the benchmark fails."""
    verdict = {**vars(judge(with_journal(lose), TRAINED, None))}
    (tmp_path / "chains-cpu.jsonl").write_text(json.dumps({"commit": "abc", **make_chain(verdict=verdict)}))
    with pytest.raises(BenchFailed, match="1 samples lost"):
        run("resumes", options(tmp_path, sizes=(1,)), tmp_path / "out")
    assert "| samples lost | 1 |" in (tmp_path / "out" / "resumes.md").read_text()


@pytest.mark.parametrize("asked", [{"sizes": (0,)}, {"sizes": (1, 2)}, {"parts": ("a",)}])
def test_what_cannot_be_asked_for_is_refused(asked: dict[str, Any], tmp_path: Path) -> None:
    """Before anything is begun."""
    with pytest.raises(UsageError, match="--size"):
        run("resumes", options(tmp_path, **asked), tmp_path)


def test_a_page_without_results_is_a_page() -> None:
    """It says what is done."""
    assert isinstance(judge(TRAINED, TRAINED, None), Verdict)
    assert "Killed, stopped, resumed" in page([])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_small_campaign_comes_through(tmp_path: Path) -> None:
    """Real processes, really killed: the first chains of the campaign, one with ranks that stay."""
    [(_, result)] = run("resumes", options(tmp_path, sizes=(60,)), tmp_path / "out")
    assert result.figures["resumes_chains_steady"] >= 1 and result.figures["resumes_starts_fresh"] >= 1
    assert wrongs_of(result.figures) == []
    assert not list(tmp_path.glob("chain-*"))
