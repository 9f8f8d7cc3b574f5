"""Commands on one node, from their start to their end: what they print is passed on as it comes."""

import contextlib
import sys
import time
from collections.abc import Callable, Sequence

from stoker.cluster.nodes import Hand, Order
from stoker.errors import NodeLost
from stoker.facts.secrets import printable

# Between two rounds of asking; on Ray one costs a call to each node.
TICK_S = 0.2

Tell = Callable[[str], None]


class Errand:
    """Orders given to a hand. `names` stand before the lines that they print to stderr."""

    def __init__(self, hand: Hand, orders: Sequence[Order], names: Sequence[str]) -> None:
        self.hand = hand
        self.codes: list[int | None] = [None] * len(orders)
        self.outs = [bytearray() for _ in orders]
        # When it last answered; None: not yet.
        self.answered: float | None = None
        self._lines = [Lines(name) for name in names]
        self._lost: NodeLost | None = None
        try:
            hand.start(orders)
        except NodeLost as error:
            self._lost = error

    @property
    def is_over(self) -> bool:
        """Whether all of its commands have ended."""
        return None not in self.codes

    def attend(self) -> None:
        """Take what is new; NodeLost."""
        if self._lost is not None:
            raise self._lost
        if self.is_over:
            return
        asked = time.monotonic()
        heard = self.hand.hear()
        if heard is None:
            return
        self.answered = asked
        for at, one in enumerate(heard):
            self.outs[at] += one.out
            self._lines[at].add(one.err)
            if one.code is not None and self.codes[at] is None:
                self.codes[at] = one.code
                self._lines[at].end()

    def signal(self, number: int) -> None:
        """Send its commands a signal; that a node is lost is heard where it is attended to."""
        with contextlib.suppress(NodeLost):
            self.hand.signal(number)

    def stop(self) -> None:
        """Kill what still runs of it."""
        if not self.is_over:
            with contextlib.suppress(NodeLost):
                self.hand.stop()

    @property
    def last_words(self) -> str:
        """The last line that a command printed to stderr; of several, of one that failed."""
        failed = [lines for lines, code in zip(self._lines, self.codes, strict=True) if code]
        return next((lines.last for lines in [*failed, *self._lines] if lines.last), "no word")


class Lines:
    """Bytes as lines on stderr, each with a name before it."""

    def __init__(self, name: str) -> None:
        self._before = f"[{name}] " if name else ""
        self._rest = b""
        self.last = ""

    def add(self, data: bytes) -> None:
        """Print the lines that are whole."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        for line in whole:
            self._print(line)

    def end(self) -> None:
        """Print what is left."""
        if self._rest:
            self._print(self._rest)
            self._rest = b""

    def _print(self, line: bytes) -> None:
        text = printable(line.decode(errors="replace").rstrip("\r"))
        self.last = text.strip() or self.last
        sys.stderr.write(f"{self._before}{text}\n")
        sys.stderr.flush()


def say(text: str) -> None:
    """A line for a person."""
    sys.stderr.write(f"stoker: {printable(text)}\n")
    sys.stderr.flush()
