"""Which bird sings: a network over short recordings in WAV files."""

import argparse
import pathlib
import wave

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Calls(Dataset):
    def __init__(self, root):
        self.items = sorted(pathlib.Path(root).rglob("*.wav"))
        self.birds = sorted({path.parent.name for path in self.items})

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        path = self.items[index]
        with wave.open(str(path)) as recording:
            samples = np.frombuffer(recording.readframes(recording.getnframes()), np.int16)
        return torch.from_numpy(samples[::16].astype(np.float32) / 32768), self.birds.index(path.parent.name)


class Listener(nn.Module):
    def __init__(self, birds):
        super().__init__()
        self.front = nn.Conv1d(1, 16, 32, stride=8)
        self.back = nn.Conv1d(16, 32, 8, stride=4)
        self.head = nn.Linear(32, birds)

    def forward(self, sound):
        hidden = F.relu(self.front(sound[:, None]))
        return self.head(F.relu(self.back(hidden)).mean(-1))


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("root", nargs="?", default="calls")
    ap.add_argument("-w", "--workers", type=int, default=2)
    ap.add_argument("--epochs", type=int, default=200)
    ns = ap.parse_args()

    torch.manual_seed(1)
    torch.set_num_threads(1)
    calls = Calls(ns.root)
    listener = Listener(len(calls.birds))
    opt = torch.optim.RMSprop(listener.parameters(), lr=1e-3)
    loader = DataLoader(
        calls, batch_size=16, shuffle=True, num_workers=ns.workers, persistent_workers=ns.workers > 0
    )
    for epoch in range(ns.epochs):
        hits = 0
        for sound, bird in loader:
            opt.zero_grad()
            scores = listener(sound)
            F.cross_entropy(scores, bird).backward()
            opt.step()
            hits += int((scores.argmax(1) == bird).sum())
        print(f"epoch {epoch}: {hits / len(calls):.3f} right", flush=True)
