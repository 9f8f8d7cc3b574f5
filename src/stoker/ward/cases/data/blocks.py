"""Makes STEM.bin of compressed blocks of weather fields, and the arrays that index it."""

import argparse
import zlib

import numpy as np

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("stem")
    parser.add_argument("--count", type=int, default=2048)
    parser.add_argument("--block", type=int, default=32)
    args = parser.parse_args()
    draw = np.random.default_rng(0)
    offsets = [0]
    with open(f"{args.stem}.bin", "wb") as out:
        for _ in range(0, args.count, args.block):
            fields = draw.integers(0, 40, (args.block, 4, 32, 32)).astype(np.float32)
            offsets.append(offsets[-1] + out.write(zlib.compress(fields.tobytes(), 1)))
    np.save(f"{args.stem}.index.npy", np.array(offsets))
    np.save(f"{args.stem}.block.npy", np.array(args.block))
    np.save(f"{args.stem}.count.npy", np.array(args.count))
