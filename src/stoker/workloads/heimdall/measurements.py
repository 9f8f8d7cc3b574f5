"""Made measurements of radio transmitters by up to seven receivers, plausible and with a known truth.

A transmitter somewhere in a square is heard by receivers at fixed places. What each one measures follows from
the way between them: power falls with distance and is shadowed, the time of arrival is late by the way at the
speed of light and by detours, noise grows as the signal gets weak. Too weak a signal is not heard, and a
receiver may be out of order, so that samples have from three receivers to all.
"""

import re
import uuid
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from stoker.errors import UsageError
from stoker.feed.draws import draw

# The most receivers of a sample; a sample has as many slots, of which some are not heard.
RECEIVERS = 7
# What a receiver tells, in this order: where it stands, the signal's power and its ratio to the noise, when
# it came (after the first to hear it), by how much its frequency is off, and how sure the time is.
FEATURES = ("x_m", "y_m", "rssi_dbm", "snr_db", "arrival_us", "offset_hz", "sigma_us")
SPEED_OF_LIGHT_M_US = 299.792458

_LEAST_HEARD = 3
_NOISE_DBM = -110.0
_LOSS_AT_1_KM_DB, _EXPONENT, _SHADOWING_DB = 75.7, 3.2, 5.0  # 145 MHz, over built-up land
_POWER_DBM = (0.0, 30.0)
_HEARD_DB = 3.0
# Clocks of receivers agree to so much; a weak signal adds to it; detours add after that, to some.
_CLOCK_US, _WEAK_US, _DETOUR_US, _DETOURS = 0.1, 1.5, 0.8, 0.15
_DRIFT_HZ = 30.0
# A chip of the made signal lasts so many of its IQ values.
_CHIP = 4
# Of a sample's IQ, as int8: headroom for noise.
_LEVEL = 36.0
# What numbers are drawn for; each has a stream of its own.
_SENT, _EVEN, _NORMAL, _CHIPS, _TURNS, _NOISE = range(6)
# IQ values made at one go, 8 MB in each of a few arrays.
_PIECE = 1 << 20
_UUID = re.compile(r"[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}")

Values: TypeAlias = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class MadeRadio:
    """What to make: the same settings give the same measurements.

    The note's set has 4,030 samples, a fifth of them to validate on.
    """

    samples: int = 4030
    # Of them, the share to validate on.
    valid_share: float = 0.2
    receivers: int = RECEIVERS
    # The side of the square; positions are counted from its middle, east and north.
    area_m: float = 20_000.0
    # Complex values of each receiver's signal, and how many there are in a second.
    iq_samples: int = 128
    sample_rate_hz: float = 1_000_000.0
    frequency_hz: float = 145_000_000.0
    # The chance that a receiver is out of order.
    outage: float = 0.1
    seed: int = 0
    # The dataset's id, a UUID; None: one that follows from the settings.
    id: str | None = None

    def __post_init__(self) -> None:
        if self.id is not None and not _UUID.fullmatch(self.id):
            raise UsageError(f"id is {self.id!r}: it must be a UUID in small letters, or left out")
        if self.seed < 0:
            raise UsageError(f"seed is {self.seed}: it must be 0 or more")
        if not _LEAST_HEARD <= self.receivers <= RECEIVERS:
            raise UsageError(f"receivers is {self.receivers}: take {_LEAST_HEARD} to {RECEIVERS}")
        if self.samples < 2 or self.iq_samples < 1:
            raise UsageError(
                f"samples is {self.samples} and iq_samples {self.iq_samples}: take at least 2 and 1"
            )
        for name in ("area_m", "sample_rate_hz", "frequency_hz"):
            if getattr(self, name) <= 0:
                raise UsageError(f"{name} is {getattr(self, name):g}: it must be above 0")
        if self.seed < 0:
            raise UsageError(f"seed is {self.seed}: it must be 0 or more")
        if not 0 < self.valid_share < 1 or not 0 <= self.outage < 1:
            raise UsageError(
                f"valid_share is {self.valid_share:g} and outage {self.outage:g}: both are shares below 1"
            )

    @property
    def name(self) -> str:
        """Tells all settings."""
        size = f"{self.samples}x{self.receivers}rx_{self.iq_samples}iq_{self.area_m:g}m"
        more = (
            f"{self.sample_rate_hz:g}sps_{self.frequency_hz:g}hz_{self.outage:g}out_{self.valid_share:g}valid"
        )
        return f"heimdall_{size}_{more}_seed{self.seed}{f'_{self.id}' if self.id else ''}"

    @property
    def dataset_id(self) -> str:
        """The same for the same settings, in every database."""
        return self.id or str(uuid.uuid5(uuid.NAMESPACE_URL, self.name))


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """Some samples, a row each."""

    position: Values
    """East and north of the middle, in metres."""
    heard: NDArray[np.uint8]
    """1 for each slot with a receiver that heard it."""
    features: Values
    """(samples, receivers, features): zeros where it was not heard."""
    iq: NDArray[np.int8]
    """(samples, receivers, 2, values): in phase and in quadrature; zeros where it was not heard."""


def place_receivers(made: MadeRadio) -> Values:
    """Where the receivers stand: one near the middle, the others around it, none in the same direction."""
    chance = np.random.default_rng([made.seed, 1])
    around = made.receivers - 1
    angle = 2 * np.pi * (np.arange(around) + chance.uniform(0.1, 0.9, around)) / around
    way = chance.uniform(0.25, 0.45, around) * made.area_m
    ring = np.stack([np.cos(angle) * way, np.sin(angle) * way], axis=1)
    middle = chance.uniform(-0.08, 0.08, (1, 2)) * made.area_m
    return np.concatenate([middle, ring]).astype(np.float32)


def measure(made: MadeRadio, start: int, stop: int) -> Measurements:
    """Samples start to stop - 1; each hangs on the settings and its number alone."""
    numbers = np.arange(start, stop, dtype=np.int64)
    stations = place_receivers(made).astype(np.float64)
    count, slots = len(numbers), made.receivers
    sent = draw(seed=made.seed, epoch=_SENT, samples=numbers, count=4)
    position = (sent[:, :2] - 0.5) * made.area_m
    power = _POWER_DBM[0] + sent[:, 2] * (_POWER_DBM[1] - _POWER_DBM[0])
    evens = draw(seed=made.seed, epoch=_EVEN, samples=numbers, count=3 * slots).reshape(count, slots, 3)
    normals = _draw_normal(made.seed, _NORMAL, numbers, 3 * slots).reshape(count, slots, 3)
    way = np.linalg.norm(position[:, None] - stations, axis=2)
    loss = _LOSS_AT_1_KM_DB + 10 * _EXPONENT * np.log10(np.maximum(way, 50) / 1000)
    rssi = power[:, None] - loss + _SHADOWING_DB * normals[..., 0]
    snr = rssi - _NOISE_DBM
    heard = _choose_heard((snr > _HEARD_DB) & (evens[..., 0] >= made.outage), snr)
    sigma = np.hypot(_CLOCK_US, _WEAK_US * 10 ** (-snr / 20))
    detour = np.where(evens[..., 1] < _DETOURS, -np.log1p(-evens[..., 2]) * _DETOUR_US, 0.0)
    delay = way / SPEED_OF_LIGHT_M_US
    arrival = delay + detour + sigma * normals[..., 1]
    arrival -= np.where(heard, arrival, np.inf).min(axis=1, keepdims=True)
    offset = (sent[:, 3:] - 0.5) * 400 + _DRIFT_HZ * normals[..., 2]
    fixed = np.broadcast_to(stations, (count, slots, 2))
    features = np.concatenate([fixed, np.stack([rssi, snr, arrival, offset, sigma], axis=2)], axis=2)
    iq = np.zeros((count, RECEIVERS, 2, made.iq_samples), np.int8)
    step = max(1, _PIECE // (slots * made.iq_samples))
    for first in range(0, count, step):
        rows = slice(first, first + step)
        drawn = _draw_iq(made, numbers[rows], delay[rows], snr[rows], offset[rows])
        iq[rows, :slots] = drawn * heard[rows, :, None, None]
    spare = [(0, 0), (0, RECEIVERS - slots)]
    return Measurements(
        position=position.astype(np.float32),
        heard=np.pad(heard, spare).astype(np.uint8),
        features=np.pad(features * heard[..., None], [*spare, (0, 0)]).astype(np.float32),
        iq=iq,
    )


def _choose_heard(heard: NDArray[np.bool_], snr: NDArray[np.float64]) -> NDArray[np.bool_]:
    """A sample that fewer than three heard is in no set: it is given to the three that hear it best."""
    best = np.argsort(np.argsort(-snr, axis=1), axis=1) < _LEAST_HEARD
    few = heard.sum(axis=1, keepdims=True) < _LEAST_HEARD
    chosen: NDArray[np.bool_] = heard | (few & best)
    return chosen


def _draw_iq(
    made: MadeRadio,
    numbers: NDArray[np.int64],
    delay: NDArray[np.float64],
    snr: NDArray[np.float64],
    offset: NDArray[np.float64],
) -> NDArray[np.int8]:
    """What each receiver's mixer gives: one signal, each time as late and as noisy as it is there."""
    (count, slots), values = delay.shape, np.arange(made.iq_samples)
    per_us = made.sample_rate_hz / 1e6
    # No way in the square is as long: to a corner it is at most 1.2 of its side.
    longest = int(np.ceil(1.5 * made.area_m / SPEED_OF_LIGHT_M_US * per_us))
    length = made.iq_samples + longest + 2
    chips = draw(seed=made.seed, epoch=_CHIPS, samples=numbers, count=-(-length // _CHIP)) < 0.5
    signal = np.repeat(np.where(chips, -1.0, 1.0), _CHIP, axis=1)
    at = longest + values - (delay * per_us)[..., None]
    before = np.floor(at).astype(np.int64)
    part = at - before
    row = np.arange(count)[:, None, None]
    received = signal[row, before] * (1 - part) + signal[row, before + 1] * part
    turns = draw(seed=made.seed, epoch=_TURNS, samples=numbers, count=slots)[..., None]
    angle = 2 * np.pi * (offset[..., None] * values / made.sample_rate_hz + turns)
    amplitude = 10 ** (snr[..., None] / 20)
    noise = _draw_normal(made.seed, _NOISE, numbers, slots * 2 * made.iq_samples)
    noise = noise.reshape(count, slots, 2, -1) / np.sqrt(2)
    waves = np.stack([np.cos(angle), np.sin(angle)], axis=2)
    mixed = (amplitude * received)[:, :, None] * waves + noise
    # Gain is controlled: how strong a signal is, the features tell.
    level = _LEVEL / np.sqrt(amplitude**2 + 1)
    levels: NDArray[np.float64] = np.clip(np.round(mixed * level[:, :, None]), -127, 127)
    return levels.astype(np.int8)


def _draw_normal(seed: int, purpose: int, numbers: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """Normal numbers from pairs of even ones (Box and Muller)."""
    even = draw(seed=seed, epoch=purpose, samples=numbers, count=2 * count)
    normal: NDArray[np.float64] = np.sqrt(-2 * np.log1p(-even[:, :count])) * np.cos(
        2 * np.pi * even[:, count:]
    )
    return normal
