"""A script with settings put over its own, measured: `python -m stoker.ward.trying SETTINGS SCRIPT [ARGS]…`.

SETTINGS is a JSON object, `{"settings": {"num_workers": 4}, "workers": 2, "seconds": 12}`. What was measured
is printed as one. A process of its own, so that it can be started in a case's surroundings.
"""

import json
import sys
from pathlib import Path

from stoker.doctor.applied import apply
from stoker.errors import StokerError


def main(words: list[str]) -> int:
    """Measure, and print."""
    asked = json.loads(words[0])
    try:
        applied = apply(
            words[1:],
            asked["settings"],
            folder=Path(".stoker/applied").absolute(),
            workers=asked["workers"],
            seconds=asked["seconds"],
        )
    except StokerError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(json.dumps(applied.to_json()) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
