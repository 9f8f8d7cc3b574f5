"""The page of causes is made from the cause files."""

from pathlib import Path

from stoker.doctor.causes import ALL
from stoker.doctor.causes_page import page


def test_the_page_is_up_to_date() -> None:
    """`python -m stoker.doctor.causes_page > docs/causes.md` makes it again."""
    kept = Path(__file__).parents[2] / "docs/causes.md"
    assert kept.read_text() == page()


def test_every_cause_says_what_it_is_and_how_it_is_told() -> None:
    """In its docstring and its judge's."""
    for cause in ALL:
        assert f"## {cause.ID}" in page()
        assert cause.__doc__
        assert (cause.judge.__doc__ or "").startswith("By ")
