"""The API against its own OpenAPI page, by schemathesis; and 10,000 malformed bodies."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable

from .malformed import Malformed
from .servers import BASE, Live, running

schemathesis = pytest.importorskip("schemathesis")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]

EXAMPLES = int(os.environ.get("STOKER_EXAMPLES", "100"))
BODIES = int(os.environ.get("STOKER_BODIES", "10000"))


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server for all of it, with jobs that are queued and one that was cancelled."""
    with running(tmp_path_factory.mktemp("spec") / "jobs") as server:
        made = [server.post("/jobs", {"workload": "sar"}).json["id"] for _ in range(3)]
        server.post(f"/jobs/{made[0]}/cancel")
        yield server


@pytest.mark.parametrize("mode", ["positive", "negative"])
def test_every_route_answers_as_its_page_says(live: Live, mode: str) -> None:
    """Whatever is sent: no 5xx, no status or body that is not on the page, nothing taken that it forbids.

    That all is taken that the page allows is not claimed: settings bound each other, and paths must exist.
    A stream never ends by itself, and has tests of its own.
    """
    page = schemathesis.openapi.from_url(f"{live.url}{BASE}/openapi.json").exclude(path_regex="stream$")
    tried, known = [], [job["id"] for job in live.get("/jobs").json["jobs"]]
    for found in page.get_all_operations():
        operation = found.ok()
        cases = operation.as_strategy(generation_mode=schemathesis.GenerationMode(mode))

        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=cases, real=st.none() | st.sampled_from(known))
        def ask(case: Any, real: str | None) -> None:
            if real is not None and "id" in case.path_parameters and mode == "positive":
                case.path_parameters["id"] = real
            case.call_and_validate(excluded_checks=[schemathesis.checks.positive_data_acceptance])

        try:
            ask()
        except (schemathesis.errors.SchemathesisError, Unsatisfiable) as error:
            # A route without parameters or body has nothing that could be wrong.
            assert mode == "negative", f"{operation.label}: {error}"
            continue
        tried.append(operation.label)
    assert len(tried) >= (14 if mode == "positive" else 9), tried


def test_ten_thousand_malformed_bodies_make_no_5xx(live: Live) -> None:
    """Bytes, broken texts, and requests with anything anywhere; the server is well after them."""
    found = Malformed(seed=11).send(live, BODIES)
    assert sum(found.values()) == BODIES and found[422] > BODIES / 2
