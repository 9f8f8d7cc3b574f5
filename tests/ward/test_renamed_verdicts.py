"""What files, classes, functions and options are called is no evidence: renamed, a script has its verdict."""

import pytest

from stoker.ward.case import Case
from stoker.ward.catalogue import cases as all_cases
from stoker.ward.catalogue import injectable
from stoker.ward.needs import of_card
from stoker.ward.rounds import line_of, show

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def one_of_each() -> list[Case]:
    """The first case of each cause that needs no card."""
    first: dict[str, Case] = {}
    for case in all_cases():
        if not of_card(case):
            first.setdefault(case.cause, case)
    return list(first.values())


@pytest.mark.parametrize("case", one_of_each(), ids=lambda case: case.id)
def test_a_renamed_script_gets_the_same_verdict(case: Case) -> None:
    if reason := injectable(case):
        pytest.skip(reason)
    renamed, written = show(case, renamed=True), show(case)
    assert (renamed.said, renamed.right) == (written.said, True), (line_of(renamed), line_of(written))
