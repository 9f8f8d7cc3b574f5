"""What cures say of themselves is what the changes of the same ids are."""

from stoker import changes
from stoker.doctor.advice import CONSEQUENCES, lines_for
from stoker.doctor.causes import ALL
from stoker.doctor.finding import Cure

CURES: list[tuple[str, Cure]] = [(cause.ID, cure) for cause in ALL for cure in cause.CURES]


def test_a_cure_that_is_a_setting_is_of_that_settings_kind() -> None:
    """The id is the same in causes, plan, trials and `stoker.toml`; so is what it does to the maths."""
    settings = [(cause, cure) for cause, cure in CURES if cure.change in changes.ALL]
    assert settings
    for cause, cure in settings:
        change = changes.ALL[cure.change]
        assert cure.kind == change.kind, (cause, cure.change)
        assert cure.value is None or change.values.of(cure.value) == cure.value


def test_one_id_is_one_kind_whichever_cause_names_it() -> None:
    """Nobody who allows it for one cause allows something else for another."""
    kinds: dict[str, set[str]] = {}
    for _, cure in CURES:
        kinds.setdefault(cure.change, set()).add(cure.kind)
    assert {change: kind for change, kind in kinds.items() if len(kind) > 1} == {}


def test_what_puts_a_feed_of_its_own_order_in_a_script_changes_the_optimization() -> None:
    """Feed draws a permutation of its own: those samples come in another order than the script's."""
    for cause, cure in CURES:
        written = [*lines_for(cure.change, cure.value, cure.text), cure.text]
        if any("stoker.Feed(..., shuffle" in line or "stoker.Feed(dataset" in line for line in written):
            assert cure.kind == "optimization", (cause, cure.change)
            assert cure.change in CONSEQUENCES


def test_held_samples_are_a_line_of_the_settings_file() -> None:
    """Which leaves the script's own sampler in its place."""
    held = [cure for _, cure in CURES if cure.change == "feed"]
    assert {cure.value for cure in held} == {"ram", "disk"}
    for cure in held:
        lines = lines_for("feed", cure.value, cure.text)
        assert lines == ("[changes]  # in stoker.toml", f'feed = "{cure.value}"', lines[-1])
        assert lines[-1].startswith("stoker run --with stoker.toml ")
