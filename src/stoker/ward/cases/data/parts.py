"""Makes an SQLite table of parts: 64 float32 of features and how many were sold."""

import argparse
import sqlite3

import numpy as np

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--count", type=int, default=8000)
    args = parser.parse_args()
    features = np.random.default_rng(0).standard_normal((args.count, 64)).astype(np.float32)
    base = sqlite3.connect(args.out)
    base.execute("CREATE TABLE parts (id INTEGER PRIMARY KEY, features BLOB, sold REAL)")
    rows = ((number, row.tobytes(), float(row[0])) for number, row in enumerate(features))
    base.executemany("INSERT INTO parts VALUES (?, ?, ?)", rows)
    base.commit()
