"""Voiced or not: frames of long recordings of speech."""

import argparse
import wave
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

FRAME = 256


class Frames(Dataset):
    def __init__(self, folder, stay_open):
        self.paths = [str(path) for path in sorted(Path(folder).glob("*.wav"))]
        self.stay_open = stay_open
        self.held = {}
        self.spots = []
        for number, path in enumerate(self.paths):
            with wave.open(path) as tape:
                self.spots.extend((number, start) for start in range(0, tape.getnframes() - FRAME, FRAME))

    def __len__(self):
        return len(self.spots)

    def tape(self, number):
        if not self.stay_open:
            return wave.open(self.paths[number])
        if number not in self.held:
            self.held[number] = wave.open(self.paths[number])
        return self.held[number]

    def __getitem__(self, index):
        number, start = self.spots[index]
        tape = self.tape(number)
        tape.setpos(start)
        frame = np.frombuffer(tape.readframes(FRAME), np.int16).astype(np.float32) / 32768
        return torch.from_numpy(frame), np.float32(abs(frame).mean() > 0.25)


def loop(options):
    torch.manual_seed(4)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(FRAME, 128), nn.Tanh(), nn.Linear(128, 1))
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.02)
    frames = DataLoader(
        Frames(options.tapes, options.stay_open),
        batch_size=256,
        shuffle=True,
        num_workers=options.workers,
        persistent_workers=options.workers > 0,
    )
    for epoch in range(options.epochs):
        for frame, voiced in frames:
            optimizer.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits(model(frame).squeeze(1), voiced)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} bce {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--tapes", default="tapes")
    arguments.add_argument("--workers", type=int, default=2)
    arguments.add_argument("--epochs", type=int, default=150)
    arguments.add_argument("--stay-open", action="store_true")
    loop(arguments.parse_args())
