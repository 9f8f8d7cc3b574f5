"""What Ray answers, and what is told of it: by answers as its client gives them, without a cluster."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from stoker.errors import EngineAway, EngineFailed
from stoker.jobs.dispatcher import Dispatcher
from stoker.jobs.engines.engine import Place
from stoker.jobs.engines.ray import RayEngine
from stoker.jobs.job import Attempt, Job, Request
from stoker.jobs.server import serving
from stoker.jobs.settings import Settings
from stoker.jobs.states import State
from stoker.jobs.store import Store
from stoker.jobs.store.holding import Holding

JOB = Job(id="0" * 12, request=Request(name="n", script="s"), state=State.STARTING, created=0.0, number=1)
ATTEMPT = Attempt(number=1, token=1, engine="ray", handle="stoker-1", created=0.0)


class Client:
    """Answers as it was told to; an error is raised."""

    def __init__(self, address: str | None = None) -> None:
        self.answers: dict[str, Any] = {"submit_job": "ok"}

    def __getattr__(self, name: str) -> Any:
        def answer(*given: Any, **named: Any) -> Any:
            told = self.answers[name]
            if isinstance(told, Exception):
                raise told
            return told

        return answer


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Ray's modules, with a client that answers as told, and the cluster's nodes."""
    nodes: dict[str, Any] = {"nodes": []}
    submission, state = ModuleType("ray.job_submission"), ModuleType("ray.util.state")
    submission.JobSubmissionClient = Client  # type: ignore[attr-defined]

    def list_nodes(**_: Any) -> list[Any]:
        if isinstance(nodes["nodes"], Exception):
            raise nodes["nodes"]
        return list(nodes["nodes"])

    state.list_nodes = list_nodes  # type: ignore[attr-defined]
    for name, module in (
        ("ray", ModuleType("ray")), ("ray.job_submission", submission),
        ("ray.util", ModuleType("ray.util")), ("ray.util.state", state),
    ):  # fmt: skip
        monkeypatch.setitem(sys.modules, name, module)
    return nodes


def answering(tmp_path: Path, **answers: Any) -> RayEngine:
    made = RayEngine(Settings(root=tmp_path, engine="ray", ray_address="http://head:8265"))
    made._client.answers.update(answers)
    return made


@pytest.mark.parametrize(
    ("error", "is_away"),
    [
        (ConnectionError("Connection refused"), True),
        (RuntimeError("Request failed with status code 503: no head."), True),
        (RuntimeError("Request failed with status code 500: the agent is gone."), True),
        (RuntimeError("Request failed with status code 400: no such field."), False),
    ],
)
@pytest.mark.usefixtures("ray")
def test_ray_that_is_away_is_not_the_jobs_fault(error: Exception, is_away: bool, tmp_path: Path) -> None:
    """A head that restarts refuses connections, or answers 5xx; what it calls wrong is wrong."""
    with pytest.raises(EngineFailed, match="Ray") as told:
        answering(tmp_path, submit_job=error).start(JOB, ATTEMPT, Place())
    assert isinstance(told.value, EngineAway) is is_away


@pytest.mark.usefixtures("ray")
def test_a_runner_that_ray_could_not_start_is_told_by_rays_message(tmp_path: Path) -> None:
    """What happened and what was printed last, in the job's own error."""
    store = Store.open(f"sqlite:///{tmp_path / 'jobs.db'}")
    job = store.create(JOB.request)
    attempt = Holding(store).claim(job.id, engine="ray")
    assert attempt is not None
    Holding(store).set_handle(job.id, attempt.token, f"stoker-{job.id}-1")
    message = "Job entrypoint command failed with exit code 127, last logs:\n/bin/sh: 1: python: not found\n"
    engine = answering(
        tmp_path,
        get_job_status=SimpleNamespace(value="FAILED"),
        get_job_info=SimpleNamespace(message=message),
        stop_job=True,
    )
    engine.find_place = lambda job, running: "not now"  # type: ignore[method-assign]
    Dispatcher(Settings(root=tmp_path, engine="ray"), store, engine).look()
    assert store.job(job.id).attempts[0].error == (
        "its process is gone; it last said: Job entrypoint command failed with exit code 127, last logs: "
        "/bin/sh: 1: python: not found"
    )
    store.close()


@pytest.mark.parametrize(
    ("info", "told"),
    [
        (SimpleNamespace(message=None), None),
        (SimpleNamespace(message="Job was intentionally stopped."), "Job was intentionally stopped."),
        (RuntimeError("404: no such job"), "Ray tells nothing of it: 404: no such job"),
    ],
)
@pytest.mark.usefixtures("ray")
def test_what_ray_tells_of_a_job_is_one_line(info: Any, told: str | None, tmp_path: Path) -> None:
    """None where it tells nothing."""
    assert answering(tmp_path, get_job_info=info).last_words(JOB, ATTEMPT) == told


def test_cards_are_the_clusters(
    ray: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A server on a head without a card still gives cards to jobs that take what there is."""
    settings = Settings(root=tmp_path, engine="ray", ray_address="http://head:8265")
    ray["nodes"] = [
        SimpleNamespace(state="ALIVE", resources_total={"CPU": 8.0}),
        SimpleNamespace(state="ALIVE", resources_total={"CPU": 8.0, "GPU": 4.0}),
        SimpleNamespace(state="DEAD", resources_total={"GPU": 8.0}),
    ]
    assert serving.count_cards(settings) == 4
    ray["nodes"] = ConnectionError("Connection refused")
    assert serving.count_cards(settings) == 0
    assert "the cards of the Ray cluster at http://head:8265: Connection refused" in capsys.readouterr().err


def test_a_runner_that_cannot_start_here_is_told_by_what_it_printed(tmp_path: Path) -> None:
    """By the end of its traceback: an environment without the package, a root that it may not read."""
    from stoker.jobs.engines.local import LocalEngine
    from stoker.jobs.folders import JobFolder

    text = JobFolder(root=tmp_path, id=JOB.id).attempt(1) / "runner.txt"
    engine = LocalEngine(Settings(root=tmp_path))
    assert engine.last_words(JOB, ATTEMPT) is None
    text.parent.mkdir(parents=True)
    text.write_text(
        "Traceback (most recent call last):\n  …\nModuleNotFoundError: No module named 'stoker'\n"
    )
    assert engine.last_words(JOB, ATTEMPT) == "ModuleNotFoundError: No module named 'stoker'"
