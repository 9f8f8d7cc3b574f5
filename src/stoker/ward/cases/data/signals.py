"""Makes a table of received signals in PostgreSQL: `signals.py DSN --count N`."""

import argparse

import numpy as np
import psycopg

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("dsn")
    parser.add_argument("--count", type=int, default=6000)
    args = parser.parse_args()
    heard = np.random.default_rng(0).standard_normal((args.count, 128)).astype(np.float32)
    with psycopg.connect(args.dsn) as base, base.cursor() as cursor:
        cursor.execute("CREATE TABLE signals (id integer PRIMARY KEY, heard bytea, place bytea)")
        with cursor.copy("COPY signals FROM STDIN") as copy:
            for number, row in enumerate(heard):
                copy.write_row((number, row.tobytes(), row[:2].tobytes()))
