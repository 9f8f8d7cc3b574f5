"""A search's folder is one process's at a time, and nobody's once that process is gone."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.errors import UsageError
from stoker.tune.ledger import Ledger, is_taken

ABOUT = {"command": ["train.py"]}
# Begins a search, says so, and stands still.
HOLDER = """
import pathlib, signal, sys
from stoker.tune.ledger import Ledger
held = Ledger.begin(pathlib.Path(sys.argv[1]), {"command": ["train.py"]})
print("begun", flush=True)
signal.pause()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process, amid its search in `it`."""
    words = [sys.executable, "-c", HOLDER, str(tmp_path / "it")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        yield process
        process.kill()


@pytest.mark.skipif(sys.platform == "win32", reason="there is no flock")
def test_a_search_that_is_under_way_is_not_resumed(holder: subprocess.Popen[str], tmp_path: Path) -> None:
    """It is told, with what to do; a killed process leaves nothing behind that holds it."""
    folder = tmp_path / "it"
    assert is_taken(folder)
    with pytest.raises(UsageError, match=r"another process searches in .*it: wait for it, or end it"):
        Ledger.resume(folder, ABOUT)
    holder.kill()
    holder.wait()
    assert not is_taken(folder)
    with Ledger.resume(folder, ABOUT) as resumed:
        assert (resumed.folder, is_taken(folder)) == (folder, True)
    assert not is_taken(folder)


@pytest.mark.parametrize("name", ["script", "torch"])
def test_a_search_of_what_has_changed_since_is_not_resumed(tmp_path: Path, name: str) -> None:
    """Rates of the one say nothing of the other. One that does not tell is resumed."""
    Ledger.begin(tmp_path / "it", {**ABOUT, name: "one"}).close()
    with pytest.raises(UsageError, match=r"is another than when .* without --resume"):
        Ledger.resume(tmp_path / "it", {**ABOUT, name: "other"})
    for about in ({**ABOUT, name: "one"}, ABOUT):
        Ledger.resume(tmp_path / "it", about).close()


@pytest.mark.skipif(sys.platform == "win32", reason="there is no flock")
def test_a_folder_that_is_no_search_gets_no_lock(tmp_path: Path) -> None:
    """Asking about it, or resuming it, writes nothing there."""
    assert not is_taken(tmp_path)
    with pytest.raises(UsageError, match="is no search"):
        Ledger.resume(tmp_path, ABOUT)
    assert list(tmp_path.iterdir()) == []
