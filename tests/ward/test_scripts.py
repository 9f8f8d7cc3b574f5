"""The case scripts: plain, blind to what is wrong with them, and the same under other names."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.ward.catalogue import Case, cases, injectable
from stoker.ward.renaming import rename
from stoker.ward.surroundings import SCRIPTS
from ward.causes import CAUSES
from ward.rates import run

LOOPS = sorted(SCRIPTS.glob("*.py"))
EVERY = sorted(SCRIPTS.rglob("*.py"))
# Words that would tell a reader of names or strings what is wrong, beyond the causes' ids themselves.
TELLING = {
    "affinity", "amplification", "anomaly", "bad", "bottleneck", "cause", "churn", "cold", "contention",
    "cure", "cured", "debug", "delay", "doctor", "evict", "fault", "faulty", "handoff", "healthy", "hog",
    "inefficient", "inject", "injected", "late", "latency", "leak", "leaking", "naive", "neutral",
    "overflow", "overhead", "oversubscribe", "oversubscription", "pageable", "pressure", "quota",
    "recompute", "reopen", "reopened", "slow", "stall", "stalls", "starve", "starved", "stoker",
    "straggler", "suboptimal", "symptom", "thrash", "throttle", "throttled", "unpinned", "ward", "waste",
    "wasteful",
}  # fmt: skip
# One of each kind: a loader with workers, spawned ones, a generator, two optimizers, a closure, a
# dataclass, options of every form, a framework. The others are tried by the slow campaign; three of these by
# name too: what is renamed in them is in the rest, and each is two processes.
SAMPLE = (
    pytest.param("storage-latency-tiles-2", marks=pytest.mark.slow),
    "query-per-sample-parts-0",
    "no-overlap-generator",
    pytest.param("handoff-molecules", marks=pytest.mark.slow),
    pytest.param("growing-state-hooks", marks=pytest.mark.slow),
    "healthy-ring-gan",
    "healthy-lens-curves",
    "healthy-wine-lightning",
)


def by_id(name: str) -> Case:
    return next(case for case in cases() if case.id == name)


def own_words(tree: ast.Module) -> Iterator[str]:
    """What the script's author chose: names that are given, and strings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def words_of(text: str) -> set[str]:
    """The words of an identifier or a sentence, in lower case."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", text)}


@pytest.mark.parametrize("path", EVERY, ids=lambda path: path.name)
def test_no_script_imports_stoker(path: Path) -> None:
    """Scripts, data makers and servers are plain programs: each runs where Stoker is not."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            assert not [alias.name for alias in node.names if alias.name.startswith("stoker")]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            assert not (node.module or "").startswith("stoker")


@pytest.mark.parametrize("path", LOOPS, ids=lambda path: path.name)
def test_no_name_or_string_tells_what_is_wrong(path: Path) -> None:
    """Neither a cause's id nor a telling word stands in a file name, an identifier or a string."""
    texts = [path.stem, *own_words(ast.parse(path.read_text()))]
    for text in texts:
        plain = re.sub(r"[^a-z]", "-", text.lower())
        assert not [cause for cause in CAUSES if cause in plain], text
        assert not words_of(text) & TELLING, text


@pytest.mark.parametrize("path", LOOPS, ids=lambda path: path.name)
def test_a_renamed_script_has_none_of_its_own_names(path: Path) -> None:
    """No class, function, option or docstring of the script is left, and it is still a program."""
    source = path.read_text()
    changed = rename(source)
    compile(changed.text, "main.py", "exec")
    before, after = ast.parse(source), ast.parse(changed.text)
    kept = {node.name for node in ast.walk(after) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    top = {node.name for node in before.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    assert not kept & top
    # The name that a framework calls stays: what begins and ends with __, `forward`, `training_step`.
    assert {name for name in kept if not re.fullmatch(r"n\d+|__\w+__", name)} <= {
        "forward",
        "training_step",
        "configure_optimizers",
    }
    functions = [node for node in ast.walk(after) if isinstance(node, ast.FunctionDef)]
    assert not [function.name for function in functions if ast.get_docstring(function)]
    assert all(re.fullmatch(r"--(no-)?o\d+", word) for word in changed.options.values())


@pytest.mark.parametrize("name", SAMPLE)
def test_a_renamed_script_makes_the_same_steps(name: str) -> None:
    """After four steps, in a fresh process, its weights are bit for bit those of the script as written."""
    case = by_id(name)
    if reason := injectable(case):
        pytest.skip(reason)
    written, changed = run(case, steps=4), run(case, steps=4, renamed=True)
    assert written.digest is not None, written.output
    assert written.digest == changed.digest, changed.output


def test_options_are_renamed_with_what_they_are_called_by() -> None:
    """An option, its place in the parsed arguments and its negation get one new name."""
    source = (
        "import argparse\n"
        "def go(given):\n    return given.top_speed\n"
        "p = argparse.ArgumentParser()\n"
        "p.add_argument('-s', '--top-speed', type=int, default=3, help='how fast')\n"
        "print(go(p.parse_args()))\n"
    )
    changed = rename(source)
    assert changed.options["--top-speed"] == "--o0"
    assert "top_speed" not in changed.text
    assert "how fast" not in changed.text


def test_foreign_names_are_left_alone() -> None:
    """What torch calls or owns keeps its name, even where the script gives it the same one."""
    source = (
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.weight = torch.ones(2)\n"
        "    def forward(self, x):\n        return self.scale(x) * self.weight.mean()\n"
        "    def scale(self, x):\n        return x.float()\n"
    )
    text = rename(source).text
    path = rename(
        "import http.client\nclass A:\n    def __init__(self):\n        self.client = http.client\n"
    ).text
    assert "= http.client" in path
    assert "self.client" not in path
    assert "def forward" in text
    assert ".mean()" in text
    assert ".float()" in text
    assert "Net" not in text
    assert "scale" not in text
