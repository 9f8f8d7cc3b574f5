"""Adverts ranked by several processes together, each with its own share of the log."""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Log(Dataset):
    """One rank's share of the log: the adverts of each visit."""

    def __init__(self, visits, work, rest):
        self.visits, self.work, self.rest = visits, work, rest

    def __len__(self):
        return self.visits

    def __getitem__(self, index):
        if self.rest:
            time.sleep(self.rest)
        made = torch.Generator().manual_seed(index)
        adverts = torch.randn(128, 16, generator=made)
        for _ in range(self.work):
            adverts = adverts.sort().values.roll(1)
        return adverts, adverts[:, :1]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--visits", type=int, default=8000)
    parser.add_argument("--mixing", type=int, default=14)
    parser.add_argument("--rest", type=float, default=0.0, help="seconds until a visit has come, on any rank")
    parser.add_argument("--pin", action="store_true", help="a core for each rank, as far as they go")
    parser.add_argument("--apart", action="store_true", help="the last core for the last rank alone")
    parser.add_argument("--width", type=int, default=160)
    parser.add_argument("--epochs", type=int, default=10)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    cores, last = sorted(os.sched_getaffinity(0)), rank == world - 1
    if args.pin:
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    elif args.apart:
        os.sched_setaffinity(0, {cores[-1]} if last else cores[:-1])
    torch.manual_seed(0)
    torch.set_num_threads(1)
    log = Log(args.visits, args.mixing if last else 0, args.rest)
    loader = DataLoader(log, batch_size=32)
    width = args.width
    net = nn.Sequential(
        nn.Linear(16, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
    )
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(args.epochs):
        began = time.time()
        for step, (adverts, answer) in enumerate(loader):
            loss = nn.functional.mse_loss(model(adverts.flatten(0, 1)), answer.flatten(0, 1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if rank == 0 and step % 20 == 19:
                took = time.time() - began
                print(f"epoch {epoch} step {step} loss {loss.item():.4f} {took:.0f} s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
