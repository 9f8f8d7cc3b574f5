"""What a DataLoader is given and a feed is not: each word is answered with what to do in its place."""

import inspect
from collections.abc import Callable, Mapping
from reprlib import repr as shortened

from stoker.errors import UsageError

_INSTEAD = {
    "num_workers": "give workers=, or leave it out: then there is one for each core, up to 8",
    "sampler": "give shuffle=, weights= or subset=, and for a DistributedSampler nothing: a feed is split "
    "among the ranks by itself",
    "batch_sampler": "give batch_size= and shuffle=, weights= or subset=",
    "pin_memory": "leave it out: batches come on device=, out of pinned memory where that helps",
    "pin_memory_device": "give device=",
    "prefetch_factor": "leave it out, or give ahead=, the batches under way of all workers together",
    "persistent_workers": "leave it out: workers live on from epoch to epoch, until close()",
    "generator": "give seed=, of which every epoch's order is made",
    "timeout": "leave it out: a worker that dies is replaced",
    "worker_init_fn": "leave it out, and do that when the dataset is first read",
    "multiprocessing_context": "leave it out: workers start as torch.multiprocessing.set_start_method says",
    "in_order": "leave it out: batches come in their order",
}


def refuse_unknown(unknown: Mapping[str, object], taken_by: Callable[..., None]) -> None:
    """UsageError for the keyword arguments that `taken_by` does not name, where there are any."""
    if not unknown:
        return
    names = (
        name
        for name, parameter in inspect.signature(taken_by).parameters.items()
        if parameter.kind is not parameter.VAR_KEYWORD and name != "self"
    )
    otherwise = f"it takes {', '.join(names)}"
    told = (
        f"no {name}={shortened(given)}: {_INSTEAD.get(name, otherwise)}" for name, given in unknown.items()
    )
    raise UsageError(f"a Feed has {'; '.join(told)}")
