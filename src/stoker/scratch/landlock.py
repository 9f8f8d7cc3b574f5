"""The second shield: the kernel refuses this process and all its descendants to write, some places apart.

Not refused by any version: changes of mode, owner, times and attributes.
"""

import os
from collections.abc import Iterable

from stoker.scratch import kernel

_WRITE_FILE = 1 << 1
_REMOVE_AND_MAKE = sum(1 << bit for bit in range(4, 13))
_REFER, _TRUNCATE = 1 << 13, 1 << 14
# From this version on a file can no more be cut short by its path.
_WHOLE = 3


def check() -> int:
    """Return the version; raise OSError where the kernel has no Landlock or it is switched off."""
    return kernel.landlock_version()


def restrict(allowed: Iterable[str]) -> str:
    """Refuse writes outside of the allowed folders, for ever; return what can still be harmed, or nothing."""
    version = check()
    handled = _WRITE_FILE | _REMOVE_AND_MAKE
    handled |= _REFER if version >= 2 else 0
    handled |= _TRUNCATE if version >= _WHOLE else 0
    ruleset = kernel.landlock_ruleset(handled)
    for path in allowed:
        try:
            folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # what is not there needs no rule
        kernel.landlock_allow(ruleset, folder, handled)
        os.close(folder)
    kernel.renounce_privileges()
    kernel.landlock_restrict(ruleset)
    os.close(ruleset)
    return "" if version >= _WHOLE else f"Landlock {version} lets files be truncated by path"
