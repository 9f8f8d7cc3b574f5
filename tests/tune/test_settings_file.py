"""`stoker.toml` as a search writes it: read by a person, by Stoker, and written again."""

import os
import shutil
import subprocess
import sys
import tomllib
from dataclasses import replace
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


@pytest.mark.parametrize(
    "word",
    ["two\nlines", "a\rb", "\x1b[31m", "\x00", "\x7f", "\x85", "\u2028", "it's", "\udcff", "a b", "\\n$x"],
)
def test_settings_of_any_command_are_read_back(tmp_path: Path, word: str) -> None:
    """Whatever its arguments hold, its comments stay comments, and a second search writes it again."""
    path = tmp_path / "stoker.toml"
    words = settings_file.as_words(["train.py", "--name", word])
    for _ in range(2):
        settings_file.write(path, KEPT, words, Path("trials"))
        assert dict(changes.read(path)) == {"num_workers": 4}
        assert len(path.read_text().splitlines()) == 7


@pytest.mark.parametrize("word", ["two\nlines\r", "it's\n", "a b", "\\n$x\t", "\udcff", "\x1b[31m", "\u2028"])
def test_the_command_is_what_a_shell_takes(word: str) -> None:
    """Pasted, it is the command that was tuned."""
    shell = shutil.which("bash")
    if shell is None:
        pytest.skip("no bash here")
    line = f"{sys.executable} -c 'import sys, os; os.write(1, os.fsencode(sys.argv[1]))' "
    line += settings_file.as_words([word])
    env = {**os.environ, "LC_ALL": "C.UTF-8"}
    done = subprocess.run([shell, "-c", line], capture_output=True, check=True, env=env)
    assert done.stdout == os.fsencode(word)


def test_a_reason_of_several_lines_stays_a_comment(tmp_path: Path) -> None:
    """And where settings would not come back, the file is left as it was."""
    path = tmp_path / "stoker.toml"
    told = replace(KEPT, tried=tuple(replace(one, reason="first\nnum_workers = 9") for one in KEPT.tried))
    settings_file.write(path, told, "train.py", Path("trials"))
    assert dict(changes.read(path)) == {"num_workers": 4}
    before = path.read_text()
    unreadable = None  # which TOML has no word for
    kept = tuple(replace(one, candidate=replace(one.candidate, value=unreadable)) for one in KEPT.tried)
    wrong = replace(KEPT, settings={"num_workers": unreadable}, tried=kept)
    with pytest.raises(UsageError, match="would not be read back"):
        settings_file.write(path, wrong, "train.py", Path("trials"))
    assert path.read_text() == before
