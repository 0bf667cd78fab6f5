"""Telling that something is going on when it takes more than two seconds.

In: short texts. Out: a spinner by rich where it is installed and the terminal can show one; else lines on stderr.
"""

from __future__ import annotations

import sys
import time
from typing import Any

PATIENCE_SECONDS = 2.0


class Progress:
    """A context manager; ``say`` names the stage that begins. Silent for the first two seconds.

    Args:
        title: what is being done.
        enabled: None: only when stderr is a terminal.
    """

    def __init__(self, title: str, enabled: bool | None = None):
        self.title = title
        self.enabled = sys.stderr.isatty() if enabled is None else enabled
        self.started = time.perf_counter()
        self.status: Any = None

    def __enter__(self) -> Progress:
        self.started = time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        if self.status is not None and hasattr(self.status, "stop"):
            self.status.stop()
        self.status = None

    def say(self, stage: str) -> None:
        """Name the stage that begins."""
        seconds = time.perf_counter() - self.started
        if not self.enabled or seconds < PATIENCE_SECONDS:
            return
        line = f"{self.title}: {stage} ({seconds:.0f} s)"
        if self.status is None:
            try:
                from rich.console import Console
            except ImportError:
                self.status = sys.stderr
            else:
                self.status = Console(stderr=True).status(line)
                self.status.start()
        if hasattr(self.status, "update"):
            self.status.update(line)
        else:
            print(line, file=sys.stderr, flush=True)
