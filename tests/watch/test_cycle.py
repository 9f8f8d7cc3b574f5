"""Which update ends a step."""

import pytest

from stoker.watch.cycle import PATIENCE, Cycle


def steps_of(sequence: str, optimizers: int) -> list[str]:
    """The steps that a sequence of updates makes, each as the letters in it."""
    cycle = Cycle[str]()
    cycle.expect(optimizers)
    done = [step for who in sequence for step in cycle.add(who, who)]
    return ["".join(step) for step in [*done, *cycle.flush()]]


@pytest.mark.parametrize(
    ("sequence", "optimizers", "steps"),
    [
        ("AAA", 1, ["A", "A", "A"]),
        ("DGDGDG", 2, ["DG", "DG", "DG"]),
        ("DDDDDGDDDDDG", 2, ["DDDDDG", "DDDDDG"]),
        ("ABCABC", 3, ["ABC", "ABC"]),
        ("ABBABB", 2, ["ABB", "ABB"]),
        ("DGD", 2, ["DG", "D"]),
        ("", 2, []),
    ],
)
def test_a_step_ends_with_the_last_of_its_cycle(sequence: str, optimizers: int, steps: list[str]) -> None:
    """However the optimizers take turns, a step is one whole round."""
    assert steps_of(sequence, optimizers) == steps


def test_an_optimizer_that_never_steps_holds_nothing_back_for_long() -> None:
    """With a second optimizer idle, steps come one by one after some patience, none lost."""
    assert steps_of("A" * (3 * PATIENCE), 2) == ["A"] * (3 * PATIENCE)


def test_a_second_optimizer_that_joins_late_is_counted_with_the_first() -> None:
    """Until it appears every update is a step; afterwards a round is."""
    assert steps_of("AAAABABAB", 1)[-2:] == ["AB", "AB"]


def test_a_single_optimizers_step_is_told_at_once() -> None:
    """Nothing is held when there is nobody to wait for."""
    cycle = Cycle[str]()
    assert cycle.add("A", "a") == [["a"]]


def test_two_trainings_in_one_script_are_told_apart() -> None:
    """When the first training's optimizer steps no more, the second's updates are its steps."""
    cycle = Cycle[str]()
    done = [step for _ in range(30) for step in cycle.add("A", "a")]
    cycle.expect(2)
    done += [step for _ in range(30) for step in cycle.add("B", "b")]
    assert [*done, *cycle.flush()] == [["a"]] * 30 + [["b"]] * 30


def test_a_single_optimizer_after_adversaries_is_not_held_for_ever() -> None:
    """A third optimizer after two that took turns: after some patience, steps of its own."""
    steps = steps_of("DG" * 5 + "C" * (2 * PATIENCE), 3)
    assert steps[:4] == ["DG"] * 4
    assert steps[-PATIENCE:] == ["C"] * PATIENCE
