"""Cases of what becomes of samples after they are read: transforms, workers, hand-over, memory, padding."""

from stoker.ward.case import Case, Data, Neutral, Setup


def _grid(cold: bool) -> tuple[Data, ...]:
    # What is in memory already is on the account of whoever read it first.
    args = ("grid.f32", "--count", "12000", "--size", "65536")
    return (Data(maker="rows.py", args=args, cold=cold),)


CPU_TRANSFORM = (
    Case(
        id="cpu-transform-leaves",
        script="leaf_photos.py",
        args=("--views", "2", "--workers", "2"),
        cause="cpu-transform",
        variant="two passes of PIL over each photo, 2 workers",
        lookalikes=(5, 16),
        needs=("package:PIL",),
        neutral=Neutral(args=("--views", "0", "--workers", "2")),
    ),
    Case(
        id="cpu-transform-leaves-3",
        script="leaf_photos.py",
        args=("--views", "3", "--workers", "3", "--batch", "6", "--autocast"),
        cause="cpu-transform",
        variant="three passes, 3 workers, and autocast, which cannot help",
        lookalikes=(12,),
        needs=("package:PIL",),
        neutral=Neutral(args=("--views", "0", "--workers", "3", "--batch", "6", "--autocast")),
    ),
    Case(
        id="cpu-transform-sounds",
        script="engine_sounds.py",
        args=("--workers", "2"),
        cause="cpu-transform",
        variant="spectra of sound by NumPy, 2 workers",
        neutral=Neutral(args=("--workers", "2", "--beforehand")),
    ),
    Case(
        id="cpu-transform-text",
        script="legal_text.py",
        args=("--workers", "2", "--grams", "5"),
        cause="cpu-transform",
        variant="n-grams of text in Python, 2 workers",
        neutral=Neutral(args=("--workers", "2", "--grams", "1", "--words", "64")),
    ),
    Case(
        id="cpu-transform-then-stall",
        script="leaf_photos.py",
        args=("--views", "2", "--workers", "2", "--save-every", "5"),
        cause="cpu-transform",
        variant="two passes of PIL, and behind them a save every 5 steps",
        also=("loop-stall",),
        lookalikes=(16,),
        needs=("package:PIL",),
        neutral=Neutral(args=("--views", "0", "--workers", "2")),
    ),
)

TOO_FEW_WORKERS = (
    Case(
        id="too-few-workers-tunnel-2",
        script="wind_tunnel.py",
        args=("--workers", "2", "--rest", "0.005"),
        cause="too-few-workers",
        variant="answers take 5 ms each, 2 workers where 8 would do",
        lookalikes=(2,),
        neutral=Neutral(args=("--workers", "8", "--rest", "0.005")),
    ),
    Case(
        id="too-few-workers-tunnel-4",
        script="wind_tunnel.py",
        args=("--workers", "4", "--rest", "0.010"),
        cause="too-few-workers",
        variant="batches of 160 ms from 4 workers, a step of a few ms",
        lookalikes=(14,),
        neutral=Neutral(args=("--workers", "16", "--rest", "0.010")),
    ),
    Case(
        id="too-few-workers-sounds",
        script="engine_sounds.py",
        args=("--workers", "1", "--width", "64"),
        cause="too-few-workers",
        variant="spectra by one worker while another core is idle",
        also=("cpu-transform",),
        needs=("cores>=2",),
        neutral=Neutral(args=("--workers", "2", "--width", "64")),
    ),
    Case(
        id="too-few-workers-leaves",
        script="leaf_photos.py",
        args=("--workers", "1", "--width", "4"),
        cause="too-few-workers",
        variant="photos by one worker while another core is idle",
        also=("cpu-transform",),
        needs=("cores>=2", "package:PIL"),
        neutral=Neutral(args=("--workers", "2", "--width", "4")),
    ),
)

NO_OVERLAP = (
    Case(
        id="no-overlap-text",
        script="legal_text.py",
        args=("--workers", "0", "--grams", "3", "--width", "1400", "--batch", "32"),
        cause="no-overlap",
        variant="text in the main process, as long as the step",
        neutral=Neutral(args=("--workers", "1", "--grams", "3", "--width", "1400", "--batch", "32")),
        needs=("cores>=2",),
    ),
    Case(
        id="no-overlap-leaves",
        script="leaf_photos.py",
        args=("--workers", "0", "--views", "1", "--width", "64"),
        cause="no-overlap",
        variant="photos in the main process, as long as the step",
        neutral=Neutral(args=("--workers", "1", "--views", "1", "--width", "64")),
        needs=("cores>=2", "package:PIL"),
    ),
    Case(
        id="no-overlap-sounds",
        script="engine_sounds.py",
        args=("--workers", "0", "--width", "1400", "--batch", "14"),
        cause="no-overlap",
        variant="spectra in the main process, as long as the step",
        neutral=Neutral(args=("--workers", "1", "--width", "1400", "--batch", "14")),
        needs=("cores>=2",),
    ),
    Case(
        id="no-overlap-generator",
        script="bus_demand.py",
        cause="no-overlap",
        variant="batches from a generator of the script's own: nothing waits in a loader",
        lookalikes=(13,),
        neutral=Neutral(args=("--depth", "2")),
        needs=("cores>=2",),
    ),
    # 1 in 32 batches opens the next file; by their mean the workers are faster than the model.
    *(
        Case(
            id=f"no-overlap-swell-{workers}",
            script="buoy_swell.py",
            args=("--workers", str(workers), "--ahead", "1"),
            cause="no-overlap",
            variant=f"{workers} with one batch ahead each, and a file to unpack for 1 batch in 32",
            data=(Data(maker="hours.py", args=("hours",)),),
            neutral=Neutral(args=("--workers", str(workers), "--ahead", "16")),
            needs=("cores>=2",),
        )
        for workers in (1, 2)
    ),
)

WORKER_STARTUP = (
    Case(
        id="worker-startup-spawn",
        script="museum_scans.py",
        args=("--workers", "1"),
        cause="worker-startup",
        variant="a spawned worker and 200,000 paths, every 50 steps",
        lookalikes=(4,),
        neutral=Neutral(args=("--workers", "1", "--stay")),
    ),
    Case(
        id="worker-startup-forkserver",
        script="museum_scans.py",
        args=("--workers", "2", "--start", "forkserver", "--owned", "400000", "--shown", "3200"),
        cause="worker-startup",
        variant="two workers by forkserver and 400,000 paths, every 100 steps",
        neutral=Neutral(
            args=("--workers", "2", "--start", "forkserver", "--owned", "400000", "--shown", "3200", "--stay")
        ),
    ),
    Case(
        id="worker-startup-fork",
        script="fold_curves.py",
        cause="worker-startup",
        variant="four forked workers for every 10 steps",
        neutral=Neutral(args=("--stay",)),
    ),
)

PER_SAMPLE_OVERHEAD = (
    Case(
        id="per-sample-overhead-rows-0",
        script="housing_rows.py",
        cause="per-sample-overhead",
        variant="rows of a TensorDataset one by one, in the main process",
        neutral=Neutral(args=("--by-index",)),
    ),
    Case(
        id="per-sample-overhead-rows-2",
        script="housing_rows.py",
        args=("--workers", "2"),
        cause="per-sample-overhead",
        variant="the same from 2 workers",
        neutral=Neutral(args=("--by-index",)),
    ),
    Case(
        id="per-sample-overhead-clicks",
        script="click_pairs.py",
        cause="per-sample-overhead",
        variant="pairs of ids one by one, 1 worker",
        neutral=Neutral(args=("--table",)),
    ),
)

HANDOFF = (
    Case(
        id="handoff-arm-40",
        script="robot_logs.py",
        cause="handoff",
        variant="40 small tensors a batch, 2 workers",
        lookalikes=(3,),
        neutral=Neutral(args=("--joined",)),
    ),
    Case(
        id="handoff-arm-20",
        script="robot_logs.py",
        args=("--channels", "20", "--workers", "1", "--batch", "48"),
        cause="handoff",
        variant="20 small tensors a batch, 1 worker",
        neutral=Neutral(args=("--channels", "20", "--workers", "1", "--batch", "48", "--joined")),
    ),
    Case(
        id="handoff-molecules",
        script="molecule_graphs.py",
        cause="handoff",
        variant="graphs as objects of 14 tensors each, 2 workers",
        neutral=Neutral(args=("--flat",)),
    ),
)

COPY_ON_ACCESS = (
    Case(
        id="copy-on-access-words-2",
        script="headline_words.py",
        cause="copy-on-access",
        variant="a list of lists of words, 2 workers",
        lookalikes=(10,),
        effect="memory",
        neutral=Neutral(args=("--as-arrays",)),
    ),
    Case(
        id="copy-on-access-words-4",
        script="headline_words.py",
        args=("--workers", "4", "--headlines", "100000"),
        cause="copy-on-access",
        variant="a shorter list, 4 workers",
        effect="memory",
        neutral=Neutral(args=("--workers", "4", "--headlines", "100000", "--as-arrays")),
    ),
    Case(
        id="copy-on-access-boxes",
        script="street_boxes.py",
        cause="copy-on-access",
        variant="a list of dicts of boxes",
        effect="memory",
        neutral=Neutral(args=("--compact",)),
    ),
)

RAM_PRESSURE = (
    Case(
        id="ram-pressure-regions-2",
        script="slide_regions.py",
        args=("--workers", "2"),
        cause="ram-pressure",
        variant="2 workers that remember what they decoded, under 1.5 GB: one is killed",
        effect="death",
        setup=(Setup(name="memory", value=1500),),
        neutral=Neutral(setup=()),
    ),
    Case(
        id="ram-pressure-regions-4",
        script="slide_regions.py",
        args=("--workers", "4", "--side", "384"),
        cause="ram-pressure",
        variant="4 workers with larger regions, under 2.2 GB",
        effect="death",
        setup=(Setup(name="memory", value=2200),),
        neutral=Neutral(setup=()),
    ),
    Case(
        id="ram-pressure-grid",
        script="ocean_grid.py",
        args=("--tables-mb", "1200"),
        cause="ram-pressure",
        variant="tables in memory leave a mapped grid no room: it is read again and again",
        data=_grid(cold=True),
        setup=(Setup(name="memory", value=1900),),
        neutral=Neutral(data=_grid(cold=False), setup=()),
    ),
)

SMALL_SHM = (
    Case(
        id="small-shm-brains-2",
        script="brain_volumes.py",
        cause="small-shm",
        variant="batches of 14 MB, 2 workers and prefetch 2 in 32 MB",
        effect="death",
        setup=(Setup(name="shm", value=32),),
        neutral=Neutral(setup=()),
    ),
    Case(
        id="small-shm-brains-4",
        script="brain_volumes.py",
        args=("--workers", "4", "--ahead", "4"),
        cause="small-shm",
        variant="batches of 14 MB, 4 workers and prefetch 4 in 64 MB",
        effect="death",
        setup=(Setup(name="shm", value=64),),
        neutral=Neutral(setup=()),
    ),
    Case(
        id="small-shm-clips",
        script="traffic_clips.py",
        cause="small-shm",
        variant="clips of a camera, 29 MB a batch, in 64 MB",
        effect="death",
        setup=(Setup(name="shm", value=64),),
        neutral=Neutral(setup=()),
    ),
)

PADDING_WASTE = (
    Case(
        id="padding-waste-patents",
        script="patent_abstracts.py",
        cause="padding-waste",
        variant="texts of every length, padded to the longest of 16",
        neutral=Neutral(args=("--by-length",)),
    ),
    Case(
        id="padding-waste-patents-1",
        script="patent_abstracts.py",
        args=("--spread", "1.0", "--batch", "24", "--typical", "16"),
        cause="padding-waste",
        variant="lengths spread wider, 24 at a time",
        neutral=Neutral(args=("--spread", "1.0", "--batch", "24", "--typical", "16", "--by-length")),
    ),
    Case(
        id="padding-waste-genes",
        script="gene_reads.py",
        cause="padding-waste",
        variant="one long read in ten, in a recurrent network",
        neutral=Neutral(args=("--sort",)),
    ),
)

CASES = (
    *CPU_TRANSFORM, *TOO_FEW_WORKERS, *NO_OVERLAP, *WORKER_STARTUP, *PER_SAMPLE_OVERHEAD, *HANDOFF,
    *COPY_ON_ACCESS, *RAM_PRESSURE, *SMALL_SHM, *PADDING_WASTE,
)  # fmt: skip
