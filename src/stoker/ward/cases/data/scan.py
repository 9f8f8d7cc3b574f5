"""Makes a zarr volume with chunks of one edge."""

import argparse

import numpy as np
import tensorstore

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--edge", type=int, default=192)
    parser.add_argument("--chunk", type=int, default=64)
    args = parser.parse_args()
    spec = {
        "driver": "zarr",
        "kvstore": {"driver": "file", "path": args.out},
        "metadata": {
            "shape": [args.edge] * 3,
            "chunks": [args.chunk] * 3,
            "dtype": "|u1",
            "compressor": {"id": "zlib", "level": 1},
        },
    }
    volume = tensorstore.open(spec, create=True).result()
    smooth = np.random.default_rng(0).integers(0, 16, (args.edge,) * 3, np.uint8)
    volume.write(smooth * 15).result()
