"""What a training writes down as it goes: a line of JSON for each event, and the loggers that were asked for.

`metrics.jsonl` is always written, by rank 0, one object a line: `{"t", "kind", "step", …}`. A resume cuts off
what was written after the step it goes on from, so that a curve has each step once.
"""

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from stoker.errors import MissingExtra
from stoker.feed.whole_file import whole_file
from stoker.train.folder import writing


class Logger(Protocol):
    """Where curves go."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Numbers by name at a step."""

    def close(self) -> None:
        """All is written when this returns."""


class Journal:
    """The lines, and the loggers behind them.

    `after` is the step that is gone on from, `judged` whether its validation, if it has one, is part of that.
    """

    def __init__(self, folder: Path, loggers: Sequence[Logger], *, after: int, judged: bool = True) -> None:
        self._path, self._folder = folder / "metrics.jsonl", folder
        self._loggers = loggers
        with writing(self._path):
            _cut(self._path, after, judged)
            self._file = self._path.open("a")

    def write(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """One line, on the disk when this returns; its numbers go to the loggers too."""
        told = plain(values)
        line = json.dumps({"t": round(time.time(), 3), "kind": kind, "step": step, **told})
        with writing(self._path):
            self._file.write(f"{line}\n")
            self._file.flush()
        numbers = {f"{kind}/{name}": float(value) for name, value in values.items() if _is_number(value)}
        with writing(self._folder):
            for logger in self._loggers:
                logger.log(numbers, step)

    def close(self) -> None:
        """End all of them, whatever one of them cannot write any more."""
        with ExitStack() as stack:
            for logger in reversed(self._loggers):
                stack.enter_context(writing(self._folder))
                stack.callback(logger.close)
            stack.enter_context(writing(self._path))
            stack.callback(self._file.close)


def open_loggers(
    names: Sequence[str], *, folder: Path, run: str, config: Mapping[str, Any], after: int
) -> list[Logger]:
    """The loggers of these names; MissingExtra where one is not installed."""
    makers: dict[str, Callable[[Path, str, Mapping[str, Any], int], Logger]] = {
        "tensorboard": TensorBoard,
        "wandb": WandB,
        "mlflow": MlFlow,
    }
    return [makers[name](folder, run, config, after) for name in names]


class TensorBoard:
    """Event files in `tensorboard/`."""

    def __init__(self, folder: Path, run: str, config: Mapping[str, Any], after: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingExtra("tensorboard", "train", "The logger tensorboard") from error
        # Points after the step that is gone on from are hidden by TensorBoard; before the first checkpoint
        # that is all of them.
        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=after + 1)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Scalars by name."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        # Else it waits for two minutes, and a kill would leave a hole before the step that is gone on from.
        self._writer.flush()

    def close(self) -> None:
        """Flush and close the file."""
        self._writer.close()


class WandB:
    """A run of Weights & Biases, gone on with after a resume."""

    def __init__(self, folder: Path, run: str, config: Mapping[str, Any], after: int) -> None:
        try:
            import wandb
        except ImportError as error:
            raise MissingExtra("wandb", "wandb", "The logger wandb") from error
        kept = folder / "wandb.id"
        known = kept.read_text() if kept.exists() else None
        self._run = wandb.init(
            project="stoker", name=run, id=known, resume="allow", dir=str(folder), config=dict(config)
        )
        kept.write_text(self._run.id)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Numbers at a step."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """End the run."""
        self._run.finish()


class MlFlow:
    """A run of MLflow, gone on with after a resume."""

    def __init__(self, folder: Path, run: str, config: Mapping[str, Any], after: int) -> None:
        try:
            import mlflow
        except ImportError as error:
            raise MissingExtra("mlflow", "mlflow", "The logger mlflow") from error
        self._mlflow = mlflow
        kept = folder / "mlflow.id"
        known = kept.read_text() if kept.exists() else None
        mlflow.set_experiment("stoker")
        self._run = mlflow.start_run(run_id=known, run_name=None if known else run)
        kept.write_text(self._run.info.run_id)
        if known is None:
            mlflow.log_params(_flat(config))

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Numbers at a step."""
        self._mlflow.log_metrics(dict(values), step=step)

    def close(self) -> None:
        """End the run."""
        self._mlflow.end_run()


def _cut(path: Path, after: int, judged: bool) -> None:
    """Leave only whole lines up to a step: a killed process may have written more, or half a line."""
    if not path.exists():
        return
    lines = path.read_text(errors="replace").splitlines()
    kept = [line for line in lines if _is_before(line, after, judged)]
    with whole_file(path) as out:
        out.write("".join(f"{line}\n" for line in kept).encode())


def _is_before(line: str, after: int, judged: bool) -> bool:
    try:
        told = json.loads(line)
    except ValueError:  # a line that was cut off
        return False
    step = told.get("step") if isinstance(told, dict) else None
    if not isinstance(step, int):  # or one that a disk has harmed
        return False
    if step == after and not judged:
        return told.get("kind") not in ("epoch", "valid")
    return step <= after


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def plain(value: Any) -> Any:
    """A value as JSON has it, which has no number for what is not finite."""
    if isinstance(value, Mapping):
        return {name: plain(inner) for name, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _flat(config: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            found.update(_flat(value, f"{above}{name}."))
        else:
            found[f"{above}{name}"] = value
    return found
