"""The routes under /api/training. Each asks the store, in a thread, and tells what it says."""

import asyncio
import hashlib
import json
import re
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query, Request, Response
from fastapi.responses import HTMLResponse, StreamingResponse
from starlette.concurrency import run_in_threadpool

from stoker.errors import JobRefused, NoSuchJob, Problem
from stoker.jobs import request as asking
from stoker.jobs.folders import JobFolder
from stoker.jobs.job import Job
from stoker.jobs.server import bodies
from stoker.jobs.server.guard import REPORT_POLICY, Refusal
from stoker.jobs.server.service import Service, workloads
from stoker.jobs.server.streams import Tailer, dumps
from stoker.jobs.states import State
from stoker.workloads import NAMES

MOST_STREAMS = 200
_ID = re.compile(r"[0-9a-f]{12}")
# The largest whole number that both databases hold.
_MOST = (1 << 63) - 1
_PRINTABLE = r"^[\x20-\x7e]+$"
_NO_CONTROL = r"^[^\x00-\x1f\x7f]*$"

Write = Callable[[Callable[[], Response]], Awaitable[Response]]
# Told on the page and not checked by it: what is no id is no job's, and 404 like one that is gone.
Id = Annotated[str, Path(json_schema_extra={"pattern": f"^{_ID.pattern}$"})]
After = Annotated[int, Query(ge=0, le=_MOST, description="The id of the last one known.")]
Resumed = Annotated[int | None, Query(ge=0, le=_MOST, description="Go on behind this id; 0 tells all.")]
LastEvent = Annotated[
    int | None, Header(ge=0, le=_MOST, description="As `after`; a browser sends it itself.")
]
Key = Annotated[
    str | None,
    Header(alias="Idempotency-Key", min_length=1, max_length=200, pattern=_PRINTABLE,
           description="The same key with the same body gives the job made first."),
]  # fmt: skip
Name = Annotated[str | None, Query(max_length=200, pattern=_NO_CONTROL, description="A part of the name.")]
Workload = Annotated[str | None, Query(json_schema_extra={"enum": list(NAMES)})]
Before = Annotated[int | None, Query(ge=0, le=_MOST, description="The `next` of the page before.")]

_STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Server-sent events.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}
_MISSING: dict[int | str, dict[str, Any]] = {404: bodies.error("No such job.")}
_CONFLICT: dict[int | str, dict[str, Any]] = {409: bodies.error("Not in this state.")}


def answer(value: Any, status: int = 200) -> Response:
    """A value as JSON."""
    return Response(dumps(value), status, media_type="application/json")


def make_router(service: Service, tailer: Callable[[], Tailer]) -> APIRouter:
    """All of them."""
    router = APIRouter(prefix="/api/training")
    turn = asyncio.Lock()

    async def write(call: Callable[[], Response]) -> Response:
        """Writers follow one another in the store: here they wait for it in a line, not each in a thread."""
        async with turn:
            return await run_in_threadpool(call)

    _add_jobs(router, service, write)
    _add_asking(router, service, write)
    _add_reading(router, service)
    _add_streams(router, service, tailer)
    return router


def _add_jobs(router: APIRouter, service: Service, write: Write) -> None:
    store, show = service.store, service.show

    @router.post(
        "/jobs", status_code=201, response_model=bodies.CreatedBody, responses=_CONFLICT,
        openapi_extra={"requestBody": _asked()},
    )  # fmt: skip
    async def create(request: Request, key: Key = None) -> Response:
        """Ask for a job: a workload with its config, a script, or the field note's own body."""
        raw = await request.body()

        def look() -> asking.Reading | Job:
            """What is asked for; with a key, first the job that it made, whatever is allowed by now."""
            body = asking.parse(raw)
            known = None if key is None else store.made_by(key, _digest(body))
            return known or asking.read(body, service.policy)

        reading = await run_in_threadpool(look)
        if isinstance(reading, Job):
            notes = asking.notes_of(reading.request, service.policy)
            return answer({**show(reading), "notes": list(notes)}, 201)

        def make() -> Response:
            digest = None if key is None else _digest(asking.parse(raw))
            made = store.create(reading.request, key=key, digest=digest)
            return answer({**show(made), "notes": list(reading.notes)}, 201)

        return await write(make)

    @router.get("/jobs", response_model=bodies.JobsBody)
    def list_jobs(
        state: State | None = None,
        workload: Workload = None,
        name: Name = None,
        before: Before = None,
        limit: Annotated[int, Query(ge=1, le=200)] = 50,
    ) -> Response:
        """Jobs, the newest first."""
        if workload is not None and workload not in NAMES:
            raise JobRefused(Problem(field="workload", text=f"no workload {workload!r:.100}", allowed=NAMES))
        found = store.jobs(state=state, workload=workload, name=name, before=before, limit=limit)
        return answer({"jobs": [show(one) for one in found.items], "next": found.next})

    @router.get("/jobs/{id}", response_model=bodies.JobBody, responses=_MISSING)
    def show_job(id: Id) -> Response:
        """A job as it stands, with its place in the queue and its ETA."""
        return answer(show(store.job(_known(id))))

    @router.delete("/jobs/{id}", status_code=204, responses={**_MISSING, **_CONFLICT})
    async def delete(id: Id) -> Response:
        """Forget a job that has ended, with its files."""

        def forget() -> Response:
            store.delete(_known(id))
            return Response(status_code=204)

        return await write(forget)


def _add_asking(router: APIRouter, service: Service, write: Write) -> None:
    store, show = service.store, service.show
    told: dict[int | str, dict[str, Any]] = {**_MISSING, **_CONFLICT}

    def allowed(id_: str) -> str:
        """A job that this server would take now: it may have been started with less since."""
        service.policy.check(store.job(_known(id_)).request)
        return id_

    @router.post("/jobs/{id}/cancel", response_model=bodies.JobBody, responses=told)
    async def cancel(id: Id) -> Response:
        """Stop a job; what it has learnt is saved first."""
        return await write(lambda: answer(show(store.ask_cancel(_known(id)))))

    @router.post("/jobs/{id}/resume", response_model=bodies.JobBody, responses=told)
    async def resume(id: Id) -> Response:
        """Queue a job again that failed, was cancelled or lost; it goes on from its last checkpoint."""
        return await write(lambda: answer(show(store.ask_resume(allowed(id)))))

    @router.post("/jobs/{id}/retry", status_code=201, response_model=bodies.JobBody, responses=told)
    async def retry(id: Id) -> Response:
        """The same request as a new job, from its beginning."""
        return await write(lambda: answer(show(store.retry(allowed(id))), 201))

    @router.post("/jobs/{id}/doctor", status_code=202, response_model=bodies.DoctorBody, responses=told)
    def doctor(id: Id) -> Response:
        """Have the doctor look at the job's record, and write a report."""
        service.doctor.ask(store.job(_known(id)))
        return answer({"doctor": service.doctor.told(id)}, 202)


def _add_reading(router: APIRouter, service: Service) -> None:
    store = service.store

    @router.get("/jobs/{id}/logs", response_model=bodies.LinesBody, responses=_MISSING)
    def logs(
        id: Id,
        after: After = 0,
        limit: Annotated[int, Query(ge=1, le=5000)] = 1000,
        last: Annotated[int | None, Query(ge=1, le=5000, description="Only the newest so many.")] = None,
    ) -> Response:
        """Lines of a job's log, in their order."""
        _known(id)
        found = (
            store.lines(id, after=after, limit=limit) if last is None else store.last_lines(id, limit=last)
        )
        if not found.items:  # nothing printed, or nobody there
            store.check(id)
        return answer({"lines": [one.to_json() for one in found.items], "next": found.next})

    @router.get("/jobs/{id}/metrics", response_model=bodies.PointsBody, responses=_MISSING)
    def metrics(
        id: Id,
        after: After = 0,
        limit: Annotated[int, Query(ge=1, le=5000)] = 1000,
        name: Annotated[list[str] | None, Query(max_length=50, description="Only these curves.")] = None,
    ) -> Response:
        """Points of a job's curves, in the order they came; a step's newer value replaces the older."""
        _known(id)
        if any(not re.fullmatch(_NO_CONTROL, one) for one in name or ()):
            raise JobRefused(Problem(field="name", text="a curve's name has no control characters"))
        found = store.points(id, after=after, names=name, limit=limit)
        if not found.items:
            store.check(id)
        return answer({"points": [one.to_json() for one in found.items], "next": found.next})

    @router.get(
        "/jobs/{id}/report", response_class=HTMLResponse,
        responses={404: bodies.error("No such job, or no report of it.")},
    )  # fmt: skip
    def report(id: Id) -> Response:
        """The doctor's page. Nothing in it may run."""
        store.check(_known(id))
        place = JobFolder(root=service.root, id=id).report
        try:
            text = place.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise NoSuchJob(f"job {id} has no report: ask for one with POST …/doctor") from None
        return HTMLResponse(text, headers={"content-security-policy": REPORT_POLICY})

    @router.get("/workloads", response_model=bodies.WorkloadsBody)
    def list_workloads() -> Response:
        """What may be asked for: workloads with their configs' schemas, and the scripts that are allowed."""
        return answer({"workloads": workloads(), "scripts": service.policy.places.list_scripts()})


def _add_streams(router: APIRouter, service: Service, tailer: Callable[[], Tailer]) -> None:
    def stream(job: str | None, after: int | None) -> Response:
        if tailer().streams >= MOST_STREAMS:
            raise Refusal(status=503, told=f"{MOST_STREAMS} streams are open already: close some")
        # A proxy before the server passes on what there is, at once.
        headers = {"x-accel-buffering": "no"}
        return StreamingResponse(tailer().follow(job, after), media_type="text/event-stream", headers=headers)

    @router.get("/jobs/{id}/stream", response_class=StreamingResponse, responses={**_MISSING, **_STREAM})
    async def follow(id: Id, after: Resumed = None, last_event_id: LastEvent = None) -> Response:
        """All that happens to a job: events `state`, `point`, `line` and `deleted`."""
        await asyncio.to_thread(service.store.check, _known(id))
        return stream(id, after if last_event_id is None else last_event_id)

    @router.get("/stream", response_class=StreamingResponse, responses=_STREAM)
    async def follow_all(after: Resumed = None, last_event_id: LastEvent = None) -> Response:
        """The state and progress of all jobs: events `state` and `deleted`."""
        await asyncio.to_thread(service.store.last_id)
        return stream(None, after if last_event_id is None else last_event_id)


def _digest(body: Any) -> str:
    """Of a body as it was sent, in whatever order its fields are."""
    told = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(told.encode()).hexdigest()


def _known(id_: str) -> str:
    """An id that could be one; a database is asked for no other."""
    if not _ID.fullmatch(id_):
        raise NoSuchJob(f"no job {id_!r:.100}: an id has 12 hexadecimal digits")
    return id_


def _asked() -> dict[str, Any]:
    """The bodies that POST /jobs takes, for the OpenAPI page."""
    name = {"type": "string", "minLength": 1, "maxLength": 200}
    size = {"type": "integer", "minimum": 0}
    needs = {"gpus": {**size, "maximum": 1024}, "vram_bytes": size, "ram_bytes": size}
    kinds = [
        _object(
            {"job_name": name, "workload": {"const": one["name"]}, "config": one["schema"], **needs},
            "workload",
        )
        for one in workloads()
    ]
    arguments = {"type": "array", "items": {"type": "string", "maxLength": 4096}, "maxItems": 200}
    kinds.append(
        _object({"job_name": name, "script": {"type": "string"}, "arguments": arguments, **needs}, "script")
    )
    note = {
        "dataset_ids": {"type": "array", "items": {"type": "string"}},
        "batch_size": {"type": "integer", "minimum": 1},
        "epochs": {"type": "integer", "minimum": 1},
        "learning_rate": {"type": "number", "exclusiveMinimum": 0},
        "preload_to_gpu": {"type": "boolean"},
        "accelerator": {"enum": ["auto", "cpu", "gpu", "cuda"]},
        "num_workers": {"type": "integer"},
    }
    kinds.append(_object({"job_name": name, "config": _object(note)}, "job_name", "config"))
    return {"required": True, "content": {"application/json": {"schema": {"anyOf": kinds}}}}


def _object(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    found = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**found, "required": list(required)} if required else found
