"""The locator, what it is judged by, and the map."""

import math
import xml.etree.ElementTree
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.distributions import MultivariateNormal

from stoker.errors import UsageError
from stoker.workloads.heimdall.config import HeimdallConfig
from stoker.workloads.heimdall.locator import Estimate, Locator, surprise
from stoker.workloads.heimdall.map import Map
from stoker.workloads.heimdall.measurements import MadeRadio, measure
from stoker.workloads.heimdall.metrics import Coverage, ErrorQuantile


@pytest.fixture
def model() -> Locator:
    torch.manual_seed(0)
    model = Locator(area_m=20_000, width=16, layers=2, heads=2)
    torch.nn.init.normal_(model.head.weight)  # which begins at 0, and then nothing can be seen
    return model.eval()


def batch_of(count: int = 6) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    found = measure(MadeRadio(iq_samples=32), 0, count)
    return torch.from_numpy(found.features), torch.from_numpy(found.iq), torch.from_numpy(found.heard)


def estimate_of(mean: torch.Tensor, deviation: float = 1.0) -> Estimate:
    return Estimate(mean, (torch.eye(2) * deviation).expand(len(mean), 2, 2))


def test_the_order_of_receivers_is_nothing(model: Locator) -> None:
    """They are a set."""
    features, iq, heard = batch_of()
    turned = torch.tensor([3, 0, 6, 1, 5, 2, 4])
    for one, other in zip(
        model(features, iq, heard),
        model(features[:, turned], iq[:, turned], heard[:, turned]),
        strict=True,
    ):
        # In km: a tenth of a metre, where sums in another order differed by 2 cm.
        torch.testing.assert_close(one, other, rtol=0, atol=1e-4)


def test_what_was_not_heard_has_no_part(model: Locator) -> None:
    """Whatever stands in its slot, the estimate is the same; what was heard changes it."""
    features, iq, heard = batch_of()
    silent = heard == 0
    assert silent.any()
    noisy = features.clone()
    noisy[silent] = 77.0
    before = model(features, iq, heard)
    torch.testing.assert_close(before.mean, model(noisy, iq, heard).mean)
    torch.testing.assert_close(before.lower, model(noisy, iq, heard).lower)
    noisy[~silent] = 77.0
    assert not torch.allclose(before.mean, model(noisy, iq, heard).mean)


def test_the_spread_is_one_of_a_normal_distribution(model: Locator) -> None:
    """Its factor is lower triangular with a diagonal above 0."""
    lower = model(*batch_of()).lower
    assert (lower[:, 0, 1] == 0).all()
    assert (lower.diagonal(dim1=1, dim2=2) > 0).all()
    assert (lower[:, 1, 0] != 0).any()


def test_a_new_model_says_anywhere_in_the_square() -> None:
    """The middle, with the spread of even chances over 20 km."""
    estimate = Locator(area_m=20_000, width=16, layers=1, heads=2)(*batch_of())
    assert (estimate.mean == 0).all()
    torch.testing.assert_close(estimate.lower, (torch.eye(2) * 20 / math.sqrt(12)).expand(6, 2, 2))


def test_surprise_is_the_density_of_a_normal_distribution() -> None:
    """As torch's own has it, but for the constant."""
    draw = torch.Generator().manual_seed(0)
    lower = torch.tril(torch.randn(5, 2, 2, generator=draw)) + 2 * torch.eye(2)
    mean, position = torch.randn(5, 2, generator=draw), torch.randn(5, 2, generator=draw)
    expected = -MultivariateNormal(mean, scale_tril=lower).log_prob(position) - math.log(2 * math.pi)
    torch.testing.assert_close(surprise(Estimate(mean, lower), position), expected)


@pytest.mark.parametrize("heads", [0, -1])
def test_a_size_below_one_is_told(heads: int) -> None:
    """When the settings are read, before anything is made."""
    with pytest.raises(UsageError, match=f"heads {heads}: take 1 or more of each"):
        HeimdallConfig(heads=heads)


def test_heads_must_divide_the_width() -> None:
    """Told with both numbers."""
    with pytest.raises(UsageError, match="width is 10, layers 4 and heads 4"):
        Locator(area_m=1.0, width=10, heads=4)


# --- judged ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("quantile", [0.0, 0.5, 0.95, 1.0])
def test_errors_are_quantiles_in_metres_over_all_batches(quantile: float) -> None:
    """As numpy has them."""
    means = torch.randn(37, 2, generator=torch.Generator().manual_seed(1))
    metric = ErrorQuantile(quantile)
    for part in (slice(0, 5), slice(5, 37)):
        metric.update(estimate_of(means[part]), torch.zeros(len(means[part]), 2))
    expected = np.quantile(np.linalg.norm(means.numpy(), axis=1) * 1000, quantile)
    assert metric.compute().item() == pytest.approx(expected, rel=1e-5)


def test_who_knows_how_sure_he_is_covers_what_he_says() -> None:
    """Nine in ten with the right spread, nearly none with one far too small."""
    truth = torch.randn(20_000, 2, generator=torch.Generator().manual_seed(2))
    right, vain = Coverage(0.9), Coverage(0.9)
    right.update(estimate_of(torch.zeros(20_000, 2)), truth)
    vain.update(estimate_of(torch.zeros(20_000, 2), 0.05), truth)
    assert right.compute().item() == pytest.approx(0.9, abs=0.01)
    assert vain.compute().item() < 0.02


# --- the map --------------------------------------------------------------------------------------


def test_the_map_has_every_receiver_and_every_error(tmp_path: Path) -> None:
    """A well-formed SVG; what lies beyond the square is drawn at its edge, and the title is text."""
    truth = torch.tensor([[0.0, 0.0], [5.0, -5.0]])
    drawn = Map(
        side_km=20,
        stations=np.array([[1.0, 2.0], [-3.0, 4.0], [0.0, -9.0]]),
        estimate=estimate_of(torch.tensor([[1.0, 1.0], [50.0, 0.0]])),
        position=truth,
        title="median < 5 & more",
    )
    tree = xml.etree.ElementTree.parse(drawn.write(tmp_path / "map.svg"))
    space = "{http://www.w3.org/2000/svg}"
    circles = [(float(c.get("cx", 0)), float(c.get("cy", 0))) for c in tree.iter(f"{space}circle")]
    in_legend = 2
    assert circles[:-in_legend] == [(376.0, 376.0), (408.0, 344.0), (536.0, 536.0), (696.0, 376.0)]
    assert sum(path.get("fill") == "#e69f00" for path in tree.iter(f"{space}path")) == 3 + 1
    assert len(list(tree.iter(f"{space}polygon"))) == 2
    assert "median < 5 & more" in [text.text for text in tree.iter(f"{space}text")]
