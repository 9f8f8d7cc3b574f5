"""`stoker serve` and `stoker jobs …` as they are typed, each in a process of its own."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from .kit import PATIENCE_S, SCRIPTS
from .servers import NOTE, Live

STOKER = (sys.executable, "-m", "stoker")


def stoker(*words: str, url: str | None = None, text: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a verb to its end."""
    env = {**os.environ, **({} if url is None else {"STOKER_JOBS_URL": url}), "COLUMNS": "200"}
    return subprocess.run(
        [*STOKER, *words],
        env=env,
        input=text,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def told(*words: str, url: str, code: int = 0, text: str | None = None) -> dict[str, Any]:
    """A verb's JSON."""
    verb, *rest = words
    done = stoker("jobs", verb, "--json", *rest, url=url, text=text)
    assert done.returncode == code, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["schema"] == 1
    return found


@contextlib.contextmanager
def serving(root: Path, *words: str) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """`stoker serve` on a free port: its address and process."""
    child = subprocess.Popen(
        [*STOKER, "serve", "--port", "0", "--root", str(root), "--json", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=root.parent,
        start_new_session=True,
    )
    assert child.stdout is not None
    try:
        yield json.loads(child.stdout.readline())["url"], child
    finally:
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)
        child.communicate(timeout=PATIENCE_S)


def test_a_service_from_beginning_to_end(tmp_path: Path) -> None:
    """Served, asked, watched, cancelled, resumed and waited for; ended by Ctrl-C, without a complaint."""
    given = ("--scripts", str(SCRIPTS), "--slots", "2", "--store", "sqlite:///kept.db")
    with serving(tmp_path / "jobs", *given) as (url, child):
        # Named in full: a runner elsewhere would have another file by the same words.
        [dispatcher] = psutil.Process(child.pid).children()
        assert f"sqlite:///{tmp_path}/kept.db" in dispatcher.environ()["STOKER_JOBS"]
        long = told("submit", "--name", "long", "scripts/count.py", "600", "0.05", "1", url=url)["job"]["id"]
        failed = stoker("jobs", "submit", "--wait", "scripts/count.py", "x", "y", "z", url=url)
        assert failed.returncode == 1 and "failed" in failed.stdout
        while told("show", long, url=url)["job"]["step"] is None:
            time.sleep(0.1)
        assert told("cancel", long, url=url)["job"]["id"] == long
        assert told("wait", long, url=url, code=1)["job"]["state"] == "cancelled"
        assert "goes on from step 0" in stoker("jobs", "logs", long, url=url).stdout
        assert told("resume", long, url=url)["job"]["state"] == "queued"
        listed = told("list", "--name", "LONG", url=url)["jobs"]
        assert [job["id"] for job in listed] == [long]
        told("cancel", long, url=url)
        told("wait", long, url=url, code=1)
        assert json.loads(urllib.request.urlopen(f"{url}/health").read())["dispatcher"] is True
        os.killpg(child.pid, signal.SIGINT)  # as a terminal sends it: to all that was started from it
        _, errors = child.communicate(timeout=PATIENCE_S)
    assert (child.returncode, errors) == (0, "")


def test_the_notes_own_request_is_sent_from_a_file(server: Live) -> None:
    """Or from stdin; what the sender should know is said beside it, and a key makes it one job."""
    text = json.dumps(NOTE)
    first = told("submit", "--body", "-", "--key", "once", url=server.url, text=text)["job"]
    assert first["workload"] == "heimdall"
    again = stoker("jobs", "submit", "--body", "-", "--key", "once", url=server.url, text=text)
    assert first["id"] in again.stdout and "a made set stands in" in again.stderr
    assert len(told("list", url=server.url)["jobs"]) == 1


def test_a_workload_is_asked_for_as_stoker_train_is(server: Live, tmp_path: Path) -> None:
    """Settings from a file and from the command line, checked by the server."""
    (tmp_path / "sar.toml").write_text('tier = "ram"\n[train]\nepochs = 3\n')
    words = ("submit", "sar", "train.batch_size=8", "--config", str(tmp_path / "sar.toml"), "--gpus", "0")
    config = told(*words, url=server.url)["job"]["config"]
    assert (config["tier"], config["train"]["epochs"], config["train"]["batch_size"]) == ("ram", 3, 8)
    wrong = stoker("jobs", "submit", "sar", "train.precision=fp8", url=server.url)
    assert wrong.returncode == 2
    assert "config.train.precision" in wrong.stderr and "allowed: fp32, tf32, bf16, fp16" in wrong.stderr


def test_what_is_behind_a_script_is_its_own(server: Live) -> None:
    """Options that we have too, and its secrets, which are not sent as ours."""
    behind = [
        "--lr",
        "0.1",
        "--name",
        "resnet50",
        "--token",
        "hf_secret",
        "--gpus",
        "2",
        "-f",
        "--",
        "--json",
    ]
    words = ("--name", "mine", "scripts/count.py", *behind)
    made = server.store.job(told("submit", *words, url=server.url)["job"]["id"])
    assert (made.request.name, made.request.arguments) == ("mine", tuple(behind))
    wrong = stoker("jobs", "submit", "--lr", "0.1", "scripts/count.py", url=server.url)
    assert wrong.returncode == 2 and "no option --lr" in wrong.stderr


def test_jobs_are_shown_to_a_person(server: Live) -> None:
    """A line each, and what steers a terminal is shown as text."""
    id_ = server.post("/jobs", {"workload": "sar", "job_name": "[red]bold[/red] \u202e night"}).json["id"]
    listed = stoker("jobs", "list", url=server.url).stdout
    assert id_ in listed and "[red]bold[/red]" in listed and "1. in the queue" in listed
    shown = stoker("jobs", "show", id_, url=server.url).stdout
    assert "queued, 1. in the queue" in shown and "\u202e" not in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("show", "0123456789ab"), "no job"),
        (("submit", "--name", "x"), "name a workload"),
        (("submit", "sax"), "heimdall, imagenet, sar, vesuvius"),
        (("submit", "elsewhere.py"), "scripts/count.py"),
        (("submit", "--body", "no-such-file.json"), "is no JSON"),
        (("submit", "sar", "train.epochs"), "write it as train.epochs=3"),
        (("list", "--state", "asleep"), "queued"),
        (("wait", "x", "--url", "nonsense"), "http://HOST:PORT"),
        (("list", "--url", "http://[::1"), "http://HOST:PORT"),
        (("submit", "sar", "--key", "月"), "printable ASCII"),
        (("list", "--token", "geheim\nnis"), "on one line"),
        (("token", "x", "--root", "/proc/none/jobs"), "choose another --root"),
    ],
)
def test_wrong_use_says_what_would_be_right(server: Live, words: tuple[str, ...], said: str) -> None:
    """On stderr, in a sentence, and not with an exit code of 0."""
    done = stoker("jobs", *words, url=server.url)
    assert done.returncode in (1, 2) and said in done.stderr and "Traceback" not in done.stderr


def test_a_job_that_does_not_end_in_time_is_told(server: Live) -> None:
    """`wait --timeout` exits 1, and the job goes on."""
    id_ = server.post("/jobs", {"workload": "sar"}).json["id"]
    done = stoker("jobs", "wait", id_, "--timeout", "0.1", url=server.url)
    assert done.returncode == 1 and "still queued after 0.1 s" in done.stderr


def test_a_server_that_others_reach_needs_a_token(tmp_path: Path) -> None:
    """It does not start without one; made, it is printed once and demanded."""
    root = tmp_path / "jobs"
    refused = stoker("serve", "--host", "0.0.0.0", "--port", "0", "--root", str(root))
    assert refused.returncode == 2 and "stoker jobs token" in refused.stderr
    token = stoker("jobs", "token", "ann", "--root", str(root)).stdout.strip()
    assert token not in (root / "tokens").read_text()
    with serving(root, "--host", "0.0.0.0") as (url, _):
        here = url.replace("0.0.0.0", "127.0.0.1")
        assert stoker("jobs", "list", url=here).returncode == 1
        assert told("list", "--token", token, url=here)["jobs"] == []


def test_a_port_that_is_taken_is_said(server: Live, tmp_path: Path) -> None:
    """With what to do."""
    done = stoker("serve", "--port", str(server.port), "--root", str(tmp_path / "other"))
    assert done.returncode == 2 and "--port" in done.stderr
