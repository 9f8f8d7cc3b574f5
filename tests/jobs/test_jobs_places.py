"""Which files a job may name and write, when it is asked for, resumed, tried again and run."""

import sysconfig
from pathlib import Path
from typing import Any

import pytest

from stoker.jobs.job import Request
from stoker.jobs.places import Places
from stoker.jobs.settings import Settings

from .kit import Service, counting
from .servers import Live, running


def staged(**config: str) -> dict[str, Any]:
    return {"workload": "imagenet", "config": {"data": "s3://bucket/set", **config}}


# --- addresses --------------------------------------------------------------------------------------------


LOCAL: list[tuple[dict[str, Any], str]] = [
    (staged(stage="s3://../../../../esc"), "config.stage"),
    (staged(keep="https://../../../../esc"), "config.keep"),
    ({"workload": "imagenet", "config": {"weights": "http://../../../../etc/passwd"}}, "config.weights"),
    ({"workload": "imagenet", "config": {"data": "postgresql://h/../../etc"}}, "config.data"),
    ({"workload": "sar", "config": {"data": "s3://../../../../etc"}}, "config.data"),
    ({"workload": "vesuvius", "config": {"data": "gs://../../../../etc"}}, "config.data"),
    ({"workload": "heimdall", "config": {"database": "s3://../../../../etc/db"}}, "config.database"),
    ({"workload": "sar", "config": {"data": "file:///etc"}}, "config.data"),
    ({"workload": "sar", "config": {"data": "sqlite:////etc"}}, "config.data"),
]


def test_what_is_only_ever_local_is_no_address_elsewhere(server: Live) -> None:
    """It would be taken for a path of this machine, with its dots, and lead out of the data folders."""
    for body, field in LOCAL:
        told = server.post("/jobs", body)
        assert told.status == 422, body
        [problem] = told.json["errors"]
        assert problem["field"] == field and "path of this machine" in problem["message"]


def test_images_may_lie_in_a_store_elsewhere(server: Live) -> None:
    for scheme in ("s3", "gs", "az", "http", "https"):
        body: dict[str, Any] = {"workload": "imagenet", "config": {"data": f"{scheme}://b/c"}}
        assert server.post("/jobs", body).status == 201


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"workload": "heimdall", "config": {"database": "postgresql:///?service=a&hostaddr=h"}}, "database"),
        ({"workload": "heimdall", "config": {"database": "postgres://ann:secret@h/radio"}}, "database"),
        (staged(endpoint="http://key:secret@store:9000"), "endpoint"),
    ],
)
def test_no_request_says_to_whom_the_servers_passwords_are_sent(
    server: Live, body: dict[str, Any], field: str
) -> None:
    """A database's server and a store's endpoint are asked with what the user's files and variables hold."""
    told = server.post("/jobs", body)
    assert told.status == 422 and b"secret" not in told.raw
    [problem] = told.json["errors"]
    assert problem["field"] == f"config.{field}" and "whoever starts the server" in problem["message"]


def test_without_folders_for_data_a_job_names_no_file(tmp_path: Path) -> None:
    """Neither in the folder that the server was started in; made data and object stores it may have."""
    for config in ({"data": str(tmp_path)}, {"data": "."}):
        _, [problem] = Places().settle("sar", config, None)
        assert problem.field == "config.data" and "--data FOLDER" in problem.text
    assert Places().settle("imagenet", {"data": "s3://bucket/set"}, None)[1] == []


# --- what is written --------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["stage", "keep"])
@pytest.mark.parametrize("where", ["scripts", "scripts/set", ".", "jobs", "jobs/runs/set", "link", "site"])
def test_nothing_is_written_to_where_files_are_run_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str, where: str
) -> None:
    """A copied file could be asked for as a script; in, above, and by a link."""
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path / "site" / "packages"))
    (tmp_path / "scripts").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "scripts")
    allowed = Places(scripts=(tmp_path / "scripts",), data=(tmp_path,), root=tmp_path / "jobs")
    config = {"data": "s3://bucket/set", setting: str(tmp_path / where)}
    _, [problem] = allowed.settle("imagenet", config, None)
    assert problem.field == f"config.{setting}" and "is kept from that" in problem.text
    config[setting] = str(tmp_path / "copies")
    assert allowed.settle("imagenet", config, None) == (config, [])


def test_a_server_lets_no_job_write_into_its_own_files(server: Live) -> None:
    """Neither images nor a database that is to be filled; to read there is allowed."""
    inside = server.settings.root / "runs"
    assert server.post("/jobs", staged(stage=str(inside))).json["errors"][0]["field"] == "config.stage"
    database = f"sqlite:///{inside}/radio.db"
    filled = {"workload": "heimdall", "config": {"database": database, "fill": True}}
    assert server.post("/jobs", filled).json["errors"][0]["field"] == "config.database"
    weights = {"workload": "imagenet", "config": {"weights": str(inside / "model.safetensors")}}
    assert server.post("/jobs", weights).status == 201


# --- what was taken once ----------------------------------------------------------------------------------


def test_a_server_that_allows_less_neither_resumes_nor_retries_what_it_would_not_take(tmp_path: Path) -> None:
    """A script of a folder that is no longer allowed, data outside, a database that was another server's."""
    root, data = tmp_path / "jobs", tmp_path / "data"
    asked: list[dict[str, Any]] = [
        {"script": "scripts/count.py", "arguments": ["1", "0", "1"]},
        {"workload": "sar", "config": {"data": str(data)}},
        {"job_name": "note", "config": {"dataset_ids": ["29b7b2f4-eb9b-4e22-a77f-c03f0c4ca876"]}},
    ]
    with running(root, database="env:RADIO") as wide:
        ids = [wide.post("/jobs", body).json["id"] for body in asked]
        for id_ in ids:
            assert wide.post(f"/jobs/{id_}/cancel").status == 200
            assert wide.post(f"/jobs/{id_}/resume").status == 200
            assert wide.post(f"/jobs/{id_}/cancel").status == 200
    with running(root, scripts=(), data=(tmp_path / "other",)) as narrow:
        for id_, field in zip(ids, ("script", "config.data", "config.database"), strict=True):
            for what in ("resume", "retry"):
                told = narrow.post(f"/jobs/{id_}/{what}")
                assert (told.status, told.json["errors"][0]["field"]) == (422, field)
            assert narrow.get(f"/jobs/{id_}").json["state"] == "cancelled"


def test_a_job_that_waited_is_not_run_by_a_server_that_allows_less(tmp_path: Path) -> None:
    """A script and data that were allowed when they were asked for: it failed, and says why."""
    settings = Settings(root=tmp_path / "jobs", slots=2, data=(tmp_path / "other",))
    service = Service(settings)
    try:
        script = service.store.create(counting(steps=1))
        config = {"data": str(tmp_path / "data"), "pattern": "*.npy"}
        workload = service.store.create(Request(name="sar", workload="sar", config=config))
        service.start()
        errors = [service.wait(job).error or "" for job in (script, workload)]
    finally:
        service.close()
    assert errors[0].startswith("not allowed any more: script: this server runs no scripts")
    assert errors[1].startswith("not allowed any more: config.data: ") and "--data FOLDER" in errors[1]
    assert not (service.folder(script).training / "ran.jsonl").exists()


def test_a_script_is_listed_by_a_name_that_leads_to_it(tmp_path: Path) -> None:
    """By its folder; in full where a script of another folder has that name."""
    for folder in ("a/exp", "b/exp", "first/sub", "sub"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "t.py").write_text("")
    (tmp_path / "b/exp/alone.py").write_text("")
    folders = tuple(tmp_path / folder for folder in ("a/exp", "b/exp", "first", "sub"))
    places = Places(scripts=folders)
    whole = str(tmp_path / "b/exp/t.py")
    listed = places.list_scripts()
    assert listed == ["exp/t.py", "exp/alone.py", whole, "first/sub/t.py", "sub/t.py"]
    assert [places.name_script(str(places.find_script(name))) for name in listed] == listed
    assert len({places.find_script(name) for name in listed}) == 5
    assert places.name_script("/elsewhere/t.py") is None


def test_a_job_tells_what_it_needs_and_its_scripts_name(server: Live) -> None:
    """So that the same can be asked for again; of a workload there is no script."""
    asked = {"script": "scripts/count.py", "arguments": ["1"], "gpus": 0, "ram_bytes": 1}
    job = server.post("/jobs", asked).json
    told = server.get(f"/jobs/{job['id']}").json
    needs = {name: told[name] for name in ("script_name", "gpus", "vram_bytes", "ram_bytes")}
    assert needs == {"script_name": "scripts/count.py", "gpus": 0, "vram_bytes": None, "ram_bytes": 1}
    assert server.post("/jobs", {"workload": "sar", "config": {}}).json["script_name"] is None
