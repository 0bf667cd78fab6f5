"""What the command line says when something is wrong.

In: exceptions. Out: ``InputError``: what is so, where in the user's own code, what to do; never a traceback through
this library.
"""

from __future__ import annotations

import os
import sysconfig
import traceback
from pathlib import Path

_PACKAGE = str(Path(__file__).resolve().parents[1]) + os.sep
_LIBRARIES = tuple(
    str(Path(sysconfig.get_path(name)).resolve()) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
_FRAMES = 3
"""The last so many of the user's own frames are shown."""


class InputError(Exception):
    """What a user gave cannot be used: what is so, what to do, the user's own lines as Python prints them."""

    def __init__(self, what: str, advice: str = "", place: str = ""):
        super().__init__(what)
        self.what, self.advice, self.place = what, advice, place

    def __str__(self) -> str:
        return "\n".join(part for part in (self.what, self.place.rstrip("\n"), self.advice) if part)


def own_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The frames of an exception that are the user's: not of Python, installed packages, or this one."""
    return [frame for frame in traceback.extract_tb(error.__traceback__) if _is_own(frame.filename)]


def _is_own(filename: str) -> bool:
    if filename.startswith("<"):
        return False
    path = str(Path(filename).resolve())
    return "site-packages" not in path and not path.startswith((_PACKAGE, *_LIBRARIES))


def user_error(error: BaseException, doing: str, advice: str) -> InputError:
    """Tell of an exception in the user's code: its type and message, the user's own lines, what to know or to do.

    ``doing`` is what was going on, for example ``"importing train.py"``.
    """
    if isinstance(error, SystemExit):
        what = f"{doing} called sys.exit({error.code!r})."
        advice = f'{advice} Put what runs the program under `if __name__ == "__main__":`.'
    else:
        what = f"{doing} raised {type(error).__name__}: {_first_lines(error)}"
    if isinstance(error, SyntaxError):
        return InputError(what, advice, "".join(traceback.format_exception_only(error)[:-1]))
    if isinstance(error, ModuleNotFoundError) and error.name:
        advice = f"{advice} Is {error.name.partition('.')[0]} installed in this environment?"
    return InputError(what, advice, "".join(traceback.format_list(own_frames(error)[-_FRAMES:])))


def _first_lines(error: BaseException, most: int = 12) -> str:
    """The message of an error, not endless: XLA's may have hundreds of lines."""
    lines = (str(error) or "(no message)").splitlines()
    return "\n".join(lines if len(lines) <= most else [*lines[:most], f"... and {len(lines) - most} more lines"])
