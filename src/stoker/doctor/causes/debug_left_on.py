"""A switch for finding errors is on: anomaly mode, blocking launches, a profiler, a debugger."""

from stoker.doctor.evidence import Evidence
from stoker.doctor.finding import Cure, Found, Judgement, RuledOut

ID = "debug-left-on"
CURES = (Cure(change="debug_off", text="turn it off for a training that is not being debugged"),)


def judge(run: Evidence) -> Judgement:
    """By the switches themselves, as they stood while the loop trained."""
    if not run.process:
        return None
    on = [
        text
        for name, text in (
            ("anomaly", "torch.autograd anomaly detection"),
            ("profiler", "the autograd profiler"),
            ("tracer", "a tracer of Python's lines or calls (a debugger, coverage or profiler)"),
            ("launch_blocking", "CUDA_LAUNCH_BLOCKING"),
        )
        if run.process.get(name)
    ]
    if not on:
        return RuledOut(by="anomaly mode, profilers, tracers and blocking launches are off")
    return Found(share=None, certainty=1.0, evidence=(f"{', '.join(on)} is on while the loop trains",))
