"""The comparison as one HTML file, in the style of the doctor's report and as offline as that."""

from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stoker import __version__
from stoker.doctor.report import frame
from stoker.doctor.report.markup import Html, tag
from stoker.doctor.report.story import Table
from stoker.facts.words import size
from stoker.watch.words import NA, duration, rate
from stoker.workloads import curves
from stoker.workloads.sar.config import SarConfig

if TYPE_CHECKING:
    from stoker.workloads.sar.comparison import Trained

# Small patches are drawn large, and their pixels stay square.
_PICTURE = "width:100%;image-rendering:pixelated"


def write(path: Path, config: SarConfig, trained: Sequence["Trained"], mean_psnr: float) -> Path:
    """Put the page there."""
    advice = "the trainings are kept: make room there, or the folder writable, and compare again"
    return frame.put(path, document(config, trained, mean_psnr), advice=advice)


def document(config: SarConfig, trained: Sequence["Trained"], mean_psnr: float) -> str:
    """The whole page."""
    content = frame.styled(
        _header(config, trained, mean_psnr),
        _table(trained, mean_psnr),
        _curves(trained),
        _pictures(trained),
        tag("footer", f"Made by Stoker {__version__}. Every figure was measured in these trainings."),
    )
    return frame.document("SAR autoencoders compared", content, pictures=True)


def _header(config: SarConfig, trained: Sequence["Trained"], mean_psnr: float) -> Html:
    judged = [one for one in trained if one.psnr is not None]
    best = max(judged, key=lambda one: one.psnr or 0.0, default=None)
    told = "No model was judged: let the trainings reach a validation."
    if best is not None:
        told = f"{best.name} rebuilds best: {best.psnr:.2f} dB, {best.psnr - mean_psnr:+.2f} dB over the mean"  # type: ignore[operator]
    train = config.train
    budget = (
        f"Each had {trained[0].steps} steps of {train.batch_size} patches in the same order, with base "
        f"{config.base} and {config.latent} latent channels, in {train.precision}. Predicting the mean of "
        f"all patches has {mean_psnr:.2f} dB."
    )
    return tag("header", tag("h1", told), tag("p", budget))


def _table(trained: Sequence["Trained"], mean_psnr: float) -> Html:
    rows = tuple(
        (
            one.name,
            f"{one.parameters / 1e6:.2f} M",
            NA if one.psnr is None else f"{one.psnr:.2f} dB",
            NA if one.psnr is None else f"{one.psnr - mean_psnr:+.2f} dB",
            NA if one.ssim is None else f"{one.ssim:.3f}",
            rate(one.rate, "patch") if one.rate is None else f"{one.rate:,.1f} patches/s",
            size(one.peak_bytes),
            duration(one.seconds),
        )
        for one in trained
    )
    columns = ("model", "parameters", "PSNR", "over the mean", "SSIM", "speed", "peak memory", "time")
    held = (
        "the card's, with the samples that are held there"
        if any(one.on_card for one in trained)
        else "the whole process's, with torch itself and the samples that are held"
    )
    note = (
        "PSNR, SSIM and pictures are of each model's best validation. Time runs from the first batch to the "
        f"picture. Peak memory is {held}."
    )
    return tag(
        "section",
        tag("h2", "Side by side"),
        frame.table(Table(columns=columns, rows=rows)),
        tag("p", note, class_="soft"),
    )


def _curves(trained: Sequence["Trained"]) -> Html:
    psnr = curves.draw({one.name: one.psnrs for one in trained}, label="validation PSNR, dB", across="steps")
    loss = curves.draw(
        {one.name: one.losses for one in trained}, label="training loss", across="steps", digits=3
    )
    return tag("section", tag("h2", "How they learn"), psnr, loss)


def _pictures(trained: Sequence["Trained"]) -> Html:
    shown = [
        tag(
            "div",
            tag("h3", one.name),
            tag("img", src=f"data:image/png;base64,{b64encode(one.picture).decode()}", style=_PICTURE,
                alt=f"patches rebuilt by {one.name}"),
            style="flex:1 1 15rem",
        )
        for one in trained
    ]  # fmt: skip
    told = (
        "Patches that none of them was trained on: original, reconstruction, and the difference (red: too "
        "bright, blue: too dark; in full colour at a quarter of the range)."
    )
    beside = tag("div", shown, style="display:flex;flex-wrap:wrap;gap:0 1.2rem")
    return tag("section", tag("h2", "What they rebuild"), tag("p", told, class_="soft"), beside)
