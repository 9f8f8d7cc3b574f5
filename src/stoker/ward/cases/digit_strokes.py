"""Digits drawn on a tablet: a small convolutional classifier."""

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, 1)
        self.conv2 = nn.Conv2d(16, 32, 3, 1)
        self.fc1 = nn.Linear(32 * 12 * 12, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x):
        x = torch.relu(self.conv1(x))
        x = torch.max_pool2d(torch.relu(self.conv2(x)), 2)
        return torch.log_softmax(self.fc2(torch.relu(self.fc1(x.flatten(1)))), 1)


def train(model, loader, optimizer, epoch):
    model.train()
    for number, (data, target) in enumerate(loader):
        optimizer.zero_grad()
        loss = nn.functional.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        if number % 50 == 0:
            print(f"Train epoch {epoch} [{number * len(data)}]: {loss.item():.4f}", flush=True)


def main():
    torch.manual_seed(1)
    torch.set_num_threads(1)
    strokes = torch.rand(8000, 1, 28, 28)
    digits = (strokes[:, 0, 0, 0] * 10).long()
    loader = DataLoader(
        TensorDataset(strokes, digits), 64, shuffle=True, num_workers=1, persistent_workers=True
    )
    model = Net()
    optimizer = optim.Adadelta(model.parameters(), lr=1.0)
    schedule = optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.9)
    for epoch in range(1, 81):
        train(model, loader, optimizer, epoch)
        schedule.step()


if __name__ == "__main__":
    main()
