"""A random permutation of 0 to n - 1 by random access: where one number goes, without the others.

`torch.randperm` holds all n numbers, and may change between releases. This one holds nothing, and golden
vectors in the tests pin it. It is a Feistel network: a number is a cell of a table, and each round shifts
every column of it, then every row, by an amount hashed from the column's or row's number. The table is
nearly square, not a power of two: it has fewer than sqrt(n) + 2 cells too many, and what lands on one of
those goes through the network again until it does not (cycle-walking), which is rare.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from stoker.errors import UsageError
from stoker.feed.draws import Words, as_words, bits

# A shift is taken from the upper half of a word, so that a side must stay below 2**32.
LONGEST = 1 << 62
# Shifts of so many lines are kept. Looked up, a number costs 20 ns, and 35 to 60 when each is hashed anew.
_TABLE_LINES = 1 << 14
# Two more rounds shrink what is left of a pattern by the length of a side. Differences of neighbours, over 4
# million pairs: 8 rounds can be told from random with 64 numbers, not with 200. Whole permutations of 8
# numbers, over 100,000 keys: 16 rounds can be told, 24 not.
_ROUNDS, _ROUNDS_OF_FEW, _FEW = 8, 24, 1024
_32 = np.uint64(32)


def permute(positions: NDArray[np.int64], n: int, key: int) -> NDArray[np.int64]:
    """The number that stands at each of these positions.

    >>> sorted(permute(np.arange(5), 5, key=1).tolist())
    [0, 1, 2, 3, 4]
    """
    return _walk(_Network.forward, positions, n, key)


def invert(numbers: NDArray[np.int64], n: int, key: int) -> NDArray[np.int64]:
    """The position at which each of these numbers stands.

    >>> invert(permute(np.array([3]), 5, key=1), 5, key=1).tolist()
    [3]
    """
    return _walk(_Network.backward, numbers, n, key)


def table_of(n: int) -> tuple[int, int, int]:
    """The table for n numbers, rows and columns, and the rounds that they take."""
    rows = math.isqrt(n - 1) + 1
    rows += rows % 2  # shifts of two odd sides make even permutations only
    return rows, -(-n // rows), _ROUNDS_OF_FEW if n < _FEW else _ROUNDS


@dataclass(frozen=True, kw_only=True)
class _Network:
    """A table of at least n cells, and a key for each round; or the round's shifts, where they are few."""

    rows: np.uint64
    columns: np.uint64
    keys: tuple[int, ...]
    shifts: Words | None

    def forward(self, cells: Words) -> Words:
        row = cells // self.columns  # and not divmod, which is three times as slow as both together
        column = cells - row * self.columns
        for number in range(len(self.keys)):
            if number % 2 == 0:
                row += self._shift(number, column, self.rows)
                # Back below `rows`. Taken from less it wraps round to a huge number, not the smaller one.
                np.minimum(row, row - self.rows, out=row)
            else:
                column += self._shift(number, row, self.columns)
                np.minimum(column, column - self.columns, out=column)
        row *= self.columns
        row += column
        return row

    def backward(self, cells: Words) -> Words:
        row = cells // self.columns
        column = cells - row * self.columns
        for number in reversed(range(len(self.keys))):
            if number % 2 == 0:
                row -= self._shift(number, column, self.rows)
                np.minimum(row, row + self.rows, out=row)
            else:
                column -= self._shift(number, row, self.columns)
                np.minimum(column, column + self.columns, out=column)
        row *= self.columns
        row += column
        return row

    def _shift(self, number: int, lines: Words, side: np.uint64) -> Words:
        if self.shifts is not None:
            found: Words = self.shifts[number].take(lines.view(np.int64))
            return found
        return _shift(self.keys[number], lines, side)


@lru_cache(maxsize=64)
def _network(n: int, key: int) -> _Network:
    if not 1 <= n <= LONGEST:
        raise UsageError(f"{n} numbers cannot be permuted: there must be 1 to 2**62")
    rows, columns, rounds = table_of(n)
    keys = tuple(bits(key, np.arange(rounds, dtype=np.uint64)).tolist())
    shifts: Words | None = None
    if rows <= _TABLE_LINES:
        # All rounds at one go: an epoch's first batch waits for it. There are no more columns than rows.
        sides = np.where(np.arange(rounds) % 2, columns, rows).astype(np.uint64)
        lines = np.arange(rows, dtype=np.uint64)
        shifts = _shift(np.array(keys, np.uint64)[:, None], lines, sides[:, None])
    return _Network(rows=np.uint64(rows), columns=np.uint64(columns), keys=keys, shifts=shifts)


def _shift(key: int | Words, line: Words, side: np.uint64 | Words) -> Words:
    """0 to side - 1 for each line, from the upper half of its hash."""
    shift = bits(key, line)
    shift >>= _32
    shift *= side
    shift >>= _32
    return shift


def _walk(
    step: Callable[[_Network, Words], Words], start: NDArray[np.int64], n: int, key: int
) -> NDArray[np.int64]:
    """Through the network, and again for what lands outside; a walk from inside always comes back."""
    network = _network(n, key)
    cells = as_words(start)
    if cells.size and cells.max() >= n:  # or below 0, which is huge as a word
        wrong = start[(start < 0) | (start >= n)][0]
        raise UsageError(f"{wrong} is not among the numbers permuted: they go from 0 to {n - 1}")
    cells = step(network, cells)
    while (outside := np.flatnonzero(cells >= n)).size:
        cells[outside] = step(network, cells[outside])
    return cells.view(np.int64)
