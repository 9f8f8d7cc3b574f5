"""Made radar patches: a scene of fields, water, lines and ships, under the speckle of a coherent sensor.

A patch holds log-amplitude, scaled from 0 to 1 over 40 dB. Its speckle is fully developed: intensities are
the scene's times a gamma variate of as many looks, so that the logarithm has the variance that theory gives
(trigamma(looks) in nepers of intensity), the same on bright and on dark ground.
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Patch: TypeAlias = NDArray[np.float32]

SIDE = 256
# What 0 and 1 stand for, in dB of backscatter: from calm water to a corner reflector.
LOW_DB, HIGH_DB = -30.0, 10.0
LOOKS = 4

_WATER_DB, _LAND_DB = -22.0, -10.0
# Between the darkest and the brightest kind of field.
_FIELDS_DB = 8.0
_ROAD_DB, _SHIP_DB = -6.0, 16.0


def draw_patch(seed: int, number: int, *, side: int = SIDE, looks: int = LOOKS) -> Patch:
    """Patch `number` of a set: the same whatever was drawn before it."""
    rng = np.random.Generator(np.random.Philox(key=[seed, number]))
    intensity = 10 ** (_draw_scene(rng, side) / 10)
    speckle = rng.standard_gamma(looks, (side, side)) / looks
    decibels = 10 * np.log10(intensity * speckle + 1e-12)
    scaled = (decibels - LOW_DB) / (HIGH_DB - LOW_DB)
    return np.clip(scaled, 0, 1).astype(np.float32)


def _draw_scene(rng: np.random.Generator, side: int) -> NDArray[np.float64]:
    """Backscatter in dB, before speckle. A smaller patch shows less ground, at the same scale."""
    fields = np.floor(3 + 1.5 * _smooth_noise(rng, side, 32)).clip(0, 5)
    kinds = rng.uniform(-_FIELDS_DB / 2, _FIELDS_DB / 2, 6)
    scene = _LAND_DB + kinds[fields.astype(np.int64)] + 1.5 * _smooth_noise(rng, side, 12)
    for _ in range(rng.poisson(1.5 * side / SIDE)):
        scene = np.where(_line(rng, side), scene + _ROAD_DB, scene)
    water = _smooth_noise(rng, side, 64) + rng.normal() > 1.0
    waves = _WATER_DB + 0.7 * _smooth_noise(rng, side, 16)
    scene = np.where(water, waves, scene)
    for _ in range(rng.poisson(3 * (side / SIDE) ** 2)):
        row, column = rng.integers(4, side - 4, 2)
        high, wide = rng.integers(1, 4, 2)
        scene[row - high : row + high, column - wide : column + wide] += _SHIP_DB
    return scene


def _smooth_noise(rng: np.random.Generator, side: int, pixels: int) -> NDArray[np.float64]:
    """Normal numbers on a grid of so many pixels, with a smooth surface laid through them."""
    cells = max(1, round(side / pixels))
    grid = rng.standard_normal((cells + 1, cells + 1))
    across = _blend(side, cells)
    surface: NDArray[np.float64] = across @ grid @ across.T
    return surface


def _blend(side: int, cells: int) -> NDArray[np.float64]:
    """(side, cells + 1): how much of each grid line is in each pixel; smooth at the grid lines."""
    at = np.arange(side) * cells / side
    left = at.astype(np.int64)
    share = at - left
    share = share * share * (3 - 2 * share)
    table = np.zeros((side, cells + 1))
    rows = np.arange(side)
    table[rows, left] = 1 - share
    table[rows, left + 1] = share
    return table


def _line(rng: np.random.Generator, side: int) -> NDArray[np.bool_]:
    """A straight line a few pixels wide, at any angle."""
    angle, width = rng.uniform(0, np.pi), rng.uniform(1.0, 3.0)
    row, column = rng.uniform(0, side, 2)
    rows, columns = np.mgrid[0:side, 0:side]
    distance = np.abs((rows - row) * np.cos(angle) - (columns - column) * np.sin(angle))
    inside: NDArray[np.bool_] = distance < width
    return inside
