"""Two real holders on a real GPU, one idle like a notebook and one busy; `stoker bench holders` measures."""

import pytest

from stoker.bench.holders import LIMIT, card_used_bytes, check_json, look_at_two_holders

pytestmark = pytest.mark.gpu


def test_two_holders_are_named_with_their_bytes() -> None:
    """Pids are right, bytes within 5% of torch's reserve and the measured context, both warned of."""
    runs, found = look_at_two_holders()
    assert {run["holder"]: run["notebook_state"] for run in runs} == {"idle": "unknown", "busy": None}
    assert max(run["error"] for run in runs) <= LIMIT
    by_pid = {holder["pid"]: holder for holder in found["gpus"][0]["holders"]}
    for run in runs:
        holder = by_pid[run["pid"]]
        assert holder["parent_alive"] is True
        assert holder["ours"] is False
        assert holder["age_s"] > 0
        assert holder["user"]
        assert any(f"pid {run['pid']} " in warning["text"] for warning in found["warnings"])
    assert not found["torch"]["in_use"]


def test_the_check_itself_holds_nothing() -> None:
    """The check makes no CUDA context: it is not among the holders that it lists."""
    before = card_used_bytes()
    found = check_json()
    assert found["process"]["pid"] not in {one["pid"] for one in found["gpus"][0]["holders"]}
    assert card_used_bytes() <= before + (64 << 20)
