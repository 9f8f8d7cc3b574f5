"""Made measurements, the tables that they are kept in, and the samples that come out."""

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from stoker.errors import DatabaseUnreachable, QueryRefused, SourceBroken, UsageError
from stoker.train.config_file import load
from stoker.train.task import World
from stoker.ward.postgres import PostgresServer
from stoker.workloads.heimdall import HeimdallConfig, HeimdallTask
from stoker.workloads.heimdall.measurements import (
    FEATURES,
    RECEIVERS,
    SPEED_OF_LIGHT_M_US,
    MadeRadio,
    measure,
    place_receivers,
)
from stoker.workloads.heimdall.schema import fill_database
from stoker.workloads.heimdall.source import bytes_per_thousand, find_campaign, open_source

MADE = MadeRadio(samples=50, iq_samples=16)
RSSI, SNR, ARRIVAL = (FEATURES.index(name) for name in ("rssi_dbm", "snr_db", "arrival_us"))


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as running:
        yield running


@pytest.fixture(params=[pytest.param("postgres", marks=pytest.mark.service), "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'radio.db'}"
    server: PostgresServer = request.getfixturevalue("server")
    server.run("DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    return server.url


# --- measurements ---------------------------------------------------------------------------------


def test_a_sample_is_the_same_however_it_is_asked_for() -> None:
    """Alone, or among others."""
    together, alone = measure(MADE, 0, 6), measure(MADE, 3, 4)
    for name in ("position", "heard", "features", "iq"):
        assert np.array_equal(getattr(together, name)[3], getattr(alone, name)[0])


def test_power_falls_with_distance_and_times_tell_the_way() -> None:
    """Over many samples: 32 dB for ten times the distance, and arrivals as late as light is, or later."""
    found, stations = measure(MadeRadio(iq_samples=1), 0, 800), place_receivers(MadeRadio())
    way = np.linalg.norm(found.position[:, None] - stations, axis=2)
    heard = found.heard.astype(bool)
    # Among samples whose weakest signal is strong, what is not heard does not bend the line.
    clear = heard.all(axis=1)
    rssi = found.features[..., RSSI][clear]
    within = rssi - rssi.mean(axis=1, keepdims=True)
    decades = np.log10(way[clear])
    decades -= decades.mean(axis=1, keepdims=True)
    assert (within * decades).sum() / (decades**2).sum() == pytest.approx(-32, abs=4)
    late = np.where(heard, found.features[..., ARRIVAL] * SPEED_OF_LIGHT_M_US, np.nan)
    expected = np.where(heard, way, np.nan)
    expected = expected - np.nanmin(expected, axis=1, keepdims=True)
    assert np.nanmedian(np.abs(late - expected)) < 150
    assert np.nanmin(late) == 0


def test_receivers_miss_and_at_least_three_hear() -> None:
    """What a receiver that did not hear says is all zeros."""
    found = measure(MadeRadio(iq_samples=8), 0, 400)
    heard = found.heard.sum(axis=1)
    assert heard.min() >= 3
    assert len(set(heard.tolist())) > 2
    silent = found.heard == 0
    assert silent.any()
    assert not found.features[silent].any()
    assert not found.iq[silent].any()
    assert found.iq[~silent].any(axis=(1, 2)).all()


def test_fewer_receivers_leave_slots_empty() -> None:
    """There are always seven."""
    found = measure(MadeRadio(receivers=4, iq_samples=8), 0, 5)
    assert found.features.shape == (5, RECEIVERS, len(FEATURES))
    assert not found.heard[:, 4:].any()


def test_strong_signals_are_less_noisy() -> None:
    """The chips of a strong signal have one level, those of a weak one many."""
    found = measure(MadeRadio(iq_samples=256), 0, 100)
    power = (found.iq.astype(np.float64) ** 2).sum(axis=2)
    uneven = power.std(axis=2) / np.maximum(power.mean(axis=2), 1)
    snr, heard = found.features[..., SNR], found.heard == 1
    assert np.median(uneven[heard & (snr > 30)]) < 0.7 * np.median(uneven[heard & (snr < 8)])


@pytest.mark.parametrize(
    "wrong",
    [
        {"receivers": 8}, {"receivers": 2}, {"samples": 1}, {"valid_share": 1.0}, {"area_m": 0.0},
        {"sample_rate_hz": -1.0}, {"seed": -1},
    ],
)  # fmt: skip
def test_settings_that_make_no_set_are_refused(wrong: dict[str, float]) -> None:
    """With what is allowed."""
    with pytest.raises(UsageError):
        MadeRadio(**wrong)  # type: ignore[arg-type]


# --- tables and samples ---------------------------------------------------------------------------


def test_what_was_measured_comes_out_of_either_database(url: str) -> None:
    """Every value of every sample, in both splits, once."""
    dataset = fill_database(url, MADE)
    campaign = find_campaign(url)
    assert campaign.ids == (dataset,)
    assert campaign.iq_samples == 16
    assert np.array_equal(campaign.stations.astype(np.float32), place_receivers(MADE))
    train, valid = (open_source(url, campaign, split) for split in ("train", "valid"))
    assert (len(train), len(valid)) == (40, 10)
    made = measure(MADE, 0, 50)
    for source, part in ((train, slice(0, 40)), (valid, slice(40, 50))):
        batch = source.read_all()
        assert torch.equal(
            torch.stack([batch["x_m"], batch["y_m"]], 1), torch.from_numpy(made.position[part])
        )
        assert np.array_equal(batch["heard"], made.heard[part])
        assert np.array_equal(batch["features"], made.features[part])
        assert np.array_equal(batch["iq"], made.iq[part])


def test_a_set_is_not_put_in_twice_and_another_stands_beside_it(url: str) -> None:
    """A training takes all datasets, or those that it names."""
    first = fill_database(url, MADE)
    assert fill_database(url, MADE) == first
    second = fill_database(url, MadeRadio(samples=20, iq_samples=16, seed=1))
    everything = find_campaign(url)
    assert set(everything.ids) == {first, second}
    assert len(open_source(url, everything, "train")) == 40 + 16
    one = find_campaign(url, [second])
    assert len(open_source(url, one, "train", [second])) == 16
    assert len(one.stations) == RECEIVERS


def test_two_that_fill_at_once_fill_it_once(url: str) -> None:
    """Ranks start together: one fills, the other finds it filled."""
    with ThreadPoolExecutor(2) as pool:
        filled = set(pool.map(lambda _: fill_database(url, MADE), range(2)))
    assert filled == {MADE.dataset_id}
    campaign = find_campaign(url)
    assert len(open_source(url, campaign, "train")) + len(open_source(url, campaign, "valid")) == 50


def test_a_dataset_appears_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever fills it dies half way: nothing is there, and the next one fills it."""
    url = f"sqlite:///{tmp_path / 'radio.db'}"
    made = MadeRadio(samples=1500, iq_samples=1)

    def die(made: MadeRadio, start: int, stop: int) -> None:
        if start:
            raise KeyboardInterrupt
        return measure(made, start, stop)  # type: ignore[return-value]

    with monkeypatch.context() as patched:
        patched.setattr("stoker.workloads.heimdall.schema.measure", die)
        with pytest.raises(KeyboardInterrupt):
            fill_database(url, made)
    with sqlite3.connect(tmp_path / "radio.db") as raw:
        assert raw.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
    raw.close()
    fill_database(url, made)
    assert len(open_source(url, find_campaign(url), "train")) == 1200


def test_wrong_datasets_are_answered_with_those_there_are(tmp_path: Path) -> None:
    """An unknown id, signals of two lengths, and a URL that names no database."""
    url = f"sqlite:///{tmp_path / 'radio.db'}"
    dataset = fill_database(url, MADE)
    with pytest.raises(UsageError, match=dataset):
        find_campaign(url, ["29b7b2f4"])
    fill_database(url, MadeRadio(samples=20, iq_samples=8))
    with pytest.raises(UsageError, match=r"\[8, 16\] values"):
        find_campaign(url)
    with pytest.raises(UsageError, match="postgresql://user@host"):
        fill_database("mysql://me:secret@host/radio", MADE)


def test_a_database_that_cannot_be_filled_is_told_without_its_password(tmp_path: Path) -> None:
    """No server there, or a folder where the file was to be."""
    with pytest.raises(DatabaseUnreachable, match="postgres:\\*\\*\\*@127") as told:
        fill_database("postgresql://postgres:hunter2@127.0.0.1:1/radio?connect_timeout=2", MADE)
    assert "hunter2" not in str(told.value)
    with pytest.raises(DatabaseUnreachable, match="cannot fill the SQLite file"):
        fill_database(f"sqlite:///{tmp_path}", MADE)


def test_tables_that_are_not_ours_are_left_alone(tmp_path: Path) -> None:
    """Another program's `datasets`, say."""
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE datasets (name text)")
    database.close()
    with pytest.raises(QueryRefused, match=r"cannot fill sqlite.*no such column: id.*Nothing was kept"):
        fill_database(f"sqlite:///{path}", MADE)
    with sqlite3.connect(path) as database:
        assert database.execute("SELECT name FROM sqlite_master").fetchall() == [("datasets",)]
    database.close()


@pytest.mark.service
def test_a_user_who_may_make_no_tables_is_told(server: PostgresServer) -> None:
    server.run("DROP SCHEMA public CASCADE", "CREATE SCHEMA public", "DROP ROLE IF EXISTS reader")
    server.run("CREATE ROLE reader LOGIN PASSWORD 'hunter2'", "GRANT USAGE ON SCHEMA public TO reader")
    url = server.url.replace("postgres@", "reader:hunter2@", 1)
    assert url != server.url
    with pytest.raises(QueryRefused, match=r"cannot fill .*permission denied") as told:
        fill_database(url, MADE)
    assert "hunter2" not in str(told.value)


def test_a_database_is_named_by_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To be filled as to be read: so no password stands in a command line."""
    monkeypatch.setenv("RADIO", f"sqlite:///{tmp_path / 'radio.db'}")
    assert find_campaign("env:RADIO", [fill_database("env:RADIO", MADE)]).iq_samples == 16
    with pytest.raises(UsageError, match="the variable ABSENT"):
        fill_database("env:ABSENT", MADE)


@pytest.mark.service
def test_a_training_has_the_same_batches_from_either_database(
    server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two epochs of them, to the bit."""
    monkeypatch.chdir(tmp_path)
    server.run("DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    words = ["made.samples=50", "made.iq_samples=16", "train.batch_size=8", "train.device=cpu"]
    batches = []
    for own in ([], [f"database={server.url}", "fill=true"]):
        feeds = HeimdallTask(load(HeimdallConfig, None, [*words, *own])).open_feeds(
            World(), torch.device("cpu")
        )
        batches.append([batch for _ in range(2) for batch in feeds.train])
        feeds.close()
    assert len(batches[0]) == 2 * 5
    for one, other in zip(*batches, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in ("x_m", "y_m", "heard", "features", "iq"))


def test_an_empty_database_is_told_to_be_filled(tmp_path: Path) -> None:
    """There are tables and nothing in them."""
    path = tmp_path / "radio.db"
    fill_database(f"sqlite:///{path}", MADE)
    with sqlite3.connect(path) as raw:
        raw.execute("DELETE FROM samples")
        raw.execute("DELETE FROM receivers")
        raw.execute("DELETE FROM datasets")
    raw.close()
    with pytest.raises(SourceBroken, match="no dataset"):
        find_campaign(f"sqlite:///{path}")


def test_what_a_thousand_samples_take_is_counted_from_their_layout(tmp_path: Path) -> None:
    """At least their values, and no more than the gaps that rows need besides."""
    url = f"sqlite:///{tmp_path / 'radio.db'}"
    fill_database(url, MADE)
    found = bytes_per_thousand(open_source(url, find_campaign(url), "train"))
    values = 8 + 4 + 4 + RECEIVERS + RECEIVERS * len(FEATURES) * 4 + RECEIVERS * 2 * 16
    assert 1000 * values <= found <= 1000 * (values + 6 * 16)
