"""A slow training script, as people write them: each photo is an object in a store far away.

The store is a process of its own that answers over HTTP on this machine, 5 ms late, as one in another city
does. Run it under `stoker doctor examples/slow_store.py`; then `stoker tune` it, or give it `--workers 8`.
"""

import argparse
import http.client
import http.server
import multiprocessing
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

PHOTOS, SIDE, CLASSES = 2000, 48, 10
DELAY_SECONDS = 0.005


class Store(http.server.BaseHTTPRequestHandler):
    """GET /<number>: a photo of that number's class."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        number = int(self.path[1:])
        generator = np.random.default_rng(number)
        photo = generator.integers(0, 256, (3, SIDE, SIDE), dtype=np.uint8)
        photo[:, : number % CLASSES * 4 + 4] //= 2
        time.sleep(DELAY_SECONDS)
        self.send_response(200)
        self.send_header("Content-Length", str(photo.nbytes))
        self.end_headers()
        self.wfile.write(photo.tobytes())

    def log_message(self, *_: object) -> None:
        """Nothing."""


def serve(port: "multiprocessing.connection.Connection") -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Store)
    port.send(server.server_address[1])
    server.serve_forever()


class Photos(Dataset):
    def __init__(self, port: int) -> None:
        self.port = port
        self.link: http.client.HTTPConnection | None = None

    def __len__(self) -> int:
        return PHOTOS

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self.link is None:  # a process of its own has its own
            self.link = http.client.HTTPConnection("127.0.0.1", self.port)
        self.link.request("GET", f"/{index}")
        photo = np.frombuffer(self.link.getresponse().read(), np.uint8).reshape(3, SIDE, SIDE)
        return torch.from_numpy(photo / np.float32(255)), index % CLASSES


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=20)
    settings = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    here, there = multiprocessing.Pipe()
    store = multiprocessing.get_context("spawn").Process(target=serve, args=(there,), daemon=True)
    store.start()
    loader = DataLoader(Photos(here.recv()), batch_size=8, shuffle=True, num_workers=settings.workers)
    model = nn.Sequential(nn.Conv2d(3, 16, 8, stride=8), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(settings.epochs):
        for photos, classes in loader:
            loss = nn.functional.cross_entropy(model(photos), classes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
