"""`stoker.toml` as a search writes it: read by a person, by Stoker, and written again."""

import tomllib
from pathlib import Path

import pytest
from test_tune_report import KEPT

from stoker import changes
from stoker.errors import UsageError
from stoker.tune import settings_file


def test_settings_are_read_back_with_the_evidence_beside_them(tmp_path: Path) -> None:
    """What each change gained and what it means stand in comments, and how to use and undo them."""
    path = tmp_path / "stoker.toml"
    settings_file.write(path, KEPT, "train.py --lr 0.1", Path("trials"))
    assert path.read_text().splitlines() == [
        "# Made by `stoker tune train.py --lr 0.1`; trials: trials",
        "# 800 samples/s as it was, 1840 with these: 2.3 times (2.09 to 2.53)",
        "# Use them: stoker run --with stoker.toml train.py --lr 0.1. Undo them: remove this file.",
        "",
        "[changes]",
        "# 2.3 times (2.09 to 2.53) as fast; 40 losses are bit-identical",
        "num_workers = 4",
    ]
    assert dict(changes.read(path)) == {"num_workers": 4}


def test_what_a_file_says_beside_changes_is_kept(tmp_path: Path) -> None:
    """A second search replaces the changes and notes of the first, and nothing else."""
    path = tmp_path / "stoker.toml"
    path.write_text('# old notes\n[changes]\nfeed = "ram"\n\n[memory]\n# by hand\npeak_bytes = 5\n')
    settings_file.write(path, KEPT, "train.py", Path("trials"))
    once = path.read_text()
    assert "old notes" not in once
    assert "feed" not in once
    assert once.endswith("num_workers = 4\n\n[memory]\n# by hand\npeak_bytes = 5\n")
    settings_file.write(path, KEPT, "train.py", Path("trials"))
    assert path.read_text() == once


def test_keys_of_no_table_stay_before_the_first(tmp_path: Path) -> None:
    """And a table of changes is one with a comment behind its name too."""
    path = tmp_path / "stoker.toml"
    path.write_text('note = "keep me"\n\n[ changes ]  # for the other card\nfeed = "ram"\n')
    settings_file.write(path, KEPT, "train.py", Path("trials"))
    assert dict(changes.read(path)) == {"num_workers": 4}
    assert tomllib.loads(path.read_text())["note"] == "keep me"
    once = path.read_text()
    settings_file.write(path, KEPT, "train.py", Path("trials"))
    assert path.read_text() == once


@pytest.mark.parametrize(
    "text", ["changes.feed = 'ram'\n", "[memory\n", "[memory]\nnote = '''\n[changes]\n'''\n"]
)
def test_a_file_that_cannot_be_taken_apart_is_not_written_over(tmp_path: Path, text: str) -> None:
    """It stays as it is, and that is said before anything is tried."""
    path = tmp_path / "stoker.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match="name another --out"):
        settings_file.check(path)
    with pytest.raises(UsageError, match="name another --out"):
        settings_file.write(path, KEPT, "train.py", Path("trials"))
    assert path.read_text() == text
