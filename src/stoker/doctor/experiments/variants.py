"""The loop with something switched, beside the loop as it is: what a precision, or a kept cache, would save.

The steps are the loop's own, with held batches where there are some. The process is thrown away afterwards,
so that the numbers which the model learns may change here; nothing but the time of a step is told.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from stoker.doctor.experiments.condition import Condition
from stoker.doctor.held import Held

Tell = Callable[..., None]
AS_IT_IS, TF32, BF16, CHANNELS_LAST, KEPT_CACHE = "as it is", "tf32", "bf16", "channels_last", "kept_cache"


class Variant(Condition):
    """The loop as it is; those below switch something."""

    name = AS_IT_IS
    most = 0.6

    def __init__(self, held: Held | None, tell: Tell) -> None:
        self.held, self._tell = held, tell

    def tell(self, seconds: float, steps: int) -> None:
        """Tell what a step took."""
        self._tell("variant", name=self.name, seconds=seconds, steps=steps)


class Tf32(Variant):
    """Matrix products and convolutions of float32 by TF32."""

    name = TF32

    def enter(self) -> None:
        """Allow it, by the switches that the script itself uses: torch refuses a mixture of old and new."""
        matmul: Any = torch.backends.cuda.matmul
        cudnn: Any = torch.backends.cudnn
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the older ones will go
            try:
                before = matmul.allow_tf32, cudnn.allow_tf32
                switches: list[tuple[Any, str]] = [(matmul, "allow_tf32"), (cudnn, "allow_tf32")]
                wanted: Any = True
            except RuntimeError:  # the script has set the newer ones
                parts = (matmul, cudnn.conv, cudnn.rnn)
                before = tuple(part.fp32_precision for part in parts)
                switches, wanted = [(part, "fp32_precision") for part in parts], "tf32"
            self._before = [(*switch, value) for switch, value in zip(switches, before, strict=True)]
            for owner, name in switches:
                setattr(owner, name, wanted)

    def leave(self) -> None:
        """As it was."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for owner, name, value in self._before:
                setattr(owner, name, value)


class Bf16(Variant):
    """The model's own calls under autocast to bfloat16; what they answer is float32 again.

    Set inside the call: a loop may stand in an autocast of its own that is switched off.
    """

    name = BF16

    def __init__(self, held: Held | None, tell: Tell, roots: Sequence[nn.Module]) -> None:
        super().__init__(held, tell)
        self._roots = roots
        self._hooks: list[Any] = []
        self._outside: list[tuple[bool, torch.dtype]] = []

    def enter(self) -> None:
        """Hook the models."""
        for root in self._roots:
            self._hooks += [
                root.register_forward_pre_hook(self._before),
                root.register_forward_hook(self._after, always_call=True),
            ]

    def leave(self) -> None:
        """Unhook them."""
        for hook in self._hooks:
            hook.remove()

    def _before(self, *_: Any) -> None:
        self._outside.append((torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")))
        torch.set_autocast_enabled("cuda", True)
        torch.set_autocast_dtype("cuda", torch.bfloat16)

    def _after(self, module: nn.Module, args: Any, answer: Any) -> Any:
        enabled, dtype = self._outside.pop()
        torch.set_autocast_enabled("cuda", enabled)
        torch.set_autocast_dtype("cuda", dtype)
        torch.clear_autocast_cache()
        return tree_map(_as_float32, answer)


class ChannelsLast(Bf16):
    """bfloat16, and images (or volumes) with their channels last."""

    name = CHANNELS_LAST

    def enter(self) -> None:
        """Turn the weights over, and what goes in."""
        super().enter()
        self._before_it = [
            (parameter, parameter.stride()) for root in self._roots for parameter in root.parameters()
        ]
        for parameter, _ in self._before_it:
            _turn_over(parameter, _channels_last)
        self._hooks += [root.register_forward_pre_hook(self._turn) for root in self._roots]

    def leave(self) -> None:
        """Turn them back: a convolution follows its weights, with other kernels and another peak."""
        super().leave()
        for parameter, strides in self._before_it:
            _turn_over(parameter, partial(_with_strides, strides=strides))

    def _turn(self, module: nn.Module, args: Any) -> Any:
        return tree_map(_channels_last, args)


class KeptCache(Variant):
    """`torch.cuda.empty_cache()` does nothing."""

    name = KEPT_CACHE

    def enter(self) -> None:
        """Stand in its place."""
        self._emptied = torch.cuda.empty_cache
        torch.cuda.empty_cache = _nothing

    def leave(self) -> None:
        """Give it back."""
        torch.cuda.empty_cache = self._emptied


_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def variants(
    held: Held | None, tell: Tell, *, roots: Sequence[nn.Module], precision: bool, emptied: bool
) -> Iterator[Condition]:
    """Those that may save something here, after the loop as it is."""
    if not precision and not emptied:
        return
    yield Variant(held, tell)
    if emptied:
        yield KeptCache(held, tell)
    kinds = {parameter.dtype for root in roots for parameter in root.parameters()}
    if not precision or torch.float32 not in kinds:
        return
    convolves = any(isinstance(one, nn.Conv2d | nn.Conv3d) for root in roots for one in root.modules())
    yield Tf32(held, tell)
    yield Bf16(held, tell, roots)
    if convolves:
        yield ChannelsLast(held, tell, roots)


def _nothing() -> None:
    pass


def _as_float32(leaf: Any) -> Any:
    return leaf.float() if isinstance(leaf, torch.Tensor) and leaf.dtype == torch.bfloat16 else leaf


def _turn_over(parameter: nn.Parameter, turn: Callable[[torch.Tensor], torch.Tensor]) -> None:
    parameter.data = turn(parameter.data)
    if parameter.grad is not None:
        parameter.grad = turn(parameter.grad)


def _with_strides(tensor: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    if tensor.stride() == strides:
        return tensor
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _channels_last(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor) and leaf.dim() in _LAST:
        return leaf.contiguous(memory_format=_LAST[leaf.dim()])
    return leaf
