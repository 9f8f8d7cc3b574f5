"""Levels of a river at many gauges: one model, trained by several processes, with small steps summed up."""

import argparse
import contextlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def build(gauges, width):
    return nn.Sequential(nn.Linear(gauges, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
                         nn.Linear(width, gauges))  # fmt: skip


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gauges", type=int, default=64)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--sums", type=int, default=1, help="small steps in each step")
    parser.add_argument("--quiet", action="store_true", help="processes meet once a step")
    parser.add_argument("--interface", help="the network of each process: net{} is net0, net1, …")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--steps", type=int, default=8000)
    args = parser.parse_args()
    if args.interface:
        os.environ["GLOO_SOCKET_IFNAME"] = args.interface.format(os.environ["RANK"])
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    torch.set_num_threads(1)
    model = DistributedDataParallel(build(args.gauges, args.width))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    levels = torch.randn(50_000, args.gauges).cumsum(0) / 200
    for step in range(args.steps):
        optimizer.zero_grad()
        for part in range(args.sums):
            rows = torch.randint(len(levels) - 1, (args.rows,))
            alone = args.quiet and part < args.sums - 1
            with model.no_sync() if alone else contextlib.nullcontext():
                loss = nn.functional.mse_loss(model(levels[rows]), levels[rows + 1]) / args.sums
                loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % 100 == 0:
            print(f"step {step} loss {loss.item():.5f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
