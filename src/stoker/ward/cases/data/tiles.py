"""Makes a folder of files, one tile each: a label byte, then four bands of 128 x 128 bytes."""

import argparse
import os
from pathlib import Path

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--count", type=int, default=600)
    args = parser.parse_args()
    folder = Path(args.out)
    folder.mkdir(parents=True)
    for number in range(args.count):
        (folder / f"{number:05d}.tile").write_bytes(bytes([number % 8]) + os.urandom(4 * 128 * 128))
