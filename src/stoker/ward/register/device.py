"""Cases of cards: most need a GPU."""

from stoker.ward.case import Case, Data, Neutral, Setup

CUDA = ("cuda",)
SCROLL = Data(maker="rows.py", args=("scroll.f32", "--count", "128", "--size", "65536"))

# The sizes of the cases on a card are for an H200 and the host beside it: about 400 to 600 TFLOP/s of
# bfloat16, 45 of float32, 3.5 TB/s of memory; 25 to 45 us to launch a kernel, twice that under the profiler.
#
# Device and host take turns here. Of scenes, a batch of 8 is 3.1 TFLOP forward and backward in some 45
# kernels: 10 to 12 ms of the device, 1.5 ms of launching. Then 74,000 scores are read and counted in Python,
# 8 ms in which the device has nothing to do. Two of those are a step of about 40 ms; with nothing read it
# takes the device's 23. Of pairs, a round of 4096 is 5.6 TFLOP, about 10 ms, and then 5 ms of Python on what
# a mask chose.
SCENES = ("--half", "--width", "192", "--depth", "3", "--side", "256")
PAIRS = ("--half", "--width", "6144")
HOST_SYNC = (
    Case(
        id="host-sync-items",
        script="cloud_masks.py",
        args=(*SCENES, "--batch", "8", "--tiles", "2", "--figures", "96"),
        cause="host-sync",
        variant="scores read and counted after each of two batches a step",
        lookalikes=(1,),
        needs=CUDA,
        neutral=Neutral(args=(*SCENES, "--batch", "8", "--tiles", "2")),
    ),
    Case(
        id="host-sync-items-few",
        script="cloud_masks.py",
        args=(*SCENES, "--batch", "16", "--figures", "96"),
        cause="host-sync",
        variant="scores read and counted once a step",
        needs=CUDA,
        neutral=Neutral(args=(*SCENES, "--batch", "16")),
    ),
    Case(
        id="host-sync-masks",
        script="sparse_scores.py",
        args=PAIRS,
        cause="host-sync",
        variant="boolean masks, whose size the host must know, and what is shown next drawn by them",
        needs=CUDA,
        neutral=Neutral(args=(*PAIRS, "--choose", "even")),
    ),
)

TINY_BATCH = (
    Case(
        id="tiny-batch-answers",
        script="answer_tokens.py",
        cause="tiny-batch",
        variant="one short text at a time in 12 layers",
        lookalikes=(7,),
        needs=CUDA,
        neutral=Neutral(args=("--batch", "64"), steps=64),
    ),
    Case(
        id="tiny-batch-answers-2",
        script="answer_tokens.py",
        args=("--batch", "2", "--length", "16", "--depth", "6"),
        cause="tiny-batch",
        variant="two at a time in 6 layers",
        needs=CUDA,
        neutral=Neutral(args=("--batch", "128", "--length", "16", "--depth", "6"), steps=64),
    ),
    Case(
        id="tiny-batch-masks",
        script="cloud_masks.py",
        args=("--batch", "1", "--figures", "0", "--depth", "32"),
        cause="tiny-batch",
        variant="one small scene at a time",
        needs=CUDA,
        neutral=Neutral(args=("--batch", "32", "--figures", "0", "--depth", "32"), steps=32),
    ),
    Case(
        id="tiny-batch-patches",
        script="volume_segments.py",
        args=("--batch", "1", "--workers", "1", "--ahead", "1"),
        cause="tiny-batch",
        variant="3D patches, batch 1, one worker, prefetch 1",
        also=("too-few-workers",),
        needs=CUDA,
        neutral=Neutral(args=("--batch", "4", "--workers", "4", "--ahead", "4"), steps=4),
        seed="003",
    ),
)

# The third field note's loader on a machine without a card: a patch takes 18 ms to come and 6 ms of a core.
# Four workers do not fill two cores. Of patches that take cores alone, two workers gave 1.15 and 2.05 there.
SCROLLS = ("--batch", "1", "--rest", "0.018")
PATCHES = (
    Case(
        id="too-few-workers-patches",
        script="scroll_patches.py",
        args=(*SCROLLS, "--workers", "1", "--ahead", "1"),
        cause="too-few-workers",
        variant="3D patches from an archive, batch 1, one worker, prefetch 1, on CPUs",
        also=("tiny-batch",),
        needs=("cores>=2",),
        data=(SCROLL,),
        neutral=Neutral(args=(*SCROLLS, "--workers", "4", "--ahead", "2")),
        seed="003",
    ),
)

# 50 MB take 4 to 8 ms from pageable memory and 1 ms from pinned; the rest of a step is 2.5 ms of the host's.
PAGEABLE_COPY = (
    Case(
        id="pageable-copy-cubes",
        script="hyperspectral_cubes.py",
        cause="pageable-copy",
        variant="50 MB a step from memory that is not pinned",
        needs=CUDA,
        neutral=Neutral(args=("--pinned",)),
    ),
    Case(
        id="pageable-copy-pin-each",
        script="hyperspectral_cubes.py",
        args=("--pin-each",),
        cause="pageable-copy",
        variant="pinned anew for every step, which hurts",
        lookalikes=(15,),
        needs=CUDA,
        neutral=Neutral(args=("--pinned",)),
    ),
    Case(
        id="pageable-copy-cubes-narrow",
        script="hyperspectral_cubes.py",
        args=("--bands", "64"),
        cause="pageable-copy",
        variant="34 MB a step",
        needs=CUDA,
        neutral=Neutral(args=("--bands", "64", "--pinned")),
    ),
    Case(
        id="pageable-copy-rails",
        script="rail_cameras.py",
        cause="pageable-copy",
        variant="a loader with 6 workers and no pinning",
        needs=CUDA,
        neutral=Neutral(args=("--pin",)),
    ),
)

# Pinning is on here too, and what it costs is the number of tensors that the pinning thread takes over.
PINNED_HANDOFF = (
    Case(
        id="handoff-arm-pinned",
        script="robot_logs.py",
        args=("--pin", "--device", "cuda"),
        cause="handoff",
        variant="40 small tensors a batch, each pinned by the thread that also unpickles them",
        lookalikes=(15,),
        needs=CUDA,
        neutral=Neutral(args=("--pin", "--device", "cuda", "--joined")),
    ),
)

GPU_CONTENTION = (
    Case(
        id="gpu-contention-idle",
        script="sar_autoencoder.py",
        args=("--base", "64", "--batch", "32"),
        cause="gpu-contention",
        variant="another process holds all but 3 GB of the card and does nothing",
        lookalikes=(11,),
        needs=CUDA,
        setup=(Setup(name="card_leaver", value=3),),
        effect="death",
        neutral=Neutral(setup=()),
        seed="000",
    ),
    # Loops that keep a card busy by themselves, for 11 ms a step, in a precision that cannot be bettered:
    # what is wrong is beside them.
    Case(
        id="gpu-contention-busy",
        script="street_scenes.py",
        args=("--kind", "bf16", "--channels-last", "--width", "512", "--depth", "5"),
        cause="gpu-contention",
        variant="another process works on the card all the time",
        lookalikes=(7,),
        needs=CUDA,
        setup=(Setup(name="card_worker", value=2),),
        neutral=Neutral(setup=()),
    ),
    Case(
        id="gpu-contention-busy-small",
        script="answer_tokens.py",
        args=("--half", "--batch", "32", "--length", "256", "--width", "2048", "--depth", "2"),
        cause="gpu-contention",
        variant="the same beside a transformer",
        needs=CUDA,
        setup=(Setup(name="card_worker", value=2),),
        neutral=Neutral(setup=()),
    ),
)

VRAM_OVERFLOW = (
    Case(
        id="vram-overflow-dies",
        script="sar_autoencoder.py",
        args=("--base", "64", "--batch", "32", "--card-gb", "3"),
        cause="vram-overflow",
        variant="width 64 at batch 32 on 3 GB of a card: its own doing",
        lookalikes=(11,),
        needs=CUDA,
        effect="death",
        neutral=Neutral(args=("--base", "32", "--batch", "16", "--card-gb", "3"), steps=0.5),
        seed="001",
    ),
    Case(
        id="vram-overflow-dies-wide",
        script="sar_autoencoder.py",
        args=("--base", "128", "--batch", "48", "--card-gb", "8"),
        cause="vram-overflow",
        variant="width 128 at batch 48 on 8 GB",
        needs=CUDA,
        effect="death",
        neutral=Neutral(args=("--base", "64", "--batch", "16", "--card-gb", "8"), steps=0.33),
    ),
    Case(
        id="vram-overflow-patches",
        script="volume_segments.py",
        # Smaller patches reserved 1.9 GB for as many voxels: 16 of these need 30 GB, and 2, 4 and 8 run.
        args=("--shape", "64", "128", "128", "--batch", "16", "--card-gb", "18"),
        cause="vram-overflow",
        variant="3D patches by a loader, on 18 GB of a card",
        needs=CUDA,
        effect="death",
        neutral=Neutral(args=("--shape", "64", "128", "128", "--batch", "4", "--card-gb", "18"), steps=0.25),
    ),
)

# A call of the driver for memory takes 0.1 ms and more, and giving it back waits for the device. The images
# need 5.6 TFLOP and 40 tensors of 100 MB a step: 20 to 25 ms of the device, 14 of launching, and some 80
# calls when the cache is emptied. The turns' logits are 1 GB: with few lengths a step takes 16 ms, and 20.5
# when the cache is emptied. A length that was not there before costs the attention 100 ms of planning.
IMAGES = ("--half", "--base", "128", "--batch", "24")
TURNS = ("--half", "--width", "1024", "--depth", "2", "--words", "32000", "--longest", "512", "--batch", "32")
LONG = ("--half", "--width", "1024", "--depth", "2", "--words", "32000", "--longest", "1024", "--batch", "16")
ALLOCATOR_CHURN = (
    Case(
        id="allocator-churn-tidy",
        script="sar_autoencoder.py",
        args=(*IMAGES, "--tidy"),
        cause="allocator-churn",
        variant="the cache emptied in every step",
        needs=CUDA,
        neutral=Neutral(args=IMAGES),
    ),
    Case(
        id="allocator-churn-turns",
        script="dialogue_turns.py",
        args=(*TURNS, "--empty-every", "1"),
        cause="allocator-churn",
        variant="the cache emptied in every step of turns of five lengths",
        needs=CUDA,
        neutral=Neutral(args=TURNS),
    ),
    Case(
        id="allocator-churn-turns-2",
        script="dialogue_turns.py",
        args=(*LONG, "--fixed", "--empty-every", "1"),
        cause="allocator-churn",
        variant="in every step of longer turns, all alike",
        needs=CUDA,
        neutral=Neutral(args=(*LONG, "--fixed")),
    ),
)

# Launching takes 9 to 12 ms a step. Float32: 1 TFLOP, 22 to 39 ms. TF32: 3.5 TFLOP, 20 to 37 ms, where
# bfloat16 with the channels last takes about 10. Float64: 0.4 TFLOP, 13 to 43 ms.
SLOW_PRECISION = (
    Case(
        id="slow-precision-scenes",
        script="street_scenes.py",
        args=("--width", "192", "--batch", "48"),
        cause="slow-precision",
        variant="no TF32, no AMP, no channels-last",
        needs=CUDA,
        neutral=Neutral(args=("--width", "192", "--batch", "48", "--kind", "bf16", "--channels-last")),
    ),
    Case(
        id="slow-precision-scenes-tf32",
        script="street_scenes.py",
        args=("--width", "512", "--batch", "24", "--kind", "tf32"),
        cause="slow-precision",
        variant="TF32 where bf16 and channels-last would do",
        needs=CUDA,
        neutral=Neutral(args=("--width", "512", "--batch", "24", "--kind", "bf16", "--channels-last")),
    ),
    Case(
        id="slow-precision-scenes-double",
        script="street_scenes.py",
        args=("--width", "128", "--batch", "48", "--kind", "double"),
        cause="slow-precision",
        variant="float64 by accident",
        needs=CUDA,
        neutral=Neutral(args=("--width", "128", "--batch", "48")),
    ),
)

# The halves of look-alike pairs in which nothing is wrong: 14 TFLOP of bfloat16 and 8 GB through memory a
# step, 27 to 39 ms, beside 12 of launching. A loss read at the end of it leaves the device idle for half a
# millisecond.
WIDE = ("--kind", "bf16", "--channels-last", "--width", "512", "--batch", "96")
BUSY_CARD = (
    Case(
        id="compute-bound-items",
        script="street_scenes.py",
        args=(*WIDE, "--read-every", "1"),
        cause="compute-bound",
        variant="a wide network whose loss is read in every step: the host only waits where it asks",
        lookalikes=(1,),
        needs=CUDA,
    ),
    Case(
        id="compute-bound-scenes",
        script="street_scenes.py",
        args=WIDE,
        cause="compute-bound",
        variant="a wide network that uses what the card has",
        lookalikes=(7,),
        needs=CUDA,
    ),
)

THROTTLED_CLOCKS = (
    Case(
        id="throttled-clocks",
        script="street_scenes.py",
        cause="throttled-clocks",
        variant="clocks that fall with heat or a power cap",
        needs=("fake-nvml",),
    ),
)

CASES = (
    *PATCHES, *HOST_SYNC, *TINY_BATCH, *PAGEABLE_COPY, *PINNED_HANDOFF,
    *GPU_CONTENTION, *VRAM_OVERFLOW, *ALLOCATOR_CHURN, *SLOW_PRECISION, *BUSY_CARD, *THROTTLED_CLOCKS,
)  # fmt: skip
