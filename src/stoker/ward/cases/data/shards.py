"""Makes a folder of .npy shards of float32 images."""

import argparse
from pathlib import Path

import numpy as np

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--shards", type=int, default=44)
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--side", type=int, default=32)
    args = parser.parse_args()
    folder = Path(args.out)
    folder.mkdir(parents=True)
    draw = np.random.default_rng(0)
    for number in range(args.shards):
        np.save(folder / f"{number:02d}.npy", draw.random((args.images, args.side, args.side), np.float32))
