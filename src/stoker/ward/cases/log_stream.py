"""Anomalies in server logs: an endless stream of lines, split between workers."""

import zlib

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

WORDS = ["GET", "POST", "login", "timeout", "ok", "retry", "cart", "search", "user", "admin"]


class Lines(IterableDataset):
    def __init__(self, total, length=24):
        self.total, self.length = total, length

    def __iter__(self):
        info = get_worker_info()
        first, stride = (info.id, info.num_workers) if info else (0, 1)
        for number in range(first, self.total, stride):
            seed = zlib.crc32(number.to_bytes(8, "little"))
            ids = [(seed >> (k % 24)) % len(WORDS) for k in range(self.length)]
            yield torch.tensor(ids), float(ids.count(3) > 2)


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(len(WORDS), 64)
        self.gru = nn.GRU(64, 256, batch_first=True)
        self.out = nn.Linear(256, 1)

    def forward(self, ids):
        return self.out(self.gru(self.embed(ids))[1][0]).squeeze(1)


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    detector = Detector()
    optimizer = torch.optim.Adam(detector.parameters(), lr=1e-3)
    lines = DataLoader(Lines(400_000), batch_size=64, num_workers=1)
    for step, (ids, odd) in enumerate(lines):
        loss = nn.functional.binary_cross_entropy_with_logits(detector(ids), odd.float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
