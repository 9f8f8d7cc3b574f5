"""The house rules, as tests: who may import whom, what is public, how light a worker starts."""

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import stoker

SOURCE = Path(stoker.__file__).parent
ROOT = SOURCE.parent.parent
# Lower never imports higher.
LAYERS = (
    "errors", "facts", "feed", "watch", "changes", "scratch",
    "doctor", "tune", "train", "cluster", "workloads", "jobs", "cli",
)  # fmt: skip
# May import anything; nothing imports them, except the command line when the verb is used.
ABOVE_ALL = ("ward", "bench")
# The package's own front doors: names that load when first used.
DOORS = ("__init__.py", "__main__.py")
MODULES = sorted(SOURCE.rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports_of(path: Path) -> Iterator[tuple[str, bool]]:
    """The layers of Stoker that a file imports, and whether at once or inside a function."""
    tree = ast.parse(path.read_text())
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            words = name.split(".")
            if words[0] == "stoker" and len(words) > 1:
                yield words[1], id(node) in inside


@pytest.mark.parametrize(
    "path", [p for p in MODULES if p.parent != SOURCE or p.name not in DOORS], ids=module_name
)
def test_lower_never_imports_higher(path: Path) -> None:
    """Each package imports only what lies below it; ward and bench are nobody's but the command line's."""
    own = layer_of(path)
    if own in ABOVE_ALL:
        return
    assert own in LAYERS, f"{own} has no place in the order of layers"
    for used, lazily in imports_of(path):
        if used in ABOVE_ALL:
            assert own == "cli", f"{own} imports {used}"
            assert lazily, f"cli imports {used} before it is asked for"
        elif used in LAYERS:
            assert LAYERS.index(used) <= LAYERS.index(own), f"{own} imports {used}, which lies above it"


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_every_module_says_what_it_is(path: Path) -> None:
    """A docstring of at least one sentence."""
    told = ast.get_docstring(ast.parse(path.read_text()))
    assert told, f"{path} has no docstring"
    assert told.split("\n\n")[0].rstrip().endswith((".", ":", "`", ")")), told


@pytest.mark.parametrize("path", [*MODULES, *sorted((ROOT / "tests").rglob("*.py"))], ids=str)
def test_no_file_is_longer_than_500_lines(path: Path) -> None:
    """What grows past that is two things."""
    assert len(path.read_text().splitlines()) <= 500


def test_no_file_is_named_for_nothing() -> None:
    """A reader finds a thing by its name."""
    nothing = {"utils", "util", "helpers", "helper", "common", "misc", "manager"}
    assert not [path for path in SOURCE.rglob("*") if path.stem in nothing]


def test_the_top_level_is_what_is_documented() -> None:
    """The names that stoker offers are importable, and are the ones its glossary lists."""
    for name in stoker.__all__:
        assert getattr(stoker, name) is not None
    assert set(dir(stoker)) == set(stoker.__all__)
    documented = (ROOT / "docs" / "glossary.md").read_text()
    section = documented.partition("## The names in `stoker`")[2].partition("\n## ")[0]
    listed = {line.split("`")[1].partition("(")[0] for line in section.splitlines() if line.startswith("- `")}
    assert listed == set(stoker.__all__) - {"__version__"}


@pytest.mark.parametrize("package", ["stoker.facts", "stoker.feed", "stoker.watch", "stoker.scratch"])
def test_each_package_offers_what_it_says(package: str) -> None:
    """Every name in a package's `__all__` can be had from it."""
    module = importlib.import_module(package)
    for name in module.__all__:
        assert getattr(module, name) is not None


def test_an_unknown_name_is_answered_with_those_there_are() -> None:
    """A typo is told what could have been meant."""
    with pytest.raises(AttributeError, match=r"it offers .*Watch"):
        stoker.Wacth  # noqa: B018


@pytest.mark.parametrize("module", ["stoker", "stoker.watch.workers", "stoker.feed.sources.npy"])
def test_what_a_spawned_worker_imports_is_light(module: str) -> None:
    """No terminal, command-line or driver library comes with it."""
    heavy = ("rich", "typer", "click", "pynvml", "psutil", "lightning", "transformers", "tensorboard")
    # A worker has torch in any case, and torch brings pynvml along where it is installed.
    torch = "torch.utils.data" if module != "stoker" else "json"
    code = (
        f"import sys, {torch}; before = set(sys.modules); import {module}; "
        f"print([name for name in {heavy!r} if name in set(sys.modules) - before])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_what_needs_no_torch_starts_without_it() -> None:
    """The command line, staging and scratch runs: importing it would take most of their time."""
    modules = "stoker.cli, stoker.feed.stage, stoker.scratch.bootstrap"
    code = f"import sys, {modules}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_the_version_is_told() -> None:
    """`stoker --version` prints it and exits 0."""
    done = subprocess.run(
        [sys.executable, "-m", "stoker", "--version"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, f"stoker {stoker.__version__}\n")


def test_shell_completion_completes_the_verbs() -> None:
    """Bash, asking as its completion script does, gets the verbs back."""
    done = subprocess.run(
        [sys.executable, "-c", "from stoker.cli import main; main()"],
        env={
            "PATH": "/usr/bin:/bin",
            "_STOKER_COMPLETE": "complete_bash",
            "COMP_WORDS": "stoker ex",
            "COMP_CWORD": "1",
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "export" in done.stdout.split()


@pytest.mark.parametrize(
    "package", sorted(p.parent for p in SOURCE.glob("*/__init__.py")), ids=lambda p: p.name
)
def test_each_package_has_a_readme(package: Path) -> None:
    """With what is in it and what must not go in."""
    text = (package / "README.md").read_text()
    assert "must not" in text.lower()
