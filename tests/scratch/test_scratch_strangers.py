"""The folder for temporary files is everybody's: what others leave there does not stop a scratch run."""

import os
import tempfile
from pathlib import Path

import pytest

from stoker.scratch import launch


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files of the test's own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def old(path: Path) -> Path:
    os.utime(path, (0, 0), follow_symlinks=False)
    return path


def test_a_link_to_nowhere_is_passed_over(temporary: Path) -> None:
    """It was an error that ended every scratch run of every user."""
    link = temporary / "stoker-scratch-link"
    link.symlink_to(temporary / "nowhere")
    launch._sweep()
    assert link.is_symlink()


def test_what_a_link_leads_to_is_left_alone(temporary: Path) -> None:
    """Nothing is removed, opened or locked through it."""
    target = temporary / "mine"
    target.mkdir()
    (target / "lock").write_text("dear")
    old(target)
    (temporary / "stoker-scratch-link").symlink_to(target)
    launch._sweep()
    assert (target / "lock").read_text() == "dear"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder to somebody else")
def test_another_user_s_folder_is_left_alone(temporary: Path) -> None:
    """Also by root, who could."""
    folder = temporary / "stoker-scratch-theirs"
    folder.mkdir()
    (folder / "lock").write_text("")
    os.chown(folder, 12345, 12345)
    old(folder)
    launch._sweep()
    assert folder.is_dir()


def test_folders_of_the_dead_are_still_removed(temporary: Path) -> None:
    """With a lock that nobody holds, or too old to be in the making."""
    for name, locked in (("locked", True), ("bare", False)):
        folder = temporary / f"stoker-scratch-{name}"
        folder.mkdir()
        if locked:
            (folder / "lock").write_text("")
        old(folder)
    launch._sweep()
    assert list(temporary.iterdir()) == []
