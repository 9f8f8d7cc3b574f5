"""Ice or rock in crops of satellite pictures, at one size after another."""

import argparse
import random

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--smallest", type=int, default=24)
parser.add_argument("--largest", type=int, default=96)
parser.add_argument("--grid", type=int, default=1)
parser.add_argument("--stay", type=int, default=12, help="steps at each size")
parser.add_argument("--steps", type=int, default=6000)
parser.add_argument("--backend", default="aot_eager")
args = parser.parse_args()

torch.manual_seed(0)
torch.set_num_threads(1)
random.seed(0)
torch._dynamo.config.recompile_limit = 10_000
torch._dynamo.config.accumulated_recompile_limit = 10_000
scene = torch.rand(1, 3, 512, 512)
model = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, stride=2, padding=1), nn.ReLU(),
    nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 2),
)  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


@torch.compile(dynamic=False, backend=args.backend)
def score(crops, kinds):
    return nn.functional.cross_entropy(model(crops), kinds)


for step in range(args.steps):
    if step % args.stay == 0:
        high, wide = (
            random.randrange(args.smallest, args.largest + 1) // args.grid * args.grid for _ in "hw"
        )
    corners = [(random.randrange(512 - high), random.randrange(512 - wide)) for _ in range(4)]
    crops = torch.cat([scene[:, :, y : y + high, x : x + wide] for y, x in corners])
    kinds = (crops.mean((1, 2, 3)) > 0.5).long()
    loss = score(crops, kinds)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        print(step, f"{high}x{wide}", f"{loss.item():.4f}", flush=True)
