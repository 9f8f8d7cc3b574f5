"""Made scrolls and the layout of the set."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from stoker.errors import SourceBroken, UsageError
from stoker.feed.sources.volume import VolumeSource
from stoker.workloads.vesuvius.scrolls import (
    AIR,
    SHEET,
    UNLABELLED,
    MadeScrolls,
    create_zarr,
    draw_scroll,
    find_scrolls,
    make_scrolls,
)

SMALL = MadeScrolls(volumes=2, shape=(20, 48, 56))


def test_a_made_set_has_the_layout_of_the_real_one(tmp_path: Path) -> None:
    """Each volume and its labels are zarr v3 arrays of bytes, with the voxels that were drawn."""
    scrolls = make_scrolls(tmp_path, SMALL)
    assert [scroll.name for scroll in scrolls] == ["scroll_000", "scroll_001"]
    assert (tmp_path / "volumes" / "scroll_001.zarr" / "zarr.json").is_file()
    drawn = [np.stack(each) for each in zip(*draw_scroll(SMALL, 1), strict=True)]
    read = VolumeSource(scrolls[1].volume, labels=scrolls[1].labels, patch=SMALL.shape, mode="grid")[0]
    assert np.array_equal(read["image"][0], drawn[0])
    assert np.array_equal(read["label"][0], drawn[1])


def test_a_scroll_has_sheets_air_and_unlabelled_places() -> None:
    """All three are there in every slice, and sheets are brighter than air."""
    for grey, label in draw_scroll(MadeScrolls(shape=(8, 128, 128)), 0):
        assert {AIR, SHEET, UNLABELLED} == set(np.unique(label))
        assert grey[label == SHEET].mean() > grey[label == AIR].mean() + 40


def test_the_same_settings_make_the_same_scroll_and_other_seeds_others() -> None:
    """A slice hangs on the settings alone."""
    once, again = next(draw_scroll(SMALL, 0)), next(draw_scroll(SMALL, 0))
    other = next(draw_scroll(MadeScrolls(shape=SMALL.shape, seed=1), 0))
    assert np.array_equal(once[0], again[0])
    assert not np.array_equal(once[0], other[0])


def test_what_a_killed_maker_left_is_made_again(tmp_path: Path) -> None:
    """A volume without labels was never finished: both are made, and what is whole is left alone."""
    make_scrolls(tmp_path, SMALL)
    shutil.rmtree(tmp_path / "labels" / "scroll_001.zarr")
    whole = (tmp_path / "volumes" / "scroll_000.zarr" / "zarr.json").stat().st_mtime_ns
    assert len(make_scrolls(tmp_path, SMALL)) == 2
    assert (tmp_path / "volumes" / "scroll_000.zarr" / "zarr.json").stat().st_mtime_ns == whole


def test_a_folder_that_is_no_set_is_told_what_it_must_hold(tmp_path: Path) -> None:
    """No volumes, a volume without labels, and voxels that are no bytes each have a message."""
    with pytest.raises(SourceBroken, match=r"volumes/NAME\.zarr"):
        find_scrolls(tmp_path)
    create_zarr(tmp_path / "volumes" / "a.zarr", (8, 8, 8), "uint16")
    with pytest.raises(SourceBroken, match="of a, and not both"):
        find_scrolls(tmp_path)
    create_zarr(tmp_path / "labels" / "a.zarr", (8, 8, 8), "uint8")
    with pytest.raises(SourceBroken, match=r"uint16.*uint8"):
        find_scrolls(tmp_path)


@pytest.mark.parametrize("wrong", [{"volumes": 0}, {"shape": (4, 64, 64)}, {"pitch": 4.0}, {"seed": -1}])
def test_settings_that_make_no_scroll_are_refused(wrong: dict[str, object]) -> None:
    """With what is allowed."""
    with pytest.raises(UsageError):
        MadeScrolls(**wrong)  # type: ignore[arg-type]
