"""The catalogue: every cause in three variants, healthy runs of many kinds, all look-alike pairs."""

import os
import subprocess
import sys
from collections import Counter

import pytest

from stoker.ward import needs
from stoker.ward.case import NO_ALARM
from stoker.ward.catalogue import Case, Data, Setup, cases, injectable, prepared
from stoker.ward.surroundings import MAKERS, SCRIPTS
from ward.causes import CAUSES

IMAGES = "images:"


def test_every_cause_has_three_variants() -> None:
    """Different in strength, workers or data; falling clocks alone cannot be had three times."""
    counted = Counter(case.cause for case in cases())
    assert set(counted) == {*CAUSES, *NO_ALARM}
    assert [cause for cause in CAUSES if counted[cause] < 3] == ["throttled-clocks"]
    assert counted["compute-bound"] >= 3


def test_ids_and_causes_are_known() -> None:
    """An id stands for one case, and what is true as well is a cause too, and not the same."""
    assert len({case.id for case in cases()}) == len(cases())
    for case in cases():
        assert set(case.also) <= set(CAUSES) - {case.cause}, case.id


def test_twenty_healthy_scripts_eight_of_them_without_images() -> None:
    """Each is a script of its own."""
    healthy = [case for case in cases() if case.cause == "healthy"]
    assert len({case.script for case in healthy}) == len(healthy) >= 20
    assert len([case for case in healthy if not case.variant.startswith(IMAGES)]) >= 8


@pytest.mark.parametrize("pair", range(1, 17))
def test_each_look_alike_has_two_halves(pair: int) -> None:
    """With different causes first, or the same first and another behind it (the sixteenth)."""
    halves = [case for case in cases() if pair in case.lookalikes]
    assert len(halves) >= 2
    assert len({(case.cause, case.also if pair == 16 else ()) for case in halves}) >= 2


def test_all_four_situations_of_the_field_notes_are_there() -> None:
    """Orphan memory and own overflow, a cold object store, batch 1, a query per sample."""
    assert {case.seed for case in cases() if case.seed} == {"000", "001", "002", "003", "004"}


def test_what_costs_time_can_be_compared_with_the_same_without_it() -> None:
    """Each case with something wrong has a neutral form, except clocks that nobody may change."""
    wrong = [case for case in cases() if case.cause not in NO_ALARM]
    assert [case.id for case in wrong if case.neutral is None] == ["throttled-clocks"]


def test_every_script_and_every_maker_is_used_by_a_case() -> None:
    """What no case runs, nobody would miss; what a case names is there."""
    known = {case.script for case in cases()}
    assert known == {path.name for path in SCRIPTS.glob("*.py")}
    made = {data.maker for case in cases() for data in case.data} | {"signals.py"}
    assert made == {path.name for path in (SCRIPTS / "data").glob("*.py")}
    assert {setup.name for case in cases() for setup in case.setup} <= set(MAKERS)


def test_what_cannot_be_injected_is_told_with_its_reason() -> None:
    """Falling clocks never can; a card's causes cannot without a card."""
    reasons = {case.id: injectable(case) for case in cases()}
    assert "never changed" in (reasons["throttled-clocks"] or "")
    assert all(reason is None or reason.strip() for reason in reasons.values())


def test_an_unknown_need_is_an_error() -> None:
    """A misspelt need would let a case run where it cannot."""
    case = Case(id="x", script="noise_steps.py", cause="healthy", variant="", needs=("cdua",))
    with pytest.raises(ValueError, match="'cdua'"):
        needs.missing(case)


def test_a_prepared_case_has_its_script_and_data_in_a_folder_of_its_own() -> None:
    """And the folder is gone afterwards."""
    case = Case(
        id="x", script="parts_catalogue.py", cause="healthy", variant="",
        data=(Data(maker="parts.py", args=("parts.db", "--count", "10")),),
    )  # fmt: skip
    with prepared(case) as ready:
        folder = ready.cwd
        assert {path.name for path in folder.iterdir()} == {"parts_catalogue.py", "parts.db"}
        assert ready.argv == [sys.executable, str(folder / "parts_catalogue.py")]
        assert ready.command("-m", "stoker", "run")[1:4] == ["-m", "stoker", "run"]
    assert not folder.exists()


def _asked(setup: Setup, code: str) -> str:
    """What a line of Python says inside of a setup."""
    case = Case(id="x", script="noise_steps.py", cause="healthy", variant="", setup=(setup,))
    if reason := injectable(case):
        pytest.skip(reason)
    with prepared(case) as ready:
        done = subprocess.run(
            [*ready.prefix, sys.executable, "-c", code],
            env=ready.env, cwd=ready.cwd, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_quota_binds_the_command() -> None:
    """The facts, asked inside, tell the quota."""
    code = "from stoker.facts.cgroup import *; print(cpu_of(find('cpu')).quota_cores)"
    assert _asked(Setup(name="quota", value=0.5), code) == "0.5"


def test_a_memory_limit_binds_the_command() -> None:
    """What takes more is killed, and only that."""
    code = (
        "import subprocess, sys;"
        "print(subprocess.run([sys.executable, '-c', 'b = bytearray(b\\'1\\' * (300 << 20))']).returncode)"
    )
    assert _asked(Setup(name="memory", value=120), code) == "-9"


def test_a_mask_binds_the_command() -> None:
    """One core of those there are."""
    code = "import os; print(len(os.sched_getaffinity(0)))"
    assert _asked(Setup(name="mask", value=1), code) == "1"


def test_shared_memory_has_the_size_that_was_asked() -> None:
    """Inside of the command's own namespace; outside it stays as it was."""
    before = os.statvfs("/dev/shm").f_blocks
    code = "import os; s = os.statvfs('/dev/shm'); print(s.f_blocks * s.f_frsize >> 20)"
    assert _asked(Setup(name="shm", value=48), code) == "48"
    assert os.statvfs("/dev/shm").f_blocks == before


def test_a_disk_group_is_entered_and_removed() -> None:
    """The command runs in a group with the limit; afterwards the group is gone."""
    code = "print([line for line in open('/proc/self/cgroup') if 'blkio' in line or line[0] == '0'])"
    assert "run-" in _asked(Setup(name="disk", value=100), code)


def test_a_link_carries_traffic_of_its_own() -> None:
    """The loopback inside is shaped, and is not the one outside."""
    code = "import subprocess; print(subprocess.run(['tc', 'qdisc'], capture_output=True, text=True).stdout)"
    assert "tbf" in _asked(Setup(name="link", value=100), code)


def test_one_interface_of_several_is_slower() -> None:
    """What it sends and what it gets go by a class of their own; the others' do not."""
    code = (
        "import subprocess;"
        "run = lambda words: subprocess.run(words.split(), capture_output=True, text=True).stdout;"
        "print('10.77.0.9' in run('ip addr'), run('tc class show dev lo').count('rate 30Mbit'),"
        " run('tc filter show dev lo').count('0a4d0001/ffffffff'))"
    )
    assert _asked(Setup(name="rank_link", value=30), code) == "True 1 2"


def test_a_feature_service_answers_through_its_proxy() -> None:
    """33 numbers for each user that is asked for."""
    code = (
        "import os, urllib.request; address = os.environ['FEATURES_ADDRESS'];"
        "print(len(urllib.request.urlopen(f'http://{address}/users/1,2').read()))"
    )
    assert _asked(Setup(name="features", value=0.1), code) == str(2 * 33 * 4)
