"""An iterator that is run by a thread of its own, a few items ahead of who reads it."""

import queue
import threading
from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")


def read_ahead(items: Generator[T, None, None], depth: int) -> Generator[T, None, None]:
    """The same items; an error comes where it stood. The thread ends with the last item or when closed."""
    line: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(depth)
    stop = threading.Event()

    def tell(item: T | None, error: BaseException | None) -> bool:
        while not stop.is_set():
            try:
                line.put((item, error), timeout=0.1)
                return True
            except queue.Full:
                continue  # look whether anybody still wants it
        return False

    def run() -> None:
        try:
            for item in items:
                if not tell(item, None):
                    return
        except BaseException as error:  # noqa: BLE001  raised again by the reader
            tell(None, error)
        else:
            tell(None, StopIteration())
        finally:
            items.close()

    thread = threading.Thread(target=run, name="stoker-read-ahead", daemon=True)
    thread.start()
    try:
        while True:
            item, error = line.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            assert item is not None
            yield item
    finally:
        stop.set()
        thread.join()
