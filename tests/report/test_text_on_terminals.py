"""Tables by rich on a terminal, plain text elsewhere; the same words in both."""

import io
import sys

import pytest
from rich.console import Console

import remat_plan as rp
from remat_plan.report.text import show
from remat_plan.small.budget import format_bytes


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):
        return True


def drawn(thing, width=140):
    console = Console(file=io.StringIO(), width=width)
    console.print(thing)
    return console.file.getvalue()


def test_rich_shows_the_words_of_the_text(plan, verified, identity, analysis, curve, comparison):
    for thing in (plan, verified, identity, analysis, curve, comparison):
        words = {w for w in str(thing).replace("#", "").replace("-" * 5, "").split() if len(w) > 1 and w != "..."}
        shown = drawn(thing, 400)
        assert not {w for w in words if w not in shown} - {"-", "--", "---", "----"}


def test_names_of_the_program_are_no_markup(analysis):
    assert "'<b>activation</b>'" in drawn(analysis, 200)
    assert "float32[4096,64]" in drawn(analysis, 200)


@pytest.mark.parametrize("width", [40, 80, 200])
def test_tables_fit_the_terminal(plan, analysis, curve, comparison, width):
    for thing in (plan, analysis, curve, comparison):
        assert max(map(len, drawn(thing, width).splitlines())) <= width


def test_saved_values_stand_below_what_is_done(with_schedule):
    shown = drawn(with_schedule(["f", ["a", "b"]]))
    assert "save 6 values, recompute the rest" in shown
    assert "tanh float32[250000] :0; tanh float32[250000] :1" in shown
    assert "checkpoint around:" in shown


def test_show_is_plain_where_there_is_no_terminal(plan, monkeypatch):
    stream = io.StringIO()
    show(plan, stream)
    assert stream.getvalue() == f"{plan}\n"


def test_show_has_colours_on_a_terminal(plan, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    stream = Terminal()
    show(plan, stream)
    assert "\x1b[1m" in stream.getvalue()
    assert plan.fingerprint in stream.getvalue()


def test_show_is_plain_without_rich(plan, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    stream = Terminal()
    show(plan, stream)
    assert stream.getvalue() == f"{plan}\n"


def test_a_peak_above_the_budget_is_red(verified):
    import dataclasses

    over = dataclasses.replace(verified, budget_bytes=verified.compiled_peak_bytes - 5000)
    console = Console(file=io.StringIO(), width=120, force_terminal=True, color_system="standard")
    console.print(over)
    (line,) = (line for line in console.file.getvalue().splitlines() if "compiled peak" in line)
    assert "\x1b[1;31m" in line
    assert format_bytes(over.compiled_peak_bytes) in line


def test_printing_needs_no_rich(plan, monkeypatch):
    monkeypatch.setitem(sys.modules, "rich", None)
    assert str(plan)
    assert str(rp.Plan.from_json(plan.to_json()))
