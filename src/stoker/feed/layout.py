"""What one sample is made of: the tree of a batch, and for each tensor in it a sample's type and shape.

Tiers keep a sample as one row of bytes, all its leaves side by side, so that one copy moves all of it. Leaves
begin at multiples of 16 bytes, and so can be seen as tensors where they lie; the gaps are zeros.

Trees are tensors in dicts (keys are text), lists, tuples and named tuples, nested: what default_collate
makes of samples. Anything else cannot be packed and is refused by name.
"""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import torch

from stoker.errors import NotPackable

# The widest vector load of a GPU, and the largest item torch has (complex128).
ALIGNMENT = 16


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """A tensor of the batch without its first dimension: what one sample has of it."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """What it takes, without the gap behind it."""
        return self.dtype.itemsize * math.prod(self.shape)

    def __str__(self) -> str:
        return f"{_name_of(self.dtype)}{list(self.shape)}"


@dataclass(frozen=True, kw_only=True)
class Branch:
    """A dict, list, tuple or named tuple; `keys` are a dict's keys or a named tuple's fields, else empty."""

    kind: type
    keys: tuple[str, ...] = ()
    children: tuple["Tree", ...]


# None stands for a leaf; leaves are numbered from left to right.
Tree: TypeAlias = Branch | None


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The tree of a batch and its leaves.

    >>> layout = Layout.of({"image": torch.zeros(8, 3, 5), "label": torch.zeros(8, dtype=torch.int64)})
    >>> layout.row_bytes, layout.offsets
    (80, (0, 64))
    """

    tree: Tree
    leaves: tuple[Leaf, ...]

    @classmethod
    def of(cls, batch: Any) -> "Layout":
        """The layout of this batch's samples; NotPackable where there is none."""
        found: list[tuple[str, torch.Tensor]] = []
        tree = _tree_of(batch, "batch", found)
        if not found:
            raise NotPackable("the batch has no tensor in it: there is nothing to keep")
        _count_rows(found)
        leaves = tuple(Leaf(dtype=leaf.dtype, shape=tuple(leaf.shape[1:])) for _, leaf in found)
        if not any(leaf.bytes for leaf in leaves):
            raise NotPackable("the samples have no numbers in them: there is nothing to keep")
        return cls(tree=tree, leaves=leaves)

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Where in a row each leaf begins."""
        offsets, end = [], 0
        for leaf in self.leaves:
            offsets.append(end)
            end += aligned(leaf.bytes)
        return tuple(offsets)

    @cached_property
    def row_bytes(self) -> int:
        """What one sample takes, gaps included."""
        return sum(aligned(leaf.bytes) for leaf in self.leaves)

    def flatten(self, batch: Any, samples: int | None = None) -> list[torch.Tensor]:
        """The batch's tensors from left to right; NotPackable if it is not of this layout.

        Nor if it has not a row for each of so many samples: then it is not known whose its rows are.
        """
        found: list[tuple[str, torch.Tensor]] = []
        tree = _tree_of(batch, "batch", found)
        if not _same_tree(self.tree, tree):
            raise NotPackable(
                f"the batch is {_describe(tree)}, but the samples before were {_describe(self.tree)}: "
                "all samples of a source must be built alike"
            )
        found = _in_order(self.tree, batch, "batch")  # a dict's keys may have come in another order
        for (path, tensor), leaf in zip(found, self.leaves, strict=True):
            given = Leaf(dtype=tensor.dtype, shape=tuple(tensor.shape[1:]))
            if given != leaf:
                raise NotPackable(
                    f"{path} holds samples of {given}, but those before were {leaf}: "
                    "all samples that are held must have one type and shape. Make them so, or have them read "
                    "each time: tier='source', without a cache"
                )
        _count_rows(found)
        if samples not in (None, len(found[0][1])):
            raise NotPackable(
                f"a batch of {samples} samples has {len(found[0][1])} rows: samples that are held need one "
                "each. Leave broken ones out by subset=, not by a collate_fn, or have them read each time: "
                "tier='source', without a cache"
            )
        return [tensor for _, tensor in found]

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        """The tree with these in the places of its leaves."""
        if self.tree is None:
            (leaf,) = leaves
            return leaf
        if len(leaves) != len(self.leaves):
            raise ValueError(f"{len(leaves)} leaves for a tree of {len(self.leaves)}")
        return _built(self.tree, iter(leaves))

    def split(self, leaves: Sequence[torch.Tensor], sizes: Sequence[int]) -> list[Any]:
        """Batches of these sizes, of leaves that hold them one after the other, in the same memory."""
        if len(sizes) == 1:
            return [self.unflatten(leaves)]
        # By `data`, or they would share a version: writing into one would spoil the backward of another.
        # Not by `split`, whose Python part takes as long again.
        parts = [[part.data for part in leaf.split_with_sizes(list(sizes))] for leaf in leaves]
        return list(map(self.unflatten, zip(*parts, strict=True)))

    def views(self, rows: torch.Tensor) -> Any:
        """The batch whose leaves lie in these rows of bytes, (n, row_bytes): views, nothing is copied."""
        return self.unflatten(self._leaf_views(rows))

    def pack(self, batch: Any, rows: torch.Tensor) -> None:
        """Copy the batch into these rows of bytes, (n, row_bytes); the gaps become zeros."""
        leaves = self.flatten(batch)
        if len(leaves[0]) != len(rows):
            raise ValueError(f"{len(leaves[0])} samples for {len(rows)} rows")
        for view, leaf in zip(self._leaf_views(rows), leaves, strict=True):
            view.copy_(leaf)
        for kind, offset in zip(self.leaves, self.offsets, strict=True):
            rows[:, offset + kind.bytes : offset + aligned(kind.bytes)] = 0

    def _leaf_views(self, rows: torch.Tensor) -> list[torch.Tensor]:
        self._check(rows)
        views = []
        for leaf, offset in zip(self.leaves, self.offsets, strict=True):
            if leaf.bytes:
                flat = rows[:, offset : offset + leaf.bytes].view(leaf.dtype)
                views.append(flat.view(len(rows), *leaf.shape))
            else:
                views.append(rows.new_empty((len(rows), *leaf.shape), dtype=leaf.dtype))
        return views

    def _check(self, rows: torch.Tensor) -> None:
        if rows.dtype != torch.uint8 or rows.dim() != 2 or rows.shape[1] != self.row_bytes:
            raise ValueError(
                f"rows are {_name_of(rows.dtype)}{list(rows.shape)}, not bytes of (n, {self.row_bytes})"
            )
        apart = rows.stride(0) if len(rows) > 1 else 0
        if rows.stride(1) != 1 or apart % ALIGNMENT or rows.data_ptr() % ALIGNMENT:
            raise ValueError(
                f"rows lie {apart} bytes apart from address {rows.data_ptr():#x}: "
                f"each must begin at a multiple of {ALIGNMENT}, its bytes side by side"
            )

    def to_json(self) -> dict[str, Any]:
        """As an object that JSON can hold; the same for equal layouts."""
        return {
            "tree": _tree_to_json(self.tree),
            "leaves": [{"dtype": _name_of(leaf.dtype), "shape": list(leaf.shape)} for leaf in self.leaves],
        }

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> "Layout":
        """What `to_json` gave; ValueError if it is something else."""
        try:
            layout = cls(
                tree=_tree_from_json(told["tree"]),
                leaves=tuple(
                    Leaf(dtype=_dtype_of(leaf["dtype"]), shape=tuple(int(size) for size in leaf["shape"]))
                    for leaf in told["leaves"]
                ),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a layout: {told!r} ({error!r})") from error
        if _count_leaves(layout.tree) != len(layout.leaves):
            raise ValueError(f"not a layout: its tree has another number of leaves than it lists: {told!r}")
        return layout


def aligned(size: int) -> int:
    """So many bytes, and a gap to where the next leaf may begin."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dtype_of(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"torch.{name} is no dtype")
    return dtype


def _is_named_tuple(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


def _tree_of(node: Any, path: str, found: list[tuple[str, torch.Tensor]]) -> Tree:
    """The node's tree; its leaves are added to `found`, each with the words that lead to it."""
    if isinstance(node, torch.Tensor):
        if type(node) is not torch.Tensor:
            raise NotPackable(
                f"{path} is a {type(node).__qualname__}: kept, it would come back as a plain tensor, so give "
                "it as one, by as_subclass(torch.Tensor)"
            )
        if node.layout != torch.strided or node.is_quantized:
            raise NotPackable(f"{path} is a {node.layout} tensor: only dense ones can be kept")
        if node.dim() == 0:
            raise NotPackable(f"{path} is a tensor without dimensions: the first must count the samples")
        found.append((path, node))
        return None
    kind = type(node)
    if kind not in (dict, list, tuple) and not _is_named_tuple(kind):
        raise NotPackable(
            f"{path} is a {kind.__name__}, not a tensor, dict, list or tuple: give it as a tensor, "
            "or leave it out of the samples"
        )
    if kind is dict:
        for key in node:
            if not isinstance(key, str):
                raise NotPackable(f"{path} has the key {key!r}, a {type(key).__name__}: keys must be text")
    keys = _keys_of(node)
    return Branch(
        kind=kind,
        keys=keys,
        children=tuple(_tree_of(child, step, found) for step, child in _steps(node, path)),
    )


def _keys_of(node: Any) -> tuple[str, ...]:
    if isinstance(node, dict):
        return tuple(node)
    return tuple(node._fields) if _is_named_tuple(type(node)) else ()


def _steps(node: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict):
        for key, child in node.items():
            yield f"{path}[{key!r}]", child
    else:
        for at, child in enumerate(node):
            yield f"{path}[{at}]", child


def _in_order(tree: Tree, node: Any, path: str) -> list[tuple[str, torch.Tensor]]:
    if tree is None:
        return [(path, node)]
    if tree.kind is dict:
        node = {key: node[key] for key in tree.keys}
    steps = zip(tree.children, _steps(node, path), strict=True)
    return [found for child, (step, below) in steps for found in _in_order(child, below, step)]


def _same_tree(one: Tree, other: Tree) -> bool:
    if one is None or other is None:
        return one is other
    if one.kind is not other.kind or len(one.children) != len(other.children):
        return False
    if one.kind is dict:
        by_key = dict(zip(other.keys, other.children, strict=True))
        return set(one.keys) == set(by_key) and all(
            _same_tree(child, by_key[key]) for key, child in zip(one.keys, one.children, strict=True)
        )
    return all(_same_tree(*pair) for pair in zip(one.children, other.children, strict=True))


def _built(tree: Tree, leaves: Iterator[Any]) -> Any:
    if tree is None:
        return next(leaves)
    children = [_built(child, leaves) for child in tree.children]
    if tree.kind is dict:
        return dict(zip(tree.keys, children, strict=True))
    return tree.kind(*children) if _is_named_tuple(tree.kind) else tree.kind(children)


def _count_rows(found: Sequence[tuple[str, torch.Tensor]]) -> None:
    first_path, first = found[0]
    for path, leaf in found:
        if len(leaf) != len(first):
            raise NotPackable(
                f"{path} has {len(leaf)} rows and {first_path} {len(first)}: each needs one row a sample"
            )


def _count_leaves(tree: Tree) -> int:
    return 1 if tree is None else sum(_count_leaves(child) for child in tree.children)


def _describe(tree: Tree) -> str:
    if tree is None:
        return "a tensor"
    if tree.keys:
        return f"a {tree.kind.__name__} of {', '.join(tree.keys)}"
    return f"a {tree.kind.__name__} of {len(tree.children)}"


def _tree_to_json(tree: Tree) -> Any:
    if tree is None:
        return None
    children = [_tree_to_json(child) for child in tree.children]
    if not tree.keys:
        return {tree.kind.__name__: children} if tree.kind is not dict else {"dict": {}}
    named = dict(zip(tree.keys, children, strict=True))
    if tree.kind is dict:
        return {"dict": named}
    return {"named": f"{tree.kind.__module__}:{tree.kind.__qualname__}", "fields": named}


def _tree_from_json(told: Any) -> Tree:
    if told is None:
        return None
    for kind in (list, tuple):
        if kind.__name__ in told:
            return Branch(kind=kind, children=tuple(_tree_from_json(child) for child in told[kind.__name__]))
    named = told["dict"] if "dict" in told else told["fields"]
    return Branch(
        kind=dict if "dict" in told else _named_tuple(told["named"], tuple(named)),
        keys=tuple(named),
        children=tuple(_tree_from_json(child) for child in named.values()),
    )


def _named_tuple(name: str, fields: tuple[str, ...]) -> type:
    """The class of that name, if its module is loaded: a file must not decide what gets imported."""
    module, _, path = name.partition(":")
    kind: Any = sys.modules.get(module)
    for word in path.split("."):
        kind = getattr(kind, word, None)
    if not isinstance(kind, type) or not _is_named_tuple(kind) or getattr(kind, "_fields", None) != fields:
        raise ValueError(
            f"no named tuple {name} of {', '.join(fields)}: import its module before reading this"
        )
    return kind
