"""How crowded a street is, from the boxes that annotators drew."""

import argparse
import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


def annotate(count):
    draw = random.Random(1)
    for number in range(count):
        boxes = [
            {"x": draw.random(), "y": draw.random(), "w": draw.random(), "h": draw.random(), "tag": f"car{k}"}
            for k in range(draw.randrange(4, 9))
        ]
        yield {"image": f"street_{number}.jpg", "boxes": boxes}


class Streets(Dataset):
    def __init__(self, count, group, compact):
        self.group = group
        self.scenes = list(annotate(count))
        if compact:
            flat = [[b[key] for key in "xywh"] for scene in self.scenes for b in scene["boxes"]]
            self.flat = np.array(flat, np.float32)
            self.ends = np.cumsum([len(scene["boxes"]) for scene in self.scenes])
            self.scenes = None
        self.count = count

    def __len__(self):
        return self.count // self.group

    def boxes(self, number):
        if self.scenes is None:
            return self.flat[(self.ends[number - 1] if number else 0) : self.ends[number]]
        return np.array([[b["x"], b["y"], b["w"], b["h"]] for b in self.scenes[number]["boxes"]], np.float32)

    def __getitem__(self, index):
        rows, crowd = np.zeros((self.group, 9, 4), np.float32), np.zeros(self.group, np.float32)
        for k in range(self.group):
            found = self.boxes(index * self.group + k)
            rows[k, : len(found)] = found
            crowd[k] = len(found)
        return torch.from_numpy(rows), torch.from_numpy(crowd)


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--scenes", type=int, default=60_000)
    p.add_argument("--group", type=int, default=16)
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("--epochs", type=int, default=200)
    p.add_argument("--compact", action="store_true")
    a = p.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(
        Streets(a.scenes, a.group, a.compact), 16, shuffle=True, num_workers=a.workers,
        persistent_workers=True,
    )  # fmt: skip
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 1280), nn.ReLU(), nn.Linear(1280, 1280), nn.ReLU(),
                        nn.Linear(1280, 1))  # fmt: skip
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    for epoch in range(a.epochs):
        for boxes, crowd in loader:
            opt.zero_grad()
            loss = (net(boxes.flatten(0, 1)).squeeze(1) - crowd.flatten()).abs().mean()
            loss.backward()
            opt.step()
        print(epoch, f"{loss.item():.3f}", flush=True)
