"""`stoker.jobs.Client` against a real server with a real dispatcher: jobs as futures."""

import http.server
import re
import threading
from pathlib import Path
from typing import Any

import pytest

import stoker.jobs
from stoker.errors import (
    JobEnded,
    JobRefused,
    JobsUnreachable,
    MoveRefused,
    NoSuchJob,
    TokenRefused,
    UsageError,
)
from stoker.jobs.server.tokens import NAME, TokenFile
from stoker.jobs.states import State
from stoker.jobs.store.holding import Holding, Number, Report

from .kit import PATIENCE_S, tiny_heimdall
from .servers import NOTE, Live, running


class Runner:
    """Whoever runs a job, without a process: it tells, hears and ends as one does."""

    def __init__(self, server: Live, id_: str) -> None:
        self._holding, self._id = Holding(server.store), id_
        attempt = self._holding.claim(id_, engine="test")
        assert attempt is not None
        self._token, self._told = attempt.token, 0
        self._holding.begin(id_, attempt.token, "test/1")

    def tell(self, *texts: str, step: int | None = None) -> bool:
        """Lines, and the loss of a step; whether it is to stop."""
        numbers = [] if step is None else [Number(name="train/loss", step=step, value=1 / step, t=1.0)]
        before, self._told = self._told, self._told + sum(map(len, texts))
        told = Report(
            points=numbers, lines=[(1.0, text) for text in texts], log_from=before, log_to=self._told
        )
        return self._holding.report(self._id, self._token, told).stop

    def end(self, state: State, error: str | None = None) -> None:
        """The end of it."""
        self._holding.finish(self._id, self._token, state, error)


def submit(server: Live, **given: Any) -> stoker.jobs.Job:
    return stoker.jobs.Client(server.url).submit(workload="sar", **given)


def test_a_job_is_a_future(server: Live) -> None:
    """It is asked for, runs, and has a result; its curves have every step once, and its log every line."""
    job = submit(server, name="five")
    assert not job.done() and not job.running()
    runner = Runner(server, job.id)
    assert job.running() and not job.cancelled()
    for step in range(1, 6):
        runner.tell(f"step {step}", step=step)
    with pytest.raises(TimeoutError, match=r"still running after 0\.01 s"):
        job.result(0.01)
    threading.Timer(0.2, runner.end, (State.DONE,)).start()
    told = job.result(PATIENCE_S)
    assert (told["state"], told["name"], job.done(), job.running()) == ("done", "five", True, False)
    assert job.exception() is None
    assert job.metrics() == {"train/loss": [(step, 1 / step) for step in range(1, 6)]}
    assert list(job.logs()) == list(job.logs(follow=True)) == [f"step {step}" for step in range(1, 6)]
    assert list(job.logs(last=2)) == ["step 4", "step 5"]


def test_a_job_that_fails_raises_what_it_said(server: Live) -> None:
    """`result` and `exception` tell the same; `wait` tells the state."""
    job = submit(server)
    Runner(server, job.id).end(State.FAILED, "no memory for one sample")
    assert job.wait() is State.FAILED
    with pytest.raises(JobEnded, match=f"job {job.id} failed: no memory for one sample"):
        job.result()
    assert isinstance(job.exception(), JobEnded)
    assert job.retry().id != job.id


def test_a_running_job_is_followed_and_cancelled(server: Live) -> None:
    """Its lines come as it prints them, to the last; what it is told reaches it."""
    job = submit(server)
    runner = Runner(server, job.id)
    lines = job.logs(follow=True)
    runner.tell("one", "two")
    assert [next(lines), next(lines)] == ["one", "two"]
    runner.tell("three")
    assert next(lines) == "three"
    assert job.cancel() and runner.tell("saved")
    runner.end(State.CANCELLED)
    assert list(lines) == ["saved"]
    assert job.cancelled() and not job.cancel()
    with pytest.raises(JobEnded, match="was cancelled"):
        job.result()
    assert job.resume().state is State.QUEUED


def test_a_training_has_a_verdict_and_the_doctor_a_report(tmp_path: Path) -> None:
    """A real training in its own process: curves, a verdict from its record, a report for a browser."""
    with running(tmp_path / "jobs", dispatches=True) as busy:
        train_and_visit(busy)


def train_and_visit(busy: Live) -> None:
    client = stoker.jobs.Client(busy.url)
    config = tiny_heimdall().config
    job = client.submit(workload="heimdall", config=config, name="tiny")
    assert job.result(PATIENCE_S)["verdict"]["cause"]
    assert any(name.endswith("loss") for name in job.metrics())
    client.call("POST", f"/jobs/{job.id}/doctor")
    for kind, told in client.follow(f"/jobs/{job.id}/stream"):
        if kind == "state" and told["doctor"] != "running":
            break
    assert (told["doctor"], told["report"]) == ("done", True)
    report = busy.get(f"/jobs/{job.id}/report")
    assert report.status == 200 and report.headers["content-type"].startswith("text/html")
    assert report.headers["content-security-policy"].startswith("sandbox")
    job.delete()
    with pytest.raises(NoSuchJob):
        job.refresh()


def test_jobs_are_listed_over_pages(server: Live) -> None:
    """As many as are asked for, newest first, through however many pages; filters go to the server."""
    client = stoker.jobs.Client(server.url)
    made = [client.submit(workload="sar", name=f"run {number}").id for number in range(5)]
    assert [job.id for job in client.jobs(limit=3)] == made[:1:-1]
    assert [job.id for job in client.jobs(name="run 2")] == [made[2]]
    assert client.jobs(state="done") == []
    assert client.job(made[0]).name == "run 0"
    assert {one["name"] for one in client.workloads()["workloads"]} >= {"sar", "heimdall"}


def test_what_the_server_refuses_is_raised_as_what_it_is(server: Live) -> None:
    """A wrong setting with its field, a state that does not allow it, a job that is not there."""
    client = stoker.jobs.Client(server.url)
    with pytest.raises(JobRefused) as refused:
        client.submit(workload="sar", config={"train": {"precision": "fp8"}})
    [problem] = refused.value.problems
    assert (problem.field, problem.allowed) == ("config.train.precision", ("fp32", "tf32", "bf16", "fp16"))
    job = client.post(NOTE, key="once")
    assert client.post(NOTE, key="once").id == job.id
    with pytest.raises(MoveRefused, match="queued"):
        job.retry()
    for id_ in ("0123456789ab", "../../etc/passwd", ""):
        with pytest.raises((NoSuchJob, JobsUnreachable)):
            client.job(id_ or "x")


def test_a_token_is_sent_where_it_is_demanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given, or from the environment; without it the error says where to put it."""
    token = TokenFile(tmp_path / "jobs" / NAME).add("ann")
    with running(tmp_path / "jobs") as server:
        with pytest.raises(TokenRefused, match="STOKER_JOBS_TOKEN"):
            stoker.jobs.Client(server.url).jobs()
        assert stoker.jobs.Client(server.url, token=token).jobs() == []
        monkeypatch.setenv("STOKER_JOBS_TOKEN", token)
        monkeypatch.setenv("STOKER_JOBS_URL", server.url)
        assert stoker.jobs.Client().jobs() == []


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:1", "http://no.such.host.invalid", "ftp://x", "nonsense", "http://[::1", "http://x:y",
     "http://", "http://a..b", "http://a b"],
)  # fmt: skip
def test_a_server_that_is_not_there_is_said_to_be_missing(url: str) -> None:
    """With its address, and how to start one."""
    with pytest.raises(JobsUnreachable, match=re.escape(url.rstrip("/"))):
        stoker.jobs.Client(url).jobs()


def test_what_no_header_holds_is_told_before_it_is_sent(server: Live) -> None:
    """A token from a file with its line end, or in another script; it is not shown."""
    for token in ("geheim\n", "a b", "月", "ä"):
        with pytest.raises(UsageError, match="on one line") as refused:
            stoker.jobs.Client(server.url, token=token)
        assert token not in str(refused.value)
    for key in ("月", "two\nlines", "x" * 201, ""):
        with pytest.raises(UsageError, match="printable ASCII"):
            submit(server, key=key)


class Stranger(http.server.BaseHTTPRequestHandler):
    """Something else that answers 200 to all."""

    told = b""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.told)))
        self.end_headers()
        self.wfile.write(self.told)

    def log_message(self, *given: object) -> None:
        """Nothing."""


@pytest.mark.parametrize(
    "told", [b"<html>hello</html>", b"[]", b'{"a": 1}', b'{"jobs": [3], "next": null}', b""]
)
def test_another_server_that_answers_is_told_apart(told: bytes) -> None:
    """A page, or JSON that is none of ours."""
    with http.server.HTTPServer(("127.0.0.1", 0), type("Told", (Stranger,), {"told": told})) as other:
        threading.Thread(target=other.serve_forever, args=(0.01,), daemon=True).start()
        client = stoker.jobs.Client(f"http://127.0.0.1:{other.server_port}")
        try:
            for ask in (client.jobs, lambda: client.job("0123456789ab"), client.workloads):
                with pytest.raises(JobsUnreachable, match="not as a jobs server does"):
                    ask()
        finally:
            other.shutdown()


def test_something_else_at_the_address_is_told_apart(server: Live) -> None:
    """A server that is none of ours, or another path of it."""
    with pytest.raises(JobsUnreachable, match="not as a jobs server does"):
        stoker.jobs.Client(f"{server.url}/assets").jobs()


def test_following_outlives_the_server(tmp_path: Path) -> None:
    """The server is started again, at the same address: the log goes on where it was, each line once."""
    texts: list[str] = []
    with running(tmp_path / "jobs") as server:
        port = server.port
        job = submit(server)
        Runner(server, job.id).tell("before")
        reading = threading.Thread(target=lambda: texts.extend(job.logs(follow=True)))
        reading.start()
        while b"stoker_jobs_streams{} 1" not in server.ask("GET", "/metrics").raw:
            pass
    with running(tmp_path / "jobs", port=port) as server:
        holding = Holding(server.store)
        holding.report(job.id, 1, Report(lines=[(2.0, "after")], log_from=6, log_to=11))
        holding.finish(job.id, 1, State.DONE)
        reading.join(PATIENCE_S)
    assert texts == ["before", "after"]


def test_waiting_outlives_the_server(tmp_path: Path) -> None:
    """A wait of days is not ended by a server that is started again."""
    states: list[State] = []
    with running(tmp_path / "jobs") as server:
        port = server.port
        job = submit(server)
        Runner(server, job.id)
        waiting = threading.Thread(target=lambda: states.append(job.wait()))
        waiting.start()
        asked = b'route="/api/training/jobs/{id}",status="200"'
        while asked not in server.ask("GET", "/metrics").raw:
            pass
    assert waiting.is_alive()
    with running(tmp_path / "jobs", port=port) as server:
        Holding(server.store).finish(job.id, 1, State.DONE)
        waiting.join(PATIENCE_S)
    assert states == [State.DONE]
