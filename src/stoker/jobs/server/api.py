"""The application: routes, page, health, figures, errors as answers, and the guard around all of it."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio.to_thread
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from stoker import __version__
from stoker.errors import (
    DatabaseUnreachable,
    JobRefused,
    KeyTaken,
    MoveRefused,
    NoSuchJob,
    Problem,
    StokerError,
)
from stoker.jobs import request as asking
from stoker.jobs.server import bodies, prometheus
from stoker.jobs.server.guard import COOKIE, SESSION, Guard, Refusal, cookie_of
from stoker.jobs.server.routes import answer, make_router
from stoker.jobs.server.service import Service
from stoker.jobs.server.streams import Tailer
from stoker.jobs.states import State

# Requests that are answered at a time; others wait. Each has a connection to the database meanwhile, of which
# a server has a hundred for all who use it.
_THREADS = 16
WEB = Path(__file__).parent.parent / "web"
_STATUS: dict[type[StokerError], int] = {
    NoSuchJob: 404,
    KeyTaken: 409,
    MoveRefused: 409,
    DatabaseUnreachable: 503,
}
# What the guard may answer to anything, and the store where it is gone.
_ANYWHERE: dict[int | str, dict[str, Any]] = {
    400: bodies.error("The body ended early."),
    401: bodies.error("A token is needed."),
    403: bodies.error("From a page elsewhere."),
    408: bodies.error("The body did not come in time."),
    413: bodies.error("The body is too large."),
    415: bodies.error("The body is not JSON."),
    421: bodies.error("By a name that is not this server's."),
    422: bodies.refused("Which field is wrong, and what it may be."),
    429: bodies.error("Too often: when to come again is in Retry-After."),
    503: bodies.error("The store does not answer."),
}


class Server:
    """The application of a service, as ASGI has it; `close` ends its streams, so that it can end."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._tailer: Tailer | None = None
        self.api = FastAPI(
            title="Stoker jobs",
            version=__version__,
            summary="Training jobs: submit, queue, watch, cancel, resume.",
            openapi_url="/api/training/openapi.json",
            docs_url=None,
            redoc_url=None,
            redirect_slashes=False,
            lifespan=self._live,
        )
        self.guard = Guard(
            self.api,
            host=service.host,
            tokens=service.tokens,
            sessions=service.sessions,
            traffic=service.traffic,
            rate=service.rate,
        )
        self.api.include_router(make_router(service, self._tail), responses=_ANYWHERE)
        _add_session(self.api, service, self.guard)
        _add_figures(self.api, service, lambda: 0 if self._tailer is None else self._tailer.streams)
        _add_page(self.api)
        _add_errors(self.api)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """One request, through the guard."""
        await self.guard(scope, receive, send)

    def close(self) -> None:
        """End all streams. In the server's own loop."""
        if self._tailer is not None:
            self._tailer.close()

    def changed(self, job: str) -> None:
        """Tell the streams that a job looks different. From any thread."""
        if self._tailer is not None:
            self._tailer.tell(job)

    def _tail(self) -> Tailer:
        assert self._tailer is not None
        return self._tailer

    @contextlib.asynccontextmanager
    async def _live(self, app: FastAPI) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = _THREADS
        self._tailer = Tailer(self._service.store, self._service.show)
        reading = asyncio.create_task(self._tailer.run())
        try:
            yield
        finally:
            self._tailer.close()
            await reading


def _add_session(api: FastAPI, service: Service, guard: Guard) -> None:
    @api.post(
        SESSION, status_code=204, responses=_ANYWHERE,
        openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": {
            "type": "object", "properties": {"token": {"type": "string"}}, "required": ["token"],
            "additionalProperties": False}}}}},
    )  # fmt: skip
    async def begin_session(request: Request) -> Response:
        """Show a token, and be given a cookie that stands for it."""
        body = asking.parse(await request.body())
        if not isinstance(body, dict) or set(body) != {"token"} or not isinstance(body["token"], str):
            raise JobRefused(Problem(field="token", text='the body must be {"token": "…"}'))
        caller = request.client.host if request.client else ""
        cookie = guard.begin_session(body["token"], caller)
        if cookie is None:
            raise Refusal(status=401, told="no such token: `stoker jobs token NAME` makes one")
        done = Response(status_code=204)
        done.set_cookie(COOKIE, cookie, httponly=True, samesite="strict", secure=service.is_secure, path="/")
        return done

    @api.delete(SESSION, status_code=204, responses=_ANYWHERE)
    def end_session(request: Request) -> Response:
        """Forget the cookie."""
        service.sessions.end(cookie_of(dict(request.headers)))
        done = Response(status_code=204)
        done.delete_cookie(COOKIE, path="/")
        return done


def _add_figures(api: FastAPI, service: Service, streams: Callable[[], int]) -> None:
    store = service.store
    said: list[str] = []  # what was last wrong with the store: health is asked for every few seconds

    @api.get("/health", response_model=bodies.HealthBody, responses={503: {"model": bodies.HealthBody}})
    async def health() -> Response:
        """Whether jobs are taken and run."""
        told, is_there = [], True
        try:
            # Not in the threads that wait for a store which does not answer: it is then that this is asked.
            await asyncio.to_thread(store.last_id)
        except DatabaseUnreachable as error:
            is_there = False
            # Who asks needs no token: where the store is, and whose, is for the server's owner.
            told.append("the store does not answer: see the server's log")
            if str(error) not in said:
                said[:] = [str(error)]
                sys.stderr.write(f"stoker: {error}\n")
        dispatches = service.dispatcher()
        if dispatches is False:
            told.append("the dispatcher does not run: jobs wait until it is started again")
        status = "ok" if not told else "degraded" if is_there else "down"
        body = {
            "status": status,
            "store": is_there,
            "dispatcher": dispatches,
            "version": __version__,
            "told": told,
        }
        return answer(body, 200 if is_there else 503)

    @api.get("/metrics", response_class=Response, responses={
        200: {"content": {prometheus.KIND: {"schema": {"type": "string"}}}},
        503: bodies.error("The store does not answer."),
    })  # fmt: skip
    def metrics() -> Response:
        """The service's figures, for Prometheus."""
        running = store.jobs(state=State.RUNNING, limit=200).items
        service.traffic.streams = streams()
        text = prometheus.text_of(
            service.traffic, counts=store.counts(), running=running, dispatcher=service.dispatcher()
        )
        return Response(text, media_type=prometheus.KIND)


def _add_page(api: FastAPI) -> None:
    @api.get("/", include_in_schema=False)
    def page() -> Response:
        """The page."""
        return FileResponse(WEB / "index.html")

    api.mount("/assets", StaticFiles(directory=WEB, check_dir=False), name="assets")


def _add_errors(api: FastAPI) -> None:
    def handle(kind: type[Exception]) -> Callable[[Callable[[Any], Response]], None]:
        def take(told: Callable[[Any], Response]) -> None:
            async def handler(request: Request, error: Exception) -> Response:
                return told(error)

            api.exception_handler(kind)(handler)

        return take

    @handle(JobRefused)
    def refuse(error: JobRefused) -> Response:
        return _refused(error.problems)

    @handle(RequestValidationError)
    def refuse_parameter(error: RequestValidationError) -> Response:
        return _refused(
            tuple(
                Problem(field=str(one["loc"][-1]), text=str(one["msg"]), allowed=_allowed(one))
                for one in error.errors()
            )
        )

    @handle(StokerError)
    def tell(error: StokerError) -> Response:
        status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 500)
        return answer({"detail": str(error)}, status)

    @handle(Refusal)
    def stop(error: Refusal) -> Response:
        return answer({"detail": error.told}, error.status)

    @handle(HTTPException)
    def tell_missing(error: HTTPException) -> Response:
        told = answer({"detail": str(error.detail)}, error.status_code)
        told.headers.update(error.headers or {})
        return told


def _allowed(problem: Any) -> tuple[str, ...]:
    """What a parameter may be, where it is one of a few."""
    if problem["type"] == "enum":
        return tuple(one.value for one in State)
    return ()


def _refused(problems: tuple[Problem, ...]) -> Response:
    errors = [
        {"field": one.field, "message": one.text, "allowed": list(one.allowed) or None} for one in problems
    ]
    return answer({"detail": "; ".join(map(str, problems)), "errors": errors}, 422)
