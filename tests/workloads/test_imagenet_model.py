"""ResNet-50: its size, its names, and what it loads."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from stoker.errors import UsageError
from stoker.workloads.imagenet.model import ResNet50, load_weights, read_weights


def expected_names() -> list[str]:
    """The names in torchvision's checkpoint of ResNet-50, in order."""

    def norm(name: str) -> list[str]:
        kinds = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
        return [f"{name}.{kind}" for kind in kinds]

    names = ["conv1.weight", *norm("bn1")]
    for layer, blocks in enumerate((3, 4, 6, 3), 1):
        for block in range(blocks):
            place = f"layer{layer}.{block}"
            for number in (1, 2, 3):
                names += [f"{place}.conv{number}.weight", *norm(f"{place}.bn{number}")]
            if block == 0:
                names += [f"{place}.downsample.0.weight", *norm(f"{place}.downsample.1")]
    return [*names, "fc.weight", "fc.bias"]


def test_it_is_torchvisions_to_the_name() -> None:
    """25,557,032 parameters for 1,000 classes, each named as there, strides where v1.5 has them."""
    with torch.device("meta"):
        model = ResNet50()
    assert sum(weight.numel() for weight in model.parameters()) == 25_557_032
    assert list(model.state_dict()) == expected_names()
    strides = [getattr(model.get_submodule(f"layer2.0.conv{number}"), "stride", None) for number in (1, 2)]
    assert strides == [(1, 1), (2, 2)]


def test_weights_for_other_classes_keep_the_features() -> None:
    """The classifier is left as it was begun, and that is told; all of it loads where it fits."""
    torch.manual_seed(0)
    of_many, of_few = ResNet50(7), ResNet50(3)
    begun = of_few.fc.weight.clone()
    assert not load_weights(of_few, of_many.state_dict())
    assert torch.equal(of_few.conv1.weight, of_many.conv1.weight)
    assert torch.equal(of_few.fc.weight, begun)
    assert load_weights(ResNet50(7), of_many.state_dict())


def test_weights_of_something_else_are_refused() -> None:
    """Told by the first name that is missing or too many."""
    model = ResNet50(3)
    state = model.state_dict()
    with pytest.raises(UsageError, match="has layer9"):
        load_weights(model, {**state, "layer9.0.conv1.weight": torch.zeros(1)})
    del state["layer3.1.conv2.weight"]
    with pytest.raises(UsageError, match=r"lacks layer3\.1\.conv2\.weight"):
        load_weights(model, state)
    # A ResNet-18 has blocks of other shapes under the same names.
    smaller = {**model.state_dict(), "layer1.0.conv1.weight": torch.zeros(64, 64, 3, 3)}
    told = r"has layer1\.0\.conv1\.weight of \(64, 64, 3, 3\), .* \(64, 64, 1, 1\): it is not of a ResNet-50"
    with pytest.raises(UsageError, match=told):
        load_weights(model, smaller)


def test_weights_from_before_batches_were_counted_load() -> None:
    """torchvision's first checkpoint of ResNet-50 has no num_batches_tracked."""
    model = ResNet50(3)
    state = {name: value for name, value in model.state_dict().items() if "num_batches" not in name}
    assert load_weights(ResNet50(3), state)


WEIGHTS = {"conv1.weight": torch.arange(3.0)}


@pytest.mark.parametrize(
    "saved",
    [
        WEIGHTS,
        {"model": WEIGHTS, "epoch": 3},
        {"state_dict": {"module.conv1.weight": WEIGHTS["conv1.weight"]}, "best": 0.7},
    ],
    ids=["plain", "among others", "from several ranks"],
)
def test_weights_are_found_in_what_scripts_save(tmp_path: Path, saved: dict[str, Any]) -> None:
    """By torchvision, by its training script, by others under DistributedDataParallel."""
    torch.save(saved, tmp_path / "weights.pth")
    (found,) = read_weights(tmp_path / "weights.pth").items()
    assert found[0] == "conv1.weight"
    assert torch.equal(found[1], WEIGHTS["conv1.weight"])


def test_weights_of_this_trainer_are_safetensors(tmp_path: Path) -> None:
    """They are read too; a file that is cut off is told, whatever its kind."""
    path = tmp_path / "model.safetensors"
    save_file(WEIGHTS, path)
    assert torch.equal(read_weights(path)["conv1.weight"], WEIGHTS["conv1.weight"])
    torch.save(WEIGHTS, tmp_path / "model.pth")
    for whole in (path, tmp_path / "model.pth"):
        whole.write_bytes(whole.read_bytes()[:40])
        with pytest.raises(UsageError, match="cannot be read as weights alone"):
            read_weights(whole)
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(UsageError, match="holds no weights by name"):
        read_weights(tmp_path / "list.pth")


def test_any_size_of_image_gives_logits() -> None:
    """32 pixels and up, in eval and train."""
    model = ResNet50(5).eval()
    for side in (32, 64):
        assert model(torch.rand(1, 3, side, side)).shape == (1, 5)
