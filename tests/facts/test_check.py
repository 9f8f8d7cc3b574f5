"""`stoker check` as a user runs it: JSON, exit codes, errors."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stoker import facts
from stoker.facts.nvml import Occupant
from stoker.ward.fake_gpu import FakeGpus, card


def run(*arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "stoker", "check", *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_json_is_one_object_with_the_promised_keys(tmp_path: Path) -> None:
    """stdout is one JSON object; the exit code is 1 with warnings and 0 without."""
    (tmp_path / "a").write_bytes(b"x" * 1000)
    done = run("--json", "--data", str(tmp_path))
    found = json.loads(done.stdout)
    assert found["schema"] == 1
    assert {
        "gpus",
        "gpu_reason",
        "notebooks",
        "strays",
        "host",
        "storage",
        "torch",
        "process",
        "warnings",
    } <= set(found)
    assert found["storage"]["path"] == str(tmp_path.resolve())
    assert all(set(one) == {"cause", "text", "fix"} for one in found["warnings"])
    assert done.returncode == (1 if found["warnings"] else 0)


def test_a_warning_makes_the_exit_code_1() -> None:
    """A switch left on is shown after the facts, with the way out."""
    done = run(CUDA_LAUNCH_BLOCKING="1")
    assert done.returncode == 1
    assert "debug-left-on" in done.stdout
    assert "unset CUDA_LAUNCH_BLOCKING" in done.stdout


def test_a_missing_data_path_is_wrong_use(tmp_path: Path) -> None:
    """Exit code 2, nothing on stdout, one line that names the path and no traceback."""
    done = run("--data", str(tmp_path / "nowhere"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "nowhere" in done.stderr and "Traceback" not in done.stderr


def test_holders_have_the_promised_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each holder has pid, bytes, user, notebook, idle_s and ours, and what is not known is null."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = facts.collect(source=FakeGpus(card(), occupants=[Occupant(pid=os.getpid(), bytes=5 << 30)]))
    entry: dict[str, Any] = json.loads(json.dumps(facts.to_json(found, facts.warnings_of(found))))
    (one,) = entry["gpus"][0]["holders"]
    assert {"pid", "bytes", "user", "notebook", "idle_s", "ours"} <= set(one)
    assert (one["pid"], one["bytes"], one["notebook"], one["ours"]) == (os.getpid(), 5 << 30, None, True)
