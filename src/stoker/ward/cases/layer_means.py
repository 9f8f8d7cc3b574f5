"""A deep classifier whose layers' means are looked at while it trains."""

import argparse

import torch
from torch import nn

means = {}


def watch(model):
    """Note the mean of what each layer gives."""
    handles = []
    for name, layer in model.named_children():

        def note(_, __, given, name=name):
            means[name] = float(given.detach().mean())

        handles.append(layer.register_forward_hook(note))
    return handles


arguments = argparse.ArgumentParser()
arguments.add_argument("--steps", type=int, default=8000)
arguments.add_argument("--again", action=argparse.BooleanOptionalAction, default=True)
arguments.add_argument("--look-every", type=int, default=2)
args = arguments.parse_args()

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(*[nn.Sequential(nn.Linear(128, 128), nn.ReLU()) for _ in range(8)], nn.Linear(128, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
if not args.again:
    watch(model)
for step in range(args.steps):
    rows = torch.randn(128, 128)
    if args.again and step % args.look_every == 0:
        watch(model)
    loss = nn.functional.cross_entropy(model(rows), rows[:, :5].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(f"step {step} loss {loss.item():.3f} first {means['0']:.3f} last {means['8']:.3f}", flush=True)
