"""The host: cores and memory, by the reader of this platform."""

import sys

from stoker.facts.values import Host


def read() -> Host:
    """Read the host that this process runs on."""
    # Each reader is imported where it is at home: the others may lack what they are written on.
    if sys.platform == "darwin":
        from stoker.facts import macos

        return macos.read()
    if sys.platform == "win32":
        from stoker.facts import windows

        return windows.read()
    from stoker.facts import linux

    return linux.read()
