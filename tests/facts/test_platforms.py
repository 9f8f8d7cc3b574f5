"""Other platforms, as far as they can be had here: the facts with what Windows and macOS lack taken away."""

import subprocess
import sys
import textwrap

import pytest

# The libraries are imported first, for the platform that they are really on.
PRETEND = """
import os, sys, json, pathlib, platform, shutil, subprocess, random, statistics, threading
import http.client, psutil, pynvml, rich.console, rich.table, torch
platform_name, lacking = sys.argv[1], sys.argv[2].split()
for name in lacking:
    if hasattr(os, name):
        delattr(os, name)
if platform_name == "win32":
    sys.modules["pwd"] = None
sys.platform = platform_name
kept = os.sysconf
if platform_name == "win32":
    del os.sysconf
from stoker import facts
from stoker.facts import page, terminal
os.sysconf = kept  # psutil, which believes to be on Linux, needs it
found = facts.collect()
terminal.as_text(found, facts.warnings_of(found))
sampler = facts.Sampler()
reading = sampler.read([os.getpid(), os.getppid()])
json.dumps(facts.to_json(found)), json.dumps(reading)
sampler.close()
print(found.host.system, found.host.usable_cores is not None, found.host.shm_total_bytes,
      found.host.quota_cores, reading["rss_bytes"] > 0, len(reading["processes"]))
"""
WINDOWS_LACKS = "statvfs readv posix_fadvise sched_getaffinity O_NONBLOCK O_NOFOLLOW O_CLOEXEC pread mkfifo"
MACOS_LACKS = "posix_fadvise sched_getaffinity"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="pretends from Linux")
@pytest.mark.parametrize(
    ("platform", "lacking", "system"), [("win32", WINDOWS_LACKS, "windows"), ("darwin", MACOS_LACKS, "macos")]
)
def test_facts_and_samples_come_without_what_the_platform_lacks(
    platform: str, lacking: str, system: str
) -> None:
    """Everything imports, reads and shows; quota and shared memory are unknown, not zero."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(PRETEND), platform, lacking],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [system, "True", "None", "None", "True", "1"]
