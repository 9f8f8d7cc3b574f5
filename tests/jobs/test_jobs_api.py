"""The HTTP API, spoken to as any program would, in front of SQLite and a real PostgreSQL."""

import re
from pathlib import Path
from typing import Any

import pytest

from stoker.jobs.states import State
from stoker.jobs.store import Store
from stoker.jobs.store.holding import Holding, Number, Report
from stoker.ward.postgres import PostgresServer
from stoker.workloads import NAMES

from .malformed import Malformed
from .servers import BASE, NOTE, Live, running

SAR = {"job_name": "patches", "workload": "sar", "config": {"train": {"epochs": 3}}}


def make(server: Live, body: Any = SAR) -> str:
    """A job's id."""
    made = server.post("/jobs", body)
    assert made.status == 201, made.raw
    return str(made.json["id"])


def end(store: Store, id_: str, outcome: State = State.FAILED) -> None:
    """Run a job to its end, as an engine would."""
    holding = Holding(store)
    attempt = holding.claim(id_, engine="test")
    assert attempt is not None
    holding.begin(id_, attempt.token, "test/1")
    holding.finish(id_, attempt.token, outcome, "it broke" if outcome is State.FAILED else None)


def hold(store: Store, id_: str) -> tuple[Holding, int]:
    """A job that runs, and how to write of it."""
    holding = Holding(store)
    attempt = holding.claim(id_, engine="test")
    assert attempt is not None
    holding.begin(id_, attempt.token, "test/1")
    return holding, attempt.token


# --- asking -----------------------------------------------------------------------------------------------


def test_the_notes_own_request_makes_a_job(stored_server: Live) -> None:
    """The body of the note's curl becomes a Heimdall training with all that it says."""
    made = stored_server.post("/jobs", NOTE)
    assert made.status == 201
    job = made.json
    assert (job["name"], job["workload"], job["state"]) == (NOTE["job_name"], "heimdall", "queued")
    config, asked = job["config"], NOTE["config"]
    assert config["dataset_ids"] == asked["dataset_ids"] and config["preload_to_gpu"] is True
    train = config["train"]
    assert (train["batch_size"], train["epochs"], train["device"]) == (256, 1000, "auto")
    assert train["optimizer"]["lr"] == 0.001
    assert "made set stands in for 29b7b2f4" in job["notes"][0]


@pytest.mark.parametrize(
    ("change", "field", "allowed"),
    [
        ({"epochs": 0}, "config.epochs", None),
        ({"batch_size": "many"}, "config.batch_size", None),
        ({"learning_rate": -1}, "config.learning_rate", None),
        ({"accelerator": "tpu"}, "config.accelerator", ["auto", "cpu", "gpu", "cuda"]),
        ({"dataset_ids": ["not a uuid"]}, "config.dataset_ids", None),
        ({"dataset_ids": 3}, "config.dataset_ids", None),
    ],
)
def test_a_wrong_value_in_the_notes_request_is_named_in_its_words(
    server: Live, change: dict[str, Any], field: str, allowed: list[str] | None
) -> None:
    """422 tells the field as the sender wrote it, and what is allowed where that can be counted."""
    told = server.post("/jobs", {**NOTE, "config": {**NOTE["config"], **change}})
    assert told.status == 422
    [problem] = told.json["errors"]
    assert (problem["field"], problem["allowed"]) == (field, allowed)
    assert problem["message"] in told.json["detail"]


@pytest.mark.parametrize(
    ("body", "field", "named"),
    [
        ({"workload": "sax"}, "workload", "heimdall"),
        ({"workload": "sar", "config": {"train": {"precision": "fp8"}}}, "config.train.precision", "bf16"),
        ({"workload": "sar", "config": {"train": {"epoch": 3}}}, "config.train.epoch", "epochs"),
        ({"workload": "sar", "config": {"tier": "tape"}}, "config.tier", "vram"),
        ({"workload": "sar", "confg": {}}, "confg", "config"),
        ({"job_name": "x"}, "workload", "sar"),
        ({"script": "elsewhere.py"}, "script", "scripts/count.py"),
        ({"workload": "sar", "config": {"data": "/etc"}}, "config.data", None),
    ],
)
def test_wrong_input_is_answered_with_the_field_and_what_is_allowed(
    server: Live, body: dict[str, Any], field: str, named: str | None
) -> None:
    """A misspelt workload, setting, value or field, and a path outside, each by its path."""
    told = server.post("/jobs", body)
    assert told.status == 422
    [problem] = told.json["errors"]
    assert problem["field"] == field
    assert problem["allowed"] if named is None else named in problem["allowed"]


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        (
            {**NOTE, "job_name": "", "more": 1, "config": {**NOTE["config"], "epochs": 0, "batch_size": "x",
             "accelerator": "tpu", "epoch": 1, "learning_rate": -1}},
            {"job_name", "more", "config.epochs", "config.batch_size", "config.accelerator", "config.epoch",
             "config.learning_rate"},
        ),
        (
            {"workload": "sar", "gpus": -1, "ram_bytes": "much", "confg": {}, "job_name": 3,
             "config": {"tier": "tape", "data": "/etc", "train": {"epochs": 0, "precision": "fp8"}}},
            {"gpus", "ram_bytes", "confg", "job_name", "config.tier", "config.data", "config.train.epochs",
             "config.train.precision"},
        ),
        ({"workload": "sax", "gpus": 1.5, "config": 3}, {"workload", "gpus"}),
        ({"script": "elsewhere.py", "arguments": "x", "gpus": None, "config": {}},
         {"script", "arguments", "gpus", "config"}),
        ({"config": {}, "name": "x"}, {"workload", "name"}),
    ],
)  # fmt: skip
def test_all_that_is_wrong_is_told_at_once(server: Live, body: dict[str, Any], fields: set[str]) -> None:
    """Field by field, so that nobody sends a request ten times to find ten mistakes."""
    told = server.post("/jobs", body)
    assert told.status == 422
    errors = told.json["errors"]
    assert sorted(one["field"] for one in errors) == sorted(fields)
    assert all(set(one) == {"field", "message", "allowed"} for one in errors)
    assert all(one["message"] in told.json["detail"] for one in errors)


def test_of_very_many_mistakes_so_many_are_told_as_a_person_reads(server: Live) -> None:
    """An answer does not grow with what somebody sends."""
    told = server.post("/jobs", {"workload": "sar", **{f"field {number}": 1 for number in range(5000)}})
    assert (told.status, len(told.json["errors"])) == (422, 50)


def test_a_hidden_password_is_not_taken_for_a_password(server: Live, tmp_path: Path) -> None:
    """Answers hide them, in settings and in arguments; a request copied from one says so."""
    url = "https://ann:secret@host/set"
    first = server.post("/jobs", {"workload": "imagenet", "config": {"data": url}}).json
    shown = first["config"]["data"]
    assert shown == "https://ann:***@host/set"
    again = server.post("/jobs", {"workload": "imagenet", "config": {"data": shown}})
    assert (again.status, again.json["errors"][0]["field"]) == (422, "config.data")
    assert "write it out" in again.json["detail"]
    words = ["--db", url, "--token", "t0p", "--api_key=k"]
    second = server.post("/jobs", {"script": "scripts/count.py", "arguments": words})
    assert second.json["arguments"] == ["--db", shown, "--token", "***", "--api_key=***"]
    assert server.store.job(second.json["id"]).request.arguments == tuple(words)
    told = server.post("/jobs", {"script": "scripts/count.py", "arguments": second.json["arguments"]})
    assert (told.status, told.json["errors"][0]["field"]) == (422, "arguments")


def test_a_path_means_the_same_to_the_job_as_to_its_sender(
    server: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job runs in its own folder: what was named from the server's is told to it in full."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "set").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "set")
    for given in ("set", "./set/../set", "link", str(tmp_path / "set")):
        made = server.post("/jobs", {"workload": "sar", "config": {"data": given}})
        assert made.json["config"]["data"] == str((tmp_path / "set").resolve()), given
    made = server.post("/jobs", {"workload": "heimdall", "config": {"database": "sqlite:///set/radio.db"}})
    assert made.json["config"]["database"] == f"sqlite:///{(tmp_path / 'set').resolve()}/radio.db"
    assert server.post("/jobs", {"workload": "sar", "config": {"data": "~nobody-here/set"}}).status == 422


def test_a_request_sent_twice_with_a_key_is_one_job(stored_server: Live) -> None:
    """The answer got lost, the client asks again: the same job. Another body under the key is refused."""
    first = stored_server.post("/jobs", SAR, **{"Idempotency-Key": "monday-1"})
    again = stored_server.post("/jobs", SAR, **{"Idempotency-Key": "monday-1"})
    assert (again.status, again.json["id"]) == (201, first.json["id"])
    other = stored_server.post("/jobs", NOTE, **{"Idempotency-Key": "monday-1"})
    assert other.status == 409 and "monday-1" in other.json["detail"]
    assert len(stored_server.get("/jobs").json["jobs"]) == 1


def test_a_script_of_an_allowed_folder_can_be_asked_for(server: Live) -> None:
    """By the name that the list of scripts has, with its arguments."""
    assert "scripts/count.py" in server.get("/workloads").json["scripts"]
    job = server.post("/jobs", {"script": "scripts/count.py", "arguments": ["3", "--fast"]}).json
    assert (job["name"], job["arguments"]) == ("count", ["3", "--fast"])
    assert job["script"].endswith("tests/jobs/scripts/count.py")


def test_malformed_bodies_are_refused_and_the_server_lives(stored_server: Live) -> None:
    """Bytes that are no JSON, JSON that is no request, requests with anything anywhere: never a 5xx."""
    Malformed(seed=7).send(stored_server, 300)


# --- looking ----------------------------------------------------------------------------------------------


def test_jobs_are_listed_newest_first_by_pages_and_filters(stored_server: Live) -> None:
    """Each job is on one page, whatever the size of pages; filters narrow by state, workload and name."""
    ids = [make(stored_server, {**SAR, "job_name": f"Run {number} 100%"}) for number in range(5)]
    ids.append(make(stored_server, NOTE))
    found, before = [], ""
    while True:
        page = stored_server.get(f"/jobs?limit=2{before}").json
        found += [job["id"] for job in page["jobs"]]
        if page["next"] is None:
            break
        before = f"&before={page['next']}"
    assert found == ids[::-1]

    def listed(query: str) -> list[str]:
        return [job["id"] for job in stored_server.get(f"/jobs?{query}").json["jobs"]]

    stored_server.post(f"/jobs/{ids[0]}/cancel")
    assert listed("state=cancelled") == [ids[0]]
    assert listed("workload=heimdall") == [ids[5]]
    assert listed("name=run%203%20100%25") == [ids[3]]
    assert listed("name=%25&workload=heimdall") == []


@pytest.mark.parametrize(
    "query",
    ["state=asleep", "limit=0", "limit=100000", "before=-1", "before=99999999999999999999", "name=%00",
     "workload=sax"],
)  # fmt: skip
def test_a_wrong_parameter_is_named(server: Live, query: str) -> None:
    """422 with the parameter; a state is answered with all there are."""
    told = server.get(f"/jobs?{query}")
    assert told.status == 422
    [problem] = told.json["errors"]
    assert problem["field"] == query.partition("=")[0]
    if problem["field"] == "state":
        assert problem["allowed"] == [state.value for state in State]


def test_a_queued_job_has_its_place(server: Live) -> None:
    """1 is next, and the others move up when it goes."""
    first, second = make(server), make(server)
    assert server.get(f"/jobs/{second}").json["position"] == 2
    server.post(f"/jobs/{first}/cancel")
    assert server.get(f"/jobs/{second}").json["position"] == 1


@pytest.mark.parametrize("id_", ["0123456789ab", "x", "..", "%2e%2e%2f", "%00", "0123456789abc", "'--"])
@pytest.mark.parametrize("path", ["", "/logs", "/metrics", "/report", "/stream"])
def test_a_job_that_is_not_there_is_404(server: Live, id_: str, path: str) -> None:
    """Whatever stands where its id should, nothing is looked up by it but a job."""
    told = server.get(f"/jobs/{id_}{path}")
    assert told.status == 404 and told.json["detail"]


def test_logs_and_curves_come_by_pages(stored_server: Live) -> None:
    """Each line and point once, in order, however large the pages; the newest lines alone by `last`."""
    id_ = make(stored_server)
    holding, token = hold(stored_server.store, id_)
    points = [Number(name="train/loss", step=step, value=1 / step, t=float(step)) for step in range(1, 11)]
    lines = [(float(number), f"line {number} <b>é") for number in range(10)]
    holding.report(id_, token, Report(points=points, lines=lines, log_from=0, log_to=100))
    for path, what, count in (("logs", "lines", 10), ("metrics", "points", 10)):
        found: list[dict[str, Any]] = []
        after: int | None = 0
        while after is not None:
            page = stored_server.get(f"/jobs/{id_}/{path}?limit=3&after={after}").json
            found += page[what]
            after = page["next"]
        assert len(found) == count and [one["id"] for one in found] == sorted({one["id"] for one in found})
    newest = stored_server.get(f"/jobs/{id_}/logs?last=2").json["lines"]
    assert [line["text"] for line in newest] == ["line 8 <b>é", "line 9 <b>é"]
    only = stored_server.get(f"/jobs/{id_}/metrics?name=train/loss&name=other").json["points"]
    assert [point["step"] for point in only] == list(range(1, 11))
    assert stored_server.get(f"/jobs/{id_}/metrics?name=other").json["points"] == []


def test_every_workload_comes_with_the_schema_of_its_config(server: Live) -> None:
    """For a form: each setting with its type, default, choices, bounds, and what the source says of it."""
    told = {one["name"]: one for one in server.get("/workloads").json["workloads"]}
    assert tuple(told) == NAMES
    train = told["sar"]["schema"]["properties"]["train"]["properties"]
    assert train["epochs"]["default"] == 4 and train["epochs"]["minimum"] == 1
    assert train["precision"]["enum"] == ["fp32", "tf32", "bf16", "fp16"]
    assert train["batch_size"]["description"].startswith("Samples in one optimizer step")
    assert train["optimizer"]["properties"]["lr"]["exclusiveMinimum"] == 0
    # Bounded by another setting, not by a number.
    assert "minimum" not in told["sar"]["schema"]["properties"]["high"]


def test_the_openapi_page_names_every_route(server: Live) -> None:
    """With the bodies that it takes, the note's own among them."""
    page = server.get("/openapi.json").json
    assert {f"{BASE}/jobs", f"{BASE}/jobs/{{id}}/stream", "/health", "/metrics"} <= set(page["paths"])
    bodies = page["paths"][f"{BASE}/jobs"]["post"]["requestBody"]["content"]["application/json"]["schema"][
        "anyOf"
    ]
    assert len(bodies) == len(NAMES) + 2


# --- states -----------------------------------------------------------------------------------------------


def test_a_job_is_cancelled_resumed_tried_again_and_deleted(stored_server: Live) -> None:
    """What its state allows is done, and told in `can`; what it does not is refused with 409."""
    id_ = make(stored_server)
    assert stored_server.ask("DELETE", f"{BASE}/jobs/{id_}").status == 409
    assert stored_server.post(f"/jobs/{id_}/resume").status == 409
    cancelled = stored_server.post(f"/jobs/{id_}/cancel")
    assert (cancelled.status, cancelled.json["state"]) == (200, "cancelled")
    assert cancelled.json["can"] == {"cancel": False, "resume": True, "retry": True, "delete": True}
    assert stored_server.post(f"/jobs/{id_}/cancel").status == 409
    assert stored_server.post(f"/jobs/{id_}/resume").json["state"] == "queued"
    end(stored_server.store, id_)
    failed = stored_server.get(f"/jobs/{id_}").json
    assert (failed["state"], failed["error"], len(failed["attempts"])) == ("failed", "it broke", 1)
    again = stored_server.post(f"/jobs/{id_}/retry")
    assert again.status == 201 and again.json["id"] != id_ and again.json["config"] == failed["config"]
    assert stored_server.ask("DELETE", f"{BASE}/jobs/{id_}").status == 204
    assert stored_server.get(f"/jobs/{id_}").status == 404


def test_the_doctor_is_sent_only_where_there_is_a_record(server: Live) -> None:
    """A job that made no step has nothing to look at: 409, and no report."""
    id_ = make(server)
    assert server.post(f"/jobs/{id_}/doctor").status == 409
    assert server.get(f"/jobs/{id_}").json["report"] is False
    assert server.get(f"/jobs/{id_}/report").status == 404


def test_a_password_in_a_config_is_not_told(tmp_path: Path) -> None:
    """Who lists jobs sees the database's name and user; the job itself has all of it."""
    url = "postgresql://ann:secret@host/radio"
    with running(tmp_path, database=url) as server:
        id_ = make(server, {"workload": "heimdall", "config": {}})
        assert b"secret" not in server.get("/jobs").raw + server.get(f"/jobs/{id_}").raw
        assert server.get(f"/jobs/{id_}").json["config"]["database"] == "postgresql://ann:***@host/radio"
        assert server.store.job(id_).request.config["database"] == url


# --- how it is --------------------------------------------------------------------------------------------


def test_health_tells_of_the_store(stored_server: Live) -> None:
    """All is well; there is no dispatcher beside this server, and that is said as null."""
    told = stored_server.ask("GET", "/health")
    assert (told.status, told.json["status"], told.json["dispatcher"]) == (200, "ok", None)


@pytest.mark.service
def test_a_store_that_is_gone_is_told_and_come_back_to(tmp_path: Path) -> None:
    """While the database is down: 503 and why, to whatever is asked. Afterwards all is as it was."""
    with PostgresServer() as database, running(tmp_path / "jobs", store=database.url) as server:
        id_ = make(server)
        database.stop()
        health = server.ask("GET", "/health")
        assert (health.status, health.json["status"], health.json["store"]) == (503, "down", False)
        asked = [
            server.get("/jobs"),
            server.get(f"/jobs/{id_}"),
            server.post("/jobs", SAR),
            server.get("/stream"),
        ]
        asked += [server.ask("GET", "/metrics"), server.post(f"/jobs/{id_}/cancel")]
        assert [one.status for one in asked] == [503] * 6
        assert all("no connection" in one.json["detail"] for one in asked)
        database.start()
        assert server.get(f"/jobs/{id_}").json["state"] == "queued"
        assert server.ask("GET", "/health").json["status"] == "ok"


def test_prometheus_reads_the_figures(server: Live) -> None:
    """Jobs by state, requests and their times, in its text format; what was not measured has no line."""
    make(server)
    text = server.ask("GET", "/metrics").raw.decode()
    assert 'stoker_jobs{state="queued"} 1' in text
    assert 'stoker_jobs_requests_total{method="POST",route="/api/training/jobs",status="201"} 1' in text
    assert "stoker_jobs_dispatcher_up" not in text
    line = re.compile(r"(# (HELP|TYPE) \w+ .+|\w+\{([a-z]+=\"[^\"]*\",?)*\} \S+)")
    assert all(line.fullmatch(one) for one in text.splitlines())
