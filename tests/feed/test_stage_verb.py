"""`stoker stage` on the command line, and what it shows."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.cli import main
from stoker.feed.stage import Outcome
from stoker.feed.stage_view import LineView, Progress

from .s3 import S3Server
from .test_stage import fill, staged


def test_progress_tells_rate_and_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    """From bytes that came, those of failed tries taken back; unknown before the first."""
    progress = Progress(files=2, bytes=1000)
    assert (progress.rate, progress.seconds_left) == (None, None)
    attempt = progress.begin()
    attempt.add(600)
    attempt.take_back()
    assert progress.bytes_done == 0
    progress.begin().add(500)
    assert progress.rate is not None
    assert progress.seconds_left is not None
    view = LineView()
    view.start(progress)
    view._next = 0.0
    view.tick(progress)
    said = capsys.readouterr().err
    assert "stoker: staging 2 files, 1000 B to copy\n" in said
    assert "0 of 2 files, 500 B of 1000 B" in said


def run(*words: str, env: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "stoker", "stage", *words],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **(env or {})},
    )


@pytest.mark.service
def test_the_verb_stages_from_a_server(s3_server: S3Server, prefix: str, tmp_path: Path) -> None:
    """Credentials come from the environment; --json is one object on stdout, and exit codes tell."""
    fill(s3_server.store(prefix))
    target = tmp_path / "dst"
    words = [f"s3://{prefix}", str(target), "--endpoint", s3_server.endpoint, "--classes", "class1,class3"]
    done = run(*words, "--json", env=s3_server.environment())
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["schema"], told["copied"], told["failed"]) == (1, 12, {})
    assert set(told) >= {
        "source",
        "target",
        "files",
        "bytes",
        "kept",
        "changed",
        "gone",
        "removed",
        "seconds",
    }
    assert {key.partition("/")[0] for key in staged(target)} == {"class1", "class3"}
    again = run(*words, env=s3_server.environment())
    assert again.stdout.startswith("copied 0 files")
    wrong = run(*words, env={**s3_server.environment(), "AWS_SECRET_ACCESS_KEY": "wrong-secret"})
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert "access was refused" in wrong.stderr
    assert "wrong-secret" not in wrong.stderr


def test_wrong_use_of_the_verb_exits_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a line that says what to do, and no traceback."""
    for words in (
        [str(tmp_path / "nowhere"), str(tmp_path / "dst")],
        ["ftp://host", str(tmp_path / "dst")],
        [str(tmp_path), str(tmp_path / "dst"), "--watch", "--dry-run"],
        [str(tmp_path), __file__],
    ):
        monkeypatch.setattr(sys, "argv", ["stoker", "stage", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        said = capsys.readouterr().err
        assert said.startswith("stoker: ")
        assert said.count("\n") == 1


def test_an_outcome_is_plain_json() -> None:
    """Every field."""
    told = Outcome(source="s", target="t", failed={"a": "b"}).to_json()
    assert json.loads(json.dumps(told)) == told
