"""Makes a Parquet table of rides with row groups of one size."""

import argparse

import numpy as np
import pyarrow
import pyarrow.parquet as pq

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--rows", type=int, default=131_072)
    parser.add_argument("--group", type=int, default=4096)
    args = parser.parse_args()
    draw = np.random.default_rng(0)
    columns = {f"f{k}": draw.standard_normal(args.rows, np.float32) for k in range(12)}
    columns["fare"] = columns["f0"] * 3 + 10
    pq.write_table(pyarrow.table(columns), args.out, row_group_size=args.group)
