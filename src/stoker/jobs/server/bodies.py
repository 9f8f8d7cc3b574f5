"""What the API says in its OpenAPI page of what it takes and gives. Nothing is checked by these.

What is asked for is checked by `stoker.jobs.request`, against the workloads' own dataclasses; answers are
made by the values themselves.
"""

from typing import Any

from pydantic import BaseModel, Field

from stoker.jobs.states import State


class AttemptBody(BaseModel):
    """One process's part of a job."""

    number: int
    token: int
    engine: str
    handle: str | None
    created: float
    started: float | None
    ended: float | None
    outcome: State | None
    error: str | None
    first_step: int | None
    last_step: int | None


class JobBody(BaseModel):
    """A job as it stands. Times are seconds since 1970; what was not measured is null."""

    id: str = Field(pattern="^[0-9a-f]{12}$")
    number: int
    name: str
    workload: str | None
    script: str | None
    script_name: str | None = Field(description="The script as `scripts` of /workloads has it.")
    arguments: list[str]
    config: dict[str, Any]
    gpus: int = Field(description="Cards that it needs.")
    vram_bytes: int | None = Field(description="Memory that must be free on each of them.")
    ram_bytes: int | None = Field(description="Memory of the machine that must be free before it starts.")
    state: State
    position: int | None = Field(description="Place in its line, for cards or for slots; 1 is next.")
    waits_for: str | None = Field(description="Why it still waits.")
    created: float
    started: float | None
    ended: float | None
    step: int | None
    steps: int | None
    eta_s: float | None = Field(description="Seconds to the end, from the sustained rate.")
    rate: float | None = Field(description="Samples a second, sustained.")
    error: str | None
    verdict: dict[str, Any] | None = Field(description="cause, share of the step, and a sentence.")
    attempts: list[AttemptBody]
    can: dict[str, bool] = Field(description="Which of cancel, resume, retry, delete may be asked now.")
    gpu: dict[str, Any] | None
    memory: dict[str, Any] | None
    phases: dict[str, Any] | None = Field(description="Shares of the last steps.")
    doctor: str | None = Field(description="running, done, or failed and why.")
    report: bool = Field(description="Whether there is a report of the doctor's.")


class CreatedBody(JobBody):
    """A job that was made, and what its sender should know."""

    notes: list[str]


class JobsBody(BaseModel):
    """A page of the list, newest first; `next` is the `before` of the page behind it."""

    jobs: list[JobBody]
    next: int | None


class LineBody(BaseModel):
    """A line of a log."""

    id: int
    job: str
    attempt: int
    t: float
    text: str


class LinesBody(BaseModel):
    """A page of a log; `next` is the `after` of the page behind it."""

    lines: list[LineBody]
    next: int | None


class PointBody(BaseModel):
    """A point of a curve, at an absolute step."""

    id: int
    job: str
    name: str
    step: int
    value: float | None
    t: float


class PointsBody(BaseModel):
    """A page of the curves; `next` is the `after` of the page behind it."""

    points: list[PointBody]
    next: int | None


class WorkloadBody(BaseModel):
    """A workload, and the JSON schema of its config."""

    name: str
    title: str
    schema_: dict[str, Any] = Field(alias="schema")


class WorkloadsBody(BaseModel):
    """What may be asked for."""

    workloads: list[WorkloadBody]
    scripts: list[str]


class DoctorBody(BaseModel):
    """The doctor was sent for."""

    doctor: str | None


class HealthBody(BaseModel):
    """How the service is; `dispatcher` is null where the server was started without one."""

    status: str
    store: bool
    dispatcher: bool | None
    version: str
    told: list[str]


class ProblemBody(BaseModel):
    """One field that is wrong."""

    field: str
    message: str
    allowed: list[str] | None


class RefusedBody(BaseModel):
    """What is wrong with a request, field by field."""

    detail: str
    errors: list[ProblemBody]


class ErrorBody(BaseModel):
    """What is wrong."""

    detail: str


def error(told: str) -> dict[str, Any]:
    """An error's answer, for the OpenAPI page: JSON whatever the route gives otherwise."""
    return {"description": told, "content": {"application/json": {"schema": ErrorBody.model_json_schema()}}}


def refused(told: str) -> dict[str, Any]:
    """The answer to what is wrong, for the OpenAPI page."""
    schema = RefusedBody.model_json_schema()
    schema["properties"]["errors"]["items"] = schema.pop("$defs")["ProblemBody"]
    return {"description": told, "content": {"application/json": {"schema": schema}}}
