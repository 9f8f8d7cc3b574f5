"""The S3 server that the feed's tests share; they are skipped where its program is not installed."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.errors import MissingExtra
from stoker.ward.s3 import SECRET, S3Server
from stoker.ward.s3 import serve as serve_really

__all__ = ["SECRET", "S3Server", "serve"]


@contextlib.contextmanager
def serve(folder: Path, bucket: str) -> Iterator[S3Server]:
    """A server with this bucket, its files in `folder`, until the block ends."""
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(serve_really(folder, bucket))
        except MissingExtra as missing:
            pytest.skip(str(missing))
        yield server
