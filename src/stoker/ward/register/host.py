"""Cases of the host: what the process is allowed, and what its own loop does beside training."""

from stoker.ward.case import Case, Neutral, Setup

CPU_QUOTA = (
    Case(
        id="cpu-quota-loader",
        script="crop_health.py",
        args=("--workers", "2", "--effort", "8"),
        cause="cpu-quota",
        variant="2 workers and a model in 0.7 of a core's time",
        lookalikes=(5,),
        setup=(Setup(name="quota", value=0.7),),
        neutral=Neutral(setup=()),
    ),
    Case(
        id="cpu-quota-compute",
        script="scene_classes.py",
        args=("--batch", "8"),
        cause="cpu-quota",
        variant="a network of one thread in 0.4 of a core",
        setup=(Setup(name="quota", value=0.4),),
        neutral=Neutral(setup=()),
    ),
    Case(
        id="cpu-quota-points",
        script="noise_steps.py",
        args=("--width", "512", "--threads", "1"),
        cause="cpu-quota",
        variant="no loader at all, 0.4 of a core",
        setup=(Setup(name="quota", value=0.4),),
        neutral=Neutral(setup=()),
    ),
)

CPU_AFFINITY = (
    Case(
        id="cpu-affinity-taskset",
        script="crop_health.py",
        args=("--workers", "2", "--effort", "80", "--width", "4"),
        cause="cpu-affinity",
        variant="started on one core of those there are",
        lookalikes=(6,),
        needs=("cores>=2",),
        setup=(Setup(name="mask", value=1),),
        neutral=Neutral(setup=()),
    ),
    Case(
        id="cpu-affinity-bound",
        script="crop_health.py",
        args=("--workers", "3", "--effort", "80", "--width", "4", "--bind"),
        cause="cpu-affinity",
        variant="a line in the script binds it, and its workers inherit that",
        needs=("cores>=2",),
        neutral=Neutral(args=("--workers", "3", "--effort", "80", "--width", "4")),
    ),
    Case(
        id="cpu-affinity-workers",
        script="crop_health.py",
        args=("--workers", "2", "--effort", "80", "--width", "4", "--cores", "0"),
        cause="cpu-affinity",
        variant="only the workers sit on one core",
        needs=("cores>=2",),
        neutral=Neutral(args=("--workers", "2", "--effort", "80", "--width", "4")),
    ),
)

THREADS = (
    Case(
        id="thread-oversubscription-tides",
        script="tide_tables.py",
        args=("--threads", "16"),
        cause="thread-oversubscription",
        variant="16 threads for small products on 2 cores",
        neutral=Neutral(args=("--threads", "1")),
    ),
    Case(
        id="thread-oversubscription-traces",
        script="seismic_traces.py",
        args=("--threads", "8"),
        cause="thread-oversubscription",
        variant="8 threads in each of 2 workers",
        lookalikes=(5,),
        neutral=Neutral(args=("--threads", "1")),
    ),
    Case(
        id="thread-oversubscription-many",
        script="seismic_traces.py",
        args=("--threads", "16", "--workers", "8"),
        cause="thread-oversubscription",
        variant="16 threads in each of 8 workers",
        needs=("cores>=8",),
        neutral=Neutral(args=("--threads", "1", "--workers", "8")),
    ),
)

LOOP_STALL = (
    Case(
        id="loop-stall-save",
        script="char_model.py",
        cause="loop-stall",
        variant="a checkpoint, on disk before the next step, every 10",
        lookalikes=(14,),
        neutral=Neutral(args=("--save-every", "0")),
    ),
    Case(
        id="loop-stall-look",
        script="fish_counts.py",
        cause="loop-stall",
        variant="the held-out frames every 25 steps",
        neutral=Neutral(args=("--every", "0")),
    ),
    Case(
        id="loop-stall-page",
        script="ticket_router.py",
        cause="loop-stall",
        variant="figures about every weight, on disk, every 10 steps",
        neutral=Neutral(args=("--page-every", "0")),
    ),
)

GROWING_STATE = (
    Case(
        id="growing-state-graph",
        script="share_prices.py",
        cause="growing-state",
        variant="the graph of all earlier windows is walked in each step",
        lookalikes=(9, 10),
        neutral=Neutral(args=("--let-go", "1")),
    ),
    Case(
        id="growing-state-scores",
        script="defect_scores.py",
        cause="growing-state",
        variant="a ranking over all that was ever scored",
        neutral=Neutral(args=("--last", "10")),
    ),
    Case(
        id="growing-state-hooks",
        script="layer_means.py",
        cause="growing-state",
        variant="hooks registered again and again",
        neutral=Neutral(args=("--no-again",)),
    ),
)

DEBUG_LEFT_ON = (
    Case(
        id="debug-left-on-anomaly",
        script="pendulum_forces.py",
        args=("--check", "nan"),
        cause="debug-left-on",
        variant="anomaly mode around the loop",
        neutral=Neutral(args=("--check", "none")),
    ),
    Case(
        id="debug-left-on-profiler",
        script="pendulum_forces.py",
        args=("--check", "trace"),
        cause="debug-left-on",
        variant="a profiler of shapes and memory around the loop",
        neutral=Neutral(args=("--check", "none")),
    ),
    Case(
        id="debug-left-on-tracer",
        script="pendulum_forces.py",
        args=("--check", "lines"),
        cause="debug-left-on",
        variant="a line tracer, as debuggers set it",
        neutral=Neutral(args=("--check", "none")),
    ),
    Case(
        id="debug-left-on-renders",
        script="anvil_renders.py",
        args=("--check-numbers",),
        cause="debug-left-on",
        variant="anomaly mode for the whole process, with a loader",
        neutral=Neutral(args=()),
    ),
)

SHAPE_RECOMPUTE = (
    Case(
        id="shape-recompute-chains",
        script="protein_chains.py",
        cause="shape-recompute",
        variant="a new length, compiled anew, every 8 chains",
        lookalikes=(4,),
        neutral=Neutral(args=("--step", "400")),
    ),
    Case(
        id="shape-recompute-chains-16",
        script="protein_chains.py",
        args=("--family", "16", "--backend", "eager"),
        cause="shape-recompute",
        variant="a new length every 16 chains, traced anew but not compiled",
        neutral=Neutral(args=("--family", "16", "--backend", "eager", "--step", "400")),
    ),
    Case(
        id="shape-recompute-crops",
        script="glacier_crops.py",
        cause="shape-recompute",
        variant="a new size of crop, compiled anew, every 12 steps",
        neutral=Neutral(args=("--smallest", "96", "--grid", "32")),
    ),
)

SLOW_PRECISION_CPU = (
    Case(
        id="slow-precision-orbits",
        script="orbit_fit.py",
        cause="slow-precision",
        variant="float64 from NumPy in dense layers",
        lookalikes=(12,),
        neutral=Neutral(args=("--kind", "float32")),
    ),
    Case(
        id="slow-precision-plates",
        script="xray_plates.py",
        cause="slow-precision",
        variant="float64 in convolutions",
        neutral=Neutral(args=("--kind", "float32")),
    ),
    Case(
        id="slow-precision-plant",
        script="plant_sensors.py",
        args=("--double",),
        cause="slow-precision",
        variant="float64 in attention",
        neutral=Neutral(args=()),
    ),
)

CASES = (
    *CPU_QUOTA, *CPU_AFFINITY, *THREADS, *LOOP_STALL, *GROWING_STATE, *DEBUG_LEFT_ON, *SHAPE_RECOMPUTE,
    *SLOW_PRECISION_CPU,
)  # fmt: skip
