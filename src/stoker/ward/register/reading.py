"""Cases whose data is far away, read too often, or read too much."""

from stoker.ward.case import Case, Data, Neutral, Setup

TILES = Data(maker="tiles.py", args=("tiles", "--count", "800"))
SWEEPS = Data(maker="rows.py", args=("sweeps.bin", "--count", "2000", "--size", "65536", "--kind", "i2"))
PHOTOS = Data(maker="photos.py", args=("photos", "--count", "400", "--side", "160"))
SEED_PHOTOS = Data(maker="photos.py", args=("photos", "--count", "600", "--side", "128"))
SHARDS = Data(maker="shards.py", args=("shards",))
ICONS = Data(maker="icons.py", args=("icons.zip",))
TAPES = Data(maker="wavs.py", args=("tapes", "--count", "8", "--frames", "500000"))
PARTS = Data(maker="parts.py", args=("parts.db",))
NEAR_BUCKET = (Setup(name="bucket", value=0.0),)
NEAR_POSTGRES = (Setup(name="postgres", value=0.0),)
NEAR_FEATURES = (Setup(name="features", value=0.0),)


def _stamps(cold: bool) -> tuple[Data, ...]:
    args = ("stamps.f32", "--count", "6000", "--size", "16384")
    return (Data(maker="rows.py", args=args, cold=cold),)


def _calls(cold: bool) -> tuple[Data, ...]:
    args = ("calls", "--count", "3000", "--frames", "16000", "--classes", "6")
    return (Data(maker="wavs.py", args=args, cold=cold),)


def _scan(chunk: int) -> tuple[Data, ...]:
    return (Data(maker="scan.py", args=("scan.zarr", "--chunk", str(chunk))),)


def _rides(group: int) -> tuple[Data, ...]:
    return (Data(maker="rides.py", args=("rides.parquet", "--group", str(group))),)


def _fields(block: int) -> tuple[Data, ...]:
    return (Data(maker="blocks.py", args=("fields", "--block", str(block))),)


STORAGE_LATENCY = (
    Case(
        id="storage-latency-tiles-2",
        script="aerial_tiles.py",
        args=("--workers", "2"),
        cause="storage-latency",
        variant="small files from a disk at its limit of 500 reads a second, 2 workers",
        lookalikes=(2, 3, 6),
        data=(TILES,),
        setup=(Setup(name="disk", value=500),),
        neutral=Neutral(args=("--workers", "2", "--keep"), setup=()),
    ),
    Case(
        id="storage-latency-tiles-4",
        script="aerial_tiles.py",
        args=("--workers", "4"),
        cause="storage-latency",
        variant="the same, 1,000 reads a second and 4 workers",
        data=(TILES,),
        setup=(Setup(name="disk", value=1000),),
        neutral=Neutral(args=("--workers", "4", "--keep"), setup=()),
    ),
    Case(
        id="storage-latency-sweeps",
        script="radar_sweeps.py",
        args=("--workers", "2"),
        cause="storage-latency",
        variant="places in one long file, 800 reads a second",
        data=(SWEEPS,),
        setup=(Setup(name="disk", value=800),),
        neutral=Neutral(args=("--workers", "2", "--reuse"), setup=()),
    ),
    Case(
        id="storage-latency-bucket-narrow",
        script="photo_bucket.py",
        args=("--workers", "2", "--batch", "4"),
        cause="storage-latency",
        variant="an object store that gives 1 MB/s to all readers together",
        needs=("s3",),
        data=(PHOTOS,),
        setup=(Setup(name="narrow_bucket", value=1.0),),
        neutral=Neutral(setup=NEAR_BUCKET),
    ),
    Case(
        id="storage-latency-bucket-far",
        script="photo_bucket.py",
        args=("--workers", "4", "--ahead", "2", "--batch", "4"),
        cause="storage-latency",
        variant="an object store 20 ms away, each photo an object",
        also=("too-few-workers",),
        needs=("s3",),
        data=(SEED_PHOTOS,),
        setup=(Setup(name="bucket", value=10.0),),
        neutral=Neutral(setup=NEAR_BUCKET),
        seed="002",
    ),
    Case(
        id="storage-latency-prints",
        script="pottery_prints.py",
        cause="storage-latency",
        variant="a web server 6 ms away, each picture a file",
        also=("too-few-workers",),
        setup=(Setup(name="features", value=3.0),),
        neutral=Neutral(setup=NEAR_FEATURES),
    ),
)

COLD_CACHE = (
    Case(
        id="cold-cache-stamps-1",
        script="galaxy_stamps.py",
        args=("--workers", "1"),
        cause="cold-cache",
        variant="one file, not in memory yet, a disk of 800 reads a second, 1 worker",
        lookalikes=(4,),
        data=_stamps(cold=True),
        setup=(Setup(name="disk", value=800),),
        neutral=Neutral(data=_stamps(cold=False)),
    ),
    Case(
        id="cold-cache-stamps-0",
        script="galaxy_stamps.py",
        args=("--workers", "0"),
        cause="cold-cache",
        variant="the same in the main process, 1,200 reads a second",
        data=_stamps(cold=True),
        setup=(Setup(name="disk", value=1200),),
        neutral=Neutral(data=_stamps(cold=False)),
    ),
    Case(
        id="cold-cache-calls",
        script="bird_calls.py",
        args=("--workers", "2"),
        cause="cold-cache",
        variant="WAV files, none in memory yet, 800 reads a second, 2 workers",
        data=_calls(cold=True),
        setup=(Setup(name="disk", value=800),),
        neutral=Neutral(data=_calls(cold=False)),
    ),
)

READ_AMPLIFICATION = (
    Case(
        id="read-amplification-scan",
        script="ct_patches.py",
        cause="read-amplification",
        variant="zarr chunks of 64 cubed for patches of 16 cubed: 64 times what is used",
        needs=("package:tensorstore",),
        data=_scan(64),
        neutral=Neutral(data=_scan(16)),
    ),
    Case(
        id="read-amplification-rides",
        script="taxi_rows.py",
        cause="read-amplification",
        variant="Parquet row groups of 16,384 rows for windows of 32",
        needs=("package:pyarrow",),
        data=_rides(16_384),
        neutral=Neutral(data=_rides(32)),
    ),
    Case(
        id="read-amplification-fields",
        script="weather_fields.py",
        cause="read-amplification",
        variant="compressed blocks of 32 fields for one of them",
        data=_fields(32),
        neutral=Neutral(data=_fields(1)),
    ),
    Case(
        id="read-amplification-fields-16",
        script="weather_fields.py",
        args=("--workers", "1"),
        cause="read-amplification",
        variant="blocks of 16 fields, 1 worker",
        data=_fields(16),
        neutral=Neutral(data=_fields(1)),
    ),
)

REOPENED_FILES = (
    Case(
        id="reopened-files-shards-2",
        script="sar_shards.py",
        args=("--workers", "2"),
        cause="reopened-files",
        variant="np.load of a shard for every image, 2 workers",
        data=(SHARDS,),
        neutral=Neutral(args=("--workers", "2", "--hold")),
    ),
    Case(
        id="reopened-files-shards-0",
        script="sar_shards.py",
        args=("--workers", "0"),
        cause="reopened-files",
        variant="the same in the main process",
        data=(SHARDS,),
        neutral=Neutral(args=("--workers", "0", "--hold")),
    ),
    Case(
        id="reopened-files-icons",
        script="icon_archive.py",
        cause="reopened-files",
        variant="a ZIP archive opened for every picture",
        needs=("package:PIL",),
        data=(ICONS,),
        neutral=Neutral(args=("--once",)),
    ),
    Case(
        id="reopened-files-tapes",
        script="speech_frames.py",
        args=("--workers", "1"),
        cause="reopened-files",
        variant="a WAV recording opened for every frame of it",
        data=(TAPES,),
        neutral=Neutral(args=("--workers", "1", "--stay-open")),
    ),
)

QUERY_PER_SAMPLE = (
    Case(
        id="query-per-sample-parts-0",
        script="parts_catalogue.py",
        args=("--trip", "0.001"),
        cause="query-per-sample",
        variant="SQLite with a trip of 1 ms, in the main process",
        data=(PARTS,),
        neutral=Neutral(args=("--trip", "0.001", "--many")),
    ),
    Case(
        id="query-per-sample-parts-2",
        script="parts_catalogue.py",
        args=("--trip", "0.003", "--workers", "2", "--batch", "24"),
        cause="query-per-sample",
        variant="a trip of 3 ms, 2 workers",
        also=("too-few-workers",),
        data=(PARTS,),
        neutral=Neutral(args=("--trip", "0.003", "--workers", "2", "--batch", "24", "--many")),
    ),
    Case(
        id="query-per-sample-signals-2",
        script="emitter_positions.py",
        args=("--workers", "2", "--batch", "24"),
        cause="query-per-sample",
        variant="PostgreSQL 1 ms away, sessions pickled to 2 spawned workers",
        also=("too-few-workers",),
        setup=(Setup(name="postgres", value=0.5),),
        neutral=Neutral(args=("--workers", "2", "--batch", "24", "--together")),
        seed="004",
    ),
    Case(
        id="query-per-sample-signals-0",
        script="emitter_positions.py",
        args=("--workers", "0", "--batch", "16"),
        cause="query-per-sample",
        variant="PostgreSQL 1 ms away, in the main process, because the session would not pickle",
        setup=(Setup(name="postgres", value=0.5),),
        neutral=Neutral(args=("--workers", "0", "--batch", "16", "--together")),
        seed="004",
    ),
    Case(
        id="query-per-sample-features",
        script="user_features.py",
        cause="query-per-sample",
        variant="a request to a feature service for every user",
        also=("too-few-workers",),
        setup=(Setup(name="features", value=0.5),),
        neutral=Neutral(args=("--in-bulk",)),
    ),
)

CASES = (*STORAGE_LATENCY, *COLD_CACHE, *READ_AMPLIFICATION, *REOPENED_FILES, *QUERY_PER_SAMPLE)
