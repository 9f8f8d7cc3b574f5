"""`--on`: what it names, what is said where it cannot be, and the command that nodes are given."""

import sys
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from stoker.cli import main
from stoker.cluster.address import parse_on, port_hint
from stoker.cluster.retyped import retype
from stoker.errors import UsageError


def run(words: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["stoker", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("raj", "it is neither"),
        ("http://head:8265", "it is neither"),
        ("head:6379", "it is neither"),
        ("", "it is neither"),
        ("ray://", "it names no host"),
        ("ray://:10001", "it names no host"),
        ("ray://head:port", "Port could not be cast"),
        ("ray://head:0", "port 0 is none"),
        ("ray://head:99999", "Port out of range"),
        ("ray://user@head", "it has more than a host and a port"),
        ("ray://head/path", "it has more than a host and a port"),
    ],
)
def test_what_names_no_cluster_is_told_with_what_does(text: str, told: str) -> None:
    """The value, why, and the two forms that there are."""
    with pytest.raises(UsageError) as error:
        parse_on(text)
    assert f"--on {text!r} names no cluster ({told}" in str(error.value)
    assert "give ray, " in str(error.value)
    assert "ray://HOST:PORT" in str(error.value)


def test_addresses_are_those_of_ray_s_client() -> None:
    """The port is the client's unless told otherwise; one of Ray's other ports is pointed at."""
    assert parse_on("ray") is None
    assert parse_on("ray://head") == "ray://head:10001"
    assert parse_on("ray://[fe80::1]:9") == "ray://[fe80::1]:9"
    assert "10001" in port_hint("ray://head:6379")
    assert port_hint("ray://head:10001") == ""


@pytest.mark.parametrize(
    "words",
    [
        ["train", "heimdall", "--on", "rai"],
        ["tune", "--on", "rai", "train.py"],
        ["stage", "src", "dst", "--on", "rai"],
        ["stage", "src", "dst", "--on", "ray", "--watch"],
        ["stage", "src", "s3://bucket/dst", "--on", "ray"],
        ["tune", "--on", "ray", "no_such_script.py"],
        ["tune", "--on", "ray"],
    ],
)
def test_wrong_use_exits_2_with_a_line(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is connected to, loaded or written."""
    assert run(words, monkeypatch) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("stoker: ")
    assert said.err.count("\n") == 1


def test_without_ray_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And exit code 2, as for every extra that is missing."""
    monkeypatch.setitem(sys.modules, "ray", None)
    assert run(["stage", str(tmp_path), str(tmp_path.parent / "dst"), "--on", "ray"], monkeypatch) == 2
    assert "pip install 'stoker[ray]'" in capsys.readouterr().err


def test_a_command_is_typed_again_as_it_was() -> None:
    """Options first, each in one word; what was left out stays out; some have other values."""
    app = typer.Typer()
    typed: list[tuple[str, ...]] = []

    @app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
    def verb(
        context: typer.Context,
        script: Annotated[list[str], typer.Argument()],
        budget: Annotated[float, typer.Option()] = 300.0,
        allow: Annotated[list[str] | None, typer.Option()] = None,
        out: Annotated[Path | None, typer.Option()] = None,
        strict: Annotated[bool, typer.Option("--strict")] = False,
        quiet: Annotated[bool, typer.Option("--quiet", "-q")] = False,
        peers: Annotated[bool, typer.Option()] = True,
        on: Annotated[str | None, typer.Option()] = None,
    ) -> None:
        typed.append(retype(context, without=("on",), budget=60.0))

    words = [
        "--on",
        "ray",
        "-q",
        "--allow",
        "a",
        "--allow",
        "-b",
        "--no-peers",
        "train.py",
        "--lr",
        "0.1",
        "--on",
    ]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert typed == [
        (
            "--budget=60.0",
            "--allow=a",
            "--allow=-b",
            "--quiet",
            "--no-peers",
            "train.py",
            "--lr",
            "0.1",
            "--on",
        )
    ]
