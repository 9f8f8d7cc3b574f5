"""What the feed's tests share: a real S3 server, started once, and pictures."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from . import s3
from .s3 import S3Server

BUCKET = "tests"


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """The server, with the bucket `tests`; every test takes a prefix of its own."""
    with s3.serve(tmp_path_factory.mktemp("s3"), BUCKET) as server:
        yield server


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    """`bucket/prefix` that is this test's alone."""
    node: pytest.Item = request.node
    return f"{BUCKET}/{Path(str(node.path)).stem}/{abs(hash(node.name)):x}"
