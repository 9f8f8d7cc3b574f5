"""Training jobs: submitted, queued, run, watched, cancelled and resumed; from HTTP, Python and a browser.

    client = stoker.jobs.Client("http://localhost:8000")
    client.submit(workload="sar", config={"train": {"epochs": 3}}).result()

The names load when first used: every process of a job imports this package.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stoker.jobs.client import Client, Job

__all__ = ["Client", "Job"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'stoker.jobs' has no {name!r}; it offers {', '.join(__all__)}")
    from stoker.jobs import client

    return getattr(client, name)
