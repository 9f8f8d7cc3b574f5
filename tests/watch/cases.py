"""The hard cases, each a loop with known truth; `python cases.py NAME`. See kit.py."""

import os
import queue
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

sys.path.insert(0, str(Path(__file__).parent))

from kit import (
    BATCH,
    TRUTH,
    BatchItems,
    Items,
    Net,
    SlowSGD,
    Stream,
    loss_of,
    make,
    train,
)

CASES: dict[str, Callable[[], None]] = {}


def case(function: Callable[[], None]) -> Callable[[], None]:
    CASES[function.__name__] = function
    return function


def _plain(epochs: int = 1, **loader_settings: Any) -> None:
    net, optimizer = make()
    loader = DataLoader(loader_settings.pop("dataset", Items()), **{"batch_size": BATCH, **loader_settings})
    for _ in range(epochs):
        for batch in TRUTH.waiting(loader):
            train(net, optimizer, batch)


@case
def workers_0() -> None:
    _plain()


@case
def workers_fork() -> None:
    _plain(dataset=Items(160, 0.025), num_workers=2, multiprocessing_context="fork")


@case
def workers_spawn() -> None:
    _plain(dataset=Items(160, 0.025), num_workers=2, multiprocessing_context="spawn")


@case
def workers_every_epoch() -> None:
    _plain(epochs=3, dataset=Items(64, 0.02), num_workers=2, multiprocessing_context="fork")


@case
def workers_persistent() -> None:
    _plain(epochs=3, dataset=Items(64, 0.02), num_workers=2, persistent_workers=True)


@case
def out_of_order() -> None:
    _plain(dataset=Items(160, 0.025), num_workers=2, in_order=False)


@case
def iterable() -> None:
    _plain(dataset=Stream(), epochs=2)


@case
def iterable_workers() -> None:
    _plain(dataset=Stream(160, 0.025), num_workers=2)


@case
def items_by_the_batch() -> None:
    _plain(dataset=BatchItems())


@case
def no_automatic_batching() -> None:
    class Whole(Items):
        def __getitem__(self, index: Any) -> torch.Tensor:
            time.sleep(self.nap * 4)
            return torch.stack([torch.full((8,), float(i)) for i in index])

    sampler = BatchSampler(SequentialSampler(range(80)), BATCH, drop_last=False)
    _plain(dataset=Whole(), batch_size=None, sampler=sampler)


@case
def stateful_loader() -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader

    net, optimizer = make()
    loader = StatefulDataLoader(Items(160, 0.025), batch_size=BATCH, num_workers=2)
    for batch in TRUTH.waiting(loader):
        train(net, optimizer, batch)


@case
def two_loaders() -> None:
    net, optimizer = make()
    labelled, unlabelled = DataLoader(Items(), BATCH), DataLoader(Items(80, 0.003), BATCH)
    for a, b in zip(TRUTH.waiting(labelled), TRUTH.waiting(unlabelled), strict=True):
        train(net, optimizer, torch.cat([a, b]))


@case
def validation_each_epoch() -> None:
    net, optimizer = make()
    loader, held_out = DataLoader(Items(40), BATCH), DataLoader(Items(16, 0.01), BATCH)
    for _ in range(3):
        for batch in TRUTH.waiting(loader):
            train(net, optimizer, batch)
        net.eval()
        with torch.no_grad():
            for batch in held_out:
                net(batch)
        net.train()


@case
def validation_every_few_steps() -> None:
    """Gradients are off around the model's call alone, as in many loops; one batch only."""
    net, optimizer = make()
    held_out = DataLoader(Items(4, 0.01), BATCH)
    for number, batch in enumerate(TRUTH.waiting(DataLoader(Items(120), BATCH))):
        train(net, optimizer, batch)
        if number % 3 == 0:
            for held in held_out:
                with torch.no_grad():
                    net(held)


@case
def validation_with_gradients_left_on() -> None:
    net, optimizer = make()
    held_out = DataLoader(Items(16, 0.01), BATCH)
    for number, batch in enumerate(TRUTH.waiting(DataLoader(Items(120), BATCH))):
        train(net, optimizer, batch)
        if number % 10 == 5:
            before = TRUTH.spent["forward"]
            for held in held_out:
                net(held)
            TRUTH.spent["evaluated"] += TRUTH.spent["forward"] - before


@case
def answers_of_its_own() -> None:
    """The model is run without gradients on the batch it then trains on, as in self-distillation."""
    net, optimizer = make()
    for batch in TRUTH.waiting(DataLoader(Items(), BATCH)):
        with torch.no_grad():
            net(batch)
        train(net, optimizer, batch)


@case
def answers_of_its_own_one_batch_ahead() -> None:
    net, optimizer = make()
    batches = TRUTH.waiting(DataLoader(Items(), BATCH))
    following = next(batches, None)
    while following is not None:
        batch, following = following, next(batches, None)
        with torch.no_grad():
            net(batch)
        train(net, optimizer, batch)


@case
def prefetched_across_validation() -> None:
    """The next training batch is drawn before a validation of one batch begins."""
    net, optimizer = make()
    held_out = DataLoader(Items(4, 0.01), BATCH)
    batches = TRUTH.waiting(DataLoader(Items(120), BATCH))
    following = next(batches, None)
    number = 0
    while following is not None:
        batch, following = following, next(batches, None)
        train(net, optimizer, batch)
        number += 1
        if number % 3 == 0:
            for held in held_out:
                with torch.no_grad():
                    net(held)


@case
def one_training_after_another() -> None:
    kept = []
    for _ in range(2):
        net, optimizer = make()
        kept.append((net, optimizer))
        for batch in TRUTH.waiting(DataLoader(Items(40), BATCH)):
            train(net, optimizer, batch)


@case
def accumulation() -> None:
    net, optimizer = make()
    for number, batch in enumerate(TRUTH.waiting(DataLoader(Items(160), BATCH))):
        (loss_of(net(batch)) / 4).backward()
        if number % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
            TRUTH.step_done()


def _drained(loader: Any, into: Any) -> None:
    for batch in loader:
        into.put(batch)
    into.put(None)


def _background(line: Any) -> None:
    net, optimizer = make()
    loader = DataLoader(Items(120, 0.015), BATCH)
    thread = threading.Thread(target=_drained, args=(loader, line), daemon=True)
    thread.start()
    while True:
        began = time.perf_counter()
        batch = line.get()
        TRUTH.spent["wait"] += time.perf_counter() - began
        if batch is None:
            break
        train(net, optimizer, batch)
    thread.join()


@case
def background_thread() -> None:
    _background(queue.Queue(maxsize=2))


@case
def background_thread_simple_queue() -> None:
    _background(queue.SimpleQueue())


@case
def one_batch_ahead() -> None:
    """As accelerate does: the next batch is drawn before this one is handed out."""

    def ahead(loader: Any) -> Iterator[Any]:
        batches = TRUTH.waiting(loader)
        current = next(batches)
        for following in batches:
            yield current
            current = following
        yield current

    net, optimizer = make()
    for batch in ahead(DataLoader(Items(), BATCH)):
        train(net, optimizer, batch)


@case
def four_batches_ahead() -> None:
    def chunks(loader: Any) -> Iterator[Any]:
        held = []
        for batch in TRUTH.waiting(loader):
            held.append(batch)
            if len(held) == 4:
                yield from held
                held = []
        yield from held

    net, optimizer = make()
    for batch in chunks(DataLoader(Items(160), BATCH)):
        train(net, optimizer, batch)


@case
def compiled() -> None:
    net, optimizer = make()
    wrapped: Any = torch.compile(net, backend="eager")
    for batch in TRUTH.waiting(DataLoader(Items(), BATCH)):
        train(wrapped, optimizer, batch)


@case
def compiled_in_place() -> None:
    net, optimizer = make()
    net.compile(backend="eager")
    for batch in TRUTH.waiting(DataLoader(Items(), BATCH)):
        train(net, optimizer, batch)


@case
def checkpoints_in_the_loop() -> None:
    net, optimizer = make()
    with tempfile.TemporaryDirectory() as folder:
        for number, batch in enumerate(TRUTH.waiting(DataLoader(Items(), BATCH))):
            train(net, optimizer, batch)
            if number % 5 == 4:
                torch.save(net, Path(folder) / "net.pt")
                torch.load(Path(folder) / "net.pt", weights_only=False)
                TRUTH.nap("saving", 0.1)


@case
def activation_checkpointing() -> None:
    """The model is run again inside backward: that is backward's time."""
    from torch.utils.checkpoint import checkpoint

    net, optimizer = make()
    for batch in TRUTH.waiting(DataLoader(Items(), BATCH)):
        optimizer.zero_grad()
        out = checkpoint(net, batch, use_reentrant=False)
        before = TRUTH.spent["forward"]
        loss_of(out).backward()
        again = TRUTH.spent["forward"] - before
        TRUTH.spent["forward"] -= again
        TRUTH.spent["backward"] += again
        optimizer.step()
        TRUTH.step_done()


def _adversaries(critic_updates: int) -> None:
    maker, critic = Net(), Net()
    maker_steps = SlowSGD(maker.parameters(), lr=1e-4)
    critic_steps = SlowSGD(critic.parameters(), lr=1e-4)
    for number, batch in enumerate(TRUTH.waiting(DataLoader(Items(80 * critic_updates), BATCH))):
        critic_steps.zero_grad()
        loss_of(critic(batch)).backward()
        critic_steps.step()
        if number % critic_updates == critic_updates - 1:
            maker_steps.zero_grad()
            loss_of(maker(batch)).backward()
            maker_steps.step()
            TRUTH.step_done()


@case
def adversaries() -> None:
    _adversaries(1)


@case
def adversaries_three_to_one() -> None:
    _adversaries(3)


@case
def changed_in_place() -> None:
    net, optimizer = make()
    for batch in TRUTH.waiting(DataLoader(Items(), BATCH)):
        batch.div_(80.0).sub_(0.5)
        train(net, optimizer, batch)


@case
def closure() -> None:
    net = Net()
    optimizer = torch.optim.LBFGS(net.parameters(), lr=1e-3, max_iter=3)
    for batch in TRUTH.waiting(DataLoader(Items(), BATCH)):

        def again(batch: torch.Tensor = batch) -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(net(batch))
            loss.backward()
            return loss

        optimizer.step(again)
        TRUTH.step_done()


@case
def container_never_called() -> None:
    """The optimizer's parameters belong to a module whose parts are called, not itself."""
    both = torch.nn.ModuleDict({"first": torch.nn.Linear(8, 8), "second": Net()})
    optimizer = SlowSGD(both.parameters(), lr=1e-4)
    for batch in TRUTH.waiting(DataLoader(Items(160), BATCH)):
        optimizer.zero_grad()
        loss_of(both["second"](both["first"](batch))).backward()
        optimizer.step()
        TRUTH.step_done()


@case
def no_loader() -> None:
    net, optimizer = make()
    for _ in range(20):
        TRUTH.nap("making", 0.024)
        train(net, optimizer, torch.randn(BATCH, 8))


@case
def no_loader_watched() -> None:
    import stoker

    net, optimizer = make()
    with stoker.Watch(model=net, optimizer=optimizer) as watch:
        for _ in range(20):
            with watch.loading(samples=BATCH):
                TRUTH.nap("wait", 0.024)
            train(net, optimizer, torch.randn(BATCH, 8))


@case
def no_optimizer_watched() -> None:
    import stoker

    net = Net()
    with stoker.Watch(model=net) as watch:
        for batch in TRUTH.waiting(watch.data([torch.randn(BATCH, 8)] * 20)):
            loss_of(net(batch)).backward()
            with torch.no_grad():
                for parameter in net.parameters():
                    assert parameter.grad is not None
                    parameter.sub_(parameter.grad, alpha=1e-4)
                    parameter.grad = None
            watch.step()
            TRUTH.step_done()


@case
def raises_in_mid_epoch() -> None:
    net, optimizer = make()
    for number, batch in enumerate(TRUTH.waiting(DataLoader(Items(), BATCH))):
        train(net, optimizer, batch)
        if number == 14:
            TRUTH.tell()
            raise ValueError("the loss is not finite")


@case
def two_ranks() -> None:
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    net, _ = make()
    wrapped = DistributedDataParallel(net)
    optimizer = SlowSGD(wrapped.parameters(), lr=1e-4)
    for batch in TRUTH.waiting(DataLoader(Items(), BATCH)):
        optimizer.zero_grad()
        loss = loss_of(wrapped(batch))
        napped, began = TRUTH.spent["backward"], time.perf_counter()
        loss.backward()
        # Backward ends when the other rank's gradients are there too.
        TRUTH.spent["backward"] = napped + time.perf_counter() - began
        optimizer.step()
        TRUTH.step_done()
    dist.destroy_process_group()
    if os.environ["RANK"] != "0":
        TRUTH.steps = 0


if __name__ == "__main__":
    CASES[sys.argv[1]]()
    if TRUTH.steps:
        TRUTH.tell()
