"""What the security model of SECURITY.md rests on, held over the whole source."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import stoker

SOURCE = Path(stoker.__file__).parent
# Scripts written as a user writes them: the ward runs them, nothing imports them.
SCRIPTS = (SOURCE / "ward" / "cases", SOURCE / "bench" / "loops")
MODULES = [path for path in sorted(SOURCE.rglob("*.py")) if not path.is_relative_to(SCRIPTS[0])]
# The training process and the one that it starts to write its record, over their own pipe.
PICKLES = {"watch/recorder.py": "pickle.loads", "watch/round.py": "marshal.loads"}
# Collectives that pickle, among the ranks of one training.
OBJECTS = (
    *("gather_object", "all_gather_object"),
    *("broadcast_object_list", "scatter_object_list", "send_object_list", "recv_object_list"),
)
SHARES_OBJECTS = {"train/meeting.py": "dist.broadcast_object_list"}
# Runs the user's own script, or the cells of the user's own notebook: that is what the verb is for.
RUNS_CODE = {"watch/launcher.py", "scratch/main_module.py", "doctor/cells.py"}


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    """Calls by the dotted name that they are written with."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def keyword(call: ast.Call, name: str) -> object:
    """What a constant was given for that name; None where none was."""
    found = [one.value for one in call.keywords if one.arg == name]
    return found[0].value if found and isinstance(found[0], ast.Constant) else None


def name_of(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_no_file_that_is_read_can_run_code(path: Path) -> None:
    """No pickle from a file or the network: weights alone, arrays without objects, YAML's safe part."""
    for name, call in calls(path):
        last = name.rpartition(".")[2]
        if name == "torch.load":
            assert keyword(call, "weights_only") is True, f"{path}:{call.lineno}"
        if name in ("np.load", "numpy.load", "np.lib.format.open_memmap"):
            assert keyword(call, "allow_pickle") is not True, f"{path}:{call.lineno}"
        if name.startswith(("pickle.", "cPickle.", "dill.", "joblib.", "marshal.", "shelve.")):
            assert last not in ("load", "loads", "Unpickler", "open") or name_of(path) in PICKLES, (
                f"{path}:{call.lineno}"
            )
        assert last not in OBJECTS or name_of(path) in SHARES_OBJECTS, f"{path}:{call.lineno}"
        assert name not in ("yaml.load", "yaml.unsafe_load", "yaml.full_load"), f"{path}:{call.lineno}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_no_text_is_run_as_code_or_by_a_shell(path: Path) -> None:
    """Programs get their words one by one; what is compiled and run is the user's own script."""
    for name, call in calls(path):
        assert keyword(call, "shell") is not True or name == "Cell", f"{path}:{call.lineno}"
        assert name not in ("os.system", "os.popen", "subprocess.getoutput"), f"{path}:{call.lineno}"
        if name in ("eval", "exec"):
            assert name_of(path) in RUNS_CODE, f"{path}:{call.lineno}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_nothing_listens_beyond_this_machine(path: Path) -> None:
    """A server's address is loopback unless a user names another."""
    for name, call in calls(path):
        if name.rpartition(".")[2] in ("bind", "create_server", "ThreadingHTTPServer", "HTTPServer"):
            written = ast.unparse(call)
            assert "''" not in written and "0.0.0.0" not in written, f"{path}:{call.lineno}"


def test_the_exceptions_are_still_there() -> None:
    """An exception that is gone is taken off the list."""
    written = {name_of(path): {name for name, _ in calls(path)} for path in MODULES}
    assert all(used in written[name] for name, used in {**PICKLES, **SHARES_OBJECTS}.items())
    assert all(written[name] & {"eval", "exec"} for name in RUNS_CODE)
