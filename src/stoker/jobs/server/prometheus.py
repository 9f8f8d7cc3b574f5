"""The service's own figures, in Prometheus' text format. What was not measured has no line."""

import threading
import time
from collections.abc import Mapping

from stoker.jobs.job import Job
from stoker.jobs.states import State
from stoker.watch.prometheus import Page

KIND = "text/plain; version=0.0.4; charset=utf-8"
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Traffic:
    """Requests that were answered, by what was asked. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str, int], int] = {}
        self._within = [0] * len(_BOUNDS_S)
        self._sum_s, self._number = 0.0, 0
        self.streams = 0
        self.began = time.time()

    def add(self, method: str, route: str, status: int, seconds: float) -> None:
        """One more. A stream's time is the time that it was open, and is left out of the others'."""
        with self._lock:
            key = (method if method in _METHODS else "other", route, status)
            self._counts[key] = self._counts.get(key, 0) + 1
            if route.endswith("/stream"):
                return
            self._sum_s += seconds
            self._number += 1
            for at, bound in enumerate(_BOUNDS_S):
                self._within[at] += seconds <= bound

    def put(self, page: Page) -> None:
        """All of it, on a page."""
        with self._lock:
            for (method, route, status), count in sorted(self._counts.items()):
                labels: dict[str, str | int] = {"method": method, "route": route, "status": status}
                page.add("stoker_jobs_requests_total", "counter", "Requests answered.", count, labels)
            name, told = "stoker_jobs_request_seconds", "How long answers took, streams apart."
            for bound, count in zip(_BOUNDS_S, self._within, strict=True):
                page.add(name, "histogram", told, count, {"le": f"{bound:g}"}, suffix="_bucket")
            page.add(name, "histogram", told, self._number, {"le": "+Inf"}, suffix="_bucket")
            page.add(name, "histogram", told, self._sum_s, {}, suffix="_sum")
            page.add(name, "histogram", told, self._number, {}, suffix="_count")
            page.add("stoker_jobs_streams", "gauge", "Streams that are open.", self.streams, {})
            page.add(
                "stoker_jobs_start_time_seconds", "gauge", "When the server began, Unix time.", self.began, {}
            )


def text_of(
    traffic: Traffic, *, counts: Mapping[State, int], running: tuple[Job, ...], dispatcher: bool | None
) -> str:
    """The page: jobs by state, those that run, the server's own work."""
    page = Page()
    for state, count in counts.items():
        page.add("stoker_jobs", "gauge", "Jobs, by state.", count, {"state": state.value})
    told = "Whether the dispatcher runs."
    page.add("stoker_jobs_dispatcher_up", "gauge", told, None if dispatcher is None else int(dispatcher), {})
    for job in running:
        labels = {"job": job.id, "workload": job.request.workload or "script"}
        page.add("stoker_job_step", "gauge", "The last step told of.", job.step, labels)
        page.add(
            "stoker_job_samples_per_second", "gauge", "Sustained, as the trainer told it.", job.rate, labels
        )
        page.add(
            "stoker_job_eta_seconds", "gauge", "Until its end, as the trainer told it.", job.eta_s, labels
        )
        for phase, share in (job.phases or {}).items():
            of_phase = {**labels, "phase": phase}
            page.add("stoker_job_phase_ratio", "gauge", "Shares of the last steps.", share, of_phase)
    traffic.put(page)
    return page.text()
