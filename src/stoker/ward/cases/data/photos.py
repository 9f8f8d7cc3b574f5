"""Makes a folder of JPEGs, classes by folder: OUT/kind_0/0000.jpg ..."""

import argparse
from pathlib import Path

import numpy as np
from PIL import Image

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--count", type=int, default=800)
    parser.add_argument("--side", type=int, default=96)
    parser.add_argument("--quality", type=int, default=85)
    args = parser.parse_args()
    draw = np.random.default_rng(4)
    for number in range(args.count):
        folder = Path(args.out, f"kind_{number % 10}")
        folder.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(draw.integers(0, 255, (24, 24, 3), np.uint8))
        coarse.resize((args.side, args.side)).save(folder / f"{number:04d}.jpg", quality=args.quality)
