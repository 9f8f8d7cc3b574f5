"""What the trainers' callbacks share: one observed training inside somebody else's loop."""

from pathlib import Path

from stoker.watch.phases import PHASES
from stoker.watch.record import default_root
from stoker.watch.session import Plan, Session
from stoker.watch.watch import Watch


class TrainerWatch(Watch):
    """A `Watch` that a trainer's callback starts, ends and asks for figures.

    Under `stoker run` it joins the run there, and neither starts nor ends anything.
    """

    def __init__(self, plan: Plan, *, live: bool) -> None:
        super().__init__(name=plan.name, live=live)
        self._plan = plan

    @property
    def session(self) -> Session:
        """The run that this belongs to; begun if it had not."""
        session = self.start()._session
        assert session is not None
        return session

    def figures(self) -> dict[str, float]:
        """Shares of the last steps and rates of the run, as a logger takes them; none that is not known."""
        account = self.session.account
        if not account.tally.steps:  # asked before the first round: from then on half a second old will do
            self.session.recorder.exchange()
            account = self.session.account
        tally = account.tally
        shares = tally.recent_shares()
        found: dict[str, float | None] = {f"stoker/{name}": shares[name] for name in PHASES}
        found["stoker/sustained_steps_per_s"] = tally.sustained
        found["stoker/burst_steps_per_s"] = tally.burst
        found["stoker/samples_per_s"] = tally.samples_per_second
        found["stoker/eta_s"] = tally.eta(account.remaining_steps())
        return {name: value for name, value in found.items() if value is not None}


def root_of(runs: str | Path | None) -> Path:
    """Where the records go."""
    return default_root() if runs is None else Path(runs)


def outcome_of(error: BaseException) -> str:
    """What a training that ended with this is called."""
    # Lightning raises SIGTERMException where a plain script would have been killed.
    stopped = isinstance(error, KeyboardInterrupt) or type(error).__name__ == "SIGTERMException"
    return "interrupted" if stopped else "failed"
