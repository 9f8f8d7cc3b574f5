"""A jobs server from Python: ask for jobs, wait for them, read what they tell. The standard library alone.

    client = stoker.jobs.Client("http://localhost:8000")
    job = client.submit(workload="sar", config={"train": {"epochs": 3}})
    for line in job.logs(follow=True):
        print(line)
    job.result()                       # JobEnded where it failed, was cancelled or lost

A `Job` is shaped like `concurrent.futures.Future`.
"""

import contextlib
import http.client
import json
import os
import re
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stoker.errors import (
    JobEnded,
    JobRefused,
    JobsUnreachable,
    MoveRefused,
    NoSuchJob,
    Problem,
    TokenRefused,
    UsageError,
)
from stoker.jobs.states import ENDED, State

DEFAULT_URL = "http://127.0.0.1:8000"
_ANSWER_S = 60.0
# Longer than the server is ever silent on a stream.
_SILENCE_S = 45.0
# Between tries to go on with a stream: the first, and the last before it is given up, after a minute in all.
_AGAIN_S = (0.2, 30.0)
_AWAY_S = 60.0
_BASE = "/api/training"
# A header holds no other.
_WORD, _KEY = re.compile(r"[\x21-\x7e]+"), re.compile(r"[\x20-\x7e]{1,200}")


class Client:
    """One server. `url` and `token` default to $STOKER_JOBS_URL and $STOKER_JOBS_TOKEN."""

    def __init__(self, url: str | None = None, *, token: str | None = None) -> None:
        self.url = (url or os.environ.get("STOKER_JOBS_URL") or DEFAULT_URL).rstrip("/")
        self._token = token or os.environ.get("STOKER_JOBS_TOKEN")
        if not self.url.startswith(("http://", "https://")) or not _is_address(self.url):
            raise JobsUnreachable(f"no server at {self.url!r}: its address is http://HOST:PORT")
        if self._token is not None and not _WORD.fullmatch(self._token):
            raise UsageError(
                f"the token has signs or spaces that none has ({len(self._token)} characters): give it as "
                "`stoker jobs token` printed it, on one line"
            )

    def submit(
        self,
        *,
        workload: str | None = None,
        config: Mapping[str, Any] | None = None,
        script: str | None = None,
        arguments: Sequence[str] = (),
        name: str | None = None,
        key: str | None = None,
        gpus: int | None = None,
        vram_bytes: int | None = None,
        ram_bytes: int | None = None,
    ) -> "Job":
        """Ask for a job. With a `key`, asking twice makes one job. What it needs must be free first."""
        needs = {"gpus": gpus, "vram_bytes": vram_bytes, "ram_bytes": ram_bytes}
        body: dict[str, Any] = {what: value for what, value in needs.items() if value is not None}
        if workload is not None:
            body |= {"workload": workload, "config": dict(config or {})}
        if script is not None:
            body |= {"script": script, "arguments": list(arguments)}
        if name is not None:
            body["job_name"] = name
        return self.post(body, key=key)

    def post(self, body: Mapping[str, Any], *, key: str | None = None) -> "Job":
        """Ask for a job by a whole body, as the API takes it."""
        if key is not None and not _KEY.fullmatch(key):
            raise UsageError(f"the key is {key!r}: it must be 1 to 200 printable ASCII characters")
        headers = {} if key is None else {"Idempotency-Key": key}
        return self._job(self.call("POST", "/jobs", body=body, headers=headers))

    def job(self, id_: str) -> "Job":
        """A job by its id; NoSuchJob."""
        return self._job(self.call("GET", f"/jobs/{_quoted(id_)}"))

    def jobs(
        self,
        *,
        state: str | None = None,
        workload: str | None = None,
        name: str | None = None,
        limit: int = 50,
    ) -> list["Job"]:
        """Jobs, the newest first; `name` is a part of it."""
        found: list[Job] = []
        before: int | None = None
        while len(found) < limit:
            given = {
                "state": state, "workload": workload, "name": name, "before": before,
                "limit": min(200, limit - len(found)),
            }  # fmt: skip
            page = self.call("GET", "/jobs", query=given)
            if not isinstance(page, dict) or not {"jobs", "next"} <= set(page):
                raise self._strange()
            found += [self._job(one) for one in page["jobs"]]
            before = page["next"]
            if before is None:
                break
        return found

    def workloads(self) -> dict[str, Any]:
        """What may be asked for: workloads with their configs' schemas, and scripts."""
        found: Any = self.call("GET", "/workloads")
        if not isinstance(found, dict) or "workloads" not in found:
            raise self._strange()
        return found

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """One request under /api/training; its JSON. What the server refuses is raised as what it is."""
        with self._open(
            method, path, query=query, body=body, headers=headers, patience_s=_ANSWER_S
        ) as answer:
            try:
                raw = answer.read()
            except (OSError, http.client.HTTPException) as error:
                raise JobsUnreachable(f"{self.url} broke off its answer: {error}; ask again") from error
        try:
            return json.loads(raw) if raw else None
        except ValueError as error:  # a page, say, from whatever else listens there
            raise self._strange() from error

    def follow(self, path: str, *, after: int | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
        """Events of a stream, by kind and data; a stream that breaks off is gone on with where it was."""
        waits, last = _AGAIN_S[0], after
        while True:
            headers = {} if last is None else {"Last-Event-ID": str(last)}
            try:
                with self._open("GET", path, headers=headers, patience_s=_SILENCE_S) as answer:
                    for number, kind, data in _events(answer):
                        last, waits = (last if number is None else number), _AGAIN_S[0]
                        yield kind, data
            except (JobsUnreachable, OSError, http.client.HTTPException) as error:
                if waits > _AGAIN_S[1]:
                    raise JobsUnreachable(
                        f"{self.url} does not answer any more: {error}; start it again, and then ask again"
                    ) from error
            time.sleep(waits)
            waits = min(2 * waits, 2 * _AGAIN_S[1])

    def _job(self, told: Any) -> "Job":
        if not isinstance(told, dict) or not {"id", "name", "state"} <= set(told):
            raise self._strange()
        return Job(self, told)

    def _strange(self) -> JobsUnreachable:
        return JobsUnreachable(f"{self.url} answered, and not as a jobs server does: is it one?")

    @contextlib.contextmanager
    def _open(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        patience_s: float,
    ) -> Iterator[http.client.HTTPResponse]:
        given = {name: value for name, value in (query or {}).items() if value is not None}
        url = f"{self.url}{_BASE}{path}" + (f"?{urllib.parse.urlencode(given)}" if given else "")
        request = urllib.request.Request(url, method=method, headers=dict(headers or {}))
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")
        if self._token is not None:
            request.add_header("Authorization", f"Bearer {self._token}")
        try:
            answer = urllib.request.urlopen(request, timeout=patience_s)
        except urllib.error.HTTPError as error:
            with error:
                raise _refusal(error, self.url, path) from None
        except (OSError, http.client.HTTPException) as error:
            why = getattr(error, "reason", error)
            advice = (
                "If its certificate is its own, say where that is by SSL_CERT_FILE"
                if isinstance(why, ssl.SSLCertVerificationError)
                else "Start it with `stoker serve`, or name another with --url"
            )
            raise JobsUnreachable(f"no answer from {self.url}: {why}. {advice}") from error
        except ValueError as error:  # a host's name that cannot be one
            raise JobsUnreachable(
                f"no server at {self.url!r}: {error}; its address is http://HOST:PORT"
            ) from error
        with answer:
            yield answer


class Job:
    """A job of a server's; `told` is its JSON as it was last heard."""

    def __init__(self, client: Client, told: dict[str, Any]) -> None:
        self._client = client
        self.told = told

    @property
    def id(self) -> str:
        """By which the server knows it."""
        return str(self.told["id"])

    @property
    def name(self) -> str:
        """As its owner called it."""
        return str(self.told["name"])

    @property
    def state(self) -> State:
        """Where it stood when it was last heard of; `refresh` asks again."""
        return State(self.told["state"])

    def refresh(self) -> "Job":
        """Ask how it stands now."""
        self.told = self._client.call("GET", f"/jobs/{self.id}")
        return self

    def done(self) -> bool:
        """Whether it has ended, however."""
        return self.refresh().state in ENDED

    def running(self) -> bool:
        """Whether a process has it."""
        return not self.done() and self.state is not State.QUEUED

    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self.refresh().state is State.CANCELLED

    def cancel(self) -> bool:
        """Have it saved and stopped; False where it has ended already."""
        try:
            self.told = self._client.call("POST", f"/jobs/{self.id}/cancel")
        except MoveRefused:
            return False
        return True

    def resume(self) -> "Job":
        """Have it go on from its last checkpoint."""
        self.told = self._client.call("POST", f"/jobs/{self.id}/resume")
        return self

    def retry(self) -> "Job":
        """The same once more, as a new job."""
        return Job(self._client, self._client.call("POST", f"/jobs/{self.id}/retry"))

    def delete(self) -> None:
        """Have it forgotten, with its files."""
        self._client.call("DELETE", f"/jobs/{self.id}")

    def wait(self, timeout: float | None = None) -> State:
        """Until it has ended; TimeoutError where that takes longer.

        A server that is away for less than a minute, as when it is started again, is waited for too.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        pause, heard = 0.1, time.monotonic()
        while True:
            try:
                if self.done():
                    return self.state
                heard = time.monotonic()
            except JobsUnreachable:
                if time.monotonic() - heard > _AWAY_S:
                    raise
            left = pause if deadline is None else min(pause, deadline - time.monotonic())
            if left <= 0:
                raise TimeoutError(f"job {self.id} is still {self.state} after {timeout:g} s")
            time.sleep(left)
            pause = min(1.0, pause * 1.5)

    def result(self, timeout: float | None = None) -> dict[str, Any]:
        """Its JSON once it is done; JobEnded where it ended otherwise, TimeoutError where it does not end."""
        state = self.wait(timeout)
        if state is not State.DONE:
            why = self.told["error"]
            raise JobEnded(f"job {self.id} {_ENDED[state]}{f': {why}' if why else ''}")
        return self.told

    def exception(self, timeout: float | None = None) -> JobEnded | None:
        """What `result` would raise; None where it is done."""
        try:
            self.result(timeout)
        except JobEnded as error:
            return error
        return None

    def logs(self, *, follow: bool = False, last: int | None = None) -> Iterator[str]:
        """Lines of its log: those there are (or the last so many), and with `follow` those to come."""
        after = 0
        for line in self._last_lines(last) if last is not None else self._pages("logs", "lines"):
            after = line["id"]
            yield line["text"]
        if not follow:
            return
        if not self.done():
            for kind, told in self._client.follow(f"/jobs/{self.id}/stream", after=after):
                if kind == "line":
                    after = told["id"]
                    yield told["text"]
                elif kind == "deleted":
                    return
                elif kind == "state" and State(told["state"]) in ENDED:
                    break
        # It has ended: what it said last may have come after the news of that.
        for line in self._pages("logs", "lines", after=after):
            yield line["text"]

    def metrics(self) -> dict[str, list[tuple[int, float | None]]]:
        """Its curves: by name, (step, value) in the order of steps."""
        found: dict[str, list[tuple[int, float | None]]] = {}
        for point in self._pages("metrics", "points"):
            found.setdefault(point["name"], []).append((point["step"], point["value"]))
        return {name: sorted(curve, key=lambda one: one[0]) for name, curve in sorted(found.items())}

    def _pages(self, path: str, what: str, *, after: int = 0) -> Iterator[dict[str, Any]]:
        following: int | None = after
        while following is not None:
            query = {"after": following, "limit": 5000}
            page = self._client.call("GET", f"/jobs/{self.id}/{path}", query=query)
            yield from page[what]
            following = page["next"]

    def _last_lines(self, count: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._client.call(
            "GET", f"/jobs/{self.id}/logs", query={"last": count}
        )["lines"]
        return found

    def __repr__(self) -> str:
        return f"<Job {self.id} {self.name!r}: {self.state}>"


_ENDED = {State.FAILED: "failed", State.CANCELLED: "was cancelled", State.LOST: "was lost"}


def _events(answer: http.client.HTTPResponse) -> Iterator[tuple[int | None, str, dict[str, Any]]]:
    """Server-sent events: number, kind and data."""
    number, kind, data = None, "", ""
    while line := answer.readline():
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name == "id":
            number = int(value)
        elif name == "event":
            kind = value
        elif name == "data":
            data = value
        elif not line.strip() and data:
            yield number, kind, json.loads(data)
            number, kind, data = None, "", ""


def _refusal(error: urllib.error.HTTPError, url: str, path: str) -> Exception:
    """What the server says is wrong, as the error that it is."""
    strange = JobsUnreachable(f"{url} answered {error.code}, and not as a jobs server does: is it one?")
    try:
        told = json.loads(error.read())
        detail = str(told["detail"])
    except (ValueError, KeyError, TypeError, OSError, http.client.HTTPException):
        return strange
    if error.code == 404 and not path.startswith("/jobs/"):
        return strange
    if error.code == 422 and "errors" in told:
        problems = [
            Problem(field=one["field"], text=one["message"], allowed=tuple(one["allowed"] or ()))
            for one in told["errors"]
        ]
        return JobRefused(*problems)
    if error.code == 401:
        return TokenRefused(f"{url}: {detail}; give it with --token or $STOKER_JOBS_TOKEN")
    kinds: dict[int, type[Exception]] = {404: NoSuchJob, 409: MoveRefused}
    return kinds.get(error.code, JobsUnreachable)(detail)


def _is_address(url: str) -> bool:
    try:
        parts = urllib.parse.urlsplit(url)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets that do not close, a port that is no number
        return False


def _quoted(id_: str) -> str:
    return urllib.parse.quote(id_, safe="")
