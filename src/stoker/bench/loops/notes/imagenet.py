"""ResNet-50 on class folders in an object store, as note 002 had it: each photograph comes from afar.

8 workers with 2 batches ahead, batch 256, 16-bit autocast, channels last. `--store` is the address of a store
that answers by HTTP, each object late, as a mounted bucket whose cache is cold; without it files are read
from `--data` itself.
"""

import argparse
import http.client
import io
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

MEAN = np.array([0.485, 0.456, 0.406], np.float32)
STD = np.array([0.229, 0.224, 0.225], np.float32)


class Photographs(Dataset):
    def __init__(self, data, size, store):
        self.root = Path(data) / "train"
        names = sorted(folder.name for folder in self.root.iterdir())
        self.files = [
            (f"{name}/{path.name}", label)
            for label, name in enumerate(names)
            for path in sorted((self.root / name).iterdir())
        ]
        self.classes = len(names)
        self.size, self.store, self.link = size, store, None

    def __len__(self):
        return len(self.files)

    def read(self, file):
        if not self.store:
            return (self.root / file).read_bytes()
        if self.link is None:  # a process of its own has its own
            self.link = http.client.HTTPConnection(self.store)
        self.link.request("GET", f"/{file}")
        return self.link.getresponse().read()

    def __getitem__(self, index):
        file, label = self.files[index]
        image = Image.open(io.BytesIO(self.read(file))).convert("RGB")
        width, height = image.size
        area = width * height * float(torch.empty(1).uniform_(0.25, 1.0))
        ratio = float(torch.empty(1).uniform_(np.log(3 / 4), np.log(4 / 3)).exp())
        wide, high = min(width, (area * ratio) ** 0.5), min(height, (area / ratio) ** 0.5)
        left = float(torch.rand(1)) * (width - wide)
        top = float(torch.rand(1)) * (height - high)
        box = (left, top, left + wide, top + high)
        image = image.resize((self.size, self.size), Image.Resampling.BILINEAR, box=box)
        if torch.rand(1) < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = (np.asarray(image, np.float32) / 255 - MEAN) / STD
        return torch.from_numpy(pixels).permute(2, 0, 1), label


class Bottleneck(nn.Module):
    def __init__(self, wide_in, inner, stride):
        super().__init__()
        wide = 4 * inner
        self.conv1, self.bn1 = nn.Conv2d(wide_in, inner, 1, bias=False), nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3, self.bn3 = nn.Conv2d(inner, wide, 1, bias=False), nn.BatchNorm2d(wide)
        self.downsample = None
        if stride != 1 or wide_in != wide:
            skip = nn.Conv2d(wide_in, wide, 1, stride=stride, bias=False)
            self.downsample = nn.Sequential(skip, nn.BatchNorm2d(wide))

    def forward(self, x):
        inner = functional.relu(self.bn1(self.conv1(x)), inplace=True)
        inner = functional.relu(self.bn2(self.conv2(inner)), inplace=True)
        around = x if self.downsample is None else self.downsample(x)
        return functional.relu(self.bn3(self.conv3(inner)) + around, inplace=True)


class ResNet50(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1, wide = stage(64, 64, 3, 1)
        self.layer2, wide = stage(wide, 128, 4, 2)
        self.layer3, wide = stage(wide, 256, 6, 2)
        self.layer4, wide = stage(wide, 512, 3, 2)
        self.fc = nn.Linear(wide, classes)

    def forward(self, x):
        x = self.maxpool(functional.relu(self.bn1(self.conv1(x)), inplace=True))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean(dim=(2, 3)))


def stage(wide_in, inner, blocks, stride):
    more = (Bottleneck(4 * inner, inner, 1) for _ in range(blocks - 1))
    return nn.Sequential(Bottleneck(wide_in, inner, stride), *more), 4 * inner


def parse(words=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True, help="a folder with train/CLASS/PHOTO.JPEG")
    parser.add_argument("--store", help="host:port of a store that serves what is under train/")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--ahead", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=90)
    return parser.parse_args(words)


def train(args):
    torch.manual_seed(0)
    if args.device == "cpu":  # to try it on little data, which gains nothing by more
        torch.set_num_threads(1)
    torch.set_float32_matmul_precision("high")
    photographs = Photographs(args.data, args.size, args.store)
    on_card = args.device != "cpu"
    loader = DataLoader(
        photographs, args.batch, shuffle=True, num_workers=args.workers, drop_last=True,
        prefetch_factor=args.ahead, persistent_workers=True, pin_memory=on_card,
    )  # fmt: skip
    model = ResNet50(photographs.classes).to(args.device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9, nesterov=True, weight_decay=5e-5)
    scaler = torch.amp.GradScaler(enabled=on_card)
    for epoch in range(args.epochs):
        for step, (images, labels) in enumerate(loader):
            images = images.to(args.device, non_blocking=True, memory_format=torch.channels_last)
            labels = labels.to(args.device, non_blocking=True)
            with torch.autocast(args.device, torch.float16, enabled=on_card):
                logits = model(images)
                loss = functional.cross_entropy(logits.float(), labels, label_smoothing=0.1)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            if step % 50 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
            yield len(labels)


if __name__ == "__main__":
    for _ in train(parse()):
        pass
