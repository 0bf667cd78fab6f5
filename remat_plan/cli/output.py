"""Where reports of the command line go: checked before the work, written whole or not at all.

In: paths as typed, reports. Out: files; stdout for ``-``.
"""

from __future__ import annotations

import importlib.util
import io
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remat_plan.cli.errors import InputError
from remat_plan.report.html import page
from remat_plan.report.text import show
from remat_plan.results.shown import Shown


@dataclass(frozen=True, slots=True)
class Outputs:
    """Files that a report goes to, beside the terminal; None: not asked for."""

    json: str | None = None
    html: str | None = None
    plot: str | None = None

    def check(self) -> None:
        """Find out before planning whether the files can be written: ``InputError`` tells why not."""
        for option, target in (("--json", self.json), ("--html", self.html), ("--plot", self.plot)):
            if target is not None and not (option == "--json" and target == "-"):
                _check_place(option, target)
        if self.plot is not None:
            _check_picture(self.plot)
        given = [os.path.realpath(t) for t in (self.json, self.html, self.plot) if t is not None]
        if len(set(given)) < len(given):
            raise InputError("two reports go to the same file.", "Give each of --json, --html and --plot its own.")

    def write(self, report: Shown, title: str) -> None:
        """Print a report and write it to the files asked for, all made before the first is written.

        Each is complete or as it was before: ``InputError`` if it cannot be written.
        """
        files: dict[str, bytes] = {}
        if self.json is not None and self.json != "-":
            files[self.json] = (report.to_json() + "\n").encode()
        if self.html is not None:
            files[self.html] = page(title, report._repr_html_()).encode()
        if self.plot is not None:
            files[self.plot] = _picture(report, self.plot)
        if self.json == "-":
            print(report.to_json())
        else:
            show(report)
        for target, content in files.items():
            write_whole(target, content)


def _check_place(option: str, target: str) -> None:
    if target == "-":
        raise InputError(f"{option} - is not possible: only --json can go to stdout.", "Name a file.")
    path = Path(target)
    if path.is_dir():
        raise InputError(f"{option} {target} is a folder.", "Name a file in it.")
    if not path.parent.is_dir():
        raise InputError(f"{option} {target}: there is no folder {path.parent}.", "Make it first.")
    if not os.access(path if path.exists() and not path.is_file() else path.parent, os.W_OK):
        raise InputError(f"{option} {target} cannot be written: no permission in {path.parent}.")


def _check_picture(target: str) -> None:
    if importlib.util.find_spec("matplotlib") is None:
        raise InputError("--plot needs matplotlib.", 'Install it: pip install "remat_plan[plot]".')
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    known = FigureCanvasAgg.get_supported_filetypes()
    if Path(target).suffix[1:].lower() not in known:
        advice = f"One of: .{', .'.join(sorted(known))}."
        raise InputError(f"--plot {target}: the name must end in an image format.", advice)


def _picture(report: Shown, target: str) -> bytes:
    drawn = io.BytesIO()
    figure: Any = report.plot().figure
    figure.savefig(drawn, format=Path(target).suffix[1:].lower(), dpi=150)
    return drawn.getvalue()


def write_whole(target: str, content: bytes) -> None:
    """Write a file so that it is whole or as it was before: to a temporary name beside it, then renamed.

    What is no ordinary file (``/dev/null``, a pipe) is written to as it is. ``InputError`` if it cannot be written.
    """
    path = Path(os.path.realpath(target))
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content)
        else:
            try:
                beside.write_bytes(content)
                os.replace(beside, path)
            finally:
                beside.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"{target} cannot be written: {error.strerror or error}.") from error
    print(f"wrote {target}", file=sys.stderr)
