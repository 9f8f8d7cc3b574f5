"""The modules whose call is the forward pass, and what their gradients weigh: by the optimizers' parameters.

A root is called through its class: the class gets a `__call__` that asks whether this instance is a
root, and is the class's own again afterwards. Hooks on the instance would be pickled with
`torch.save(model)`, copied by `deepcopy` and traced by `torch.compile`; a class's method is none of
these. Under the compiler the timed call steps aside before anything is traced.
"""

import gc
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

_is_compiling = torch.compiler.is_dynamo_compiling


class Roots:
    """The modules to time, by identity."""

    def __init__(self, timed_call: Callable[[nn.Module, Callable[..., Any], Any, Any], Any]) -> None:
        self._timed_call = timed_call
        self._members: dict[int, weakref.ref[nn.Module]] = {}
        self._patched: dict[type, Any] = {}
        self.fixed = False

    def __contains__(self, module: nn.Module) -> bool:
        return id(module) in self._members

    def modules(self) -> list[nn.Module]:
        """Those that are alive."""
        return [module for ref in self._members.values() if (module := ref()) is not None]

    def find(self, parameters: Iterable[torch.Tensor]) -> None:
        """Look for the outermost modules that own these parameters."""
        if not self.fixed:
            self.set(_outermost_owners({id(p) for p in parameters}))

    def descend(self) -> None:
        """None of them was called: the containers' children may be what the loop calls."""
        if self.fixed:
            return
        children = [child for module in self.modules() for child in module.children()]
        if children:
            self.set(children)

    def set(self, modules: Iterable[nn.Module]) -> None:
        """Time these, and no others."""
        self._members.clear()
        for module in modules:
            key = id(module)
            self._members[key] = weakref.ref(module, lambda _, key=key: self._members.pop(key, None))  # type: ignore[misc]
            self._patch(type(module))

    def restore(self) -> None:
        """Give every class its own `__call__` back."""
        for kind, own in self._patched.items():
            if own is None:
                del kind.__call__
            else:
                kind.__call__ = own  # type: ignore[method-assign]
        self._patched.clear()
        self._members.clear()

    def _patch(self, kind: type) -> None:
        if kind in self._patched:
            return
        own = kind.__dict__.get("__call__")
        members, timed_call = self._members, self._timed_call

        def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            # Looked up at each call: torch.fx replaces nn.Module's own while it traces.
            inner = super(kind, self).__call__ if own is None else own.__get__(self)  # type: ignore[arg-type]
            if _is_compiling() or id(self) not in members:
                return inner(*args, **kwargs)
            return timed_call(self, inner, args, kwargs)

        self._patched[kind] = own
        kind.__call__ = call  # type: ignore[method-assign]


def gradient_bytes_of(parameters: Iterable[torch.Tensor]) -> int | None:
    """Bytes of their gradients, each counted once; None where some have no shape yet."""
    trained = {id(p): p for p in parameters if p.requires_grad}.values()
    if any(nn.parameter.is_lazy(p) for p in trained):
        return None
    return sum(p.numel() * p.element_size() for p in trained)


def _outermost_owners(parameters: set[int]) -> list[nn.Module]:
    """Owners of the parameters, climbed up to modules that are nobody's child."""
    parents: dict[int, list[nn.Module]] = {}
    owners: list[nn.Module] = []
    module_types: dict[type, bool] = {}
    for thing in gc.get_objects():
        kind = type(thing)  # never isinstance: a lazy proxy's __class__ may run code
        known = module_types.get(kind)
        if known is None:
            known = module_types[kind] = issubclass(kind, nn.Module)
        if not known or "_parameters" not in thing.__dict__:
            continue
        if any(id(p) in parameters for p in thing._parameters.values()):
            owners.append(thing)
        for child in thing._modules.values():
            if child is not None:
                parents.setdefault(id(child), []).append(thing)
    found: dict[int, nn.Module] = {}
    seen: set[int] = set()
    while owners:
        module = owners.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        above = parents.get(id(module))
        if above:
            owners.extend(above)
        else:
            found[id(module)] = module
    return list(found.values())
