"""The project's own benchmarks, each with its peers beside it. `stoker bench NAME` runs one."""

from stoker.bench.catalogue import BENCHES, Options, run

__all__ = ["BENCHES", "Options", "run"]
