"""Makes a file of raw numbers, row after row: `rows.py OUT --count N --size BYTES --kind f4|i2`."""

import argparse

import numpy as np

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--kind", default="f4")
    args = parser.parse_args()
    draw = np.random.default_rng(0)
    with open(args.out, "wb") as out:
        for _ in range(args.count):
            row = draw.integers(-(2**15), 2**15, args.size // np.dtype(args.kind).itemsize)
            out.write((row / 2**15 if args.kind == "f4" else row).astype(args.kind).tobytes())
