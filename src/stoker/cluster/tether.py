"""`python -m stoker.cluster.tether PARENT WORDS…`: becomes `python WORDS…`, killed when its parent dies.

A node that was cut off ends its workers itself. What they had started has to go with them: it would hold
the folder that its work has meanwhile moved to another node with.
"""

import os
import sys


def main() -> None:
    """Bind this process to its parent, then become the command."""
    parent, words = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        from stoker.scratch import kernel

        kernel.die_with_parent()
    if os.getppid() != parent:  # it died before it could be bound to
        sys.exit(1)
    os.execv(sys.executable, [sys.executable, *words])


if __name__ == "__main__":
    main()
