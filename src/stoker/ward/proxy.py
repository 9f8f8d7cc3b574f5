"""A TCP proxy that makes trouble on purpose: it delays, cuts off, and answers in the server's place.

    with Proxy(port=server_port) as proxy:      # forwards 127.0.0.1:proxy.port to the server
        proxy.delay_s = 0.025                    # every chunk arrives so much later, each way
        proxy.bytes_per_s = 4e6                  # answers a second, of all connections together
        proxy.cut(after=1000)                    # the next connection is reset after 1,000 bytes of answer
        proxy.cut(after=1000, reset=False)       # or closed, as if that were all
        proxy.shorten()                          # half of a body, with a head that calls it the whole
        proxy.answer(b"HTTP/1.1 503 Slow\\r\\n…")  # the next connection gets this and never sees the server

A fault is met by new connections; those that a client keeps open are closed when one is ordered.
"""

import asyncio
import re
import socket
import struct
import threading
from collections import deque
from dataclasses import dataclass
from types import TracebackType
from typing import Self

_CHUNK = 1 << 16
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class _Fault:
    cut_after: int | None = None
    reset: bool = True
    shorten: bool = False
    answer: bytes | None = None


class Proxy:
    """Forwards a port of its own on loopback to a server's, in a thread of its own."""

    def __init__(self, *, port: int, host: str = "127.0.0.1", delay_s: float = 0.0) -> None:
        self.delay_s = delay_s
        self.bytes_per_s: float | None = None
        self._free_at = 0.0
        self.connections = 0
        self.faults_met = 0
        self._server = (host, port)
        self._faults: deque[_Fault] = deque()
        self._writers: set[asyncio.StreamWriter] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="stoker-proxy", daemon=True)
        self._thread.start()

    def cut(self, *, after: int, times: int = 1, reset: bool = True) -> None:
        """Reset the next connections after so many bytes of the server's answer, or close them in order."""
        self._order(_Fault(cut_after=after, reset=reset), times)

    def shorten(self, *, times: int = 1) -> None:
        """Pass on half of the next connections' first bodies, their lengths told accordingly."""
        self._order(_Fault(shorten=True), times)

    def forget(self) -> None:
        """Take back the faults that no connection has met."""
        self._faults.clear()

    def answer(self, data: bytes, *, times: int = 1) -> None:
        """Answer the next connections with this, and close them; with nothing, they are closed at once."""
        self._order(_Fault(answer=data), times)

    def close(self) -> None:
        """Stop listening, and close what is open."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _order(self, fault: _Fault, times: int) -> None:
        self._faults.extend([fault] * times)
        self._loop.call_soon_threadsafe(self._close_open)

    def _close_open(self) -> None:
        for writer in self._writers:
            writer.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, sock=self._listener))
        try:
            self._loop.run_forever()
        finally:
            server.close()
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        # asyncio does this only for sockets made with a protocol number, which accepted ones lack. Without
        # it the second segment of an answer waits for a delayed acknowledgement: 30 ms in place of 2.6.
        client: socket.socket = writer.get_extra_info("socket")
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        fault = self._faults.popleft() if self._faults else None
        try:
            if fault is not None and fault.answer is not None:
                self.faults_met += 1
                if fault.answer:
                    await reader.read(_CHUNK)  # an answer before the question would be an error of its own
                    writer.write(fault.answer)
                    await writer.drain()
                return
            await self._forward(reader, writer, fault or _Fault())
        except (OSError, asyncio.CancelledError):
            pass  # either side may go away at any moment; the other is closed below
        finally:
            writer.close()

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, fault: _Fault
    ) -> None:
        there, back = await asyncio.open_connection(*self._server)
        mine = {writer, back}
        self._writers |= mine
        try:
            await asyncio.gather(
                self._pump(reader, back, _Fault()), self._pump(there, writer, fault, answers=True)
            )
        finally:
            self._writers -= mine
            back.close()

    async def _pump(
        self,
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter,
        fault: _Fault,
        *,
        answers: bool = False,
    ) -> None:
        """Pass chunks on, each so much later than it came; later chunks do not wait for earlier ones."""
        late: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(maxsize=256)
        reading = asyncio.ensure_future(self._read(source, late))
        passed, cut_after = 0, fault.cut_after
        try:
            while True:
                due, chunk = await late.get()
                pause = due - self._loop.time()
                if pause > 0:
                    await asyncio.sleep(pause)
                if not chunk:
                    break
                if fault.shorten and not passed and (shorter := shortened(chunk)) is not None:
                    chunk, cut_after = shorter
                if cut_after is not None and passed + len(chunk) > cut_after:
                    target.write(chunk[: cut_after - passed])
                    await target.drain()
                    self.faults_met += 1
                    if fault.reset and not fault.shorten:
                        _reset(target)
                    raise ConnectionResetError("cut off, as ordered")
                passed += len(chunk)
                if answers:
                    await self._pace(len(chunk))
                target.write(chunk)
                await target.drain()
            if target.can_write_eof():
                target.write_eof()
        finally:
            reading.cancel()

    async def _pace(self, size: int) -> None:
        """Wait for one's turn on a line that all connections share."""
        if self.bytes_per_s is None:
            return
        now = self._loop.time()
        self._free_at = max(now, self._free_at) + size / self.bytes_per_s
        await asyncio.sleep(self._free_at - now)

    async def _read(self, source: asyncio.StreamReader, late: asyncio.Queue[tuple[float, bytes]]) -> None:
        chunk = b"-"
        while chunk:
            try:
                chunk = await source.read(_CHUNK)
            except OSError:
                chunk = b""
            await late.put((self._loop.time() + self.delay_s, chunk))


def shortened(answer: bytes) -> tuple[bytes, int] | None:
    """An answer's first bytes with half its length in the head, and how much of it that leaves in all.

    None where it has no body of a known length, or none worth halving.

    >>> shortened(b"HTTP/1.1 200 OK\\r\\nContent-Length: 4\\r\\n\\r\\nabcd")
    (b'HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\nabcd', 40)
    """
    head, end, body = answer.partition(b"\r\n\r\n")
    told = _LENGTH.search(head)
    if not end or told is None or not head.startswith(b"HTTP/1.1 2") or int(told[1]) < 2:
        return None
    half = int(told[1]) // 2
    head = head[: told.start(1)] + str(half).encode() + head[told.end(1) :]
    return head + end + body, len(head) + len(end) + half


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with a reset, so that no client can take what it got for the whole."""
    held: socket.socket = writer.get_extra_info("socket")
    held.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
