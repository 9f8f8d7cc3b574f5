"""The images in a batch: found by name or by shape, and put back changed."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_unflatten

from stoker.errors import NotTransformable


def find_images(
    batch: Any, field: str | int | None, dims: tuple[str, ...], *, first: bool = False
) -> tuple[torch.Tensor, Callable[[torch.Tensor], Any]]:
    """The images of a batch, and what puts others in their place into a copy of it."""
    if isinstance(batch, torch.Tensor) and field is None:
        _check_images(batch, "the batch", dims)
        return batch, lambda new: new
    one_level = None if field is None else lambda node: node is not batch
    found, tree = tree_flatten_with_path(batch, is_leaf=one_level)
    leaves = [leaf for _, leaf in found]
    if field is None:
        at = [
            n
            for n, leaf in enumerate(leaves)
            if isinstance(leaf, torch.Tensor) and leaf.dim() == 1 + len(dims)
        ]
        wanted = f"tensor of {1 + len(dims)} dimensions (samples, {', '.join(dims)})"
    else:
        at = [n for n, (path, _) in enumerate(found) if path and _word(path[0]) == field]
        wanted = f"field {field!r}"
    if not at:
        raise NotTransformable(
            f"no {wanted} in the batch, which has {_describe(found)}. Name the images by field="
        )
    if len(at) > 1 and not first:
        raise NotTransformable(
            f"more than one {wanted} in the batch, which has {_describe(found)}. Name the images by field=; "
            "the others stay as they are"
        )
    place = at[0]
    _check_images(leaves[place], keystr(found[place][0]), dims)
    return leaves[place], lambda new: tree_unflatten([*leaves[:place], new, *leaves[place + 1 :]], tree)


def _word(step: Any) -> str | int | None:
    """The key, place or name that a step into a dict, list or named tuple is by."""
    for kind in ("key", "idx", "name"):
        if hasattr(step, kind):
            word: str | int = getattr(step, kind)
            return word
    return None


def _describe(found: Sequence[tuple[Any, Any]]) -> str:
    def told(leaf: Any) -> str:
        if isinstance(leaf, torch.Tensor):
            return f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}"
        return type(leaf).__name__

    return ", ".join(f"{keystr(path)} {told(leaf)}".strip() for path, leaf in found) or "nothing in it"


def _check_images(images: Any, name: str, dims: tuple[str, ...]) -> None:
    wanted = f"({', '.join(('samples', *dims))})"
    if not isinstance(images, torch.Tensor):
        raise NotTransformable(f"{name} is a {type(images).__name__}, not a tensor of {wanted}")
    if images.dim() != 1 + len(dims) or 0 in images.shape[1:]:
        raise NotTransformable(
            f"{name} has the shape {list(images.shape)}; it must be {wanted}, none of them 0"
        )
    if images.dtype == torch.bool or images.dtype.is_complex:
        raise NotTransformable(f"{name} is of {images.dtype}: give uint8, or another type of real numbers")
