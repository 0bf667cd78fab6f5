"""Progress: silent at first and where nobody looks; then a bar on a terminal, lines elsewhere."""

import io
import sys
import time

import pytest

from remat_plan.small import progress as module
from remat_plan.small.progress import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(module, "PATIENCE_SECONDS", 0.05)


def test_nothing_is_said_in_the_first_seconds(capsys):
    with Progress("work", enabled=True) as shown:
        shown.say("solving")
        shown.say("compiling", done=1, total=2)
    assert capsys.readouterr().err == ""


def test_later_there_is_a_line_for_each_stage(impatient, capsys):
    with Progress("work", enabled=True) as shown:
        time.sleep(0.06)
        shown.say("solving")
        shown.say("compiling", done=1, total=2)
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("work: solving (")
    assert second.startswith("work: compiling 1 of 2 (")


def test_a_long_first_stage_is_shown_while_it_lasts(impatient, capsys):
    with Progress("work", enabled=True) as shown:
        shown.say("measuring the plain step")
        time.sleep(0.3)
        assert capsys.readouterr().err.startswith("work: measuring the plain step (")


def test_nothing_is_said_where_nobody_looks(impatient, capsys):
    with Progress("work") as shown:
        shown.say("solving")
        time.sleep(0.1)
        shown.say("compiling")
    assert capsys.readouterr().err == ""


def test_nothing_is_said_outside(impatient, capsys):
    shown = Progress("work", enabled=True)
    with shown:
        shown.say("solving")
    time.sleep(0.1)
    shown.say("compiling")
    assert capsys.readouterr().err == ""
    with shown:
        time.sleep(0.06)
        shown.say("again")
    assert "again" in capsys.readouterr().err


def test_on_a_terminal_there_is_a_bar_and_it_goes_away(impatient, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    with Progress("work") as shown:
        time.sleep(0.06)
        shown.say("evaluating [all] schedules", done=3, total=8)
        time.sleep(0.15)
    assert "work: evaluating [all] schedules" in stream.getvalue()
    assert "\x1b[?25h" in stream.getvalue(), "the cursor is back"


def test_errors_pass_through(impatient):
    shown = Progress("work", enabled=True)
    with pytest.raises(ZeroDivisionError), shown:
        shown.say(str(1 / 0))
