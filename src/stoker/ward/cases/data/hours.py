"""Makes a folder of compressed files of swell, an hour each: `hours.py OUT --files N --records N`."""

import argparse
from pathlib import Path

import numpy as np

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--files", type=int, default=12)
    parser.add_argument("--records", type=int, default=512)
    parser.add_argument("--length", type=int, default=8192)
    args = parser.parse_args()
    folder = Path(args.out)
    folder.mkdir(parents=True)
    draw = np.random.default_rng(0)
    at = np.arange(args.length) / 50
    for number in range(args.files):
        periods, heights = draw.uniform(4, 14, (2, args.records, 1))
        swell = 200 * heights * np.sin(2 * np.pi * at / periods) + draw.normal(
            0, 20, (args.records, args.length)
        )
        np.savez_compressed(
            folder / f"{number:03d}.npz",
            swell=swell.astype(np.int16),
            period=periods[:, 0].astype(np.float32),
        )
