"""Makes WAV files of noise: OUT/NNN.wav, or in folders by class where `--classes` is given."""

import argparse
import wave
from pathlib import Path

import numpy as np

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--count", type=int, default=8)
    parser.add_argument("--frames", type=int, default=200_000)
    parser.add_argument("--classes", type=int, default=0)
    args = parser.parse_args()
    draw = np.random.default_rng(6)
    for number in range(args.count):
        folder = Path(args.out, f"bird_{number % args.classes}") if args.classes else Path(args.out)
        folder.mkdir(parents=True, exist_ok=True)
        with wave.open(str(folder / f"{number:05d}.wav"), "wb") as tape:
            tape.setnchannels(1)
            tape.setsampwidth(2)
            tape.setframerate(16_000)
            tape.writeframes(draw.integers(-30_000, 30_000, args.frames).astype(np.int16).tobytes())
