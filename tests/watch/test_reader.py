"""Notes become steps: what was begun, ended, left open, drawn elsewhere. No clock, no training."""

from collections import deque
from typing import Any

from stoker.watch import notes as n
from stoker.watch.loaders import Loader
from stoker.watch.part import step_of
from stoker.watch.phases import Step
from stoker.watch.reader import Reader

MS = 1_000_000


class Script:
    """Takes notes as a loop would; each names the millisecond in which it happens."""

    def __init__(self) -> None:
        self.notes: list[Any] = []
        self.aside: deque[tuple[int, int, Loader, int | None]] = deque()
        self.reader = Reader(self.notes, self.aside)
        self.loader = self.reader.loaders.of(self)
        self.at(0, n.LOOP_BEGINS)

    def at(self, ms: int, what: int, more: Any = None) -> None:
        self.notes.extend((what, ms * MS, None, more))

    def step(self, start: int) -> None:
        """A plain step: 10 ms of waiting, 20 forward, 30 backward, 5 update, from `start` to `start` + 65."""
        self.at(start, n.DRAW_BEGINS, self.loader)
        self.at(start + 10, n.DRAW_ENDS, 8)
        self.at(start + 10, n.FORWARD_BEGINS)
        self.at(start + 30, n.PHASE_ENDS, n.FORWARD_BEGINS)
        self.at(start + 30, n.BACKWARD_BEGINS)
        self.at(start + 60, n.PHASE_ENDS, n.BACKWARD_BEGINS)
        self.at(start + 60, n.UPDATE_BEGINS)
        self.at(start + 65, n.UPDATE_ENDS, 1)

    def steps(self) -> list[Step]:
        self.reader.read()
        return [step_of(p, i, loaders_seen=True, device=None) for i, p in enumerate(self.reader.done)]


def milliseconds(step: Step) -> dict[str, int]:
    phases = ("wait", "copy", "forward", "backward", "update", "other")
    return {phase: round(getattr(step, phase) * 1e3) for phase in phases}


PLAIN = {"wait": 10, "copy": 0, "forward": 20, "backward": 30, "update": 5, "other": 0}


def test_a_plain_step_is_split_by_its_notes() -> None:
    """Each phase has the time between its notes; samples and loader are the draw's."""
    script = Script()
    script.step(0)
    script.step(65)
    steps = script.steps()
    assert [milliseconds(step) for step in steps] == [PLAIN, PLAIN]
    assert [(step.samples, step.loader) for step in steps] == [(8, 0), (8, 0)]


def test_an_update_that_raised_does_not_end_the_counting() -> None:
    """The loop caught what its optimizer raised and went on: the next steps are steps like any other."""
    script = Script()
    script.step(0)
    script.at(65, n.UPDATE_BEGINS)  # never ends
    script.step(100)
    script.step(165)
    steps = script.steps()
    assert len(steps) == 3
    assert milliseconds(steps[1]) == {**PLAIN, "update": 5 + 35}
    assert milliseconds(steps[2]) == PLAIN


def test_nested_updates_of_one_optimizer_are_one() -> None:
    """A scaler's step around the optimizer's, or a subclass's around its parent's."""
    script = Script()
    script.at(0, n.UPDATE_BEGINS)
    script.at(1, n.UPDATE_BEGINS)
    script.at(4, n.UPDATE_ENDS, 1)
    script.at(5, n.UPDATE_ENDS, 1)
    assert [milliseconds(step)["update"] for step in script.steps()] == [5]


def test_a_closure_is_the_loops_own_code() -> None:
    """Forward and backward inside an optimizer's closure are theirs, the rest of the closure is `other`."""
    script = Script()
    script.at(0, n.UPDATE_BEGINS)
    script.at(1, n.CLOSURE_BEGINS)
    script.at(3, n.FORWARD_BEGINS)
    script.at(6, n.PHASE_ENDS, n.FORWARD_BEGINS)
    script.at(6, n.BACKWARD_BEGINS)
    script.at(10, n.PHASE_ENDS, n.BACKWARD_BEGINS)
    script.at(12, n.PHASE_ENDS, n.CLOSURE_BEGINS)
    script.at(15, n.UPDATE_ENDS, 1)
    expected = {"wait": 0, "copy": 0, "forward": 3, "backward": 4, "update": 4, "other": 4}
    assert [milliseconds(step) for step in script.steps()] == [expected]


def test_recomputing_in_backward_is_backward() -> None:
    """Activation checkpointing calls modules again while gradients are made."""
    script = Script()
    script.at(0, n.BACKWARD_BEGINS)
    script.at(2, n.FORWARD_BEGINS)
    script.at(7, n.PHASE_ENDS, n.FORWARD_BEGINS)
    script.at(9, n.PHASE_ENDS, n.BACKWARD_BEGINS)
    script.at(9, n.UPDATE_BEGINS)
    script.at(10, n.UPDATE_ENDS, 1)
    (step,) = script.steps()
    assert (milliseconds(step)["forward"], milliseconds(step)["backward"]) == (0, 9)


def test_what_looked_like_a_copy_and_moved_nothing_is_other() -> None:
    """`tensor.to(dtype)` on the host."""
    script = Script()
    script.at(0, n.COPY_BEGINS)
    script.at(4, n.COPY_WAS_NONE)
    script.at(4, n.COPY_BEGINS)
    script.at(7, n.PHASE_ENDS, n.COPY_BEGINS)
    script.at(7, n.UPDATE_BEGINS)
    script.at(8, n.UPDATE_ENDS, 1)
    (step,) = script.steps()
    assert (milliseconds(step)["copy"], milliseconds(step)["other"]) == (3, 4)


def test_another_threads_batches_count_and_its_time_does_not() -> None:
    """A loader drained by a thread: the training thread's block is the wait, the batch is the step's."""
    script = Script()
    script.aside.append((3 * MS, n.DRAW_ENDS, script.loader, 16))
    script.at(1, n.WAIT_BEGINS)
    script.at(5, n.PHASE_ENDS, n.WAIT_BEGINS)
    script.at(5, n.BACKWARD_BEGINS)
    script.at(9, n.PHASE_ENDS, n.BACKWARD_BEGINS)
    script.at(9, n.UPDATE_BEGINS)
    script.at(10, n.UPDATE_ENDS, 1)
    (step,) = script.steps()
    assert (step.samples, milliseconds(step)["wait"]) == (16, 4)
    assert script.loader.background


def test_validation_is_nobodys_wait() -> None:
    """Draws with gradients off are `other`, and their loader trains nothing."""
    script = Script()
    validation = script.reader.loaders.of(object)
    script.step(0)
    script.at(65, n.EVALUATION_DRAW_BEGINS, validation)
    script.at(85, n.DRAW_ENDS, 8)
    script.at(85, n.ANSWERED)
    script.step(100)
    steps = script.steps()
    assert milliseconds(steps[1]) == {**PLAIN, "other": 35}
    assert (validation.trains, steps[1].samples) == (False, 8)


def test_a_loader_inside_another_counts_its_samples_once() -> None:
    """A feed that reads by a DataLoader: both draws are waiting, the batch is one."""
    script = Script()
    inner = script.reader.loaders.of(object)
    script.at(0, n.DRAW_BEGINS, script.loader)
    script.at(2, n.DRAW_BEGINS, inner)
    script.at(7, n.DRAW_ENDS, 8)
    script.at(10, n.DRAW_ENDS, 8)
    script.at(10, n.BACKWARD_BEGINS)
    script.at(12, n.PHASE_ENDS, n.BACKWARD_BEGINS)
    script.at(12, n.UPDATE_BEGINS)
    script.at(13, n.UPDATE_ENDS, 1)
    (step,) = script.steps()
    assert (step.samples, step.loader, milliseconds(step)["wait"]) == (8, script.loader.id, 10)


def test_a_pause_is_nobodys_time() -> None:
    """Between two cells of a notebook."""
    script = Script()
    script.step(0)
    script.at(1000, n.PAUSE_ENDS)
    script.step(1000)
    assert [milliseconds(step) for step in script.steps()] == [PLAIN, PLAIN]
    assert round(script.reader.paused * 1e3) == 935


def test_notes_taken_while_reading_are_read_next_time() -> None:
    """Many more notes than one bite, in two readings."""
    script = Script()
    for number in range(100):
        script.step(65 * number)
    assert len(script.steps()) == 100
    script.step(6500)
    assert len(script.steps()) == 101
    assert not script.notes
