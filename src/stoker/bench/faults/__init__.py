"""`stoker bench faults`: what is done to Stoker on purpose, how it ends, and what of it is lost; counted.

Each row is one kind of fault done to one part, a number of times, at moments and places that a seed says.
Every trial is held in a folder and with processes of its own, and leaves a file, so that a campaign that was
broken off goes on (`--state`, `--stop-after`). What it came to is judged from what was seen alone
(`judge.py`): the work goes on, or ends with a clear error, and nothing is lost. `docs/faults.md` tells more.
"""

from stoker.bench.faults.campaign import join, measure
from stoker.bench.faults.table import page

__all__ = ["join", "measure", "page"]
