"""The states of a job, and which may follow which. Pure.

queued ──> starting ──> running ──> done
  ^  \\         |           |  \\──> failed ──┐
  |   \\        |           |                │
  |    \\       └────┬──────┴──> saving ──> cancelled ──┐
  |     \\──────────────────────────────────^           │
  ├── lost <────────┘ (no heartbeat)                    │
  └─────────────────────────────── resumed ─────────────┘
"""

from enum import StrEnum


class State(StrEnum):
    """Where a job stands."""

    QUEUED = "queued"
    # An engine was told to start it; nothing has been heard from it yet.
    STARTING = "starting"
    RUNNING = "running"
    # Told to stop: the step ends, the state is saved.
    SAVING = "saving"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    # No heartbeat. It is queued again by itself, unless it was lost too often without a step between.
    LOST = "lost"


MOVES: dict[State, frozenset[State]] = {
    State.QUEUED: frozenset({State.STARTING, State.CANCELLED}),
    State.STARTING: frozenset(
        {State.RUNNING, State.SAVING, State.QUEUED, State.FAILED, State.LOST, State.CANCELLED}
    ),
    State.RUNNING: frozenset({State.SAVING, State.DONE, State.FAILED, State.LOST}),
    State.SAVING: frozenset({State.CANCELLED, State.DONE, State.FAILED, State.LOST}),
    State.DONE: frozenset(),
    State.FAILED: frozenset({State.QUEUED}),
    State.CANCELLED: frozenset({State.QUEUED}),
    State.LOST: frozenset({State.QUEUED, State.CANCELLED}),
}

# A process has it, or is about to.
HELD = frozenset({State.STARTING, State.RUNNING, State.SAVING})
# Nothing more happens by itself.
ENDED = frozenset({State.DONE, State.FAILED, State.CANCELLED, State.LOST})
RESUMABLE = frozenset({State.FAILED, State.CANCELLED, State.LOST})


def may_move(before: State, after: State) -> bool:
    """Whether a job may go from one state to the other."""
    return after in MOVES[before]


def can_cancel(state: State) -> bool:
    """Whether asking a job to stop means anything."""
    return state in HELD or state in (State.QUEUED, State.LOST)


def can_resume(state: State) -> bool:
    """Whether it may go on from its last checkpoint."""
    return state in RESUMABLE


def can_retry(state: State) -> bool:
    """Whether the same may be asked for again, as a new job."""
    return state in ENDED


def can_delete(state: State) -> bool:
    """Whether it may be forgotten, with its folder."""
    return state in ENDED
