"""A rank's steps without the time that it stood in collectives: that is the others', or the link's. Pure."""

from collections.abc import Iterable, Sequence

from stoker.watch import Meeting, Step


def own_steps(steps: Sequence[Step], meetings: Iterable[Meeting]) -> list[Step]:
    """The same steps with each phase less by what of it was in collectives; of one process, as they are."""
    stood: dict[int, dict[str, float]] = {}
    for one in meetings:
        if not steps or one.step < steps[0].step:  # of a long record the last steps are read
            continue
        phases = stood.setdefault(one.step, {})
        phases[one.phase] = phases.get(one.phase, 0.0) + one.stood
    if not stood:
        return list(steps)
    return [_without(step, stood.get(step.step, {})) for step in steps]


def _without(step: Step, stood: dict[str, float]) -> Step:
    spent = {phase: max(0.0, (getattr(step, phase) or 0.0) - seconds) for phase, seconds in stood.items()}
    return step._replace(**spent)  # type: ignore[arg-type]
