"""What one attempt's process is to do, as a file: nothing of the store, its passwords or tokens is in it."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stoker.feed.whole_file import whole_file


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A workload with its settings, or a script with its arguments, and where it writes."""

    training: Path
    records: Path
    workload: str | None
    config: Mapping[str, Any]
    script: str | None
    arguments: tuple[str, ...]

    def write(self, path: Path) -> None:
        """There whole or not at all."""
        told = {
            **asdict(self),
            "training": str(self.training),
            "records": str(self.records),
            "config": dict(self.config),
        }
        with whole_file(path) as out:
            out.write(json.dumps(told, indent=1).encode())

    @classmethod
    def read(cls, path: Path) -> "Plan":
        """What `write` wrote."""
        told = json.loads(path.read_text())
        return cls(
            **{
                **told,
                "training": Path(told["training"]),
                "records": Path(told["records"]),
                "arguments": tuple(told["arguments"]),
            }
        )
