"""`scripts/demo` with a `stoker` that only notes how it was called: what runs, and that a failure is one."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
STOKER = """#!/bin/sh
echo "$*" >> calls.txt
case "$1" in
  "$FAILS") exit 3 ;;
  check) exit 1 ;;
  tune) mkdir -p .stoker && [ -n "$NOTHING" ] || echo "[changes]" > .stoker/demo.toml ;;
esac
"""


def demo(folder: Path, **env: str) -> tuple[int, list[str]]:
    """Its exit code, and what was asked of `stoker`."""
    for name, text in (("scripts/install", "#!/bin/sh\n"), (".venv/bin/stoker", STOKER)):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    shutil.copy(ROOT / "scripts" / "demo", folder / "scripts" / "demo")
    done = subprocess.run(
        [folder / "scripts" / "demo"], env={"PATH": "/usr/bin:/bin", **env}, capture_output=True, timeout=30,
        check=False,
    )  # fmt: skip
    return done.returncode, (folder / "calls.txt").read_text().splitlines()


def test_the_demo_observes_diagnoses_tunes_and_runs_what_was_kept(tmp_path: Path) -> None:
    """A machine that has warnings does not end it."""
    code, calls = demo(tmp_path)
    assert code == 0
    assert [call.split()[0] for call in calls] == ["check", "run", "doctor", "tune", "run"]
    assert "--budget 45" in calls[2]
    assert "--budget 60" in calls[3]
    assert "--with .stoker/demo.toml" in calls[4]
    script = ROOT / calls[2].split()[-1]
    assert script.exists()


@pytest.mark.parametrize("verb", ["check", "run", "doctor", "tune"])
def test_a_part_that_fails_fails_the_demo(tmp_path: Path, verb: str) -> None:
    """With its own code, and nothing is run after it."""
    code, calls = demo(tmp_path, FAILS=verb)
    assert (code, calls[-1].split()[0]) == (3, verb)


def test_a_search_that_keeps_nothing_fails_the_demo(tmp_path: Path) -> None:
    """There is no after to show; settings of an earlier demo are not taken for it."""
    (tmp_path / ".stoker").mkdir()
    (tmp_path / ".stoker" / "demo.toml").write_text("[changes]\n")
    code, calls = demo(tmp_path, NOTHING="1")
    assert (code, calls[-1].split()[0]) == (1, "tune")


@pytest.mark.slow
def test_the_demo_for_real() -> None:
    """On this machine, with the environment as it is."""
    done = subprocess.run(
        [ROOT / "scripts" / "demo"], capture_output=True, text=True, timeout=170, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "times as fast" in done.stdout
    assert "report: " in done.stdout
