"""A server with a certificate: https alone, by whoever trusts it; what is no certificate is said at once."""

import http.client
import json
import os
import shutil
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.errors import UsageError
from stoker.jobs.server.serving import Running, Serving
from stoker.jobs.server.tokens import NAME, TokenFile
from stoker.jobs.settings import Settings

from .kit import PATIENCE_S
from .servers import BASE, running

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make certificates")


def make(folder: Path, name: str) -> tuple[Path, Path]:
    """A certificate of this machine that signs itself, and its key."""
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    words += ["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    words += ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(words, check=True, capture_output=True, timeout=PATIENCE_S)
    return certificate, key


def listed(url: str, token: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`stoker jobs list` as it is typed."""
    words = [sys.executable, "-m", "stoker", "jobs", "list", "--json", "--url", url, "--token", token]
    env = {**os.environ, **environment}
    return subprocess.run(words, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def test_a_server_with_a_certificate_speaks_https(tmp_path: Path) -> None:
    """To a client that trusts it, streams too; a browser's cookie never travels without it."""
    certificate, key = make(tmp_path, "own")
    token = TokenFile(tmp_path / "jobs" / NAME).add("ann")
    with running(tmp_path / "jobs", certificate=certificate, key=key) as server:
        assert server.url == f"https://127.0.0.1:{server.port}"
        trusting = ssl.create_default_context(cafile=str(certificate))
        secure = http.client.HTTPSConnection("localhost", server.port, context=trusting, timeout=PATIENCE_S)
        with pytest.raises((http.client.HTTPException, OSError)):
            server.get("/jobs")
        kind = {"Content-Type": "application/json"}
        secure.request("POST", f"{BASE}/session", json.dumps({"token": token}), kind)
        answer = secure.getresponse()
        assert (answer.status, answer.read()) == (204, b"")
        assert "Secure" in answer.headers["set-cookie"]
        own = {**kind, "Authorization": f"Bearer {token}"}
        secure.request("POST", f"{BASE}/jobs", json.dumps({"workload": "sar"}), own)
        id_ = json.load(secure.getresponse())["id"]
        secure.request("GET", f"{BASE}/jobs/{id_}/stream", headers=own)
        stream = secure.getresponse()
        while not (line := stream.readline()).startswith(b"data: "):
            assert line
        assert json.loads(line[6:])["id"] == id_
        secure.close()
        known = listed(server.url, token, SSL_CERT_FILE=str(certificate))
        assert known.returncode == 0, known.stderr
        assert [job["id"] for job in json.loads(known.stdout)["jobs"]] == [id_]
        strange = listed(server.url, token)
        assert strange.returncode == 1
        assert "CERTIFICATE_VERIFY_FAILED" in strange.stderr
        assert "SSL_CERT_FILE" in strange.stderr


def test_what_is_no_certificate_is_said_before_anything_starts(tmp_path: Path) -> None:
    """Half of a pair, a file that is not there or no certificate, another's key, one behind a passphrase."""
    certificate, key = make(tmp_path, "own")
    _, other = make(tmp_path, "other")
    locked = tmp_path / "locked.key"
    words = ["openssl", "ec", "-aes128", "-passout", "pass:secret", "-in", str(key), "-out", str(locked)]
    subprocess.run(words, check=True, capture_output=True, timeout=PATIENCE_S)
    settings = Settings(root=tmp_path / "jobs")
    with pytest.raises(UsageError, match="--cert and --key go together"):
        Serving(settings=settings, certificate=certificate)
    for one, of_it in (
        (tmp_path / "none.pem", key),
        (key, key),
        (certificate, other),
        (certificate, locked),
        (tmp_path, key),
    ):
        with pytest.raises(UsageError, match=f"no https with --cert {one} and --key {of_it}: .+ PEM files"):
            Running(Serving(settings=settings, port=0, certificate=one, key=of_it))
    assert not settings.root.exists()
