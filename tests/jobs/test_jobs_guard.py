"""Who may ask, from where, how much and how often; and what a browser may do with the answers."""

import contextlib
import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from stoker.errors import JobRefused, UsageError
from stoker.jobs.places import Places
from stoker.jobs.request import Policy, parse, read
from stoker.jobs.server.guard import MOST_BODY_BYTES, check_bind, is_loopback
from stoker.jobs.server.limits import Buckets
from stoker.jobs.server.tokens import NAME, TokenFile

from .kit import SCRIPTS
from .servers import BASE, Live, running

SAR = {"workload": "sar"}


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[tuple[Live, str]]:
    """A server that demands a token, and one."""
    token = TokenFile(tmp_path / "jobs" / NAME).add("ann")
    with running(tmp_path / "jobs") as live:
        yield live, token


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


# --- the address ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "example.org"])
def test_an_address_that_others_reach_demands_a_token(tmp_path: Path, host: str) -> None:
    """Without one the server does not start, and says how to make one; with one it may."""
    tokens = TokenFile(tmp_path / NAME)
    with pytest.raises(UsageError, match="stoker jobs token"):
        check_bind(host, tokens)
    tokens.add("ann")
    check_bind(host, tokens)


def test_loopback_needs_none(tmp_path: Path) -> None:
    """By whatever name."""
    for host in ("127.0.0.1", "127.0.0.9", "::1", "localhost"):
        assert is_loopback(host)
        check_bind(host, TokenFile(tmp_path / NAME))


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", ""])
def test_a_name_elsewhere_that_leads_here_is_not_answered(server: Live, host: str) -> None:
    """A page whose name was made to point at this machine gets nothing, whatever it asks for."""
    for path in ("/", f"{BASE}/jobs", "/health"):
        assert server.ask("GET", path, headers={"Host": host}).status == 421
    assert server.ask("GET", "/health", headers={"Host": f"localhost:{server.port}"}).status == 200


# --- tokens -----------------------------------------------------------------------------------------------


def test_once_there_is_a_token_it_is_demanded(guarded: tuple[Live, str]) -> None:
    """Of the API, streams and figures; the page and health are open, to ask for it and to be seen."""
    server, token = guarded
    for path in (f"{BASE}/jobs", f"{BASE}/stream", f"{BASE}/workloads", f"{BASE}/openapi.json", "/metrics"):
        told = server.ask("GET", path)
        assert (told.status, told.headers["www-authenticate"]) == (401, "Bearer")
    assert server.ask("GET", f"{BASE}/jobs", headers=bearer(token)).status == 200
    assert server.ask("GET", "/metrics", headers=bearer(token)).status == 200
    assert server.ask("GET", "/health").status == 200
    assert server.ask("POST", f"{BASE}/jobs", SAR).status == 401
    assert server.ask("POST", f"{BASE}/jobs", SAR, bearer(token)).status == 201


def test_only_digests_of_tokens_are_kept(tmp_path: Path) -> None:
    """Nobody who reads the file can use it, and nobody but its owner can read it."""
    tokens = TokenFile(tmp_path / NAME)
    token = tokens.add("ann")
    assert token not in tokens.path.read_text()
    assert tokens.path.stat().st_mode & 0o077 == 0
    assert tokens.is_good(token) and not tokens.is_good(token[:-1]) and not tokens.is_good("")
    with pytest.raises(UsageError, match="another name"):
        tokens.add("ann")


def test_a_token_is_taken_back_by_removing_its_line(guarded: tuple[Live, str]) -> None:
    """At once, with the server running; a session that stood for it ends too."""
    server, token = guarded
    cookie = begin_session(server, token)
    path = server.settings.root / NAME
    TokenFile(path).add("bob")
    assert server.ask("GET", f"{BASE}/jobs", headers=bearer(token)).status == 200
    kept = [line for line in path.read_text().splitlines() if not line.startswith("ann ")]
    path.write_text("\n".join(kept))
    assert server.ask("GET", f"{BASE}/jobs", headers=bearer(token)).status == 401
    assert server.ask("GET", f"{BASE}/jobs", headers={"Cookie": cookie}).status == 401


@pytest.mark.parametrize("raw", [b"ann\n", b"ann sha256 short\n", b"\xff\x00"])
def test_tokens_that_cannot_be_read_let_nobody_in(
    guarded: tuple[Live, str], raw: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    """Not even the right one; what is wrong stands in the server's log, once, and not in its answers."""
    server, token = guarded
    path = server.settings.root / NAME
    good = path.read_bytes()
    path.write_bytes(good + raw)
    for where in (f"{BASE}/jobs", "/health", "/"):
        told = server.ask("GET", where, headers=bearer(token))
        assert told.status == 503 and str(path) not in told.raw.decode()
    assert capfd.readouterr().err.count(f"line 2 of {path} is no token") == 1
    path.write_bytes(good)
    assert server.ask("GET", f"{BASE}/jobs", headers=bearer(token)).status == 200


def test_wrong_tokens_are_few(guarded: tuple[Live, str]) -> None:
    """After ten of them a caller waits, with a right one too: guessing gets nowhere."""
    server, token = guarded
    answers = [server.ask("GET", f"{BASE}/jobs", headers=bearer("wrong")).status for _ in range(12)]
    assert answers == [401] * 10 + [429] * 2
    told = server.ask("GET", f"{BASE}/jobs", headers=bearer(token))
    assert told.status == 429 and int(told.headers["retry-after"]) > 0


def begin_session(server: Live, token: str) -> str:
    """A browser's cookie for a token."""
    told = server.post("/session", {"token": token})
    assert told.status == 204
    given = told.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= {part.strip() for part in given.split(";")}
    return given.partition(";")[0]


def test_a_browser_shows_its_token_once(guarded: tuple[Live, str]) -> None:
    """And has a cookie after that, until it is given back; a wrong token gets none."""
    server, token = guarded
    assert server.post("/session", {"token": "wrong"}).status == 401
    cookie = begin_session(server, token)
    assert server.ask("GET", f"{BASE}/jobs", headers={"Cookie": cookie}).status == 200
    assert server.ask("DELETE", f"{BASE}/session", headers={"Cookie": cookie}).status == 204
    assert server.ask("GET", f"{BASE}/jobs", headers={"Cookie": cookie}).status == 401


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"token": 3}', b'{"token": "\\ud800"}', b"\xff"])
def test_a_session_asked_for_wrongly_is_refused(guarded: tuple[Live, str], body: bytes) -> None:
    """With 422, not with an error of the server's."""
    server, _ = guarded
    assert server.ask("POST", f"{BASE}/session", body, {"Content-Type": "application/json"}).status == 422


# --- pages elsewhere --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:1"},
        {"Origin": "http://[broken"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_a_page_elsewhere_cannot_change_anything(guarded: tuple[Live, str], headers: dict[str, str]) -> None:
    """With a browser's cookie or without a token at all; a program with a token may come from anywhere."""
    server, token = guarded
    session = {"Cookie": begin_session(server, token)}
    id_ = server.ask("POST", f"{BASE}/jobs", SAR, bearer(token)).json["id"]
    assert server.ask("POST", f"{BASE}/jobs", SAR, {**session, **headers}).status == 403
    assert server.ask("POST", f"{BASE}/jobs/{id_}/cancel", headers={**session, **headers}).status == 403
    assert server.ask("DELETE", f"{BASE}/jobs/{id_}", headers={**session, **headers}).status == 403
    assert server.ask("POST", f"{BASE}/jobs", SAR, {**bearer(token), **headers}).status == 201


def test_our_own_page_may(server: Live) -> None:
    """Its origin is the server's own."""
    own = {"Origin": f"http://127.0.0.1:{server.port}", "Sec-Fetch-Site": "same-origin"}
    assert server.ask("POST", f"{BASE}/jobs", SAR, own).status == 201


@pytest.mark.parametrize(
    "kind", ["application/x-www-form-urlencoded", "text/plain", "multipart/form-data; boundary=x", ""]
)
def test_what_a_form_can_send_is_not_taken(server: Live, kind: str) -> None:
    """A body is JSON and says so."""
    told = server.ask("POST", f"{BASE}/jobs", json.dumps(SAR).encode(), {"Content-Type": kind})
    assert told.status == 415 and "application/json" in told.json["detail"]


# --- how much ---------------------------------------------------------------------------------------------


def test_a_body_has_a_limit(server: Live) -> None:
    """By what it says it has, and by what comes where it does not say."""
    large = b" " * (MOST_BODY_BYTES + 1)
    kind = {"Content-Type": "application/json"}
    assert server.ask("POST", f"{BASE}/jobs", large, kind).status == 413
    with contextlib.closing(server.connect()) as connection:
        connection.request("POST", f"{BASE}/jobs", iter([large]), kind, encode_chunked=True)
        assert connection.getresponse().status == 413
    assert server.ask("POST", f"{BASE}/jobs", SAR).status == 201


def test_a_body_that_ends_early_harms_nobody(server: Live) -> None:
    """A caller that hangs up in the middle of its body."""
    with socket.create_connection(("127.0.0.1", server.port)) as half:
        half.sendall(
            b"POST /api/training/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 1000\r\n\r\n{"
        )
    assert server.ask("GET", "/health").status == 200
    assert server.get("/jobs").json["jobs"] == []


def test_a_caller_that_asks_too_often_waits(tmp_path: Path) -> None:
    """429 with how long; figures count them."""
    with running(tmp_path / "jobs", rate=0.001) as server:
        found = {server.ask("GET", "/health").status for _ in range(1010)}
        told = server.ask("GET", "/health")
    assert found == {200, 429} and told.status == 429 and int(told.headers["retry-after"]) >= 1


def test_a_bucket_fills_again() -> None:
    """So many at once, then one each time that one has come in; each caller for itself."""
    now = 0.0
    buckets = Buckets(rate=2.0, burst=3, clock=lambda: now)
    assert [buckets.take("ann") for _ in range(4)] == [0, 0, 0, 0.5]
    assert (buckets.take("bob"), buckets.peek("ann"), buckets.peek("cleo")) == (0, 0.5, 0)
    now = 0.5
    assert [buckets.take("ann") for _ in range(2)] == [0, 0.5]
    now = 1000.0
    assert [buckets.take("ann") for _ in range(4)] == [0, 0, 0, 0.5]


# --- what a browser may do --------------------------------------------------------------------------------


def test_every_answer_tells_a_browser_what_it_may_not(server: Live) -> None:
    """No script but the server's own, no frame around it, no guessing of types; also on errors."""
    for path in ("/", f"{BASE}/jobs", f"{BASE}/jobs/none", "/nowhere"):
        headers = server.ask("GET", path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert "frame-ancestors 'none'" in policy


@pytest.mark.parametrize(
    "path",
    ["/assets/../api.py", "/assets/%2e%2e/server/api.py", "/assets/..%2fserver%2fapi.py",
     "/assets//etc/passwd", "/assets/%00", "/..%2f..%2fetc/passwd"],
)  # fmt: skip
def test_no_path_leaves_the_pages_folder(server: Live, path: str) -> None:
    """However it is written."""
    assert server.ask("GET", path).status in (404, 405)


# --- what may be named ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "how", ["../outside.py", "link.py", "folder/../../outside.py", "/etc/passwd", "a\x00.py"]
)
def test_a_script_outside_the_allowed_folders_is_never_found(tmp_path: Path, how: str) -> None:
    """By dots, by a link, by its whole path."""
    allowed = tmp_path / "allowed"
    (allowed / "folder").mkdir(parents=True)
    (tmp_path / "outside.py").write_text("")
    (allowed / "link.py").symlink_to(tmp_path / "outside.py")
    (allowed / "good.py").write_text("")
    policy = Policy(places=Places(scripts=(allowed,)))
    assert read({"script": "allowed/good.py"}, policy).request.script == str(allowed / "good.py")
    assert read({"script": str(allowed / "good.py")}, policy).request.script == str(allowed / "good.py")
    with pytest.raises(UsageError, match="no script"):
        read({"script": how}, policy)


def test_without_an_allowed_folder_there_are_no_scripts() -> None:
    """And it is said how to allow one."""
    with pytest.raises(UsageError, match="stoker serve --scripts"):
        read({"script": str(SCRIPTS / "count.py")}, Policy(places=Places()))


@pytest.mark.parametrize(
    "body",
    [
        {"workload": "sar", "config": {"data": "{root}/../elsewhere"}},
        {"workload": "sar", "config": {"data": "{root}/link"}},
        {"workload": "sar", "config": {"data": "{root}", "pattern": "../*.npy"}},
        {"workload": "imagenet", "config": {"data": "s3://b/c", "keep": "/usr/lib"}},
        {"workload": "imagenet", "config": {"weights": "~/secret.pt"}},
        {"workload": "heimdall", "config": {"database": "sqlite:////etc/passwd"}},
        {"workload": "heimdall", "config": {"database": "env:AWS_SECRET_ACCESS_KEY"}},
    ],
)
def test_a_config_names_no_place_outside_the_data_folders(tmp_path: Path, body: dict[str, object]) -> None:
    """Neither to read nor to write, nor a variable of the server's; inside it may."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "link").symlink_to("/etc")
    policy = Policy(places=Places(data=(tmp_path / "data",)))
    inside = {"workload": "sar", "config": {"data": str(tmp_path / "data" / "set")}}
    assert read(inside, policy).request.workload == "sar"
    with pytest.raises(UsageError, match=r"config\."):
        read(json.loads(json.dumps(body).replace("{root}", str(tmp_path / "data"))), policy)


def test_the_servers_own_database_may_be_a_variable() -> None:
    """Whoever starts the server may hide it there; requests leave it out."""
    policy = Policy(places=Places(), database="env:RADIO")
    asked = read({"job_name": "x", "config": {"dataset_ids": ["a", "b"]}}, policy)
    assert asked.request.config["database"] == "env:RADIO" and not asked.notes


@pytest.mark.parametrize(
    ("config", "database", "said"),
    [
        ({}, "env:RADIO", None),
        ({"dataset_ids": ["a"], "train": {"epochs": 3}}, "env:RADIO", None),
        ({"made": {"samples": 64}}, None, "the server's database is for those who leave out"),
        ({"database": None}, None, "a made set stands in"),
        ({"database": "env:RADIO"}, "env:RADIO", None),
    ],
)
def test_a_heimdall_job_has_the_servers_database_however_it_is_asked_for(
    config: dict[str, object], database: str | None, said: str | None
) -> None:
    """By the workload's name as by the note's body; who gets made data instead is told."""
    body = {"workload": "heimdall", "config": config}
    asked = read(body, Policy(places=Places(), database="env:RADIO"))
    assert asked.request.config["database"] == database
    assert [said is not None and said in note for note in asked.notes] == [True] * (said is not None)
    [told] = read({"workload": "heimdall"}, Policy(places=Places())).notes
    assert "the server has no database" in told
    with pytest.raises(UsageError, match="fill"):  # nobody fills the server's own
        read(
            {"workload": "heimdall", "config": {"fill": True}}, Policy(places=Places(), database="env:RADIO")
        )


@pytest.mark.parametrize(
    ("asked", "field", "number"),
    [
        ({"workload": "sar", "gpus": 8}, "gpus", "has 1"),
        ({"workload": "sar", "config": {"train": {"device": "cuda", "devices": 2}}}, "config.train.devices",
         "has 1"),
        ({"script": "scripts/count.py", "gpus": 2}, "gpus", "has 1"),
        ({"workload": "sar", "ram_bytes": 1 << 50}, "ram_bytes", f"has {64 << 30} bytes"),
    ],
)  # fmt: skip
def test_what_the_machine_never_has_is_not_waited_for(
    asked: dict[str, object], field: str, number: str
) -> None:
    """Such a job would hold up all that wait behind it; on a cluster it is the cluster's to say."""
    policy = Policy(places=Places(scripts=(SCRIPTS,)), cards=1, most_gpus=1, most_ram_bytes=64 << 30)
    with pytest.raises(JobRefused) as refused:
        read(asked, policy)
    [problem] = refused.value.problems
    assert problem.field == field and number in problem.text
    assert read(asked, replace(policy, most_gpus=None, most_ram_bytes=None)).request.name
    assert read({**asked, "gpus": 1, "ram_bytes": 1}, policy).request.gpus == 1


def test_a_server_knows_what_its_machine_has(server: Live) -> None:
    """A pebibyte is none's."""
    told = server.post("/jobs", {"workload": "sar", "ram_bytes": 1 << 50})
    assert (told.status, told.json["errors"][0]["field"]) == (422, "ram_bytes")


def test_json_is_taken_strictly() -> None:
    """No constants that JSON has not, no half of a character, nothing that would break a reader."""
    for raw in (
        b"NaN",
        b"[1e999, -Infinity]",
        b'"\\ud800"',
        b'{"a\\u0000": 1}',
        b"\xff",
        b"[" * 10**6,
        b"9" * 5000,
    ):
        with pytest.raises(UsageError):
            read(parse(raw), Policy(places=Places()))
