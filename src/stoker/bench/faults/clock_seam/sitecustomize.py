"""On the path of processes whose wall clock is to jump: Python's own clock is as far off as a file says.

Not libfaketime: under it (0.9.10) `time.sleep` of Python 3.11 ends with EINVAL, in every process.
"""

import os
import time

_FILE = os.environ.get("STOKER_FAULTS_CLOCK")
_plain = {
    name: getattr(time, name) for name in ("time", "time_ns", "localtime", "gmtime", "ctime", "strftime")
}


def _off() -> float:
    with open(_FILE) as file:
        return float(file.read())


if _FILE is not None:
    time.time = lambda: _plain["time"]() + _off()
    time.time_ns = lambda: _plain["time_ns"]() + int(_off() * 1e9)
    time.localtime = lambda at=None: _plain["localtime"](time.time() if at is None else at)
    time.gmtime = lambda at=None: _plain["gmtime"](time.time() if at is None else at)
    time.ctime = lambda at=None: _plain["ctime"](time.time() if at is None else at)
    time.strftime = lambda form, at=None: _plain["strftime"](form, time.localtime() if at is None else at)
