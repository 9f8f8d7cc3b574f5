"""Learning curves of a small classifier: many short passes over a handful of rows."""

import argparse

import torch
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--rows", type=int, default=640)
parser.add_argument("--workers", type=int, default=4)
parser.add_argument("--passes", type=int, default=3000)
parser.add_argument("--stay", action="store_true")
args = parser.parse_args()

torch.manual_seed(8)
torch.set_num_threads(1)
inputs = torch.randn(args.rows, 40)
answers = (inputs[:, :3].sum(1) > 0).long()
loader = DataLoader(
    TensorDataset(inputs, answers), batch_size=64, shuffle=True, num_workers=args.workers,
    persistent_workers=args.stay,
)  # fmt: skip
classifier = torch.nn.Sequential(
    torch.nn.Linear(40, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024), torch.nn.ReLU(),
    torch.nn.Linear(1024, 2),
)  # fmt: skip
optimizer = torch.optim.SGD(classifier.parameters(), lr=0.01)
for number in range(args.passes):
    right = 0
    for rows, answer in loader:
        scores = classifier(rows)
        loss = torch.nn.functional.cross_entropy(scores, answer)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        right += (scores.argmax(1) == answer).sum().item()
    if number % 5 == 0:
        print(f"pass {number}: {right / args.rows:.3f}", flush=True)
