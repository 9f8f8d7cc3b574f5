"""One of twelve spoken words, straight from the waveform."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class SpokenWords(Dataset):
    def __init__(self, size):
        self.sound = (torch.randn(size, 4000) * 3000).to(torch.int16)
        self.word = torch.randint(12, (size,))

    def __len__(self):
        return len(self.word)

    def __getitem__(self, index):
        return self.sound[index].float().div_(32768), self.word[index]


class M3(nn.Module):
    def __init__(self, words):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv1d(1, 64, 80, stride=4), nn.BatchNorm1d(64), nn.ReLU(), nn.MaxPool1d(4),
            nn.Conv1d(64, 96, 3), nn.BatchNorm1d(96), nn.ReLU(), nn.MaxPool1d(4),
        )  # fmt: skip
        self.out = nn.Linear(96, words)

    def forward(self, sound):
        return self.out(self.features(sound.unsqueeze(1)).mean(2))


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(
        SpokenWords(4000), batch_size=16, shuffle=True, num_workers=1, drop_last=True, persistent_workers=True
    )
    model = M3(12)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=40)
    for epoch in range(40):
        for sound, word in loader:
            loss = nn.functional.cross_entropy(model(sound), word)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        scheduler.step()
        print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
