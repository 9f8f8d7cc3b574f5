"""Convolutions of the loop's steps, noted and then run alone with batches of other sizes: what they allocate.

A call is noted as plain values, so that nothing of the script's lives longer for it. It is run after all that
is measured, in a process that ends there: on empty tensors of the same layout, forward and, where the step
has it, backward. What its workspaces tell is in `workspaces.py`.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any

import torch

from stoker.doctor.experiments.history import recorded, words_of

_ORDER = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_TRANSPOSED = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")
# Where a script, and torch's own modules, find them.
_NAMES = {f"conv{rank}d": _ORDER for rank in (1, 2, 3)} | {
    f"conv_transpose{rank}d": _TRANSPOSED for rank in (1, 2, 3)
}
# For all sizes together. A 3D U-Net's took milliseconds each on an H200.
_SECONDS = 5.0
# Of what is free: tensors of one call, with about as much again for its workspaces.
_SURELY = 0.5


@dataclass(frozen=True)
class Layout:
    """A tensor without its values."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "Layout":
        """A tensor's own."""
        return cls(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.requires_grad)

    @property
    def is_by_samples(self) -> bool:
        """Whether its samples lie one after the other, so that more of them change nothing else."""
        return self.stride[0] * self.shape[0] == torch.Size(self.shape).numel()

    @property
    def nbytes(self) -> int:
        """Of a tensor in which nothing is left out."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize

    def empty(self, device: torch.device) -> torch.Tensor:
        """One like it."""
        made = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=device)
        return made.requires_grad_(self.requires_grad)


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call of a convolution: `settings` by name, `out` the bytes that it gave."""

    name: str
    input: Layout
    weight: Layout
    bias: Layout | None
    settings: tuple[tuple[str, Any], ...]
    is_grad: bool
    autocast: torch.dtype | None
    out: int

    def __str__(self) -> str:
        shapes = (" x ".join(map(str, one.shape[1:])) for one in (self.input, self.weight))
        return f"{self.name} of {next(shapes)} by {self.weight.shape[0]} x {next(shapes)}"

    def at(self, samples: int, of: int) -> "Call | None":
        """It with a batch of so many samples instead of others; None where it does not grow with them."""
        count, rest = divmod(self.input.shape[0], of)
        if rest or not self.input.is_by_samples:
            return None
        shape = (count * samples, *self.input.shape[1:])
        return replace(self, input=replace(self.input, shape=shape), out=self.out * samples // of)


class Convolutions:
    """Notes calls from when it is told to, and runs them alone with batches of so many samples, in order.

    `record` runs a piece of work and answers what it allocated and freed on a device: None where memory was
    refused, since libraries choose otherwise then.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        *,
        kind: str = "cuda",
        record: Callable[[torch.device, Callable[[], None]], list[int] | None] = recorded,
    ) -> None:
        self._sizes, self._kind, self._record = tuple(sizes), kind, record
        self._calls: dict[Call, None] = {}
        self._plain = {name: getattr(torch, name) for name in _NAMES}
        self._why: str | None = "nothing was noted: the loop is compiled"

    def note(self) -> None:
        """From now on, and for as long as the process lives. Not before a first step: what is made ready
        for it, with torch.jit say, may look at the functions themselves.
        """
        self._why = None
        for name in _NAMES:
            for place in (torch, torch.nn.functional):
                setattr(place, name, self._noting(name))

    def _noting(self, name: str) -> Callable[..., torch.Tensor]:
        plain = self._plain[name]

        @wraps(plain)
        def call(*args: Any, **kwargs: Any) -> torch.Tensor:
            out: torch.Tensor = plain(*args, **kwargs)
            try:
                self._keep(name, dict(zip(_NAMES[name], args, strict=False)) | kwargs, out)
            except Exception as error:  # noqa: BLE001  it is told, and the script goes on
                self._why = words_of(error)
            return out

        return call

    def _keep(self, name: str, given: dict[str, Any], out: torch.Tensor) -> None:
        if out.device.type != self._kind:
            return
        bias = given.get("bias")
        autocast = torch.get_autocast_dtype(self._kind) if torch.is_autocast_enabled(self._kind) else None
        made = Call(
            name=name,
            input=Layout.of(given["input"]),
            weight=Layout.of(given["weight"]),
            bias=None if bias is None else Layout.of(bias),
            settings=tuple(
                (key, tuple(value) if isinstance(value, list) else value)
                for key, value in given.items()
                if key not in ("input", "weight", "bias")
            ),
            is_grad=torch.is_grad_enabled(),
            autocast=autocast,
            out=out.nbytes,
        )
        self._calls[made] = None

    # --- afterwards -------------------------------------------------------------------------------

    def tell(self, report: Callable[..., None], samples: int, index: int) -> None:
        """Run what was noted in steps of so many samples, and tell of it size by size.

        At the end what is lacking, and why.
        """
        lacking = [] if self._why is None else [self._why]
        try:
            lacking += self._tell(report, samples, torch.device(self._kind, index))
        except Exception as error:  # noqa: BLE001  private parts of torch, and whatever a library says
            lacking.append(words_of(error))
        if lacking:
            report("unprobed", why="; ".join(lacking))

    def _tell(self, report: Callable[..., None], samples: int, device: torch.device) -> Iterator[str]:
        if torch.backends.cudnn.benchmark and self._calls:
            yield "with cudnn.benchmark kernels are chosen by their time"
            return
        until = time.monotonic() + _SECONDS
        left = dict(enumerate(self._calls, 1))
        for number, call in list(left.items()):
            if call.at(samples, of=samples) is None:
                del left[number]
                yield f"{call} has a batch of {call.input.shape[0]} where the loop's has {samples} samples"
        for size in self._sizes:
            found: list[tuple[str, list[int]]] = []
            for number, call in list(left.items()):
                if time.monotonic() > until:
                    yield f"{_SECONDS:.0f} s were used up before {size} samples were through"
                    return
                there = call.at(size, of=samples)
                pieces = None if there is None else self._run(there, device)
                if pieces is None:
                    del left[number]
                    yield f"{call} with {size} samples does not fit"
                else:
                    found += [(f"{call}, {piece} ({number})", events) for piece, events in pieces.items()]
            if found:
                report("probed", samples=size, calls=found)

    def _run(self, call: Call, device: torch.device) -> dict[str, list[int]] | None:
        """Events of its forward and backward piece."""
        if self._kind == "cuda":
            torch.cuda.empty_cache()
            free, _ = torch.cuda.mem_get_info(device)
            if 4 * (call.input.nbytes + call.out) > _SURELY * free:
                return None
        tensors = [one.empty(device) for one in (call.input, call.weight)]
        bias = None if call.bias is None else call.bias.empty(device)
        out: list[torch.Tensor] = []
        cast: dict[str, Any] = {"enabled": False} if call.autocast is None else {"dtype": call.autocast}

        def forward() -> None:
            with ExitStack() as around:
                around.enter_context(torch.set_grad_enabled(call.is_grad))
                around.enter_context(torch.autocast(self._kind, **cast))
                out.append(self._plain[call.name](*tensors, bias, **dict(call.settings)))

        pieces = {"forward": self._record(device, forward)}
        grown = [one for one in (*tensors, bias) if one is not None and one.requires_grad]
        if call.is_grad and grown and pieces["forward"] is not None:
            last = torch.empty_like(out[0])

            def backward() -> None:
                out.extend(torch.autograd.grad(out[0], grown, last))

            pieces["backward"] = self._record(device, backward)
        told = {piece: events for piece, events in pieces.items() if events is not None}
        return told if len(told) == len(pieces) else None
