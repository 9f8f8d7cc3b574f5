"""Makes a folder of files, one tile each: a label byte, then four bands of 128 x 128 bytes."""

import argparse
import random
from pathlib import Path

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--count", type=int, default=600)
    args = parser.parse_args()
    folder = Path(args.out)
    folder.mkdir(parents=True)
    draw = random.Random(0)
    for number in range(args.count):
        (folder / f"{number:05d}.tile").write_bytes(bytes([number % 8]) + draw.randbytes(4 * 128 * 128))
