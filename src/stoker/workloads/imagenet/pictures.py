"""Made photographs of classes that can be told apart: a shape of the class's own, on ground of its own.

What a class looks like (its shape, its two hues, its texture's direction and width) is drawn from its name;
where the shape stands, how large and how turned it is, the light and the noise from the number of the image.
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from stoker.errors import MissingExtra
from stoker.feed.draws import key

Photo: TypeAlias = NDArray[np.uint8]

# As most photographs of the real set: their longer side is 500 pixels, the other one less.
_SIDES = ((375, 500), (500, 375), (333, 500), (500, 500))
_QUALITY = 90


def draw_photo(name: str, number: int, *, seed: int = 0, scale: float = 1.0) -> Photo:
    """Photograph `number` of a class: (height, width, 3), its sides `scale` times those of the real set's."""
    look = np.random.Generator(np.random.Philox(key=key(seed, f"class {name}")))
    rng = np.random.Generator(np.random.Philox(key=key(seed, f"photo {name}", number)))
    sides = _SIDES[rng.integers(len(_SIDES))]
    height, width = (max(16, round(side * scale)) for side in sides)
    rows, columns = np.mgrid[0:height, 0:width].astype(np.float32) / min(height, width)
    ground, figure = _colours(look)
    image = ground + 0.15 * _stripes(look, rows, columns)[..., None]
    image = np.where(_shape(look, rng, rows, columns)[..., None], figure, image)
    light = rng.uniform(0.7, 1.3) + rng.uniform(-0.2, 0.2) * rows[..., None]
    image = image * light + rng.normal(0, 0.06, image.shape).astype(np.float32)
    photo: Photo = (image.clip(0, 1) * 255).astype(np.uint8)
    return photo


def draw_jpeg(name: str, number: int, *, seed: int = 0, scale: float = 1.0) -> bytes:
    """The same as a file's bytes."""
    try:
        import simplejpeg
    except ImportError as error:
        raise MissingExtra("simplejpeg", "images", "making photographs") from error
    photo = np.ascontiguousarray(draw_photo(name, number, seed=seed, scale=scale))
    encoded: bytes = simplejpeg.encode_jpeg(photo, quality=_QUALITY, colorspace="RGB")
    return encoded


def _colours(look: np.random.Generator) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    hue = look.uniform()
    apart = look.uniform(0.25, 0.75)
    return _rgb(hue, 0.5, 0.5), _rgb((hue + apart) % 1, 0.9, 0.85)


def _rgb(hue: float, saturation: float, value: float) -> NDArray[np.float32]:
    """A colour by its hue from 0 to 1."""
    places = (np.array([5.0, 3.0, 1.0]) + 6 * hue) % 6
    return (value - value * saturation * np.minimum(places, 4 - places).clip(0, 1)).astype(np.float32)


def _stripes(
    look: np.random.Generator, rows: NDArray[np.float32], columns: NDArray[np.float32]
) -> NDArray[np.float32]:
    angle, count = look.uniform(0, np.pi), look.uniform(2, 20)
    along = rows * np.float32(np.cos(angle)) + columns * np.float32(np.sin(angle))
    waves: NDArray[np.float32] = np.sin(np.float32(2 * np.pi * count) * along)
    return waves


def _shape(
    look: np.random.Generator,
    rng: np.random.Generator,
    rows: NDArray[np.float32],
    columns: NDArray[np.float32],
) -> NDArray[np.bool_]:
    """A star with as many and as deep points as the class has; where the picture has it."""
    points, depth = look.integers(2, 9), look.uniform(0.1, 0.6)
    size, turn = rng.uniform(0.2, 0.4), rng.uniform(0, 2 * np.pi)
    down = rows - np.float32(rng.uniform(0.3, 0.7) * rows[-1, -1])
    across = columns - np.float32(rng.uniform(0.3, 0.7) * columns[-1, -1])
    edge = size * (1 + depth * np.cos(points * np.arctan2(down, across) + turn))
    inside: NDArray[np.bool_] = np.hypot(down, across) < edge
    return inside
