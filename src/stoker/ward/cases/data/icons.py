"""Makes a ZIP archive of PNG icons: SET/NNNN.png."""

import argparse
import io
import zipfile

import numpy as np
from PIL import Image

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--count", type=int, default=1200)
    args = parser.parse_args()
    draw = np.random.default_rng(0)
    with zipfile.ZipFile(args.out, "w") as archive:
        for number in range(args.count):
            picture = io.BytesIO()
            Image.fromarray(draw.integers(0, 255, (32, 32), np.uint8)).save(picture, "PNG")
            archive.writestr(f"{number % 10}/{number:04d}.png", picture.getvalue())
