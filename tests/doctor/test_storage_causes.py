"""Causes of storage judged by numbers alone: each by its evidence, and not by its look-alike's."""

from dataclasses import replace
from typing import Any

import pytest

from stoker.doctor.causes import cold_cache, query_per_sample, read_amplification, storage_latency
from stoker.doctor.epochs import Epochs
from stoker.doctor.evidence import Evidence, LoaderFacts
from stoker.doctor.experiments.passes import Pass, Reread, Stub
from stoker.doctor.finding import Found, RuledOut
from stoker.doctor.verdict import reach
from stoker.watch.phases import Batch


def made(seconds: float, **more: Any) -> Pass:
    """A pass over 1 MB a batch, all of it from memory."""
    plain: dict[str, Any] = {"cpu": seconds, "asked": 1e6, "disk": 0.0, "faults": 0.0, "received": 0.0}
    return Pass(**{"batches": 10, "seconds": seconds, **plain, **more})


def reading(**more: Any) -> Evidence:
    """40 ms to make a batch of 32, nearly all of it waiting for a disk; the model alone takes 10 ms."""
    plain = Evidence(
        step=0.04,
        shares={"wait": 0.75, "other": 0.0},
        samples=32.0,
        compute=0.01,
        loader=0.04,
        loader_with=(4, 0.039),
        drawn=LoaderFacts(name="DataLoader", workers=2, batch_size=32, length=100),
        making={
            "batches": 50, "read": 0.038, "transform": 0.001, "collate": 0.001, "queued": 0.0, "cpu": 0.002,
            "handoff": 0.0005, "bytes": 1e6, "disk": 1e6, "faults": 0.0, "calls": {"item": 32.0},
        },
        batch_bytes=1_000_000,
        host={"usable_cores": 8.0},
    )  # fmt: skip
    return replace(plain, **more)


FROM_DISK = made(0.04, cpu=0.002, disk=1e6)
UNPACKING = {"read": 0.0, "transform": 0.039, "cpu": 0.04, "disk": 0.0}


def unpacking(**more: Any) -> Evidence:
    """The same with the CPU busy: 100 batches an epoch, each of 1 MB read, out of files of 1 MB."""
    run = reading()
    return replace(run, making={**run.making, **UNPACKING}, batch_bytes=50_000, **more)


def test_what_is_fast_when_read_again_was_cold() -> None:
    """And it is the cache that is named, not the disk under it; its cure saves what reading again did."""
    run = reading(reread=Reread(again=made(0.002)))
    found = cold_cache.judge(run)
    assert isinstance(found, Found)
    assert found.share == pytest.approx(0.75)
    half = cold_cache.judge(reading(reread=Reread(again=made(0.018))))
    assert isinstance(half, Found)
    assert half.share == pytest.approx(1 - 0.018 / 0.04)
    assert isinstance(
        storage_latency.judge(replace(run, reread=Reread(again=made(0.002), warm=made(0.002)))), RuledOut
    )
    assert reach(run).cause == "cold-cache"


def test_what_comes_from_the_disk_every_time_is_storage() -> None:
    """Reading it again is as slow; with reads answered from memory it is not."""
    run = reading(reread=Reread(again=FROM_DISK), stub=Stub(nothing=0.04, reads=0.001))
    assert isinstance(cold_cache.judge(run), RuledOut)
    found = storage_latency.judge(run)
    assert isinstance(found, Found)
    assert found.certainty > 0.85
    assert reach(run).cause == "storage-latency"


def test_reads_that_cost_little_when_answered_speak_against_storage() -> None:
    """Most of the time stays: it is less sure that storage is what takes it."""
    with_stub = storage_latency.judge(reading(stub=Stub(nothing=0.04, reads=0.035)))
    without = storage_latency.judge(reading())
    assert isinstance(with_stub, Found)
    assert isinstance(without, Found)
    assert with_stub.certainty < without.certainty


def test_warm_as_slow_as_cold_is_not_storage() -> None:
    """Where the cold pass is known to have come from a disk; a warm one off the CPU proves nothing."""
    warm, cold = made(0.03), made(0.031, disk=1e6)
    assert isinstance(
        storage_latency.judge(reading(reread=Reread(again=warm, warm=warm, cold=cold))), RuledOut
    )
    for cold_or_not, busy in ((made(0.031), 0.03), (cold, 0.002)):
        waiting = replace(warm, cpu=busy)
        judged = storage_latency.judge(reading(reread=Reread(again=warm, warm=waiting, cold=cold_or_not)))
        assert isinstance(judged, Found)


def test_what_a_library_receives_is_storage() -> None:
    """Its reads pass through no file: time off the CPU, and bytes over TCP."""
    run = reading()
    run = replace(run, making={**run.making, "bytes": 130.0, "disk": 0.0})
    far = made(0.04, cpu=0.004, asked=30.0, received=25_000.0)
    found = storage_latency.judge(replace(run, reread=Reread(again=far, warm=far)))
    assert isinstance(found, Found)
    assert found.certainty == pytest.approx(0.9)
    unseen = storage_latency.judge(run)
    assert isinstance(unseen, Found)
    assert unseen.certainty < 0.5


@pytest.mark.parametrize("reread", [None, Reread(again=made(0.0001, asked=100.0))])
def test_without_a_second_reading_nothing_is_said_of_the_cache(reread: Reread | None) -> None:
    """None was made, or the dataset remembers what it has read."""
    assert cold_cache.judge(reading(reread=reread)) is None
    assert isinstance(storage_latency.judge(reading(reread=reread)), Found)


def epoch(read: float, disk: float) -> dict[str, Any]:
    return {"batches": 100, "read": read, "disk": disk}


def test_a_record_of_two_epochs_tells_of_the_cache() -> None:
    """The second needs the disk no more, or needs it as much; of one epoch alone nothing is known."""
    falls = cold_cache.judge(reading(epochs=(epoch(0.04, 1e6), epoch(0.004, 0.0))))
    assert isinstance(falls, Found)
    assert falls.share == pytest.approx(0.75)
    assert isinstance(cold_cache.judge(reading(epochs=(epoch(0.04, 1e6), epoch(0.04, 1e6)))), RuledOut)
    assert cold_cache.judge(reading(epochs=(epoch(0.04, 1e6), epoch(0.01, 3e5)))) is None


def test_epochs_are_told_apart_by_their_length() -> None:
    """With half of a second one at the least."""
    batch = Batch(
        loader=0, worker=0, seq=0, t=0.0, samples=4, read=0.1, transform=0.0, collate=0.0, handoff=0.0,
        pin=None, cpu=0.01, queued=0.0, bytes=1000, disk=900, faults=0, calls={},
    )  # fmt: skip
    epochs = Epochs(4)
    for _ in range(5):
        epochs.add(batch)
    assert epochs.compared() is None
    epochs.add(replace(batch, disk=0))
    told = epochs.compared()
    assert told is not None
    assert (told[0]["disk"], told[1]["disk"]) == (900, 450)


def test_blocks_unpacked_for_one_sample_each_are_amplification() -> None:
    """An epoch reads all of the files many times over, and uses little of it; not merely heavy transforms."""
    run = unpacking(reread=Reread(again=made(0.04), held=1_000_000))
    found = read_amplification.judge(run)
    assert isinstance(found, Found)
    assert "100 times" in found.evidence[0]
    assert reach(run).cause == "read-amplification"


def test_a_large_file_for_every_sample_is_not_amplification() -> None:
    """Much is read and little is used, but every byte once an epoch: bands left out, a mean taken."""
    run = unpacking(reread=Reread(again=made(0.04), held=100_000_000))
    judged = read_amplification.judge(run)
    assert isinstance(judged, RuledOut)
    assert "1.0 times over" in judged.by
    assert reach(run).cause == "cpu-transform"


def test_samples_drawn_many_times_an_epoch_are_not_amplification() -> None:
    """All that is read is in the batch."""
    run = replace(unpacking(reread=Reread(again=made(0.04), held=1_000_000)), batch_bytes=900_000)
    assert isinstance(read_amplification.judge(run), RuledOut)


@pytest.mark.parametrize(
    "reread",
    [
        None,
        Reread(again=made(0.04, asked=100.0), held=1_000_000),
        Reread(again=made(0.04)),
        Reread(again=made(0.04, asked=None), held=1_000_000),
    ],
)
def test_bytes_that_were_not_counted_say_nothing_of_amplification(reread: Reread | None) -> None:
    """Not read again, by a memory map, from files that were not found, or on a platform without counters."""
    assert read_amplification.judge(unpacking(reread=reread)) is None


def test_pages_of_a_database_in_memory_are_not_amplification() -> None:
    """Read often and for little of what is in them, while the time goes elsewhere."""
    waiting = made(0.04, cpu=0.002, asked=70_000.0)
    for again in (waiting, replace(waiting, cpu=0.04)):
        run = replace(unpacking(reread=Reread(again=again, held=50_000)), batch_bytes=6_000)
        run = replace(run, making={**run.making, "bytes": 30_000.0})
        assert isinstance(read_amplification.judge(run), RuledOut)


def test_files_opened_for_every_sample_come_before_what_is_read_of_them() -> None:
    """A directory read at every opening is amplified too; opening once is the cure of both."""
    run = unpacking(reread=Reread(again=made(0.04), held=1_000_000))
    opens = {"item": 32.0, "open": 32.0, "reopen": 32.0}
    assert reach(replace(run, making={**run.making, "calls": opens})).cause == "reopened-files"


def asking(size: float, **calls: float) -> Evidence:
    """Batches of 32 of which every sample is asked for by itself, over a network."""
    run = reading()
    more = {"bytes": 32 * size, "disk": 0.0, "calls": {"item": 32.0, **calls}}
    return replace(run, making={**run.making, **more})


def test_an_object_by_http_for_each_sample_is_storage_far_away() -> None:
    """It is no query: the advice is a local copy or a cache, and nothing of SQL."""
    run = asking(7000, recv=64.0, http=32.0)
    verdict = reach(run)
    assert verdict.cause == "storage-latency"
    assert "7,000 bytes" in " ".join(verdict.why)
    assert "7,000 bytes" in verdict.eliminated["query-per-sample"]
    advice = " ".join(cure.text for cure in verdict.named[0].cures)
    assert "stage" in advice
    assert "ImageSource" in advice
    assert "sql" not in advice.lower()


def test_a_row_by_http_for_each_sample_is_a_query_that_sql_does_not_cure() -> None:
    """A service that answers some hundred bytes is asked for a batch at once."""
    found = query_per_sample.judge(asking(300, recv=32.0, http=32.0))
    assert isinstance(found, Found)
    assert found.cures is not None
    assert "sql" not in " ".join(cure.text for cure in found.cures).lower()


@pytest.mark.parametrize("calls", [{"query": 32.0}, {"query": 32.0, "recv": 96.0}])
def test_sql_by_network_is_a_query_however_large_its_rows(calls: dict[str, float]) -> None:
    """Whether its driver is seen to receive or not; the cure is SQL's."""
    verdict = reach(asking(7000, **calls))
    assert verdict.cause == "query-per-sample"
    assert "SqlSource" in verdict.named[0].cures[0].text


def test_answers_of_an_unknown_protocol_are_told_both_ways() -> None:
    """A database's own protocol may be behind them, or a service's."""
    found = query_per_sample.judge(asking(7000, recv=32.0))
    assert isinstance(found, Found)
    assert found.cures == query_per_sample.CURES


def test_waiting_that_more_workers_shorten_is_for_workers() -> None:
    """Where nothing shows a disk or a network, storage comes second, also on cores that others use."""
    run = reading(step=0.033, shares={"wait": 0.89}, compute=0.002, loader=0.035)
    unseen = replace(run, making={**run.making, "disk": 0.0, "faults": 0.0})
    assert reach(replace(unseen, loader_with=(4, 0.0243))).cause == "too-few-workers"
    assert reach(replace(unseen, loader_with=(4, 0.034))).cause == "storage-latency"
    assert reach(replace(run, loader_with=(4, 0.0243))).cause == "storage-latency"


def mounted(**more: Any) -> Evidence:
    """Reads of a mount in user space: 79 ms off the CPU, 2 MB a batch, and the disk's counter stays at 0."""
    run = reading(step=0.08, loader=0.079, loader_with=(4, 0.078), shares={"wait": 0.87})
    spent = {"read": 0.077, "bytes": 2e6, "disk": 0.0, "cpu": 0.002, **more}
    near = made(0.004, asked=2e6)
    return replace(run, making={**run.making, **spent}, reread=Reread(again=near, warm=near))


def test_reads_that_no_counter_sees_are_not_cleared_by_a_fast_second_reading() -> None:
    """They are in memory by then; from where they came at first neither the disk nor the cache can tell."""
    verdict = reach(mounted())
    assert verdict.cause == "storage-latency"
    assert verdict.certainty < 0.5
    assert "cold-cache" in verdict.untold
    asked = reach(mounted(calls={"item": 32.0, "recv": 96.0, "http": 32.0}))
    assert asked.cause == "storage-latency"
    assert asked.certainty >= 0.8
    assert "cold-cache" not in asked.eliminated


def test_a_fast_second_reading_still_clears_storage_where_a_disk_was_seen() -> None:
    """A cold cache is named then; and what reads again as slowly came from no cache at all."""
    seen = mounted(disk=1.9e6)
    assert isinstance(storage_latency.judge(seen), RuledOut)
    assert isinstance(cold_cache.judge(seen), Found)
    slow = made(0.078, cpu=0.002, asked=2e6)
    as_slow = replace(mounted(), reread=Reread(again=slow, warm=slow))
    assert isinstance(cold_cache.judge(as_slow), RuledOut)
    assert isinstance(storage_latency.judge(as_slow), Found)


@pytest.mark.parametrize("disk", [0.0, 4096.0])
def test_batches_for_which_nothing_was_asked_are_judged_too(disk: float) -> None:
    """Their bytes are 0, and no share of them is made."""
    run = reading(reread=Reread(again=made(0.04, asked=0.0)))
    judged = cold_cache.judge(replace(run, making={**run.making, "bytes": 0.0, "disk": disk}))
    assert isinstance(judged, RuledOut)
