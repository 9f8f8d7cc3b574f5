"""A run's id is the name of its record's folder."""

from pathlib import Path

import pytest

from stoker.errors import UsageError
from stoker.watch import Record
from stoker.watch.session import Plan, Session


@pytest.mark.parametrize("name", ["", ".", "..", "../elsewhere", "a/b", "/tmp/x", "a\\b", "a\nb", "a\x1bb"])
def test_an_id_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    """No record is written outside the folder of runs; the message shows what was given."""
    with pytest.raises(UsageError) as told:
        Session(Plan(name="train", root=tmp_path / "runs", run_id=name))
    assert repr(name) in str(told.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["3", "night-2026.11", "données réelles"])
def test_any_other_name_is_taken(tmp_path: Path, name: str) -> None:
    """And the record is found by it."""
    session = Session(Plan(name="train", root=tmp_path, run_id=name))
    session.start()
    session.finish("done")
    assert Record.open(name, tmp_path).id == name
