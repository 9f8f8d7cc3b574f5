"""NpySource: shards of any length as one set of samples, read right in every process, and bad files named."""

import gc
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from feed.workers import read_in_workers, reopened, same_bits
from stoker.errors import SourceBroken, SourceChanged, UsageError
from stoker.feed.sources.npy import NpySource

LENGTHS = (3, 0, 5, 1, 8)


def write_shards(
    folder: Path, lengths: tuple[int, ...] = LENGTHS, shape: tuple[int, ...] = (2, 3), dtype: str = "<f4"
) -> NDArray[Any]:
    """Shards of these lengths, the values counted up; all of it as one array."""
    count = int(np.prod(shape, dtype=int))
    whole = (np.arange(sum(lengths) * count) % 60013).reshape(-1, *shape).astype(dtype)
    for number, part in enumerate(np.split(whole, np.cumsum(lengths)[:-1])):
        np.save(folder / f"{number:03}.npy", part)
    return whole


def open_maps(folder: Path) -> int:
    """How many maps of a folder's .npy files this process holds; other tests' may wait for the collector."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sum(str(folder) in line and ".npy" in line for line in lines)


def test_a_batch_comes_in_the_order_asked_across_ragged_shards(tmp_path: Path) -> None:
    """Any numbers, mixed, twice, counted from the end; shards without a sample are passed over."""
    whole = write_shards(tmp_path)
    source = NpySource(tmp_path)
    assert len(source) == 17
    wanted = np.array([16, 0, 2, 3, 8, 9, 16, -1, 7, 0])
    assert torch.equal(source.read(wanted), torch.from_numpy(whole[wanted]))
    assert torch.equal(source[-2], torch.from_numpy(whole[15]))
    assert repr(source) == "NpySource(17 samples of (2, 3) float32 in 5 files)"


@given(
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=8).filter(any),
    wanted=st.lists(st.integers(0, 10**6), max_size=20),
    max_open=st.integers(1, 4),
    width=st.sampled_from([1, 5000]),
)
def test_every_number_finds_its_sample(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], wanted: list[int], max_open: int, width: int
) -> None:
    """For any lengths, any batch, however few files may be open, samples small and large."""
    folder = tmp_path_factory.mktemp("shards")
    whole = write_shards(folder, tuple(lengths), (width,), "<i4")
    source = NpySource(folder, max_open=max_open)
    indices = np.array([number % len(whole) for number in wanted], dtype=np.int64)
    assert torch.equal(source.read(indices), torch.from_numpy(whole[indices]))


def test_a_number_that_is_not_there_is_an_index_error(tmp_path: Path) -> None:
    """In a read, as an item and among items; so that a plain loop over the source ends."""
    write_shards(tmp_path)
    source = NpySource(tmp_path)
    for number in (17, -18):
        with pytest.raises(IndexError, match="there are 17, from 0 to 16"):
            source.read(np.array([0, number]))
        with pytest.raises(IndexError, match="there are 17, from 0 to 16"):
            source[number]
    walked = list(cast("Iterable[torch.Tensor]", source))  # by __getitem__, until the IndexError
    assert len(walked) == 17


def test_an_empty_read_is_an_empty_batch(tmp_path: Path) -> None:
    """With the shape and type that a full one has."""
    write_shards(tmp_path)
    batch = NpySource(tmp_path).read(np.array([], dtype=np.int64))
    assert (batch.shape, batch.dtype) == ((0, 2, 3), torch.float32)


def test_a_batch_is_the_callers_own(tmp_path: Path) -> None:
    """Writing into it changes neither the file nor the next read."""
    whole = write_shards(tmp_path)
    source = NpySource(tmp_path)
    source.read(np.arange(17)).zero_()
    source[4].zero_()
    assert torch.equal(source.read(np.arange(17)), torch.from_numpy(whole))


@pytest.mark.parametrize(
    "dtype", ["?", "u1", "<i2", "<u2", "<u4", "<u8", "<f2", "<f8", "<c8", ">f4", ">i8", ">u2"]
)
@pytest.mark.parametrize("width", [3, 20000])
def test_types_come_as_torch_has_them(tmp_path: Path, dtype: str, width: int) -> None:
    """Byte order becomes the machine's own; the values stay. The DataLoader can put them into batches."""
    whole = write_shards(tmp_path, (2, 3), (width,), dtype)
    batch = NpySource(tmp_path).read(np.arange(5))
    native = torch.from_numpy(whole.astype(whole.dtype.newbyteorder("=")))
    assert same_bits(batch, native)
    assert same_bits(
        torch.utils.data.default_collate(NpySource(tmp_path).__getitems__([4, 1])), native[[4, 1]]
    )


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_open_their_own(tmp_path: Path, start: str) -> None:
    """Forked and spawned workers give every sample right, after the parent has read too."""
    whole = write_shards(tmp_path)
    (tmp_path / "meta.json").write_text(json.dumps({"label": list(range(17)), "name": ["x"] * 17}))
    source = NpySource(tmp_path, metadata="meta.json")
    source.read(np.arange(17))
    batches = read_in_workers(source, start)
    assert torch.equal(torch.cat([batch["data"] for batch in batches]), torch.from_numpy(whole))
    assert torch.cat([batch["label"] for batch in batches]).tolist() == list(range(17))
    assert [name for batch in batches for name in batch["name"]] == ["x"] * 17


def test_it_pickles_without_its_maps(tmp_path: Path) -> None:
    """A copy has the same samples and fingerprint, and nothing open until it reads."""
    whole = write_shards(tmp_path)
    source = NpySource(tmp_path)
    source.read(np.arange(17))
    before = open_maps(tmp_path)
    twin = reopened(source)
    assert open_maps(tmp_path) == before
    assert torch.equal(twin.read(np.arange(17)), torch.from_numpy(whole))
    assert twin.fingerprint() == source.fingerprint()


def test_no_more_files_are_open_than_allowed(tmp_path: Path) -> None:
    """Of many shards, those used last stay mapped; each is mapped once while it stays."""
    whole = write_shards(tmp_path, (1,) * 40)
    source = NpySource(tmp_path, max_open=4)
    for _ in range(2):
        assert torch.equal(source.read(np.arange(40)), torch.from_numpy(whole))
        assert open_maps(tmp_path) == 4
    held = NpySource(tmp_path, max_open=40)
    held.read(np.arange(40))
    gc.collect()  # so that nothing of other tests is closed in between
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    held.read(np.arange(40))
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors
    with pytest.raises(UsageError, match="max_open is 0"):
        NpySource(tmp_path, max_open=0)


def test_the_whole_sar_set_opens_by_its_headers_alone(tmp_path: Path) -> None:
    """44 ragged shards, 696,278 samples, 182 GB: sparse files here, with an id in some of the samples."""
    lengths = np.full(44, 696_278 // 44)
    lengths[: 696_278 % 44] += 1
    lengths[::2] += 1000
    lengths[1::2] -= 1000
    assert lengths.sum() == 696_278
    ends = np.cumsum(lengths)
    marked = np.unique(np.concatenate([[0], ends - 1, ends[:-1], np.arange(0, 696_278, 20_011)]))
    for number, length in enumerate(lengths.tolist()):
        with (tmp_path / f"{number:02}.npy").open("wb") as file:
            header = {"descr": "<f4", "fortran_order": False, "shape": (length, 256, 256)}
            np.lib.format.write_array_header_1_0(file, header)
            start = file.tell()
            file.truncate(start + length * 256 * 256 * 4)
            for sample in marked[(marked >= ends[number] - length) & (marked < ends[number])].tolist():
                file.seek(start + (sample - (ends[number] - length)) * 256 * 256 * 4)
                file.write(np.float32(sample + 1).tobytes())
    source = NpySource(tmp_path)
    assert open_maps(tmp_path) == 0
    assert (len(source), source.sample_shape) == (696_278, (256, 256))
    for chosen in np.array_split(np.random.default_rng(0).permutation(marked), 5):
        batch = source.read(chosen)
        assert torch.equal(batch[:, 0, 0], torch.from_numpy(chosen + 1).float())
        assert batch.sum().item() == batch[:, 0, 0].sum().item()
    assert open_maps(tmp_path) == 44


def test_metadata_by_sample_and_by_file(tmp_path: Path) -> None:
    """Numbers and lists of them become tensors as default_collate makes them, text stays text."""
    write_shards(tmp_path)
    told = {
        "label": list(range(17)),
        "weight": [value / 2 for value in range(17)],
        "place": [[value, -value] for value in range(17)],
        "train": {f"{number:03}.npy": number != 2 for number in range(5)},
        "orbit": {f"{number:03}.npy": f"orbit {number}" for number in range(5)},
    }
    (tmp_path / "meta.json").write_text(json.dumps(told))
    batch = NpySource(tmp_path, metadata="meta.json", field="image").read(np.array([16, 2, 3]))
    assert list(batch) == ["image", *told]
    assert same_bits(batch["label"], torch.tensor([16, 2, 3]))
    assert same_bits(batch["weight"], torch.tensor([8, 1, 1.5], dtype=torch.float64))
    assert same_bits(batch["place"], torch.tensor([[16, -16], [2, -2], [3, -3]]))
    assert same_bits(batch["train"], torch.tensor([True, True, False]))
    assert batch["orbit"] == ["orbit 4", "orbit 0", "orbit 2"]


def test_metadata_as_rows_of_an_array(tmp_path: Path) -> None:
    """A .npy file in the same folder, one row a sample; it is no shard."""
    whole = write_shards(tmp_path)
    np.save(tmp_path / "labels.npy", np.arange(17, dtype=">i4"))
    source = NpySource(tmp_path, metadata="labels.npy")
    assert len(source) == 17
    sample = source[5]
    assert torch.equal(sample["data"], torch.from_numpy(whole[5]))
    assert same_bits(sample["labels"], torch.tensor(5, dtype=torch.int32))


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ('{"label": [1, 2]}', r"'label' in .*meta.json is 2 values, and there are 17 samples"),
        ('{"label": 5}', "'label' in .* is a int, and there are 17"),
        ('{"label": {"000.npy": 1}}', "has nothing for 001.npy"),
        (json.dumps({"label": {f"{n:03}.npy": 1 for n in range(6)}}), "names 005.npy, which is no shard"),
        (json.dumps({"label": [1] * 16 + [None]}), "is null at 16"),
        (json.dumps({"label": [1] * 16 + ["one"]}), "mixes int, str"),
        (json.dumps({"label": [[1]] * 16 + [[1, 2]]}), "lists of different lengths"),
        ("[1, 2]", "holds a list; an object of names"),
        ("{", "neither .npy nor JSON"),
        ('{"data": []}', "is 0 values"),
        (json.dumps({"data": [1] * 17}), "describes 'data', which is what the samples are called"),
    ],
)
def test_wrong_metadata_is_refused(tmp_path: Path, told: str, message: str) -> None:
    """With the name, the value and what was needed."""
    write_shards(tmp_path)
    (tmp_path / "meta.json").write_text(told)
    with pytest.raises(UsageError, match=message):
        NpySource(tmp_path, metadata="meta.json")


def test_missing_metadata_and_rows_of_a_wrong_length_are_refused(tmp_path: Path) -> None:
    """The file that was looked for is named; so is the shape that was found."""
    write_shards(tmp_path)
    with pytest.raises(UsageError, match=re.escape(f"no metadata file {tmp_path / 'labels.npy'}")):
        NpySource(tmp_path, metadata="labels.npy")
    np.save(tmp_path / "labels.npy", np.zeros((16, 2)))
    with pytest.raises(SourceBroken, match=r"has shape \(16, 2\), and there are 17 samples"):
        NpySource(tmp_path, metadata="labels.npy")


def write_bad(path: Path, kind: str) -> None:
    """A file that is no shard, each kind in its own way."""
    good = np.zeros((4, 2, 3), "<f4")
    if kind == "not npy":
        path.write_bytes(b"PK\3\4 something else altogether")
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "half a header":
        np.save(path, good)
        path.write_bytes(path.read_bytes().replace(b"'shape': (4, 2, 3), }", b"'shape': (4, 2,      "))
    elif kind == "objects":
        np.save(path, np.array([{}, []], dtype=object))
    elif kind == "fortran":
        np.save(path, np.asfortranarray(good))
    elif kind == "dtype":
        np.save(path, good.astype("<f8"))
    elif kind == "shape":
        np.save(path, np.zeros((4, 2, 4), "<f4"))
    elif kind == "value":
        np.save(path, np.float32(1))
    elif kind == "version":
        with path.open("wb") as file:
            np.lib.format.write_array(file, np.zeros(2, [("\u2020", "f4")]), version=(3, 0))
    else:
        np.save(path, good)
        size = path.stat().st_size
        os.truncate(path, size - 5 if kind == "cut" else size + 5)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("not npy", "is no .npy file"),
        ("empty", "is no .npy file"),
        ("half a header", "is no .npy file: .*EOF"),
        ("objects", "holds pickled objects, which are never loaded"),
        ("fortran", "is in Fortran order"),
        ("dtype", r"holds samples of \(2, 3\) float64, and 000.npy of \(2, 3\) float32"),
        ("shape", r"holds samples of \(2, 4\) float32, and 000.npy of \(2, 3\) float32"),
        ("value", "holds a single value"),
        ("version", "has version 3.0 of the format"),
        ("cut", "is cut short: 219 bytes, and its header asks for 224"),
        ("long", "holds more than its header says: 229 bytes"),
    ],
)
def test_a_file_that_is_no_shard_is_named(tmp_path: Path, kind: str, message: str) -> None:
    """At the start, before anything is read from it, with what is wrong with it."""
    write_shards(tmp_path)
    write_bad(tmp_path / "bad.npy", kind)
    with pytest.raises(SourceBroken, match=f"{re.escape(str(tmp_path / 'bad.npy'))} .*{message}"):
        NpySource(tmp_path)


@pytest.mark.parametrize("dtype", ["<M8[s]", "<U4", "f16"])
def test_a_type_that_torch_has_not_is_refused(tmp_path: Path, dtype: str) -> None:
    """Times, text, and floats longer than 64 bits."""
    np.save(tmp_path / "a.npy", np.zeros(3, dtype))
    with pytest.raises(SourceBroken, match=r"a.npy holds .*, for which torch has no type"):
        NpySource(tmp_path)


def test_a_folder_without_shards_is_refused(tmp_path: Path) -> None:
    """Not there, or nothing in it of that name."""
    with pytest.raises(UsageError, match=r"no folder .*absent"):
        NpySource(tmp_path / "absent")
    for pattern in ("/data/*.npy", ""):
        with pytest.raises(UsageError, match=re.escape(f"pattern={pattern!r}: ")):
            NpySource(tmp_path, pattern)
    with pytest.raises(UsageError, match=r"no file in .* is named like \*\.npy"):
        NpySource(tmp_path)


def test_the_pattern_chooses_files_below_too(tmp_path: Path) -> None:
    """In the order of their names from the folder."""
    for name in ("b", "a"):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "1.npy", np.full((1, 2), ord(name)))
    np.save(tmp_path / "1.npy", np.zeros((1, 3)))
    assert NpySource(tmp_path, "*/*.npy").read(np.arange(2))[:, 0].tolist() == [ord("a"), ord("b")]


def test_the_fingerprint_tells_sets_apart(tmp_path: Path) -> None:
    """The same for the same files; another after one is rewritten, renamed, added, or described otherwise."""
    write_shards(tmp_path)
    (tmp_path / "meta.json").write_text(json.dumps({"label": [0] * 17}))
    seen = [NpySource(tmp_path).fingerprint(), NpySource(tmp_path, metadata="meta.json").fingerprint()]
    assert NpySource(tmp_path).fingerprint() == seen[0]
    os.utime(tmp_path / "000.npy", ns=(1, 1))
    seen.append(NpySource(tmp_path).fingerprint())
    (tmp_path / "004.npy").rename(tmp_path / "005.npy")
    seen.append(NpySource(tmp_path).fingerprint())
    np.save(tmp_path / "006.npy", np.zeros((2, 2, 3), "<f4"))
    seen.append(NpySource(tmp_path).fingerprint())
    assert len(set(seen)) == 5


def test_a_shard_that_changed_under_it_is_not_read(tmp_path: Path) -> None:
    """A file cut short after the start would end the process when mapped; it is refused instead."""
    write_shards(tmp_path)
    source = NpySource(tmp_path)
    os.truncate(tmp_path / "004.npy", 130)
    assert source.read(np.array([0])).shape == (1, 2, 3)
    with pytest.raises(
        SourceChanged, match=r"004.npy was changed after the source was made: 320 bytes then, 130"
    ):
        source.read(np.array([16]))


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("how", ["cut", "rewritten", "gone"])
def test_a_shard_that_changes_while_it_is_mapped_is_not_read(tmp_path: Path, how: str, large: bool) -> None:
    """Cut short it would end the process, rewritten give other values; one removed is held as it was."""
    values = np.arange(4 * (8192 if large else 8), dtype=np.float32).reshape(4, -1)
    np.save(tmp_path / "0.npy", values)
    source = NpySource(tmp_path)
    assert torch.equal(source.read(np.arange(4)), torch.from_numpy(values))
    if how == "gone":
        (tmp_path / "0.npy").unlink()
        assert torch.equal(source.read(np.arange(4)), torch.from_numpy(values))
        with pytest.raises(SourceChanged, match=r"0\.npy cannot be opened any more: No such file"):
            reopened(source).read(np.arange(4))
        return
    if how == "cut":
        os.truncate(tmp_path / "0.npy", 200)
    else:
        np.save(tmp_path / "0.npy", values + 1)
    with pytest.raises(SourceChanged, match=r"0\.npy was changed after the source was made"):
        source.read(np.arange(4))


@pytest.mark.parametrize(("how", "told"), [("link", "a link that leads nowhere"), ("folder", "no file")])
def test_what_is_named_like_a_shard_and_is_none_is_told(tmp_path: Path, how: str, told: str) -> None:
    """Left out without a word, its samples would be missing."""
    write_shards(tmp_path)
    odd = tmp_path / "099.npy"
    odd.symlink_to(tmp_path / "nowhere") if how == "link" else odd.mkdir()
    with pytest.raises(SourceBroken, match=rf"099\.npy is {told}: mend it, remove it, or leave it out"):
        NpySource(tmp_path)
    assert len(NpySource(tmp_path, "00*.npy")) == 17
