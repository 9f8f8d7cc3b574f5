"""The card's clock is held down: by heat, by a power cap under its own limit, by the board."""

from stoker.doctor.device import Clocks
from stoker.doctor.evidence import Evidence
from stoker.doctor.finding import ALARM, Cure, Found, Judgement, RuledOut
from stoker.watch.words import percent

ID = "throttled-clocks"
CURES = (
    Cure(change="cooling", text="look at the card's cooling: fans, dust, neighbours, the room"),
    Cure(change="power_limit", text="look at the card's power limit and supply (nvidia-smi -q -d POWER)"),
)
_HOT = ("hw_slowdown", "sw_thermal", "hw_thermal", "hw_power_brake")
# Of the readings.
_MOSTLY = 0.5


def judge(run: Evidence) -> Judgement:
    """By the driver's reasons and the clock beside what it can be; no worse than the device is busy."""
    if run.on_gpu is False:
        return RuledOut(by="nothing is computed on a GPU")
    clocks = run.clocks
    if clocks is None:
        return None
    reasons = [reason for reason, share in clocks.held if share >= _MOSTLY and _is_fault(reason, clocks)]
    told = f"the clock is {clocks.mhz:.0f} of {clocks.most_mhz} MHz"
    if not reasons:
        return RuledOut(by=f"{told}, and nothing but its own limits holds it down")
    slowed = max(0.0, 1 - clocks.mhz / clocks.most_mhz)
    busy = 1.0 if run.trace is None else run.trace.busy_share
    if slowed * busy < ALARM:
        return RuledOut(by=told)
    return Found(
        share=slowed * busy,
        certainty=0.9,
        computes=True,
        evidence=(
            f"{told}, held down by {', '.join(reasons)}",
            f"the device is busy {percent(busy)} of a step",
        ),
    )


def _is_fault(reason: str, clocks: Clocks) -> bool:
    if reason == "power_cap":  # at the power that it was made for, a card lowers its clock as it should
        limit, default = clocks.power_limit_w, clocks.power_default_w
        return limit is not None and default is not None and limit < 0.95 * default
    return reason in _HOT
