"""What others wrote, as it is shown and kept: no passwords, and nothing that a terminal would obey."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.facts import process
from stoker.facts.secrets import hide_password, hide_secrets, printable


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        ("--db postgresql://me:pa55@host/db", "--db postgresql://me:***@host/db"),
        ("--db=postgresql://me:pa55@host/db", "--db=postgresql://me:***@host/db"),
        ("--password pa55 --lr 0.1", "--password *** --lr 0.1"),
        ("--db-password=pa55", "--db-password=***"),
        ("--wandb_api_key pa55", "--wandb_api_key ***"),
        ("data.secret=pa55", "data.secret=***"),
        ("AWS_SECRET_ACCESS_KEY=pa55", "AWS_SECRET_ACCESS_KEY=***"),
        ("--token pa55", "--token ***"),
        ("--hf-token pa55", "--hf-token ***"),
        ("--model.auth_token=pa55", "--model.auth_token=***"),
        ("--password --lr 0.1", "--password --lr 0.1"),
        ("https://a.blob/x?sv=1&sig=pa55&e=2", "https://a.blob/x?sv=1&sig=***&e=2"),
        (
            "https://h/x?token=pa55 https://h/x?access_token=pa55",
            "https://h/x?token=*** https://h/x?access_token=***",
        ),
        ("--url=https://b.s3/x?X-Amz-Signature=pa55", "--url=https://b.s3/x?X-Amz-Signature=***"),
        ("https://h/x?api_key=pa55&AccessKey=pa55", "https://h/x?api_key=***&AccessKey=***"),
    ],
)
def test_secrets_are_not_kept(typed: str, kept: str) -> None:
    """In URLs, in options and beside them, and in settings by name."""
    assert hide_secrets(typed.split()) == kept.split()


@pytest.mark.parametrize(
    "typed",
    [
        "train.py --lr 0.1 --epochs 3",
        "--pad-token <pad> --max-tokens 4096 --next_token=5",
        "--passes 3 --bypass yes --keys a,b",
        "s3://bucket/a:b@c/d",
        "data.url=https://host:8080/path@2",
        "--tokenizer bert",
        "--pad-token=<pad> design=3 --sig=0.5 https://h/x?design=3&tokens=5",
    ],
)
def test_what_is_no_secret_is_kept_as_it_is(typed: str) -> None:
    """A command that can be read is worth something."""
    assert hide_secrets(typed.split()) == typed.split()


def test_a_url_is_shown_without_its_password() -> None:
    """Wherever it stands in it."""
    assert (
        hide_password("postgresql://u:p%40@h/d?password=x&a=b") == "postgresql://u:***@h/d?password=***&a=b"
    )


def test_control_characters_are_written_out() -> None:
    """A terminal is told no colour, no title and no new line by a name; other alphabets stay."""
    assert printable("a\x1b[31mb\x07\r\x9bc") == "a\\x1b[31mb\\x07\\r\\x9bc"
    assert printable("naïve données 数据\n\tlist") == "naïve données 数据\n\tlist"


def test_another_process_s_words_are_harmless() -> None:
    """Whoever holds a GPU is shown by its command line, which that user has chosen."""
    words = ["-c", "print(flush=True); input()", "\x1b]0;owned\x07", "--api-key", "pa55"]
    with subprocess.Popen([sys.executable, *words], stdin=-1, stdout=-1, bufsize=0) as child:
        assert child.stdout is not None
        child.stdout.readline()  # the kernel shows a program's words a little after it has begun
        seen = process.see(child.pid)
        child.communicate(b"\n")
    assert seen is not None
    assert seen.command is not None
    assert seen.command.endswith("'\\x1b]0;owned\\x07' --api-key '***'")


def test_a_record_keeps_no_password(tmp_path: Path) -> None:
    """The script gets it; the record, which others may read, does not, nor by what the script raised."""
    (tmp_path / "train.py").write_text(
        "import sys\nopen('got', 'w').write(sys.argv[2])\n"
        "raise RuntimeError(f'cannot reach postgresql://u:{sys.argv[2]}@db/x')\n"
    )
    command = [
        sys.executable,
        "-m",
        "stoker",
        "run",
        "-q",
        "--run-id",
        "it",
        "train.py",
        "--password",
        "pa55",
    ]
    done = subprocess.run(command, cwd=tmp_path, check=False, timeout=120, env=dict(os.environ))
    assert done.returncode == 1
    assert (tmp_path / "got").read_text() == "pa55"
    record = tmp_path / ".stoker/runs/it"
    assert json.loads((record / "run.json").read_text())["command"] == ["train.py", "--password", "***"]
    assert json.loads((record / "rank0/rank.json").read_text())["error"].endswith("postgresql://u:***@db/x")
    assert not [path for path in record.rglob("*.json*") if "pa55" in path.read_text()]


def test_an_error_s_text_does_not_reach_the_terminal_raw(tmp_path: Path) -> None:
    """A path is part of the message, whoever named the file."""
    words = [sys.executable, "-m", "stoker", "run", "no\x1b[2Jthing.py"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "no\\x1b[2Jthing.py" in done.stderr
    assert "\x1b" not in done.stderr
