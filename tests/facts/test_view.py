"""What is shown: every figure or n/a, nothing taken for markup, the same in a terminal and a notebook."""

from dataclasses import replace
from html.parser import HTMLParser

from stoker.facts import Checked, Sampler, check, collect, show, to_json, warnings_of
from stoker.facts.terminal import as_text
from stoker.facts.values import Holder, Notebook, Reads, Storage, Stray, Warned
from stoker.facts.words import ago, number, size, yes
from stoker.ward.fake_gpu import FakeGpus, card

from .machine import GIB, LAPTOP, gpu, with_gpu

HOSTILE = "/home/[bold]ann[/bold]/<script>alert(1)</script>.ipynb"


def test_words_say_figures_and_what_was_not_measured() -> None:
    """Sizes, spans and numbers have units; `None` is n/a, and zero is zero."""
    assert [size(one) for one in (None, 0, 1536, 3 << 20, 150 << 30, 3 << 40)] == [
        "n/a", "0 B", "1.5 KiB", "3.0 MiB", "150 GiB", "3.0 TiB",
    ]  # fmt: skip
    assert [ago(one) for one in (None, 0.0, 59, 60, 7300, 200_000)] == [
        "n/a",
        "0 s",
        "59 s",
        "1 min",
        "2 h",
        "2 d",
    ]
    assert [number(None, "W"), number(0.0, "W"), number(1.25, "s", 1)] == ["n/a", "0 W", "1.2 s"]
    assert [yes(None), yes(True), yes(False)] == ["n/a", "yes", "no"]


def test_the_terminal_shows_holders_notebooks_strays_storage_and_warnings() -> None:
    """All that was found stands in the output, the warnings last."""
    one = Holder(pid=4242, bytes=20 * GIB, user="ann", notebook=HOSTILE, notebook_state="idle", idle_s=7300.0)
    facts = replace(
        with_gpu(gpu(one)),
        notebooks=(Notebook(pid=4242, kernel_id="k", path=HOSTILE, state="idle", idle_s=7300.0, user="ann"),),
        strays=(
            Stray(pid=7, kind="zombie", parent=1, user="ann", command="python3", age_s=60.0, gpu_bytes=None),
        ),
        storage=Storage(
            path="/d", mount_point="/", file_system="ext4", kind="local", reads=Reads(sequential_mb_s=500.0)
        ),
    )
    said = as_text(facts, warnings_of(facts), width=200)
    for word in (
        "4242",
        "20.0 GiB",
        HOSTILE,
        "idle",
        "2 h",
        "zombie",
        "ext4",
        "500 MB/s",
        "cold or warm: n/a",
    ):
        assert word in said
    assert said.rindex("gpu-contention") > said.rindex("torch (")


def test_a_machine_without_a_gpu_is_shown_with_the_reason() -> None:
    """No GPU is a sentence, not an empty table, and health is said."""
    said = as_text(LAPTOP, ())
    assert "none: no NVIDIA driver library" in said
    assert "Nothing here will hurt" in said


def test_unknown_holders_are_not_nobody() -> None:
    """Hidden pids print n/a with the reason; an empty card prints nobody."""
    hidden = as_text(with_gpu(gpu(holders=None, holders_reason="pids are hidden")), ())
    assert "n/a: pids are hidden" in hidden
    assert "nobody" in as_text(with_gpu(gpu()), ())


class _Balance(HTMLParser):
    """Notes every tag, and that each is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.add(tag)
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_notebook_view_is_escaped_html() -> None:
    """A hostile file name, or fix, stays text; the tags balance."""
    one = Holder(pid=4242, bytes=20 * GIB, user="<b>", notebook=HOSTILE, notebook_state="idle")
    checked = Checked(
        facts=with_gpu(gpu(one)), warnings=(Warned(cause="<i>", text="<script>", fix="kill <1>"),)
    )
    page = checked._repr_html_()
    parser = _Balance()
    parser.feed(page)
    assert parser.open == []
    assert "script" not in parser.seen and "i" not in parser.seen
    assert "&lt;script&gt;alert(1)" in page


def test_check_gives_an_object_that_shows_itself() -> None:
    """In a notebook it draws a table, at a prompt it prints text, and its JSON is the verb's."""
    checked = check(source=FakeGpus(card()))
    assert "<table>" in checked._repr_html_()
    assert "Fake GPU" in repr(checked)
    assert checked.to_json()["schema"] == 1


def test_the_drivers_handle_is_given_back() -> None:
    """Collecting closes the driver, whatever was found."""
    source = FakeGpus(card())
    collect(source=source)
    assert source.closed


def test_the_exported_names_are_there() -> None:
    """What `stoker.facts` says it exports can be imported."""
    from stoker import facts

    assert all(hasattr(facts, name) for name in facts.__all__)
    assert {show, to_json, collect, check, Sampler} <= {getattr(facts, name) for name in facts.__all__}
