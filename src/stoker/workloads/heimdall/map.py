"""A map of what was located: receivers, true places, estimates with how sure they are. An SVG, by hand."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from stoker.feed.whole_file import whole_file
from stoker.workloads.heimdall.locator import Estimate

_SIDE, _MARGIN = 640, 56
# Truths on the map, and ellipses among them: more hide one another.
_SHOWN, _ELLIPSES = 200, 40
# Of a normal distribution in two dimensions, in deviations: 90% lie within.
_RADIUS = math.sqrt(-2 * math.log(1 - 0.9))


@dataclass(frozen=True, kw_only=True)
class Map:
    """What is drawn; places in km from the middle, east and north."""

    side_km: float
    stations: NDArray[np.float64]
    estimate: Estimate
    position: torch.Tensor
    title: str

    def write(self, path: Path) -> Path:
        """Put the picture there, whole or not at all."""
        with whole_file(path) as file:
            file.write(self.draw().encode())
        return path

    def draw(self) -> str:
        """The SVG's text."""
        lines = [*self._frame(), *self._ellipses(), *self._errors(), *self._receivers(), *self._legend()]
        whole = _SIDE + 2 * _MARGIN
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {whole} {whole}" width="{whole}" '
            f'font-family="sans-serif" font-size="13"><rect width="{whole}" height="{whole}" fill="#fff"/>'
        )
        return "\n".join([head, *lines, "</svg>\n"])

    def _frame(self) -> Iterator[str]:
        yield f'<text x="{_MARGIN}" y="30" font-size="15">{_escaped(self.title)}</text>'
        yield (
            f'<rect x="{_MARGIN}" y="{_MARGIN}" width="{_SIDE}" height="{_SIDE}" fill="#f6f7f9" '
            'stroke="#889"/>'
        )
        step = _step(self.side_km)
        for tick in range(-int(self.side_km / 2 / step), int(self.side_km / 2 / step) + 1):
            at = tick * step
            x, y = self._at(at, at)
            yield (
                f'<path d="M{x:.1f} {_MARGIN}v{_SIDE}M{_MARGIN} {y:.1f}h{_SIDE}" stroke="#dde"/>'
                f'<text x="{x:.1f}" y="{_MARGIN + _SIDE + 18}" text-anchor="middle">{at:g}</text>'
                f'<text x="{_MARGIN - 6}" y="{y + 4:.1f}" text-anchor="end">{at:g}</text>'
            )
        yield f'<text x="{_MARGIN + _SIDE}" y="{_MARGIN + _SIDE + 38}" text-anchor="end">km east</text>'
        yield f'<text x="{_MARGIN - 40}" y="{_MARGIN - 10}">km north</text>'

    def _ellipses(self) -> Iterator[str]:
        """Where the truth should be nine times in ten."""
        around = torch.linspace(0, 2 * math.pi, 33)
        circle = torch.stack([around.cos(), around.sin()])
        means, lowers = self.estimate.mean.cpu(), self.estimate.lower.cpu()
        for mean, lower in zip(means[:_ELLIPSES], lowers[:_ELLIPSES], strict=True):
            rim = (mean[:, None] + _RADIUS * (lower @ circle)).T.tolist()
            points = " ".join("{:.1f},{:.1f}".format(*self._at(*point)) for point in rim)
            style = 'fill="#3b6fd4" fill-opacity="0.07" stroke="#3b6fd4" stroke-opacity="0.35"'
            yield f'<polygon points="{points}" {style}/>'

    def _errors(self) -> Iterator[str]:
        """A line from each truth to its estimate."""
        truths, means = self.position.tolist(), self.estimate.mean.tolist()
        for truth, mean in zip(truths[:_SHOWN], means[:_SHOWN], strict=True):
            (x, y), (u, v) = self._at(*truth), self._at(*mean)
            yield (
                f'<path d="M{x:.1f} {y:.1f}L{u:.1f} {v:.1f}" stroke="#c33" stroke-opacity="0.6"/>'
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.2" fill="#222"/>'
                f'<circle cx="{u:.1f}" cy="{v:.1f}" r="2.2" fill="#3b6fd4"/>'
            )

    def _receivers(self) -> Iterator[str]:
        for station in self.stations.tolist():
            x, y = self._at(*station)
            yield f'<path d="M{x:.1f} {y - 8:.1f}l7 13h-14z" fill="#e69f00" stroke="#222"/>'

    def _legend(self) -> Iterator[str]:
        told = (
            ("#e69f00", "receiver"),
            ("#222", "true place"),
            ("#3b6fd4", "estimate, 90% ellipse"),
            ("#c33", "error"),
        )
        for number, (colour, text) in enumerate(told):
            x = _MARGIN + number * 150
            yield (
                f'<rect x="{x}" y="{_MARGIN + _SIDE + 28}" width="10" height="10" fill="{colour}"/>'
                f'<text x="{x + 15}" y="{_MARGIN + _SIDE + 38}">{text}</text>'
            )

    def _at(self, east: float, north: float) -> tuple[float, float]:
        """Where on the page; what lies beyond the edge is drawn at it."""
        half = self.side_km / 2
        east, north = max(-half, min(half, east)), max(-half, min(half, north))
        return _MARGIN + (east / half + 1) / 2 * _SIDE, _MARGIN + (1 - north / half) / 2 * _SIDE


def _step(side: float) -> float:
    """From tick to tick: 1, 2 or 5 times a power of ten, five to twelve of them."""
    power = 10.0 ** math.floor(math.log10(side / 5))
    return next(power * factor for factor in (5, 2, 1) if side / (power * factor) >= 5)


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")
