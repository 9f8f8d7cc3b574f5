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
_TRUTH, _ESTIMATE = "#222", "#3b6fd4"
_SPREAD = f'fill="{_ESTIMATE}" fill-opacity="0.07" stroke="{_ESTIMATE}" stroke-opacity="0.35"'
_MISS = 'stroke="#c33" stroke-opacity="0.6"'


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
        ellipses = ['<g clip-path="url(#square)">', *self._ellipses(), "</g>"]
        lines = [*self._frame(), *ellipses, *self._errors(), *self._receivers(), *self._legend()]
        whole = _SIDE + 2 * _MARGIN
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {whole} {whole}" width="{whole}" '
            f'font-family="sans-serif" font-size="13"><rect width="{whole}" height="{whole}" fill="#fff"/>'
            f'<clipPath id="square"><rect x="{_MARGIN}" y="{_MARGIN}" width="{_SIDE}" height="{_SIDE}"/>'
            "</clipPath>"
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
            points = " ".join("{:.1f},{:.1f}".format(*self._place(*point)) for point in rim)
            yield f'<polygon points="{points}" {_SPREAD}/>'

    def _errors(self) -> Iterator[str]:
        """A line from each truth to its estimate."""
        truths, means = self.position.tolist(), self.estimate.mean.tolist()
        for truth, mean in zip(truths[:_SHOWN], means[:_SHOWN], strict=True):
            (x, y), (u, v) = self._at(*truth), self._at(*mean)
            yield (
                f'<path d="M{x:.1f} {y:.1f}L{u:.1f} {v:.1f}" {_MISS}/>'
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.2" fill="{_TRUTH}"/>'
                f'<circle cx="{u:.1f}" cy="{v:.1f}" r="2.2" fill="{_ESTIMATE}"/>'
            )

    def _receivers(self) -> Iterator[str]:
        for station in self.stations.tolist():
            x, y = self._at(*station)
            yield _receiver(x, y)

    def _legend(self) -> Iterator[str]:
        """What each sign stands for: the sign itself, and its name."""
        y = _MARGIN + _SIDE + 33
        dot = '<circle cx="{x}" cy="{y}" r="2.2" fill="{colour}"/>'
        signs = (
            (0, _receiver(_MARGIN + 8, y), "receiver"),
            (95, dot.format(x=_MARGIN + 103, y=y, colour=_TRUTH), "true place"),
            (200, dot.format(x=_MARGIN + 208, y=y, colour=_ESTIMATE), "estimate"),
            (295, f'<ellipse cx="{_MARGIN + 303}" cy="{y}" rx="9" ry="6" {_SPREAD}/>', "90% ellipse"),
            (415, f'<path d="M{_MARGIN + 415} {y + 4}l17 -8" {_MISS}/>', "error"),
        )
        for across, sign, text in signs:
            yield f'{sign}<text x="{_MARGIN + across + 20}" y="{y + 5}">{text}</text>'

    def _at(self, east: float, north: float) -> tuple[float, float]:
        """Where on the page; what lies beyond the edge is drawn at it."""
        half = self.side_km / 2
        return self._place(max(-half, min(half, east)), max(-half, min(half, north)))

    def _place(self, east: float, north: float) -> tuple[float, float]:
        """The same, beyond the edge too."""
        half = self.side_km / 2
        return _MARGIN + (east / half + 1) / 2 * _SIDE, _MARGIN + (1 - north / half) / 2 * _SIDE


def _receiver(x: float, y: float) -> str:
    return f'<path d="M{x:.1f} {y - 8:.1f}l7 13h-14z" fill="#e69f00" stroke="#222"/>'


def _step(side: float) -> float:
    """From tick to tick: 1, 2 or 5 times a power of ten, five to twelve of them."""
    power = 10.0 ** math.floor(math.log10(side / 5))
    return next(power * factor for factor in (5, 2, 1) if side / (power * factor) >= 5)


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")
