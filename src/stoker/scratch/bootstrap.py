"""The first thing in the script's process: shield, loggers, hook; then the script.

Started by its path with the run's folder as its argument, so that nothing in the user's folder
can stand in for a module of Python's or ours. It becomes the script's process: `python train.py` with a
few lines before it.
"""

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

try:
    import stoker.scratch as _  # noqa: F401
except ModuleNotFoundError:
    # The caller had it on a path of its own making.
    sys.path.append(str(Path(__file__).parents[2]))

from stoker.errors import StokerError
from stoker.scratch import imports, loggers, main_module, plan_file, vram
from stoker.scratch.channel import Sender
from stoker.scratch.child import Child
from stoker.scratch.values import Plan
from stoker.watch.script import Script, find_module, find_script


def main() -> None:
    """Prepare, then run the script as if this had been its interpreter all along."""
    work = Path(sys.argv[1])
    plan = plan_file.load(work)
    rank = int(os.environ["RANK"]) if plan.ranks > 1 else 0
    child = Child(Sender(work, rank=rank), steps=plan.limits.steps)
    changes = dict(loggers.changes())
    after_hook: list[Callable[[], None]] = []
    changes.update(_raise_shield(os.environ.pop("STOKER_SHIELD"), work, plan, child, after_hook))
    imports.install(changes)
    main_module.report_uncaught(lambda text: child.report("error", text=text))
    try:
        script = _find(plan)
    except StokerError as error:
        child.report("error", text=str(error))
        sys.exit(1)
    sys.argv = list(script.argv)
    sys.path[0] = script.path0
    run: Callable[[Script], None] = main_module.run
    if plan.hook is not None:
        run = _call_hook(plan.hook, child, plan.argument) or run
    for raise_floor in after_hook:  # what the hook starts is ours, such as the process that writes a record
        raise_floor()
    child.report("started", pid=os.getpid())
    run(script)


def _find(plan: Plan) -> Script:
    # Behind the shield: finding a module imports its package.
    if plan.command[0] == "-m":
        return find_module(plan.command[1], list(plan.command[2:]))
    return find_script(plan.command[0], list(plan.command[1:]))


def _call_hook(name: str, child: Child, argument: Any) -> Callable[[Script], None] | None:
    module, _, function = name.partition(":")
    hook = getattr(importlib.import_module(module), function)
    return hook(child, argument)  # type: ignore[no-any-return]


def _raise_shield(
    by: str, work: Path, plan: Plan, child: Child, after_hook: list[Callable[[], None]]
) -> imports.Changes:
    """Put up what of the shield is this process' own; return what is to be done to torch.

    What is to be put up when the hook has been called goes to `after_hook`.
    """
    torch_changes: list[imports.Change] = []
    if plan.guards.vram_fraction is not None:
        fraction = plan.guards.vram_fraction
        torch_changes.append(lambda torch: vram.cap(fraction, torch))
    if by != "overlay":
        torch_changes.append(_copy_writes(by, work, plan, child, after_hook))

    def change_torch(torch: Any) -> None:
        for change in torch_changes:
            change(torch)

    return {"torch": change_torch} if torch_changes else {}


def _copy_writes(
    by: str, work: Path, plan: Plan, child: Child, after_hook: list[Callable[[], None]]
) -> imports.Change:
    # Here, since only these shields need them: 10 ms of imports that a script does not ask for.
    from stoker.scratch import copies, landlock, refusal
    from stoker.scratch.copy_store import CopyStore

    free = (str(work), "/dev", "/proc", *(str(path) for path in plan.writable))
    store = CopyStore(str(work / "copies"), free)
    (work / "copies").mkdir(exist_ok=True)
    if by == "landlock":
        weakness = landlock.restrict(free)
        child.report(
            "shield",
            kind="partial" if weakness else "full",
            reason=weakness or "no private mounts: files that C code and other programs write are refused",
        )
    else:
        child.report(
            "shield",
            kind="partial",
            reason="no private mounts and no Landlock: files that C libraries write by themselves, and what"
            " spawned workers write, is not kept from lasting; programs are not started",
        )
    copies.install(store)
    if by == "patches":
        after_hook.append(lambda: refusal.install(store))
    return lambda torch: copies.change_torch(store, torch)


if __name__ == "__main__":
    main()
