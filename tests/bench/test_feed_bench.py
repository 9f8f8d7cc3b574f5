"""`stoker bench feed`: its figures from recorded turns, its processes, and small real runs of it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stoker.bench import Options, feed, run
from stoker.bench.contest import Contender, Contest
from stoker.bench.feed_figures import figures_of
from stoker.bench.feed_page import page
from stoker.bench.peers import find_peer
from stoker.bench.result import Result, read_result
from stoker.errors import BenchFailed, UsageError


def turns(part: str, unit: str, **rates: list[float]) -> list[dict[str, Any]]:
    """Turns of each kind with these rates."""
    return [
        {"part": part, "how": "turn", "turn": number, "kind": kind, unit: rate}
        for kind, values in rates.items()
        for number, rate in enumerate(values)
    ]


def read(part: str, **rates: list[float]) -> list[dict[str, Any]]:
    """Turns of a second each, at so many GB/s and so many samples."""
    return [
        {**one, "bytes": one["rate"] * 1e9, "samples": one["rate"], "seconds": 1.0}
        for one in turns(part, "rate", **rates)
    ]


WARM = read("disk_warm", stoker=[8, 12, 8], limit_take=[10, 10, 10], limit_index_select=[9, 9, 9],
            peer_slow=[1, 1, 1], peer_fast=[4, 4, 2])  # fmt: skip
COLD = turns("disk_cold", "gb_s", stoker=[3.6, 3.6], direct_1=[1, 1], direct_16=[2, 2], direct_32=[1, 1],
             queue_1=[1, 1], queue_16=[4, 4], queue_32=[3, 3])  # fmt: skip
SQL = turns("sql", "rows_s", bytea_bulk=[90, 90], bytea_copy_psql=[100, 100], bytea_copy_psycopg=[60, 60],
            bytea_copy_psycopg_kept=[20, 20], bytea_copy_psql_kept=[45, 45], float4_bulk=[40, 40],
            float4_copy_psql=[50, 50], bytea_feed=[40, 40], bytea_held=[60, 60],
            bytea_open=[120, 120], bytea_scan=[70, 70], bytea_far_bulk=[80, 80],
            bytea_far_query_each=[1, 1])  # fmt: skip
S3 = read("s3", stoker=[90, 90], uncached=[95, 95], second=[400, 400], disk=[500, 500],
          peer_obstore=[100, 100], peer_boto3=[20, 20], limit=[180, 180], far=[60, 60],
          far_uncached=[70, 70], far_peer_obstore=[120, 120])  # fmt: skip
LEFT_OUT = {"part": "disk_warm", "how": "skipped", "kind": "peer_ghost", "why": "no wheel"}


def test_the_ratio_is_over_the_best_peer_within_each_turn() -> None:
    """The best is the one whose median is; a turn in which both were slow or fast says the same."""
    figures = figures_of(WARM)
    assert figures["disk_warm_gb_s"] == 8
    assert figures["disk_warm_gb_s_peer_slow"] == 1
    assert figures["disk_warm_gb_s_peer_fast"] == 4
    assert figures["disk_warm_ratio_peer"] == 3  # the median of 2, 3 and 4


def test_the_limit_is_the_faster_gather() -> None:
    """Of the gathers from memory the one whose median is higher."""
    assert figures_of(WARM)["disk_warm_gb_s_limit"] == 10


def test_the_cold_limit_is_the_best_number_of_reads_in_flight() -> None:
    """By threads or by the kernel's queue; of 1, 16 and 32 here 16 in the queue."""
    figures = figures_of(COLD)
    assert figures["disk_cold_gb_s_limit"] == figures["disk_cold_gb_s_limit_queue"] == 4
    assert figures["disk_cold_gb_s_limit_threads"] == 2
    assert figures["disk_cold_ratio_limit"] == 0.9


def test_sql_is_held_against_the_fastest_copy_that_keeps_nothing() -> None:
    """The fastest COPY whose rows are kept stands beside; arrays have ratios of their own."""
    figures = figures_of(SQL)
    assert figures["sql_rows_s_limit"] == 100
    assert figures["sql_rows_s_limit_kept"] == 45
    assert figures["sql_ratio_copy"] == 0.9
    assert figures["sql_ratio_copy_kept"] == 2
    assert figures["sql_ratio_copy_array"] == 0.8
    assert [figures[f"sql_ratio_copy_{way}"] for way in ("feed", "held", "scan")] == [0.4, 0.6, 0.7]
    assert figures["sql_rows_s_open"] == 120
    assert figures["sql_speedup"] == 80


def test_the_first_epoch_from_s3_is_the_one_that_fills_the_cache() -> None:
    """Without a cache it has a figure of its own; the second epoch is held against the disk."""
    figures = figures_of(S3)
    assert figures["s3_get_s"] == 90
    assert figures["s3_ratio_best_client"] == 0.9
    assert figures["s3_ratio_best_client_uncached"] == 0.95
    assert figures["s3_second_epoch_ratio_disk"] == 0.8


def test_a_far_store_s_clients_are_held_against_each_other() -> None:
    """A client that was far away is no peer of one that was near; bare sockets are a limit and no client."""
    figures = figures_of(S3)
    assert figures["s3_ratio_limit"] == 0.5
    assert figures["s3_far_get_s"] == 60
    assert figures["s3_far_ratio_best_client"] == 0.5
    assert figures["s3_far_get_s_peer_obstore"] == 120
    assert "s3_get_s_peer_obstore" in figures


def test_tuning_is_in_no_figure() -> None:
    """Turns by which settings were chosen are kept as runs and not counted."""
    tuning = [{**one, "how": "tuning", "turn": 9} for one in read("disk_warm", stoker=[99])]
    assert figures_of([*WARM, *tuning]) == figures_of(WARM)


def test_what_was_not_measured_has_no_figure() -> None:
    """A part that was not run gives nothing, and no peer no ratio."""
    figures = figures_of([one for one in WARM if not one["kind"].startswith("peer_")])
    assert not [key for key in figures if "peer" in key or not key.startswith("disk_warm")]


def test_the_page_shows_peers_limits_and_who_was_left_out() -> None:
    """A table for each part that was measured, with the reason for a peer that is not there."""
    runs = [*WARM, *COLD, *SQL, *S3, LEFT_OUT]
    made = Result(bench="feed", hardware="cpu", figures=figures_of(runs), runs=runs, versions={})
    text = page([made])
    assert "| disk, warm: over the best peer | 3.00 (2.00 to 4.00) |" in text
    assert "| fast | 4.00 (2.00 to 4.00) |" in text
    assert "| limit: a gather from memory | 10.00 (10.00 to 10.00) |" in text
    assert "| boto3 | 20 |" in text
    assert "peer_ghost (disk_warm) was left out: no wheel." in text


def test_a_peer_that_did_not_install_is_named_with_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What scripts/bench kept of pip's words: the last line."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".peers").mkdir()
    (tmp_path / ".peers" / "ghost.error").write_text("much said\nERROR: no matching distribution\n")
    told = find_peer("ghost", distribution="ghost")
    assert told == "it could not be installed: ERROR: no matching distribution"


LOADER = """
import os, sys
import numpy as np
def open_epochs(*, batch, workers=0, wrong=""):
    print("chatter")
    def epoch():
        if wrong == "dies" and os.environ.get("TURNED"):
            sys.exit("gone")
        os.environ["TURNED"] = "yes"
        labels = np.arange(batch)
        if wrong == "twice":
            labels[1] = 0
        return [(labels.view(np.uint8).reshape(batch, 8), labels + (wrong == "label"))]
    return epoch
"""


@pytest.fixture
def contest(tmp_path: Path) -> Contest:
    """Of epochs of 16 samples, with a module `loader` to import."""
    (tmp_path / "loader.py").write_text(LOADER)
    return Contest("disk_warm", tmp_path, stretch_s=0.01, expected=16)


def contender(kind: str, folder: Path, *plans: dict[str, Any], needed: bool = False) -> Contender:
    return Contender(kind=kind, module="loader", plans=plans, env={"PYTHONPATH": str(folder)}, needed=needed)


def test_contenders_take_turns_and_the_best_of_their_settings_is_kept(
    contest: Contest, tmp_path: Path
) -> None:
    """Five turns each at least, alternating; every try of a setting is among the runs too."""
    one = contender("one", tmp_path, {"batch": 16}, needed=True)
    other = contender("other", tmp_path, {"batch": 16, "workers": 0}, {"batch": 16, "workers": 1})
    runs = contest.hold([one, other], 0)
    measured = [run["kind"] for run in runs if run["how"] == "turn"]
    assert measured == ["one", "other"] * 5
    assert {run["workers"] for run in runs if run["how"] == "tuning"} == {0, 1}
    assert all(run["samples"] == 16 * run["epochs"] for run in runs)


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        ({"batch": 16, "wrong": "twice"}, "not each once"),
        ({"batch": 16, "wrong": "label"}, "another's label"),
        ({"batch": 8}, "8 samples of 16"),
        ({"batch": 16, "wrong": "dies"}, "gone"),
    ],
)
def test_a_peer_that_is_wrong_or_dies_is_left_out_with_the_reason(
    contest: Contest, tmp_path: Path, plan: dict[str, Any], why: str
) -> None:
    """The others go on without it."""
    runs = contest.hold([contender("bad", tmp_path, plan), contender("good", tmp_path, {"batch": 16})], 0)
    (left_out,) = [run for run in runs if run["how"] == "skipped"]
    assert left_out["kind"] == "bad"
    assert why in left_out["why"]
    assert {run["kind"] for run in runs if run["how"] == "turn"} == {"good"}


def test_without_ours_there_is_nothing_to_measure(contest: Contest, tmp_path: Path) -> None:
    """What fails and is needed ends the part, with what it said."""
    with pytest.raises(BenchFailed, match="not each once"):
        contest.hold([contender("ours", tmp_path, {"batch": 16, "wrong": "twice"}, needed=True)], 0)


@pytest.mark.parametrize(
    "options",
    [Options(parts=["tape"]), Options(device="cuda"), Options(sizes=[0]), Options(sizes=[1, 2])],
    ids=["part", "device", "size", "sizes"],
)
def test_what_cannot_be_measured_is_refused_at_once(options: Options, tmp_path: Path) -> None:
    """Before anything is started."""
    with pytest.raises(UsageError):
        run("feed", options, tmp_path)


def test_a_card_s_machine_has_its_disk_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the CPU's part, under the card's name; the page says that the device has no part in it."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda _: "NVIDIA H200")
    monkeypatch.setattr("stoker.bench.feed_disk.measure_warm", lambda *_, **how: ([*WARM, LEFT_OUT], {}))
    monkeypatch.setattr("stoker.bench.feed_disk.measure_cold_rows", lambda *_, **how: COLD)
    ((path, result),) = run("feed", Options(device="cuda", parts=["disk"]), tmp_path)
    assert path.name.startswith("feed_h200_")
    assert result.figures["disk_cold_ratio_limit"] == 0.9
    text = (tmp_path / "feed.md").read_text()
    assert "Rows from the disk end in the host's memory" in text
    assert "peer_ghost (disk_warm) was left out: no wheel." in text


def test_peers_that_are_not_run_on_a_card_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the error where one could not be had, as on the CPU; they do not count as a part left out."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".peers").mkdir()
    (tmp_path / ".peers" / "ffcv.error").write_text("ERROR: no matching distribution\n")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda _: "NVIDIA H200")
    monkeypatch.setitem(feed._GPU_PARTS, "ram", lambda _: turns("ram", "gb_s", stoker=[50.0]))
    ((_, result),) = run("feed", Options(device="cuda", parts=["ram"]), tmp_path)
    why = {one["kind"]: one["why"] for one in result.runs if one["how"] == "skipped"}
    assert why["peer_ffcv"] == "it could not be installed: ERROR: no matching distribution"
    assert why["peer_litdata"].startswith("no environment at .peers/litdata")
    assert len(why) == 5
    assert "peer_ffcv (ram) was left out" in (tmp_path / "feed.md").read_text()
    options = Options(device="cuda", parts=["ram"], peers=False)
    ((_, result),) = run("feed", options, tmp_path / "without")
    assert all(one["how"] != "skipped" for one in result.runs)


@pytest.mark.slow
def test_the_disk_part_measures_and_writes(tmp_path: Path) -> None:
    """The smallest real run, without peers' environments, gives the figures that are asked for and a page."""
    words = ["--part", "disk", "--seconds", "0", "--size", "1", "--no-peers", "--json"]
    command = [sys.executable, "-m", "stoker", "bench", "feed", "--out", str(tmp_path), *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (told,) = json.loads(done.stdout)["results"]
    kept = read_result(Path(told["file"]))
    asked = {"disk_warm_gb_s", "disk_warm_gb_s_limit", "disk_cold_gb_s", "disk_cold_gb_s_limit",
             "disk_cold_ratio_limit"}  # fmt: skip
    assert asked <= set(kept.figures)
    assert [kept.bench, kept.hardware, kept.figures["size_percent"]] == ["feed", "cpu", 1]
    assert "figures mean nothing" in (tmp_path / "feed.md").read_text()


@pytest.mark.service
def test_the_sql_part_measures_a_real_server(tmp_path: Path) -> None:
    """Every way of `sql_rates` that a figure is made of is there."""
    ((_, result),) = run("feed", Options(parts=["sql"], sizes=[1], seconds=0), tmp_path)
    asked = {"sql_rows_s", "sql_rows_s_limit", "sql_rows_s_limit_kept", "sql_ratio_copy",
             "sql_ratio_copy_kept", "sql_ratio_copy_array", "sql_ratio_copy_feed", "sql_ratio_copy_held",
             "sql_ratio_copy_scan",
             "sql_rows_s_open", "sql_speedup"}  # fmt: skip
    assert asked <= set(result.figures)
