"""The kill campaign: 100 times a server is killed under 50 jobs, 60 of them inside a write."""

import json
import os
from pathlib import Path

import pytest

from stoker.jobs.folders import JobFolder
from stoker.jobs.states import State

from .kill_campaign import Campaign, steps_of

KILLS = int(os.environ.get("STOKER_KILLS", "100"))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_no_job_is_lost_or_run_twice_however_often_the_server_is_killed(tmp_path: Path) -> None:
    """Each job that was asked for is there once, ended once, and has one whole curve and each line once."""
    campaign = Campaign(root=tmp_path / "jobs", kills=KILLS, jobs=max(2, KILLS // 2))
    try:
        ended = campaign.run()
        inside = campaign.inside.total()
        told = f"{inside} inside a write ({dict(campaign.inside)}), {campaign.by_chance} at any moment"
        print(f"{KILLS} kills: {told}, {campaign.machine} of the machine;", end=" ")
        print(f"{sum(len(job.attempts) for job in ended)} attempts of {len(ended)} jobs")
        assert inside + campaign.by_chance == KILLS
        assert inside >= KILLS / 2, told
        # None lost: each is there once, and all came to their end.
        assert sorted(job.name for job in ended) == sorted(f"job {number}" for number in range(campaign.jobs))
        assert {job.state for job in ended} == {State.DONE}
        assert set(campaign.asked) <= {job.id for job in ended}
        for job in ended:
            folder = JobFolder(root=campaign.root, id=job.id)
            number = int(job.name.removeprefix("job "))
            # None run twice: never two processes at once, one end, and no process after it.
            assert not (folder.training / "twice").exists(), job.name
            outcomes = [one.outcome for one in job.attempts]
            assert outcomes.count(State.DONE) == 1
            assert outcomes[-1] is State.DONE
            ran = [json.loads(line) for line in (folder.training / "ran.jsonl").read_text().splitlines()]
            began = [one["from"] for one in ran]
            assert began == sorted(began), f"{job.name} went back: {began}"
            assert len(ran) <= len(job.attempts)
            # Curves whole: each step once, none left out.
            steps = [point.step for point in campaign.store.points(job.id, limit=10_000).items]
            assert sorted(steps) == list(range(1, steps_of(number) + 1)), job.name
            # Each line of each attempt's log once, in its order.
            lines = campaign.store.lines(job.id, limit=10_000).items
            for attempt in job.attempts:
                log = folder.log(attempt.number)
                printed = log.read_text().splitlines() if log.exists() else []
                assert [line.text for line in lines if line.attempt == attempt.number] == printed, job.name
    finally:
        campaign.close()
