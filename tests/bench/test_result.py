"""The result's file and the page made from it."""

import json
from pathlib import Path

import pytest

from stoker.bench.page import number, table, write_page
from stoker.bench.result import Result, newest_results, read_result, word_of, write_result
from stoker.errors import NotPermitted, UsageError


def result(hardware: str = "cpu", date: str = "2026-01-02", **figures: float) -> Result:
    return Result(
        bench="demo",
        hardware=hardware,
        date=date,
        figures=figures or {"rate": 2.0},
        runs=[{"seconds": 1.0}, {"seconds": 2.0}],
        versions={"torch": "2"},
        commit="abc",
    )


def test_the_file_has_the_agreed_name_and_keys(tmp_path: Path) -> None:
    """`<name>_<hardware>_<date>.json`, with the keys in the order that the design gives."""
    path = write_result(result(), tmp_path)
    assert path.name == "demo_cpu_2026-01-02.json"
    keys = ["schema", "bench", "hardware", "date", "commit", "versions", "figures", "runs"]
    assert keys == list(json.loads(path.read_text()))


def test_a_result_reads_back_as_it_was(tmp_path: Path) -> None:
    """What was written is what is read."""
    assert result() == read_result(write_result(result(), tmp_path))


def test_no_draft_is_left(tmp_path: Path) -> None:
    """A file appears whole; nothing else stays beside it."""
    path = write_result(result(), tmp_path / "new")
    assert [path] == list((tmp_path / "new").iterdir())


def test_the_newest_of_each_hardware_is_taken(tmp_path: Path) -> None:
    """A page shows the last result of each kind of hardware, and no other benchmark's."""
    for date in ("2026-01-09", "2025-12-30", "2026-01-10"):
        write_result(result("cpu", date), tmp_path)
    write_result(result("h200", "2025-01-01"), tmp_path)
    (tmp_path / "other_cpu_2027-01-01.json").write_text("{}")
    found = [(one.hardware, one.date) for one in newest_results("demo", tmp_path)]
    assert found == [("cpu", "2026-01-10"), ("h200", "2025-01-01")]


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"schema": 9}', '{"schema": 1, "bench": "demo"}'])
def test_a_broken_file_is_named(tmp_path: Path, text: str) -> None:
    """A file that is no result is an error that says which file, and what to do."""
    path = tmp_path / "demo_cpu_2026-01-01.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"demo_cpu_2026-01-01\.json.*measure again"):
        read_result(path)


def test_a_folder_that_cannot_be_is_named(tmp_path: Path) -> None:
    """Results that cannot be written end in a message with the way out."""
    (tmp_path / "file").write_text("")
    with pytest.raises(NotPermitted, match="--out"):
        write_result(result(), tmp_path / "file")


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA GeForce RTX 3090", "3090"),
        ("Some Card", "some-card"),
    ],
)
def test_hardware_is_one_word(name: str, word: str) -> None:
    """A device's name becomes its model in one word."""
    assert word == word_of(name)


def test_a_page_is_made_from_the_files(tmp_path: Path) -> None:
    """The page is written beside the results that it was made from."""
    write_result(result(rate=7.0), tmp_path)
    path = write_page("demo", lambda found: f"rate {found[0].figures['rate']}", tmp_path)
    assert path.read_text() == "rate 7.0"


def test_what_was_not_measured_prints_as_such() -> None:
    """A missing figure is n/a, never 0; one with an interval shows it."""
    assert number({}, "us") == "n/a"
    assert number({"us": 12.2}, "us") == "12"
    assert number({"us": 12.2, "us_low": 11.0, "us_high": 13.0}, "us", 1) == "12.2 (11.0 to 13.0)"


def test_a_table_is_markdown() -> None:
    """Words to the left, numbers to the right."""
    assert table(["a", "b"], [["x", "1"]]) == "| a | b |\n| --- | ---: |\n| x | 1 |\n"
