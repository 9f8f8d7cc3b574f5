"""Torch's flags as they stand, without a word from torch and without touching a device."""

import os
import subprocess
import sys
import textwrap

import pytest
import torch

from stoker.facts import framework


def run(code: str, **variables: str) -> str:
    """Run code in a fresh interpreter in which every warning is an error."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("setting", "matmul", "conv"),
    [
        ("pass", "ieee", "tf32"),
        ("torch.backends.cuda.matmul.fp32_precision = 'tf32'", "tf32", "tf32"),
        ("torch.set_float32_matmul_precision('high')", "tf32", "tf32"),
        (
            "torch.backends.cuda.matmul.allow_tf32 = True; torch.backends.cudnn.allow_tf32 = False",
            "tf32",
            "ieee",
        ),
        ("torch.backends.cudnn.conv.fp32_precision = 'ieee'", "ieee", "ieee"),
    ],
)
def test_precision_is_read_whichever_way_it_was_set(setting: str, matmul: str, conv: str) -> None:
    """Old and new settings are both seen, in a process that has used either, and no warning is raised."""
    said = run(
        f"""
        import torch
        {setting}
        from stoker.facts import framework
        found = framework.read()
        print(found.matmul_precision, found.conv_precision)
        """
    )
    assert said == f"{matmul} {conv}"


def test_flags_of_this_process_are_seen() -> None:
    """Anomaly mode and cudnn's flags are those of now."""
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        assert framework.read().anomaly_mode is True
    found = framework.read()
    assert found.anomaly_mode is False
    assert found.version == torch.__version__
    assert found.threads == torch.get_num_threads()


def test_variables_that_bear_on_speed_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """The listed variables are shown with their values, and no others."""
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    env = framework.read().env
    assert env["CUDA_LAUNCH_BLOCKING"] == "1"
    assert "secret" not in env.values()


def test_no_cuda_is_woken() -> None:
    """Reading leaves CUDA uninitialised."""
    said = run(
        """
        import torch
        from stoker.facts import framework
        framework.read()
        print(torch.cuda.is_initialized())
        """
    )
    assert said == "False"


def test_importing_facts_does_not_import_torch() -> None:
    """The facts' names are cheap to import: torch comes only when it is asked about."""
    assert run("import sys; import stoker.facts; print('torch' in sys.modules)") == "False"
