"""A scratch run from the outside: how scripts are started, what is heard of them, how they end."""

import json
import os
import signal
import textwrap
from pathlib import Path

import pytest
from scratch_kit import HERE, can_overlay, marked, plan

from stoker.errors import ScriptNotFound, UsageError
from stoker.scratch import Guards, Limits, Plan, run, start

STEPPING = "import steps\n"


def script(folder: Path, text: str, name: str = "train.py") -> Path:
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return path


def test_a_script_runs_as_python_would_run_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments, folder, `__main__`, standard streams and exit are those of `python train.py`."""
    monkeypatch.chdir(tmp_path)
    script(tmp_path, "value = 'a sibling'", "sibling.py")
    script(
        tmp_path,
        """
        import os, sys, sibling
        assert __name__ == "__main__" and sys.modules["__main__"].__file__ == __file__
        assert sys.stdin.read() == ""
        assert os.getsid(0) == os.getpid()
        print(sys.argv, os.getcwd(), sibling.value, os.environ["GIVEN"])
        print("to stderr", file=sys.stderr)
        """,
    )
    result = run(Plan(command=("train.py", "--lr", "0.1"), env={"GIVEN": "by the caller"}))
    assert (result.outcome, result.exit_code) == ("done", 0), result
    assert result.stdout_tail == f"['train.py', '--lr', '0.1'] {tmp_path} a sibling by the caller\n"
    assert result.stderr_tail == "to stderr\n"
    assert result.left == ()


def test_a_module_runs_as_python_m(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`-m package.module` with relative imports."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pack").mkdir()
    script(tmp_path, "", "pack/__init__.py")
    script(tmp_path, "word = 'inner'", "pack/inner.py")
    script(tmp_path, "import sys\nfrom .inner import word\nprint(word, sys.argv[1:])", "pack/main.py")
    result = run(Plan(command=("-m", "pack.main", "x")))
    assert (result.outcome, result.stdout_tail) == ("done", "inner ['x']\n"), result


def test_a_path_with_unicode_and_blanks(tmp_path: Path) -> None:
    """Any name that the file system takes."""
    folder = tmp_path / "Übung größer, 訓練:1"
    folder.mkdir()
    result = run(plan(script(folder, "print(__file__)", "trän ing.py")))
    assert (result.outcome, result.stdout_tail) == ("done", f"{folder}/trän ing.py\n"), result


def test_no_such_script_is_wrong_use() -> None:
    """Said at once, before any process."""
    with pytest.raises(ScriptNotFound, match=r"no such script: nowhere\.py"):
        run(Plan(command=("nowhere.py",)))


def test_no_such_module_is_told_in_the_result() -> None:
    """Only the shielded process may look: finding a module imports its package."""
    result = run(Plan(command=("-m", "no.such.module")))
    assert (result.outcome, result.exit_code) == ("failed", 1)
    assert "no module no.such.module to run" in result.reason


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"command": ()}, "needs a script"),
        ({"hook": "nofunction"}, "module:function"),
        ({"limits": lambda: Limits(steps=0)}, "steps is 0"),
        ({"guards": lambda: Guards(vram_fraction=2)}, "vram_fraction is 2"),
        ({"mechanisms": ("prayer",)}, "prayer"),
    ],
)
def test_wrong_words_are_refused(words: dict[str, object], message: str) -> None:
    """With the value, and what would be right."""
    with pytest.raises(UsageError, match=message):
        Plan(**{"command": ("x.py",), **{k: v() if callable(v) else v for k, v in words.items()}})  # type: ignore[arg-type]


def test_an_argument_that_is_no_json_is_refused(tmp_path: Path) -> None:
    """And nothing is left of the run that did not begin."""
    with pytest.raises(UsageError, match="JSON"):
        run(plan(script(tmp_path, ""), hook="scratch_hooks:give_child", argument=object()))


def test_an_exception_is_a_failure_with_its_words(tmp_path: Path) -> None:
    """The traceback begins in the script."""
    result = run(plan(script(tmp_path, "def f():\n    raise ValueError('batch of 0')\nf()")))
    assert (result.outcome, result.exit_code, result.reason) == (
        "failed", 1, "exit code 1: ValueError: batch of 0",
    )  # fmt: skip
    assert "train.py" in result.stderr_tail
    assert "bootstrap" not in result.stderr_tail


def test_an_exit_code_is_kept(tmp_path: Path) -> None:
    """`sys.exit(3)` is a failure with code 3."""
    result = run(plan(script(tmp_path, "import sys\nsys.exit(3)")))
    assert (result.outcome, result.exit_code) == ("failed", 3)


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM, signal.SIGKILL])
def test_death_by_a_signal_is_told_with_its_number(tmp_path: Path, number: int) -> None:
    """Also signals that the first process of a namespace would not get."""
    result = run(plan(script(tmp_path, f"import os\nos.kill(os.getpid(), {int(number)})")))
    assert (result.outcome, result.signal) == ("crashed", number), result
    assert signal.Signals(number).name in result.reason


def test_a_script_can_kill_nobody_outside(tmp_path: Path) -> None:
    """Its parent has number 1 there, or is not the caller; the caller goes on."""
    run(plan(script(tmp_path, "import os, signal\nos.kill(os.getppid(), signal.SIGTERM)")))
    assert os.getppid() > 0


def test_messages_come_in_order_with_the_last_step(tmp_path: Path) -> None:
    """A hook's own kinds as well as progress, while the script runs."""
    path = script(
        tmp_path,
        STEPPING + "steps.child.report('found', value=steps.argument['value'])\n"
        "for step in range(1, 4): steps.child.progress(step)",
    )
    heard = []
    result = run(
        plan(path, hook="scratch_hooks:give_child", argument={"value": [1, "ä", None]}),
        on_message=lambda message: heard.append((message.kind, dict(message.body))),
    )
    assert [kind for kind, _ in heard] == ["started", "found", "progress", "progress", "progress"]
    assert heard[1][1] == {"value": [1, "ä", None]}
    assert (result.outcome, result.steps) == ("done", 3)
    assert [message.kind for message in result.messages] == [kind for kind, _ in heard]


def test_a_hook_can_run_the_script_its_own_way(tmp_path: Path) -> None:
    """What it returns is called with the script."""
    result = run(plan(script(tmp_path, "print('never')"), hook="scratch_hooks:run_itself"))
    assert (result.outcome, result.stdout_tail) == ("done", "")
    assert [m.body for m in result.messages if m.kind == "ran"] == [{"name": "train"}]


def test_a_broken_hook_is_told(tmp_path: Path) -> None:
    """As a failure, and the script does not run."""
    result = run(plan(script(tmp_path, "print('never')"), hook="scratch_hooks:break_down", argument=7))
    assert (result.outcome, result.reason) == ("failed", "exit code 1: RuntimeError: hook broke: 7")
    assert result.stdout_tail == ""


def test_messages_survive_closed_descriptors_and_replaced_streams(tmp_path: Path) -> None:
    """Also when another file has taken the descriptor's number; nothing is written into that file."""
    path = script(
        tmp_path,
        STEPPING
        + """
import os, sys
steps.child.progress(1)
sys.stdout = sys.stderr = open(os.devnull, "w")
os.closerange(0, 256)
taken = [os.open("taken.txt", os.O_CREAT | os.O_RDWR) for _ in range(64)]
steps.child.progress(2)
steps.child.report("size", bytes=os.stat("taken.txt").st_size)
steps.child.end(3)
""",
    )
    result = run(plan(path, hook="scratch_hooks:give_child"))
    assert (result.outcome, result.steps) == ("done", 3), result
    assert [m.body["bytes"] for m in result.messages if m.kind == "size"] == [0]


def test_a_large_message_comes_whole(tmp_path: Path) -> None:
    """Beyond what a pipe holds."""
    path = script(tmp_path, STEPPING + "steps.child.report('large', text='x' * 3_000_000)")
    result = run(plan(path, hook="scratch_hooks:give_child"))
    assert [len(m.body["text"]) for m in result.messages if m.kind == "large"] == [3_000_000]


def test_output_is_kept_where_it_is_asked_for(tmp_path: Path) -> None:
    """Whole, in two files; standard input from a file too."""
    (tmp_path / "in.txt").write_text("from a file")
    path = script(tmp_path, "import sys\nprint(sys.stdin.read())\nprint('x' * 20000)")
    run(plan(path, stdin=tmp_path / "in.txt", output=tmp_path / "kept"))
    assert (tmp_path / "kept/stdout.txt").read_text() == f"from a file\n{'x' * 20000}\n"
    assert (tmp_path / "kept/stderr.txt").read_text() == ""


def importing(folder: Path) -> dict[str, str]:
    """That stand-ins are found there, and all else where it is found here."""
    return {"PYTHONPATH": os.pathsep.join([str(folder), str(HERE), os.environ.get("PYTHONPATH", "")])}


def mlflow_of_its_shape(folder: Path) -> None:
    """MLflow as far as it is met here: the package, its client's module, and addresses they were given."""
    (folder / "mlflow/tracking").mkdir(parents=True)
    script(
        folder / "mlflow",
        """
        from mlflow.tracking import seen, MlflowClient
        def set_tracking_uri(uri): seen.append(uri)
        def set_registry_uri(uri): seen.append(uri)
        """,
        "__init__.py",
    )
    script(folder / "mlflow/tracking", "from mlflow.tracking.client import seen, MlflowClient", "__init__.py")
    script(
        folder / "mlflow/tracking",
        """
        seen = []
        class MlflowClient:
            def __init__(self, tracking_uri=None, registry_uri=None):
                seen.append([tracking_uri, registry_uri])
        """,
        "client.py",
    )


def test_a_client_of_mlflow_made_by_others_is_local_too(tmp_path: Path) -> None:
    """Lightning's logger makes one with its own address: here from the client's module, and by a subclass."""
    fakes = tmp_path / "fakes"
    fakes.mkdir()
    mlflow_of_its_shape(fakes)
    path = script(
        tmp_path,
        """
        import json
        from mlflow.tracking import MlflowClient
        class Own(MlflowClient): pass
        MlflowClient(tracking_uri="http://tracking.example", registry_uri="databricks")
        MlflowClient("https://tracking.example")
        Own("https://tracking.example")
        MlflowClient()
        MlflowClient("file:///tmp/own", None)
        import mlflow
        assert mlflow.MlflowClient is MlflowClient
        mlflow.set_registry_uri("https://models.example")
        print(json.dumps(mlflow.seen))
        """,
    )
    result = run(plan(path, env=importing(fakes)))
    assert result.outcome == "done", result
    local = "file:./mlruns"
    assert json.loads(result.stdout_tail) == [
        [local, local], [local, None], [local, None], [None, None], ["file:///tmp/own", None], local,
    ]  # fmt: skip


def test_loggers_are_kept_off_the_network(tmp_path: Path) -> None:
    """By environment, and by argument where the script insists."""
    fakes = tmp_path / "fakes"
    fakes.mkdir()
    script(fakes, "def init(**words): return words", "wandb.py")
    script(fakes, "def init_run(**words): return words", "neptune.py")
    mlflow_of_its_shape(fakes)
    script(
        fakes,
        "class Experiment: pass\nclass OfflineExperiment: pass\ndef start(**words): return words",
        "comet_ml.py",
    )
    path = script(
        tmp_path,
        """
        import json, os
        import comet_ml, mlflow, neptune, wandb
        mlflow.set_tracking_uri("https://tracking.example")
        mlflow.set_tracking_uri("sqlite:///own.db")
        print(json.dumps([
            wandb.init(mode="online", project="p"), neptune.init_run(), comet_ml.start(online=True),
            comet_ml.Experiment.__name__, mlflow.seen, wandb.__spec__.loader.__class__.__name__,
            os.environ["WANDB_MODE"], os.environ["CLEARML_OFFLINE_MODE"],
        ]))
        """,
    )
    result = run(plan(path, env=importing(fakes)))
    assert result.outcome == "done", result
    assert json.loads(result.stdout_tail) == [
        {"mode": "offline", "project": "p"}, {"mode": "offline"}, {"online": False},
        "OfflineExperiment", ["file:./mlruns", "sqlite:///own.db"], "SourceFileLoader",
        "offline", "1",
    ]  # fmt: skip


@pytest.mark.skipif(not can_overlay(), reason="no overlay here")
def test_a_script_that_fails_offline_is_said_to_have_been_so(tmp_path: Path) -> None:
    """With what to do; one that fails with a network is not."""
    path = script(tmp_path, "raise OSError('no route to the database')")
    told = [run(plan(path, offline=offline)).reason for offline in (True, False)]
    assert told[0].startswith("exit code 1: OSError: no route to the database (it was offline")
    assert "leave out --offline" in told[0]
    assert "offline" not in told[1]


def test_the_caller_can_end_a_run(tmp_path: Path) -> None:
    """At any message; nothing of it is left."""
    mark = f"mark-{os.getpid()}-{tmp_path.name}"
    path = script(tmp_path, "import time\nwhile True: time.sleep(1)")
    with start(plan(path, env={"MARK": mark})) as running:
        for message in running:
            assert message.kind == "started"
            running.end()
    result = running.result()
    assert (result.outcome, result.reason) == ("ended-early", "the caller ended it")
    assert marked(mark) == []


def test_leaving_the_context_ends_the_run(tmp_path: Path) -> None:
    """Also by an exception of the caller's."""
    mark = f"mark-{os.getpid()}-{tmp_path.name}"
    path = script(tmp_path, "import time\nwhile True: time.sleep(1)")
    with pytest.raises(RuntimeError, match="the caller's own"), start(plan(path, env={"MARK": mark})):
        raise RuntimeError("the caller's own")
    assert marked(mark) == []
