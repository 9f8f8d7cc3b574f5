"""`stoker serve` and `stoker jobs …`, as they are typed; the command line has them from here."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from stoker.errors import UsageError

if TYPE_CHECKING:
    from stoker.jobs.client import Client, Job

jobs = typer.Typer(
    name="jobs",
    help="Jobs of a server that `stoker serve` started: submit, list, show, logs, wait, cancel, resume.",
    no_args_is_help=True,
)

Url = Annotated[
    str | None,
    typer.Option("--url", help="The server (default: $STOKER_JOBS_URL, or http://127.0.0.1:8000)."),
]
Token = Annotated[str | None, typer.Option("--token", help="Its token (default: $STOKER_JOBS_TOKEN).")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
Id = Annotated[str, typer.Argument(metavar="JOB", help="A job's id.")]
Root = Annotated[Path, typer.Option(help="Where jobs and their files are kept.")]
_ROOT = Path(".stoker/jobs")


def serve(
    host: Annotated[
        str, typer.Option(help="The address to listen at; others than loopback need a token.")
    ] = ("127.0.0.1"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")] = 8000,
    root: Root = _ROOT,
    store: Annotated[
        str | None, typer.Option(help="postgresql://… or sqlite:///FILE (default: jobs.db in the root).")
    ] = None,
    engine: Annotated[str, typer.Option(help="What runs jobs: local, or ray.")] = "local",
    ray_address: Annotated[str | None, typer.Option(help="ray: where its jobs are submitted.")] = None,
    slots: Annotated[int, typer.Option(min=1, help="Jobs at a time without a card; ray: of any kind.")] = 1,
    grace: Annotated[
        float, typer.Option(min=0.1, help="Seconds that a job has to save once it is told to stop.")
    ] = 60.0,
    scripts: Annotated[
        list[Path] | None, typer.Option(help="A folder whose scripts may be run; repeatable.")
    ] = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(help="A folder in which jobs may read and write; repeatable (default: none)."),
    ] = None,
    database: Annotated[
        str | None, typer.Option(help="The database of Heimdall jobs that name none; env:NAME hides it.")
    ] = None,
    cert: Annotated[Path | None, typer.Option(help="For https: the certificate.")] = None,
    key: Annotated[Path | None, typer.Option(help="For https: its key.")] = None,
    as_json: AsJson = False,
) -> None:
    """Serve training jobs: an API, a page, and what runs them. Ends with Ctrl-C; jobs go on."""
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        from stoker.errors import MissingExtra

        raise MissingExtra(error.name or "fastapi", "serve", "stoker serve") from error
    from stoker.jobs.places import whole_address
    from stoker.jobs.server import serving
    from stoker.jobs.settings import Settings

    if engine not in ("local", "ray"):
        raise UsageError(f"no engine {engine!r}: there are local and ray")
    for folder in (*(scripts or ()), *(data or ())):
        if not folder.is_dir():
            raise UsageError(f"{folder} is no folder: name one that is there")
    settings = Settings(
        root=root.absolute(),
        store=None if store is None else whole_address(store),
        engine="ray" if engine == "ray" else "local",
        slots=slots,
        scripts=tuple(folder.resolve() for folder in scripts or ()),
        grace_s=grace,
        ray_address=ray_address,
    )
    started = serving.Serving(
        settings=settings,
        host=host,
        port=port,
        data=tuple(folder.resolve() for folder in data or ()),
        database=None if database is None else whole_address(database),
        certificate=cert,
        key=key,
    )

    def ready(address: str) -> None:
        serving.be_prompt()
        if as_json:
            _print({"url": address, "root": str(settings.root)})
        else:
            typer.echo(f"{address}  (jobs in {settings.root}; Ctrl-C ends the server, jobs go on)")
        sys.stdout.flush()

    with serving.Running(started) as running:
        code = running.run(ready)
    raise typer.Exit(code)


@jobs.command()
def token(
    name: Annotated[str, typer.Argument(help="Whose it is; its line in ROOT/tokens begins with it.")],
    root: Root = _ROOT,
    as_json: AsJson = False,
) -> None:
    """Make a token for a server's root, and print it once: only its digest is kept."""
    from stoker.jobs.server.tokens import NAME, TokenFile

    made = TokenFile(root / NAME).add(name)
    if as_json:
        _print({"name": name, "token": made})
    else:
        typer.echo(made)


class SubmitCommand(TyperCommand):
    """What follows a script is the script's own; among a workload's settings are options of ours."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """A script is told from a workload by the first word that is no option."""
        ctx.allow_interspersed_args = False
        given, _, _ = self.make_parser(ctx).parse_args(list(args))
        what = given.get("what")
        if isinstance(what, str) and what.startswith("-") and not ctx.resilient_parsing:
            raise UsageError(f"no option {what} here: a script's own come behind it (see --help)")
        ctx.allow_interspersed_args = not (isinstance(what, str) and what.endswith(".py"))
        return super().parse_args(ctx, args)


@jobs.command(cls=SubmitCommand, no_args_is_help=True, context_settings={"ignore_unknown_options": True})
def submit(
    what: Annotated[
        str | None, typer.Argument(metavar="WORKLOAD | SCRIPT.py", help="What to train; a script as listed.")
    ] = None,
    given: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE | ARG]...",
            help="A workload's settings, or a script's arguments: all that is behind it, options too.",
        ),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="Settings from a .yaml or .toml file.")] = None,
    body: Annotated[
        Path | None, typer.Option(help="A whole request as JSON, - for stdin; nothing else then.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="What to call it.")] = None,
    key: Annotated[str | None, typer.Option(help="Sent twice with one key, it is one job.")] = None,
    gpus: Annotated[int | None, typer.Option(min=0, help="Cards that it needs.")] = None,
    wait_for: Annotated[
        bool, typer.Option("--wait", help="Wait for its end, and exit as `wait` does.")
    ] = False,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Ask for a job. The options below come before a script: what is behind it is the script's own."""
    client = _client(url, token)
    if (what is None) == (body is None):
        raise UsageError("name a workload, a script, or a whole request with --body: one of them")
    if body is not None:
        job = client.post(_read_body(body), key=key)
    elif what is not None:
        job = client.submit(**_asked(what, given or [], config), name=name, key=key, gpus=gpus)
    for note in job.told.get("notes", ()):
        sys.stderr.write(f"stoker: {note}\n")
    if wait_for:
        _wait(job, None, as_json)
    _tell(job, as_json)


@jobs.command("list")
def list_jobs(
    state: Annotated[str | None, typer.Option(help="Only those: queued, running, done, …")] = None,
    workload: Annotated[str | None, typer.Option(help="Only those of a workload.")] = None,
    name: Annotated[str | None, typer.Option(help="Only those with this in their name.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="The newest so many.")] = 20,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """The newest jobs."""
    found = _client(url, token).jobs(state=state, workload=workload, name=name, limit=limit)
    if as_json:
        _print({"jobs": [job.told for job in found]})
        return
    from stoker.jobs.words import table

    table([job.told for job in found])


@jobs.command()
def show(id: Id, url: Url = None, token: Token = None, as_json: AsJson = False) -> None:
    """One job: state, place in the queue, progress, verdict."""
    _tell(_client(url, token).job(id), as_json)


@jobs.command()
def logs(
    id: Id,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job ends.")] = False,
    last: Annotated[
        int | None, typer.Option("--last", "-n", min=1, max=5000, help="The newest so many.")
    ] = None,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """What a job printed."""
    found = _client(url, token).job(id).logs(follow=follow, last=last)
    if as_json:
        _print({"job": id, "lines": list(found)})
        return
    for line in found:
        typer.echo(_printable(line))


@jobs.command()
def wait(
    id: Id,
    timeout: Annotated[float | None, typer.Option(min=0, help="Give up after so many seconds.")] = None,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Wait for a job's end. Exits 0 when it is done, 1 when it failed, was cancelled or lost."""
    _wait(_client(url, token).job(id), timeout, as_json)


@jobs.command()
def cancel(id: Id, url: Url = None, token: Token = None, as_json: AsJson = False) -> None:
    """Stop a job; its state is saved first."""
    job = _client(url, token).job(id)
    if not job.cancel():
        raise UsageError(f"job {id} is {job.refresh().state}: there is nothing to cancel")
    _tell(job, as_json)


@jobs.command()
def resume(id: Id, url: Url = None, token: Token = None, as_json: AsJson = False) -> None:
    """Have a job go on from its last checkpoint."""
    _tell(_client(url, token).job(id).resume(), as_json)


@jobs.command()
def retry(id: Id, url: Url = None, token: Token = None, as_json: AsJson = False) -> None:
    """Ask for the same once more, from the beginning."""
    _tell(_client(url, token).job(id).retry(), as_json)


@jobs.command()
def delete(id: Id, url: Url = None, token: Token = None, as_json: AsJson = False) -> None:
    """Have a job that has ended forgotten, with its files."""
    _client(url, token).job(id).delete()
    if as_json:
        _print({"deleted": id})


def _client(url: str | None, token: str | None) -> "Client":
    from stoker.jobs.client import Client

    return Client(url, token=token)


def _asked(what: str, given: list[str], config: Path | None) -> dict[str, Any]:
    if what.endswith(".py"):
        if config is not None:
            raise UsageError("--config is a workload's: a script has its arguments")
        return {"script": what, "arguments": given}
    from stoker.train.config_file import values_of

    return {"workload": what, "config": values_of(config, given)}


def _read_body(path: Path) -> dict[str, Any]:
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text()
        found = json.loads(text)
    except (OSError, ValueError) as error:
        raise UsageError(f"--body {path} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise UsageError(f"--body {path} holds no object: give a whole request")
    return found


def _wait(job: "Job", timeout: float | None, as_json: bool) -> None:
    from stoker.jobs.states import State

    try:
        state = job.wait(timeout)
    except TimeoutError as error:
        sys.stderr.write(f"stoker: {error}\n")
        raise typer.Exit(1) from error
    _tell(job, as_json)
    raise typer.Exit(0 if state is State.DONE else 1)


def _tell(job: "Job", as_json: bool) -> None:
    if as_json:
        _print({"job": job.told})
        return
    from stoker.jobs.words import sentences

    for line in sentences(job.told):
        typer.echo(_printable(line))


def _print(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"schema": 1, **value}) + "\n")


def _printable(text: str) -> str:
    """Without what would steer a terminal: a job's lines and names are whatever it printed."""
    return "".join(_signs(text))


def _signs(text: str) -> Iterator[str]:
    for sign in text:
        yield sign if sign.isprintable() or sign == "\t" else f"\\x{ord(sign):02x}"
