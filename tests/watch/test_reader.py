"""Notes become steps: what was begun, ended, left open, drawn elsewhere. No clock, no training."""

from typing import Any

from resolving import steps_of

from stoker.watch import notes as n
from stoker.watch.clock import DeviceClock
from stoker.watch.phases import Step
from stoker.watch.reader import Reader

MS = 1_000_000
LOADER, OTHER_LOADER = 0, 1


class Script:
    """Takes notes as a loop would; each names the millisecond in which it happens."""

    def __init__(self) -> None:
        self.notes: list[Any] = []
        self.aside: list[n.Aside] = []
        self.reader = Reader()
        self.reader.loaders.know(2)
        self.at(0, n.LOOP_BEGINS)

    def at(self, ms: int, what: int, more: Any = None) -> None:
        self.notes.extend((what, ms * MS, None, more))

    def step(self, start: int) -> None:
        """A plain step: 10 ms of waiting, 20 forward, 30 backward, 5 update, from `start` to `start` + 65."""
        self.at(start, n.DRAW_BEGINS, LOADER)
        self.at(start + 10, n.DRAW_ENDS, 8)
        self.at(start + 10, n.FORWARD_BEGINS)
        self.at(start + 30, n.PHASE_ENDS, n.FORWARD_BEGINS)
        self.at(start + 30, n.BACKWARD_BEGINS)
        self.at(start + 60, n.PHASE_ENDS, n.BACKWARD_BEGINS)
        self.at(start + 60, n.UPDATE_BEGINS)
        self.at(start + 65, n.UPDATE_ENDS, 1)

    def read(self) -> None:
        self.reader.read(self.notes, self.aside)
        self.notes, self.aside = [], []

    def steps(self) -> list[Step]:
        self.read()
        return steps_of(self.reader.done)


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
    script.aside.append((3 * MS, n.DRAW_ENDS, LOADER, 16))
    script.at(1, n.WAIT_BEGINS)
    script.at(5, n.PHASE_ENDS, n.WAIT_BEGINS)
    script.at(5, n.BACKWARD_BEGINS)
    script.at(9, n.PHASE_ENDS, n.BACKWARD_BEGINS)
    script.at(9, n.UPDATE_BEGINS)
    script.at(10, n.UPDATE_ENDS, 1)
    (step,) = script.steps()
    assert (step.samples, milliseconds(step)["wait"]) == (16, 4)
    assert script.reader.loaders[LOADER].background


def test_validation_is_nobodys_wait() -> None:
    """Draws with gradients off are `other`, and their loader trains nothing."""
    script = Script()
    script.step(0)
    script.at(65, n.EVALUATION_DRAW_BEGINS, OTHER_LOADER)
    script.at(85, n.DRAW_ENDS, 8)
    script.at(85, n.ANSWERED)
    script.step(100)
    steps = script.steps()
    assert milliseconds(steps[1]) == {**PLAIN, "other": 35}
    assert (script.reader.loaders[OTHER_LOADER].trains, steps[1].samples) == (False, 8)


def test_a_loader_inside_another_counts_its_samples_once() -> None:
    """A feed that reads by a DataLoader: both draws are waiting, the batch is one."""
    script = Script()
    script.at(0, n.DRAW_BEGINS, LOADER)
    script.at(2, n.DRAW_BEGINS, OTHER_LOADER)
    script.at(7, n.DRAW_ENDS, 8)
    script.at(10, n.DRAW_ENDS, 8)
    script.at(10, n.BACKWARD_BEGINS)
    script.at(12, n.PHASE_ENDS, n.BACKWARD_BEGINS)
    script.at(12, n.UPDATE_BEGINS)
    script.at(13, n.UPDATE_ENDS, 1)
    (step,) = script.steps()
    assert (step.samples, step.loader, milliseconds(step)["wait"]) == (8, LOADER, 10)


def test_a_pause_is_nobodys_time() -> None:
    """Between two cells of a notebook."""
    script = Script()
    script.step(0)
    script.at(1000, n.PAUSE_ENDS)
    script.step(1000)
    assert [milliseconds(step) for step in script.steps()] == [PLAIN, PLAIN]
    assert round(script.reader.paused * 1e3) == 935


def test_an_optimizer_may_ask_for_gradients_in_its_step() -> None:
    """As those do that take second derivatives: its step is one update still, and a backward inside it."""
    script = Script()
    script.at(0, n.UPDATE_BEGINS)
    script.at(2, n.BACKWARD_BEGINS)
    script.at(6, n.PHASE_ENDS, n.BACKWARD_BEGINS)
    script.at(9, n.UPDATE_ENDS, 1)
    (step,) = script.steps()
    assert (milliseconds(step)["update"], milliseconds(step)["backward"]) == (5, 4)


def test_an_optimizer_may_call_the_model_in_its_step() -> None:
    """By a closure that was not seen as one: the update ends where it ends, also inside a scaler's."""
    script = Script()
    for start in (0, 20):
        script.at(start, n.UPDATE_BEGINS)
        script.at(start, n.UPDATE_BEGINS)
        script.at(start + 2, n.FORWARD_BEGINS)
        script.at(start + 6, n.PHASE_ENDS, n.FORWARD_BEGINS)
        script.at(start + 9, n.UPDATE_ENDS, 1)
        script.at(start + 10, n.UPDATE_ENDS, 1)
    steps = script.steps()
    assert [milliseconds(step)["forward"] for step in steps] == [4, 4]
    assert round(steps[1].seconds * 1e3) == 20


def test_what_another_thread_had_open_is_dropped_when_the_loop_moves() -> None:
    """The main thread stands in a wait while the loop turns out to run elsewhere."""
    script = Script()
    script.at(0, n.WAIT_BEGINS)
    script.at(10, n.LOOP_BEGINS, True)
    script.at(14, n.UPDATE_BEGINS)
    script.at(15, n.UPDATE_ENDS, 1)
    (step,) = script.steps()
    assert (milliseconds(step)["wait"], milliseconds(step)["other"], milliseconds(step)["update"]) == (
        0,
        4,
        1,
    )


def test_evaluating_alone_keeps_nothing() -> None:
    """A run that goes on to inference for days holds no more for it."""
    script = Script()
    for number in range(100):
        script.at(number, n.EVALUATION_DRAW_BEGINS, LOADER)
        script.at(number + 1, n.DRAW_ENDS, 8)
    script.read()
    assert script.reader._draws == []
    script.at(200, n.UPDATE_BEGINS)
    script.at(201, n.UPDATE_ENDS, 1)
    (step,) = script.steps()
    assert milliseconds(step)["other"] == 200


def test_the_devices_marks_go_with_their_own_draws() -> None:
    """An evaluation's draw between a pause and a step is no wait, on the device's clock either."""

    script = Script()
    times: list[float] = []

    def at(ms: int, what: int, more: Any = None) -> None:
        script.notes.extend((what, ms * MS, len(times), more))
        times.append(ms - sum(times))

    at(0, n.DEVICE_FOUND, None)
    at(0, n.DRAW_BEGINS, LOADER)
    at(10, n.DRAW_ENDS, 8)
    at(20, n.PAUSE_ENDS)
    at(20, n.EVALUATION_DRAW_BEGINS, OTHER_LOADER)
    at(60, n.DRAW_ENDS, 8)
    at(60, n.BACKWARD_BEGINS)
    at(70, n.PHASE_ENDS, n.BACKWARD_BEGINS)
    at(70, n.UPDATE_BEGINS)
    at(71, n.UPDATE_ENDS, 1)
    script.read()
    clock = DeviceClock()
    clock.pass_marks(times)
    (step,) = steps_of(script.reader.done, clock)
    assert step.device is not None
    assert (milliseconds(step)["wait"], milliseconds(step)["other"]) == (0, 40)


def test_notes_are_read_in_pieces_as_at_once() -> None:
    """Rounds cut the notes anywhere."""
    script = Script()
    for number in range(50):
        script.step(65 * number)
    notes = script.notes
    for at in range(0, len(notes), 3 * n.WIDTH):
        script.reader.read(notes[at : at + 3 * n.WIDTH])
    script.notes = []
    steps = script.steps()
    assert len(steps) == 50
    assert all(milliseconds(step) == PLAIN for step in steps)
