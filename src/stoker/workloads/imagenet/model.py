"""ResNet-50 with the parameter names of torchvision's, so that its checkpoints load into this one.

The stride of a block that halves sits in its 3x3 convolution ("v1.5"), as it does there.
"""

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from stoker.errors import UsageError

# Of the channels inside a block, so many come out of it.
_EXPANSION = 4


class Bottleneck(nn.Module):
    """1x1 to few channels, 3x3, and 1x1 back to many, around a sum."""

    def __init__(self, wide_in: int, inner: int, stride: int) -> None:
        super().__init__()
        wide = inner * _EXPANSION
        self.conv1, self.bn1 = nn.Conv2d(wide_in, inner, 1, bias=False), nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3, self.bn3 = nn.Conv2d(inner, wide, 1, bias=False), nn.BatchNorm2d(wide)
        self.downsample: nn.Sequential | None = None
        if stride != 1 or wide_in != wide:
            self.downsample = nn.Sequential(
                nn.Conv2d(wide_in, wide, 1, stride=stride, bias=False), nn.BatchNorm2d(wide)
            )

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """The block's output."""
        inner = functional.relu(self.bn1(self.conv1(values)), inplace=True)
        inner = functional.relu(self.bn2(self.conv2(inner)), inplace=True)
        around = values if self.downsample is None else self.downsample(values)
        return functional.relu(self.bn3(self.conv3(inner)) + around, inplace=True)


class ResNet50(nn.Module):
    """Images (B, 3, H, W) to one number for each class: 25,557,032 parameters for 1,000 of them.

    `zero_last` begins with blocks that add nothing, which trains better (Goyal et al. 2017).
    """

    def __init__(self, classes: int = 1000, *, zero_last: bool = True) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = _stage(64, 64, blocks=3, stride=1)
        self.layer2 = _stage(256, 128, blocks=4, stride=2)
        self.layer3 = _stage(512, 256, blocks=6, stride=2)
        self.layer4 = _stage(1024, 512, blocks=3, stride=2)
        self.fc = nn.Linear(512 * _EXPANSION, classes)
        self._begin(zero_last)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The logits."""
        values = self.maxpool(functional.relu(self.bn1(self.conv1(images)), inplace=True))
        values = self.layer4(self.layer3(self.layer2(self.layer1(values))))
        logits: torch.Tensor = self.fc(values.mean(dim=(2, 3)))
        return logits

    def _begin(self, zero_last: bool) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif zero_last and isinstance(module, Bottleneck):
                nn.init.zeros_(module.bn3.weight)


def _stage(wide_in: int, inner: int, *, blocks: int, stride: int) -> nn.Sequential:
    first = Bottleneck(wide_in, inner, stride)
    return nn.Sequential(first, *(Bottleneck(inner * _EXPANSION, inner, 1) for _ in range(blocks - 1)))


def load_weights(model: ResNet50, weights: Mapping[str, torch.Tensor]) -> bool:
    """Load a checkpoint of torchvision's or of this model; whether its classifier fitted too.

    One for another number of classes keeps its features, and the classifier stays as it was begun.
    """
    own = model.state_dict()
    fits = all(weights[name].shape == own[name].shape for name in ("fc.weight", "fc.bias") if name in weights)
    taken = {name: value for name, value in weights.items() if fits or not name.startswith("fc.")}
    for name, value in taken.items():
        if name in own and value.shape != own[name].shape:
            raise UsageError(
                f"the checkpoint has {name} of {tuple(value.shape)}, here it is {tuple(own[name].shape)}: it "
                "is not of a ResNet-50. Give one with torchvision's parameter names."
            )
    missing, unexpected = model.load_state_dict(taken, strict=False)
    lost = [name for name in missing if not name.startswith("fc.")]
    if lost or unexpected:
        wrong = f"lacks {lost[0]}" if lost else f"has {unexpected[0]}"
        raise UsageError(
            f"the checkpoint {wrong}: it is not of a ResNet-50. Give one with torchvision's parameter names."
        )
    return fits and "fc.weight" in weights


# Where scripts that train keep the weights among what else they save.
_UNDER = ("model", "state_dict")
# What DistributedDataParallel puts before each name.
_WRAPPED = "module."


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """The weights in a file: torchvision's, of a training here, or of a script that saves more than them."""
    if not path.is_file():
        raise UsageError(f"no checkpoint {path}: give a file of torchvision's ResNet-50 weights")
    found = _load(path)
    for name in _UNDER:
        if isinstance(found, Mapping) and isinstance(found.get(name), Mapping):
            found = found[name]
    if not isinstance(found, Mapping) or not all(isinstance(value, torch.Tensor) for value in found.values()):
        raise UsageError(f"{path} holds no weights by name: give a file that `state_dict()` was saved to")
    return {str(name).removeprefix(_WRAPPED): value for name, value in found.items()}


def _load(path: Path) -> Any:
    """What is in a file; no code in it is run."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError) as error:
        why = str(error).partition("\n")[0]
        raise UsageError(
            f"{path} cannot be read as weights alone ({why}): fetch it again, or save its `state_dict()` anew"
        ) from error
