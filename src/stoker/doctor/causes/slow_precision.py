"""The model computes in a precision that the hardware is slow at."""

from stoker.doctor.computing import most_of_the_model
from stoker.doctor.evidence import Evidence
from stoker.doctor.experiments.variants import AS_IT_IS, BF16, CHANNELS_LAST, TF32
from stoker.doctor.finding import ALARM, Cure, Found, Judgement, RuledOut
from stoker.watch.words import duration, percent

ID = "slow-precision"
CURES = (
    Cure(change="dtype", text="float32 parameters and data, unless the maths needs more", kind="numerics"),
    Cure(
        change="tf32",
        text="on a GPU: torch.set_float32_matmul_precision('high'), torch.backends.cudnn.allow_tf32 = True",
        kind="numerics",
    ),
    Cure(
        change="autocast",
        text="on a GPU: torch.autocast('cuda', torch.bfloat16) around forward and loss",
        kind="numerics",
        risk="losses that need more digits must leave it",
    ),
    Cure(
        change="channels_last",
        text="on a GPU, for convolutions: model and input .to(memory_format=torch.channels_last)",
        kind="numerics",
        risk="slower in float32",
    ),
)
_SWITCHES = (TF32, BF16, CHANNELS_LAST)
# Of computing, what float32 can save on a CPU, which moves half the bytes and has room for twice the numbers.
_SAVED_ON_CPU = 0.5
# Below this the device is not what a step waits for.
_BUSY = 0.5


def judge(run: Evidence) -> Judgement:
    """By the types of the parameters; on a busy GPU by steps with each switch."""
    kinds = run.process.get("parameters") or {}
    total = sum(kinds.values())
    if not total:
        return None
    double = kinds.get("float64", 0) / total
    told = f"{percent(double)} of the parameters are float64"
    if double >= 0.5:
        computing = most_of_the_model(run)
        most = f"the model is {percent(computing)} of a step at most"
        if computing < ALARM:
            return RuledOut(by=f"{told}, and {most}")
        return Found(
            share=None,
            certainty=0.9 * min(computing, 1 - run.lost),  # of no matter while the loop waits for something
            weighs=computing * (1.0 if run.on_gpu else _SAVED_ON_CPU),
            evidence=(told, f"{most}; what float64 costs of that was not measured"),
            cures=CURES[:1],
        )
    if not run.on_gpu:
        return RuledOut(by=told)
    tried = {name: run.variants[name] for name in _SWITCHES if name in run.variants} if run.variants else {}
    if not tried:
        if run.trace is not None and run.trace.busy_share < _BUSY:
            return RuledOut(by=f"the device is busy {percent(run.trace.busy_share)} of a step")
        return None
    assert run.variants is not None
    own, best = run.variants[AS_IT_IS], min(tried, key=lambda name: tried[name])
    share = max(0.0, 1 - tried[best] / own)
    times = ", ".join(f"{name} {duration(seconds)}" for name, seconds in tried.items())
    told = f"a step takes {duration(own)}; with {times}"
    if share < ALARM:
        return RuledOut(by=told)
    return Found(share=share, certainty=0.85, computes=True, evidence=(told,), cures=CURES[1:])
