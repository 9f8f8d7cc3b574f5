"""Product photos from a bucket, one object a photo."""

import argparse
import io
import os

import numpy as np
import obstore
import torch
from obstore.store import S3Store
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Photos(Dataset):
    def __init__(self, endpoint, bucket, prefix, crop):
        self.where = {"endpoint": endpoint, "bucket": bucket}
        self.crop = crop
        self.store = None
        self.keys = [entry["path"] for page in obstore.list(self.connect(), prefix) for entry in page]
        self.keys.sort()

    def connect(self):
        return S3Store(
            self.where["bucket"], endpoint=self.where["endpoint"], client_options={"allow_http": True}
        )

    def __len__(self):
        return len(self.keys)

    def __getitem__(self, index):
        if self.store is None:
            self.store = self.connect()
        body = obstore.get(self.store, self.keys[index]).bytes().to_bytes()
        image = Image.open(io.BytesIO(body)).convert("RGB").resize((self.crop, self.crop))
        kind = int(self.keys[index].split("/")[-2].split("_")[1])
        return torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1).float() / 255, kind


def train(args):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    photos = Photos(os.environ["PHOTOS_ENDPOINT"], args.bucket, args.prefix, args.crop)
    loader = DataLoader(
        photos,
        batch_size=args.batch,
        shuffle=True,
        num_workers=args.workers,
        prefetch_factor=args.ahead if args.workers else None,
        multiprocessing_context="spawn" if args.workers else None,
        persistent_workers=bool(args.workers),
    )
    model = nn.Sequential(
        nn.Conv2d(3, 12, 5, stride=2), nn.ReLU(), nn.Conv2d(12, 24, 3, stride=2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(24 * 16, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    step = 0
    for _ in range(args.epochs):
        for images, kinds in loader:
            loss = nn.functional.cross_entropy(model(images), kinds)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 10 == 0:
                print(step, round(loss.item(), 4), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--bucket", default="photos")
    parser.add_argument("--prefix", default="train")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--ahead", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--crop", type=int, default=48)
    parser.add_argument("--epochs", type=int, default=40)
    train(parser.parse_args())
