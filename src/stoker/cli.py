"""The verbs, thin: parse, call, print. What they do lives in the packages they call."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from stoker import __version__
from stoker.errors import StokerError

app = typer.Typer(
    name="stoker",
    help="Finds out why a PyTorch training run is slow, by measurement.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"stoker {__version__}")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Finds out why a PyTorch training run is slow, by measurement."""


@app.command()
def check(
    data: Annotated[
        Path | None, typer.Option(help="Where the training data lies: its file system is measured too.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Tell what is true of this machine now, and warn of what will hurt. Exits 1 when it warns."""
    from stoker import facts

    found = facts.collect(data=data)
    warnings = facts.warnings_of(found)
    if as_json:
        _print_json(facts.to_json(found, warnings))
    else:
        facts.show(found, warnings)
    raise typer.Exit(1 if warnings else 0)


def _print_json(value: dict[str, Any]) -> None:
    json.dump(value, sys.stdout)
    sys.stdout.write("\n")


def main() -> None:
    """Run the command line. A script under `stoker run` starts only after parsing has been left behind."""
    import click

    try:
        launch = app(standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except StokerError as error:
        sys.stderr.write(f"stoker: {error}\n")
        sys.exit(error.exit_code)
    if isinstance(launch, int):
        sys.exit(launch)
    if launch is not None:
        # Outside every frame of the parser, so that what the script raises ends the interpreter as
        # it would have without Stoker: exit code, traceback and signal.
        launch()
