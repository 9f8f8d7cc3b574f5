"""A script with changes put over it, measured: `python -m stoker.ward.trying CHANGES SECONDS SCRIPT [ARGS]…`.

CHANGES is a JSON object, `{"num_workers": 4}`. The trial is printed as one. A process of its own, so that it
can be started in a case's surroundings.
"""

import json
import sys
import tempfile
from pathlib import Path

from stoker.tune.trial import hold


def main(words: list[str]) -> int:
    """Measure, and print."""
    with tempfile.TemporaryDirectory(prefix="trying-") as folder:
        trial = hold(words[2:], json.loads(words[0]), folder=Path(folder), seconds=float(words[1]))
    sys.stdout.write(json.dumps(trial.to_json()) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
