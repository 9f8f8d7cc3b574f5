"""Data that is made on first use, and pictures that need no library."""

import io
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest
from PIL import Image

from stoker.errors import UsageError
from stoker.workloads import curves, png
from stoker.workloads.made import made_once


def count_up(folder: Path) -> None:
    with (folder / "count").open("a") as file:
        file.write("made\n")


def test_a_set_is_made_once_by_whoever_comes_first(tmp_path: Path) -> None:
    """Four that start together make it once, each with the lock opened anew, as processes do."""
    together = Barrier(4)

    def make(_: int) -> Path:
        together.wait()
        return made_once("set", count_up, place=tmp_path)

    with ThreadPoolExecutor(4) as threads:
        folders = set(threads.map(make, range(4)))
    assert folders == {tmp_path / "set"}
    assert (tmp_path / "set" / "count").read_text() == "made\n"


def test_a_maker_that_failed_is_called_again(tmp_path: Path) -> None:
    """What it left is not taken for whole."""

    def fail(folder: Path) -> None:
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        made_once("set", fail, place=tmp_path)
    assert (made_once("set", count_up, place=tmp_path) / "count").exists()


@pytest.mark.parametrize("shape", [(7, 5), (4, 9, 3)])
def test_a_picture_is_read_back_as_it_was(shape: tuple[int, ...]) -> None:
    """By another library, grey and in colours."""
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(png.encode(pixels)))), pixels)


def test_pixels_of_another_kind_are_refused() -> None:
    """With what they are."""
    with pytest.raises(UsageError, match=r"\(3, 3\) float64"):
        png.encode(np.zeros((3, 3)))  # type: ignore[arg-type]


def test_differences_are_white_red_and_blue() -> None:
    """None, too much, too little; beyond the most, the full colour."""
    drawn = png.as_difference(np.array([[0.0, 0.5, -0.5, 9.0]]), most=0.5)
    assert drawn[0].tolist() == [[255, 255, 255], [255, 0, 0], [0, 0, 255], [255, 0, 0]]


def test_curves_are_drawn_on_one_scale() -> None:
    """A line each, points that are no number left out, nothing drawn of nothing."""
    drawn = curves.draw(
        {"a": [(0, 1.0), (10, 3.0)], "b": [(5, float("nan")), (10, 2.0)]}, label="loss", across="steps"
    )
    assert drawn is not None
    assert drawn.count("<path") == 2
    assert "a ends at 3" in drawn
    assert curves.draw({"a": []}, label="loss", across="steps") is None
