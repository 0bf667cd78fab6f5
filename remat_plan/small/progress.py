"""Telling that something is going on when it takes more than two seconds.

In: short texts, perhaps how many of how many. Out: on a terminal a bar by rich where it is installed; else lines on
stderr.

A stage that began within the first two seconds is shown when they are over, by a timer: the first compile of a large
model may take a minute, and nothing else runs meanwhile.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
import time
from typing import Any

from remat_plan.small.doors import flag

PATIENCE_SECONDS = 2.0
"""What takes less time is not told."""


class Progress:
    """A context manager, to be entered again if need be; ``say`` names the stage that begins.

    It is silent for the first two seconds, and outside ``with``; ``conclude`` says in one line what came out. With
    ``enabled=None`` it speaks only where stderr is a terminal.

    >>> with Progress("remat_plan", enabled=False) as progress:
    ...     progress.say("compiling", done=1, total=3)
    """

    def __init__(self, title: str, enabled: bool | None = None):
        self.title = title
        self.enabled = sys.stderr.isatty() if enabled is None else flag("progress", enabled)
        self.started = time.perf_counter()
        self._inside = False
        self._stage: tuple[str, int | None, int | None] | None = None
        self._shown: _Bar | _Lines | None = None
        self._timer: threading.Timer | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> Progress:
        self.started = time.perf_counter()
        self._inside, self._stage = True, None
        if self.enabled:
            self._timer = threading.Timer(PATIENCE_SECONDS, self._begin)
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._inside = False  # first: whatever interrupts the rest, the timer shows nothing any more
        try:
            if self._timer is not None:
                self._timer.cancel()
        finally:
            with self._lock:
                shown, self._shown = self._shown, None
                if shown is not None:
                    shown.stop()

    def say(self, stage: str, done: int | None = None, total: int | None = None) -> None:
        """Name the stage that begins; where it is known, which of how many."""
        if not self.enabled or not self._inside:
            return
        with self._lock:
            self._stage = stage, done, total
            if time.perf_counter() - self.started >= PATIENCE_SECONDS:
                self._show()

    def conclude(self, line: str) -> None:
        """Print what came out, on a terminal only: logs are told by the logger."""
        if self.enabled and sys.stderr.isatty():
            print(f"{self.title}: {line}", file=sys.stderr, flush=True)

    def _begin(self) -> None:
        """Show the stage that is on when patience ends; runs in the timer's thread."""
        with self._lock:
            if self._inside and self._shown is None:
                self._show()

    def _show(self) -> None:
        if self._stage is None:
            return
        if self._shown is None:
            rich = sys.stderr.isatty() and importlib.util.find_spec("rich") is not None
            self._shown = _Bar(self.title) if rich else _Lines(self.title, self.started)
        self._shown.update(*self._stage)


class _Bar:
    """A spinner with the stage, a bar where the number of stages is known, and the seconds so far."""

    def __init__(self, title: str):
        from rich.console import Console
        from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

        columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
        self.title = title
        self.progress = RichProgress(*columns, console=Console(stderr=True), transient=True)
        self.task: Any = self.progress.add_task(title, total=None)
        self.progress.start()

    def update(self, stage: str, done: int | None, total: int | None) -> None:
        from rich.markup import escape

        self.progress.update(self.task, description=escape(f"{self.title}: {stage}"), completed=done or 0, total=total)

    def stop(self) -> None:
        self.progress.stop()


class _Lines:
    """One line on stderr for each stage."""

    def __init__(self, title: str, started: float):
        self.title, self.started = title, started

    def update(self, stage: str, done: int | None, total: int | None) -> None:
        number = "" if done is None or total is None else f" {done} of {total}"
        seconds = time.perf_counter() - self.started
        print(f"{self.title}: {stage}{number} ({seconds:.0f} s)", file=sys.stderr, flush=True)

    def stop(self) -> None:
        """Lines need no end."""
