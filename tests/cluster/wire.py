"""A network in user space: each host has a TUN device, and packets are passed on with a delay.

The kernel at hand has no netem, so this forwarder is what makes a link slow. It carries all that hosts say to
each other: Ray's calls, gloo's sums, connections from outside.
"""

import fcntl
import heapq
import os
import selectors
import socket
import struct
import threading
import time
from types import TracebackType
from typing import Self

_TUNSETIFF, _TUN, _NO_INFO = 0x400454CA, 0x0001, 0x1000
_LARGEST = 1 << 16


def open_tun(name: str) -> int:
    """A new TUN device in this process's network; it may be moved to another, and lives with the file."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _TUN | _NO_INFO))
    os.set_blocking(device, False)
    return device


class Wire:
    """Passes packets between devices, each `delay_s` late."""

    def __init__(self) -> None:
        self.delay_s = 0.0
        self.passed = 0
        self._devices: dict[bytes, int] = {}
        self._late: list[tuple[float, int, int, bytes]] = []
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._lock = threading.Lock()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="wire", daemon=True)
        self._thread.start()

    def attach(self, address: str, device: int) -> None:
        """Packets for this address go to that device from now on."""
        with self._lock:
            self._detach(socket.inet_aton(address))
            self._devices[socket.inet_aton(address)] = device
            self._selector.register(device, selectors.EVENT_READ)
        os.write(self._waker, b"-")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended = True
        os.write(self._waker, b"-")
        self._thread.join()
        for address in list(self._devices):
            self._detach(address)
        self._selector.close()
        os.close(self._woken)
        os.close(self._waker)

    def _detach(self, address: bytes) -> None:
        device = self._devices.pop(address, None)
        if device is not None:
            self._selector.unregister(device)
            os.close(device)

    def _run(self) -> None:
        while not self._ended:
            pause = max(0.0, self._late[0][0] - time.monotonic()) if self._late else None
            ready = self._selector.select(pause)
            with self._lock:
                for key, _ in ready:
                    self._read(key.fd)
                self._deliver()

    def _read(self, device: int) -> None:
        if device == self._woken:
            os.read(device, _LARGEST)
            return
        try:
            while True:
                packet = os.read(device, _LARGEST)
                target = self._devices.get(packet[16:20])
                if packet[0] >> 4 == 4 and target is not None:
                    self.passed += 1
                    due = time.monotonic() + self.delay_s
                    heapq.heappush(self._late, (due, self.passed, target, packet))
        except BlockingIOError:
            return
        except OSError:  # its host was ended, and the device with it
            for address, known in list(self._devices.items()):
                if known == device:
                    self._detach(address)

    def _deliver(self) -> None:
        while self._late and self._late[0][0] <= time.monotonic():
            _, _, device, packet = heapq.heappop(self._late)
            if device not in self._devices.values():
                continue
            try:
                os.write(device, packet)
            except OSError:
                continue  # as a wire does: what cannot be taken is lost
