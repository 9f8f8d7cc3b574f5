"""VolumeSource: every patch right from every form of storage, in every process; costs counted exactly."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from feed.volumes import FORMS, PATCH, is_right, make_labels, make_values, request_for, write_volume
from feed.workers import read_in_workers, reopened
from stoker.errors import MissingExtra, SourceBroken, SourceChanged, UsageError
from stoker.feed.sources.chunk_reader import ReaderApart, Request
from stoker.feed.sources.volume import VolumeSource
from stoker.feed.sources.volume_arrays import ChunkedVolume, describe_volume


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
def test_every_form_gives_the_right_patches(tmp_path: Path, form: str, dtype: str) -> None:
    """Of the type that is stored, in the order asked, twice where asked twice; the same from each form."""
    values, labels = make_values(dtype=dtype), make_labels()
    source = VolumeSource(
        write_volume(tmp_path / "image", values, form),
        labels=write_volume(tmp_path / "label", labels, form, (5, 7, 9)),
        patch=PATCH,
        samples_per_epoch=40,
    )
    numbers = np.random.default_rng(0).integers(0, 40, 25)
    batch = source.read(numbers)
    assert is_right(source, batch, numbers, image=values, label=labels)
    assert batch["image"].dtype == torch.from_numpy(values).dtype
    held = VolumeSource(values, labels=torch.from_numpy(labels), patch=PATCH, samples_per_epoch=40)
    assert all(torch.equal(held.read(numbers)[name], batch[name]) for name in ("image", "label"))
    assert repr(source) == f"VolumeSource(40 patches of (6, 10, 12) from (20, 33, 41) {dtype})"


@pytest.mark.parametrize("form", FORMS)
def test_channels_come_first(tmp_path: Path, form: str) -> None:
    """A volume of four axes has (channels, depth, height, width); of three, one channel."""
    values, labels = make_values((3, 20, 33, 41)), make_values((2, 20, 33, 41), "uint8")
    source = VolumeSource(
        write_volume(tmp_path / "image", values, form),
        labels=write_volume(tmp_path / "label", labels, form),
        patch=PATCH,
        samples_per_epoch=10,
    )
    batch = source.read(np.arange(10))
    assert (batch["image"].shape, batch["label"].shape) == ((10, 3, *PATCH), (10, 2, *PATCH))
    assert is_right(source, batch, range(10), image=values, label=labels)
    assert source[4]["image"].shape == (3, *PATCH)


@pytest.mark.parametrize("dtype", [">u2", ">f4"])
def test_byte_order_becomes_the_machines_own(tmp_path: Path, dtype: str) -> None:
    """In npy, in zarr, and in memory."""
    values = make_values(dtype=dtype)
    native = values.astype(values.dtype.newbyteorder("="))
    given: list[Any] = [write_volume(tmp_path / form, values, form) for form in ("zarr2", "npy")]
    for volume in (*given, values):
        source = VolumeSource(volume, patch=PATCH)
        assert is_right(source, source.read(np.arange(4)), range(4), image=native)


@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.parametrize("form", ["zarr3", "npy"])
def test_workers_open_their_own(tmp_path: Path, form: str, start: str) -> None:
    """Also forked ones whose parent has read by tensorstore, which would abort them."""
    values, labels = make_values(), make_labels()
    source = VolumeSource(
        write_volume(tmp_path / "image", values, form),
        labels=write_volume(tmp_path / "label", labels, form),
        patch=PATCH,
        samples_per_epoch=13,
    )
    source.read(np.arange(13))
    batches = read_in_workers(source, start)
    joined = {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}
    assert is_right(source, joined, range(13), image=values, label=labels)


def test_making_a_source_leaves_the_process_fit_to_fork(tmp_path: Path) -> None:
    """Its labels were looked through elsewhere: forked workers then read by tensorstore themselves."""
    write_volume(tmp_path / "image", make_values(), "zarr3")
    write_volume(tmp_path / "label", make_labels(), "zarr2")
    (tmp_path / "train.py").write_text(
        "import sys\n"
        "from torch.utils.data import DataLoader\n"
        "from stoker.feed.sources.volume import VolumeSource\n"
        "source = VolumeSource('image', labels='label', patch=(6, 10, 12), samples_per_epoch=8)\n"
        "assert 'tensorstore' not in sys.modules\n"
        "def tell(samples):\n"
        "    return [int(sample['image'].sum()) for sample in samples], 'tensorstore' in sys.modules\n"
        "loader = DataLoader(source, 4, num_workers=2, collate_fn=tell, multiprocessing_context='fork')\n"
        "print([*loader], [int(source[n]['image'].sum()) for n in range(8)])\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    source = VolumeSource(tmp_path / "image", labels=tmp_path / "label", patch=PATCH, samples_per_epoch=8)
    sums = source.read(np.arange(8))["image"].to(torch.int64).sum(dim=(1, 2, 3, 4)).tolist()
    assert (done.stdout, done.stderr) == (f"{[(sums[:4], True), (sums[4:], True)]} {sums}\n", "")


def test_the_reader_beside_ends_with_its_owner(tmp_path: Path) -> None:
    """And one that ended early is told of, not waited for."""
    path = write_volume(tmp_path / "image", make_values(), "zarr3")
    described = describe_volume(path, "image")
    assert isinstance(described, ChunkedVolume)
    array = described.array
    request = Request(corners=np.zeros((1, 3), np.int64), size=(2, 2, 2), order=np.zeros(1, np.int64))
    reader = ReaderApart([array], 0)
    out = np.empty((1, 1, 2, 2, 2), np.uint16)
    reader.read(request, [out])
    assert np.array_equal(out[0, 0], make_values()[:2, :2, :2])
    process = reader._process
    del reader
    assert process.returncode == 0
    reader = ReaderApart([array], 0)
    reader._process.kill()
    with pytest.raises(SourceBroken, match=r"the process that reads .*image ended with code -9"):
        reader.read(request, [out])


def test_it_pickles_with_nothing_open(tmp_path: Path) -> None:
    """A copy has the same samples."""
    values = make_values()
    source = VolumeSource(write_volume(tmp_path / "image", values, "zarr3"), patch=PATCH, samples_per_epoch=5)
    source.read(np.arange(5))
    twin = reopened(source)
    assert is_right(twin, twin.read(np.arange(5)), range(5), image=values)
    assert twin.fingerprint() == source.fingerprint()


def test_numbers_that_are_not_there_and_empty_reads() -> None:
    """IndexError; fields without rows."""
    source = VolumeSource(make_values(), labels=make_labels(), patch=PATCH, samples_per_epoch=5)
    with pytest.raises(IndexError, match="no sample 5: there are 5"):
        source.read(np.array([5]))
    with pytest.raises(IndexError, match="there are 5"):
        source[-6]
    batch = source.read(np.array([], dtype=np.int64))
    assert {name: tuple(field.shape) for name, field in batch.items()} == {
        "image": (0, 1, *PATCH),
        "label": (0, 1, *PATCH),
    }


def test_a_batch_is_the_callers_own() -> None:
    """Writing into it leaves the volume as it was."""
    values = make_values()
    source = VolumeSource(values, patch=PATCH)
    source.read(np.arange(3))["image"].zero_()
    assert np.array_equal(values, make_values())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"patch": (6, 10, 50)},
            r"a patch of \(6, 10, 50\) does not fit into the image array, .* \(20, 33, 41\)",
        ),
        ({"patch": (6, 10)}, r"patch is \(6, 10\): give depth, height and width"),
        ({"patch": (0, 1, 1)}, "each at least 1"),
        ({"mode": "gird"}, "mode='gird': take 'random' or 'grid'"),
        ({"mode": "grid", "stride": (7, 1, 1)}, r"stride \(7, 1, 1\) is 7 on axis 0, where a patch is 6"),
        ({"mode": "grid", "samples_per_epoch": 5}, "samples_per_epoch is for random patches"),
        ({"stride": (1, 1, 1)}, "stride is for a grid"),
        ({"samples_per_epoch": 0}, "samples_per_epoch is 0"),
        ({"foreground": 1.5}, "foreground is 1.5: it is a share"),
        (
            {"labels": np.zeros((20, 33, 40), np.uint8)},
            r"label array is \(20, 33, 40\) and the image array is",
        ),
        ({"labels": np.zeros((20, 33, 41), np.uint8)}, "holds no voxel but 0.*Give foreground=0"),
        ({"labels": make_labels(), "foreground_values": [7]}, r"holds none of \[7\]"),
        ({"volume": np.zeros((5, 5))}, r"has shape \(5, 5\): 3 axes are needed"),
        ({"volume": np.zeros((9, 9, 9), "f16")}, "holds float128, for which torch has no type"),
        (
            {"volume": torch.zeros(9, 9, 9).bfloat16()},
            "the image tensor is torch.bfloat16, which numpy lacks",
        ),
        ({"volume": "s3://bucket/volume.zarr"}, "is not on this machine: copy it first"),
        ({"volume": "absent.zarr"}, "no image volume .*absent.zarr: give a .npy file, or the folder"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, Any], message: str) -> None:
    """With the value and what to do."""
    volume = settings.pop("volume", make_values())
    with pytest.raises(UsageError, match=message):
        VolumeSource(volume, **{"patch": PATCH, **settings})


def test_a_group_is_answered_with_the_arrays_in_it(tmp_path: Path) -> None:
    """OME-Zarr's levels, an n5 container's data sets; a folder with nothing is told so."""
    for number, form in enumerate(("zarr3", "zarr2", "n5")):
        write_volume(tmp_path / f"{form}-group" / "0", make_values(), form)
        marker = [
            ("zarr.json", '{"node_type": "group", "zarr_format": 3}'),
            (".zgroup", "{}"),
            ("attributes.json", "{}"),
        ]
        (tmp_path / f"{form}-group" / marker[number][0]).write_text(marker[number][1])
        with pytest.raises(UsageError, match=r"is no zarr or n5 array: name one of the arrays in it: 0$"):
            VolumeSource(tmp_path / f"{form}-group", patch=PATCH)
    (tmp_path / "nothing").mkdir()
    with pytest.raises(UsageError, match="there is none in it either; give the folder of one"):
        VolumeSource(tmp_path / "nothing")


@pytest.mark.parametrize(
    "told",
    [
        "{",
        "[]",
        "{}",
        '{"shape": [9, 9, 9], "chunks": [3, 3], "dtype": "|u1"}',
        '{"shape": [9], "chunks": [3], "dtype": "zz"}',
    ],
)
def test_metadata_that_makes_no_sense_is_named(tmp_path: Path, told: str) -> None:
    """With the file's folder, whatever is wrong with it."""
    (tmp_path / ".zarray").write_text(told)
    with pytest.raises(SourceBroken, match=f"the metadata of {tmp_path} cannot be understood"):
        VolumeSource(tmp_path)


@pytest.mark.parametrize("form", ["zarr2", "zarr3"])
def test_a_broken_chunk_is_named(tmp_path: Path, form: str) -> None:
    """An error with the volume's path, here and beside, not a wrong patch; other chunks still come."""
    values = make_values()
    path = write_volume(tmp_path / "image", values, form)
    (path / ("0.0.0" if form == "zarr2" else "c/0/0/0")).write_bytes(b"not a chunk")
    source = VolumeSource(path, patch=PATCH, mode="grid")
    last = np.array([len(source) - 1])
    described = describe_volume(path, "image")
    assert isinstance(described, ChunkedVolume)
    beside = ReaderApart([described.array], 0)
    out = np.empty((1, 1, *PATCH), np.uint16)
    for _ in range(2):
        with pytest.raises(SourceBroken, match=f"cannot read a chunk of {path}"):
            source.read(np.arange(len(source)))
        with pytest.raises(SourceBroken, match=f"cannot read a chunk of {path}"):
            beside.read(request_for(source, np.array([0])), [out])
    assert is_right(source, source.read(last), last, image=values)
    beside.read(request_for(source, last), [out])
    assert is_right(source, {"image": torch.from_numpy(out)}, last, image=values)


def test_absent_chunks_hold_the_fill_value(tmp_path: Path) -> None:
    """As zarr has it: what was never written is not there."""
    path = write_volume(tmp_path / "image", make_values(), "zarr3")
    shutil.rmtree(path / "c")
    assert not VolumeSource(path, patch=PATCH, mode="grid").read(np.arange(8))["image"].any()


def test_the_fingerprint_follows_the_data_and_the_places(tmp_path: Path) -> None:
    """Another for other patches, rewritten files or changed labels; the same for the same."""
    values = make_values()
    for form in ("zarr3", "npy"):
        path = write_volume(tmp_path / form, values, form)
        told = [VolumeSource(path, patch=PATCH, seed=seed).fingerprint() for seed in (0, 0, 1)]
        label = VolumeSource(path, patch=PATCH, labels=make_labels(), foreground=0.0).fingerprint()
        files = [path] if form == "npy" else [file for file in path.rglob("*") if file.is_file()]
        os.utime(files[-1], ns=(5, 5))
        later = VolumeSource(path, patch=PATCH).fingerprint()
        assert told[0] == told[1]
        assert len({told[0], told[2], label, later}) == 4
    assert (
        VolumeSource(values, patch=PATCH).fingerprint() != VolumeSource(values + 1, patch=PATCH).fingerprint()
    )


def test_a_file_that_changed_is_not_read(tmp_path: Path) -> None:
    """A .npy volume rewritten after the source was made."""
    path = write_volume(tmp_path / "image", make_values(), "npy")
    source = VolumeSource(path, patch=PATCH)
    np.save(path, make_values((9, 9, 9)))
    with pytest.raises(SourceChanged, match="was changed after the source was made"):
        source[0]


def test_without_tensorstore_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a chunked volume is given; a .npy volume needs none."""
    zarr, npy = (write_volume(tmp_path / form, make_values(), form) for form in ("zarr3", "npy"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"needs tensorstore, .* pip install 'stoker\[volume\]'"):
        VolumeSource(zarr, patch=PATCH)
    assert len(VolumeSource(npy, patch=PATCH)) > 0
