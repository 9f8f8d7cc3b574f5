"""Images in class folders: labels, subsets, decoding, errors, and the same from an object store."""

import io
import pickle
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from stoker.errors import SourceBroken, UsageError
from stoker.feed import decode as decoding
from stoker.feed.decode import decode, decode_batch, fit, fit_alike
from stoker.feed.sources.images import ImageSource
from stoker.feed.sources.objects import Store
from stoker.feed.stage import Selection, Stage

from .pictures import encoded, pixels, write_classes
from .s3 import S3Server

COUNTS = {"cat": 5, "ant": 4, "dog": 6, "bee": 3}
# Bounds on what JPEG at quality 95 and the decoders' rounding change in these pictures.
NEAR = 6


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_classes(tmp_path / "set", COUNTS)
    return tmp_path / "set"


def off_by(image: torch.Tensor, number: int) -> int:
    """The largest difference from the picture with this number."""
    right = torch.from_numpy(pixels(number)).permute(2, 0, 1)
    return int((image.int() - right.int()).abs().max())


def test_labels_are_the_sorted_class_names(folder: Path) -> None:
    """Whatever order the folders were made in; images come with theirs, as tensors of bytes."""
    source = ImageSource(folder)
    assert source.classes == ["ant", "bee", "cat", "dog"]
    assert len(source) == 18
    images, labels = source.read(np.array([0, 17, 4, 4]))
    assert (images.dtype, tuple(images.shape)) == (torch.uint8, (4, 3, 48, 64))
    assert labels.tolist() == [0, 3, 1, 1]
    assert images.is_contiguous()
    assert [source.classes[label] for label in labels] == [
        source.key(number).partition("/")[0] for number in (0, 17, 4, 4)
    ]
    assert source.labels.tolist() == [0] * 4 + [1] * 3 + [2] * 5 + [3] * 6


def test_the_pixels_are_those_of_the_files(tmp_path: Path) -> None:
    """JPEG within its own loss, PNG exactly."""
    numbers = write_classes(tmp_path, {"a": 6})
    source = ImageSource(tmp_path)
    images, _ = source.read(np.arange(6))
    for index in range(6):
        key = source.key(index)
        assert off_by(images[index], numbers[key]) <= (0 if key.endswith(".png") else NEAR)


def test_it_is_a_torch_dataset(folder: Path) -> None:
    """One sample at a time, and through forked and spawned workers, the same."""
    source = ImageSource(folder)
    image, label = source[-1]
    assert (tuple(image.shape), int(label)) == ((3, 48, 64), 3)
    here = [images for images, _ in DataLoader(source, batch_size=6)]
    for start in ("fork", "spawn"):
        loader = DataLoader(source, batch_size=6, num_workers=1, multiprocessing_context=start, timeout=60)
        for (images, _), expected in zip(loader, here, strict=True):
            assert torch.equal(images, expected)


def test_a_number_of_classes_is_chosen_by_the_seed(folder: Path) -> None:
    """The same ones for the same seed, all their files and no others; labels count from 0."""
    some = [ImageSource(folder, classes=2, seed=seed) for seed in range(8)]
    assert some[3].classes == ImageSource(folder, classes=2, seed=3).classes
    assert len({tuple(source.classes) for source in some}) > 1
    for source in some:
        assert len(source) == sum(COUNTS[name] for name in source.classes)
        assert set(source.labels.tolist()) == {0, 1}


def test_classes_can_be_named(folder: Path) -> None:
    """A name that is not there is answered with the nearest."""
    assert ImageSource(folder, classes=["dog", "bee"]).classes == ["bee", "dog"]
    with pytest.raises(UsageError, match=r"no class 'dgo'.*dog"):
        ImageSource(folder, classes=["dgo"])
    with pytest.raises(UsageError, match="is one text"):
        ImageSource(folder, classes="dog")
    with pytest.raises(UsageError, match="5 classes were asked for: there are 4"):
        ImageSource(folder, classes=5)


def test_what_is_no_image_in_a_class_folder_is_left_out(folder: Path) -> None:
    """Other files, files beside the class folders, hidden folders; how many is told."""
    (folder / "cat" / "notes.txt").write_text("x")
    (folder / "labels.csv").write_text("x")
    (folder / ".cache").mkdir()
    (folder / ".cache" / "x.jpg").write_bytes(encoded(1))
    (folder / "cat" / "deep").mkdir()
    (folder / "cat" / "deep" / "y.PNG").write_bytes(encoded(1, "PNG"))
    source = ImageSource(folder)
    assert (len(source), source.ignored, source.classes) == (19, 1, ["ant", "bee", "cat", "dog"])


def test_a_folder_without_class_folders_is_told(tmp_path: Path) -> None:
    """With what is looked for."""
    (tmp_path / "x.jpg").write_bytes(encoded(1))
    with pytest.raises(UsageError, match="one folder for each class"):
        ImageSource(tmp_path)


def test_images_of_differing_sizes_need_a_size(folder: Path) -> None:
    """Named: which two, and what to do."""
    (folder / "cat" / "wide.jpg").write_bytes(encoded(9, height=48, width=200))
    source = ImageSource(folder, classes=["cat"])
    with pytest.raises(UsageError, match=r"48x64.*wide\.jpg is 48x200.*give size"):
        source.read(np.arange(len(source)))
    images, _ = ImageSource(folder, classes=["cat"], size=(32, 40)).read(np.arange(len(source)))
    assert tuple(images.shape) == (6, 3, 32, 40)
    with pytest.raises(UsageError, match="height and width"):
        ImageSource(folder, size=(0, 5))


@pytest.mark.parametrize("shape", [(48, 64), (480, 640), (300, 1200), (1200, 300), (20, 20)])
def test_a_size_is_covered_and_cut_to_the_middle(shape: tuple[int, int]) -> None:
    """Nothing is stretched: the same place of the picture, whatever scale the decoder worked at."""
    height, width = shape
    data = encoded(3, height=height, width=width)
    image = decode(data, (32, 32)).int()
    assert tuple(image.shape) == (3, 32, 32)
    side = min(shape)
    # Green grows downwards and blue to the right, linearly: their middles are the picture's middle.
    assert abs(float(image[1].float().mean()) - 124) < 6
    assert abs(float(image[2].float().mean()) - 124) < 6
    for channel, length, axis in ((1, height, 0), (2, width, 1)):
        lines = image[channel].float().mean(dim=1 - axis)
        assert abs(float(lines[-1] - lines[0]) - 255 * side / length * 31 / 32) < 12


def test_the_decoder_shrinks_only_while_the_size_is_covered(monkeypatch: pytest.MonkeyPatch) -> None:
    """By 8, 4 or 2 where both sides still cover it; what comes out is near to the whole image scaled."""
    assert [decoding._reduction((480, 640), (n, n)) for n in (224, 240, 60, 61, 481)] == [2, 2, 8, 4, 1]
    data = encoded(3, height=480, width=640)
    quick = decode(data, (100, 100)).int()
    monkeypatch.setattr(decoding, "_reduction", lambda have, need: 1)
    assert int((quick - decode(data, (100, 100)).int()).abs().max()) <= 12


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_grey_and_cmyk_jpegs_become_rgb(mode: str) -> None:
    """As Pillow converts them."""
    data = encoded(5, mode=mode)
    with Image.open(io.BytesIO(data)) as image:
        right = np.array(image.convert("RGB")).astype(int)
    assert np.abs(decode(data).permute(1, 2, 0).numpy().astype(int) - right).max() <= NEAR


def test_pngs_of_every_mode_become_rgb() -> None:
    """Palettes and alpha; 16 bits are scaled, where Pillow alone would clip them."""
    for mode in ("P", "RGBA", "L", "1"):
        assert tuple(decode(encoded(5, "PNG", mode=mode)).shape) == (3, 48, 64)
    deep = np.linspace(0, 65535, 48 * 64).reshape(48, 64).astype(np.uint16)
    buffer = io.BytesIO()
    Image.fromarray(deep).save(buffer, "PNG")
    assert torch.equal(decode(buffer.getvalue())[1], torch.from_numpy((deep >> 8).astype(np.uint8)))


def test_what_a_file_is_called_does_not_matter(tmp_path: Path) -> None:
    """A PNG named .JPEG (ImageNet has one) is a PNG."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.JPEG").write_bytes(encoded(7, "PNG"))
    assert off_by(ImageSource(tmp_path)[0][0], 7) == 0


def test_an_odd_jpeg_is_read_and_a_cut_one_is_not() -> None:
    """Stray bytes before a marker do no harm; what is missing or wrong is never filled with grey."""
    data = encoded(5)
    assert off_by(decode(data[:-2] + b"\0\0\0" + data[-2:]), 5) <= NEAR
    scratched = data[:1200] + b"\xff\x00" * 40 + data[1280:]
    for broken in (data[: len(data) // 2], data[:-20], scratched, b"", b"GIF89a", encoded(5, "PNG")[:-30]):
        with pytest.raises(ValueError, match=r"broken image|neither JPEG nor PNG"):
            decode(broken)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_broken_image_is_named(folder: Path, threads: int) -> None:
    """With its size and what to do; leaving it out by name is that."""
    (folder / "dog" / "dog_2.jpg").write_bytes(encoded(5)[:300])
    (folder / "ant" / "ant_0.JPEG").write_bytes(b"")
    source = ImageSource(folder, threads=threads)
    with pytest.raises(SourceBroken, match=r"dog_2\.jpg \(300 bytes\) is a broken image.*exclude="):
        source.read(np.arange(4, 18))
    assert sorted(source.find_broken()) == ["ant/ant_0.JPEG", "dog/dog_2.jpg"]
    whole = ImageSource(folder, exclude=list(source.find_broken()))
    assert len(whole.read(np.arange(len(whole)))[1]) == 16


def test_undecoded_images_are_the_files(folder: Path) -> None:
    """For a cache of compressed ones; `decode_batch` makes the same tensors of them."""
    source = ImageSource(folder, decode=False)
    files, labels = source.read(np.array([3, 0, 3]))
    assert files == [(folder / source.key(number)).read_bytes() for number in (3, 0, 3)]
    assert labels.tolist() == [0, 0, 0]
    assert torch.equal(decode_batch(files), ImageSource(folder).read(np.array([3, 0, 3]))[0])
    file, label = source[3]
    assert (file, int(label)) == (files[0], 0)
    with pytest.raises(SourceBroken, match="image 1 of the batch"):
        decode_batch([files[0], b"no"])
    with pytest.raises(UsageError, match="differing sizes"):
        decode_batch([files[0], encoded(1, width=99)])


def test_pillow_stands_in_for_simplejpeg(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Near to the same pixels, and the fingerprint tells that they are not the same."""
    source = ImageSource(folder, size=(20, 20))
    images, _ = source.read(np.arange(18))
    told = source.fingerprint()
    monkeypatch.setitem(sys.modules, "simplejpeg", None)
    monkeypatch.setattr(decoding, "decoder_name", lambda: "pillow")
    monkeypatch.setattr("stoker.feed.sources.images.decoder_name", lambda: "pillow")
    others, _ = source.read(np.arange(18))
    assert int((images.int() - others.int()).abs().max()) <= 12
    assert source.fingerprint() != told


def test_the_fingerprint_follows_what_the_samples_are_made_of(folder: Path) -> None:
    """Files, their sizes and times, the classes and the size asked for; not the way of asking."""
    told = ImageSource(folder).fingerprint()
    assert ImageSource(folder, threads=1).fingerprint() == told
    others = {told}
    others.add(ImageSource(folder, size=(20, 20)).fingerprint())
    others.add(ImageSource(folder, decode=False).fingerprint())
    others.add(ImageSource(folder, classes=["cat"]).fingerprint())
    (folder / "cat" / "new.jpg").write_bytes(encoded(1))
    others.add(ImageSource(folder).fingerprint())
    assert len(others) == 5


def test_a_source_holds_no_object_for_each_file(folder: Path) -> None:
    """It pickles to a few arrays, and 18 files or thousands make the same number of objects."""
    for number in range(3000):
        (folder / "bee" / f"many_{number:05d}.jpg").touch()
    tracemalloc.start()
    try:
        source = ImageSource(folder)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(source) == 3018
    assert held < 3018 * 100
    assert len(pickle.dumps(source)) < 3018 * 60


@pytest.mark.service
def test_the_same_from_an_object_store(folder: Path, s3_server: S3Server, prefix: str) -> None:
    """Classes, labels and pixels; with `keep`, the second time from disk, the server's copies gone."""
    store = s3_server.store(prefix)
    for entry in Store(folder).list():
        store.put(entry.key, (folder / entry.key).read_bytes())
    local = ImageSource(folder, classes=2, seed=1)
    kept = folder.parent / "kept"
    remote = ImageSource(f"s3://{prefix}", classes=2, seed=1, options=s3_server.options(), keep=kept)
    everything = np.arange(len(local))
    images, labels = local.read(everything)
    for _ in range(2):
        for mine, other in zip(remote.read(everything), (images, labels), strict=True):
            assert torch.equal(mine, other)
        for number in everything:
            store.put(local.key(int(number)), b"gone")
    assert sorted(ImageSource(kept).classes) == local.classes


@pytest.mark.service
def test_what_training_kept_staging_need_not_copy(folder: Path, s3_server: S3Server, prefix: str) -> None:
    """The same files and the same manifest; workers write it too, and what they did not read is missing."""
    store = s3_server.store(prefix)
    for entry in Store(folder).list():
        store.put(entry.key, (folder / entry.key).read_bytes())
    kept = folder.parent / "kept"
    source = ImageSource(f"s3://{prefix}", options=s3_server.options(), keep=kept)
    loader = DataLoader(source, batch_size=5, num_workers=2, sampler=range(10), timeout=60)
    assert sum(len(labels) for _, labels in loader) == 10
    outcome = Stage(store, kept, Selection()).run()
    assert (outcome.kept, outcome.copied) == (10, 8)


@pytest.mark.service
def test_a_kept_file_that_is_no_longer_the_source_s_is_read_anew(
    folder: Path, s3_server: S3Server, prefix: str
) -> None:
    """A file of another size or time counts as missing."""
    store = s3_server.store(prefix)
    store.put("a/1.png", encoded(1, "PNG"))
    kept = folder.parent / "kept"
    assert off_by(ImageSource(f"s3://{prefix}", options=s3_server.options(), keep=kept)[0][0], 1) == 0
    store.put("a/1.png", encoded(2, "PNG", mode="RGBA"))
    assert off_by(ImageSource(f"s3://{prefix}", options=s3_server.options(), keep=kept)[0][0], 2) == 0


def test_images_fitted_together_are_what_they_are_alone() -> None:
    """Those of one size by one call, each in its own place, whatever their number."""
    images = [decode(encoded(number, height=40 + 8 * (number % 3))) for number in range(70)]
    assert torch.equal(fit_alike(images, (24, 32)), torch.stack([fit(image, (24, 32)) for image in images]))


def test_a_batch_of_many_images_is_in_order(tmp_path: Path) -> None:
    """Files that are read and decoded several at a time come in the rows that they were asked for."""
    write_classes(tmp_path, {"a": 70, "b": 70})
    source = ImageSource(tmp_path, size=(24, 32))
    order = np.random.default_rng(0).permutation(140)
    together = source.read(order)[0]
    assert torch.equal(together, torch.cat([source.read(order[at : at + 1])[0] for at in range(140)]))


@pytest.mark.gpu
def test_a_gpu_decodes_by_the_batch() -> None:
    """Near to the CPU's pixels, on the device; what nvJPEG cannot decode the CPU does."""
    files = [encoded(number) for number in range(8)]
    on_device = decode_batch(files, "cuda", (32, 32))
    assert on_device.device.type == "cuda"
    assert int((on_device.cpu().int() - decode_batch(files, "cpu", (32, 32)).int()).abs().max()) <= 12
    mixed = [*files, encoded(1, "PNG"), encoded(2, mode="CMYK")]
    assert tuple(decode_batch(mixed, "cuda").shape) == (10, 3, 48, 64)


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_decoding_starts_no_threads_of_torch_s_own() -> None:
    """A team of them would spin for every thread that decodes."""
    code = (
        "import os, sys, torch; from stoker.feed.decode import decode; torch.set_num_threads(4); "
        "data = sys.stdin.buffer.read(); before = len(os.listdir('/proc/self/task')); "
        "decode(data, (224, 200)); print(len(os.listdir('/proc/self/task')) - before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=encoded(1, height=600, width=800), capture_output=True, timeout=60
    )
    assert (done.stdout, done.stderr) == (b"0\n", b"")


def test_scaling_to_the_same_size_changes_nothing() -> None:
    """Not even by rounding."""
    image = torch.from_numpy(pixels(1)).permute(2, 0, 1)
    assert torch.equal(fit(image, (48, 64)), image)
