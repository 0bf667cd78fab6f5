"""Write ``docs/api.md``, the reference of all public names, from their docstrings.

    python docs/make_api.py            # write the page
    python docs/make_api.py --check    # exit with 1 if the page is not what would be written

In: the public names of ``remat_plan``, their signatures and docstrings. Out: Markdown. Docstrings are in the form that
the package uses: a summary, paragraphs, then sections such as ``Args:`` and ``Example:``.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "api.md"
SUBMODULES = ("linen", "nnx")
RESULTS = (
    ("remat_plan.results.analysis", ("Analysis", "Residual")),
    ("remat_plan.results.tradeoff", ("Tradeoff", "TradeoffPoint")),
    ("remat_plan.results.comparison", ("Comparison", "ComparisonRow")),
    ("remat_plan.results.measurement", ("Measurement", "StepSeconds")),
)
"""Classes that the public functions return, but that nobody needs to import."""

_HEAD = """\
# Reference

Everything that `import remat_plan as rp` offers, made from the docstrings by `docs/make_api.py`. Bytes are bytes on one
device, seconds and FLOPs those of one gradient step.
"""
_SECTION = re.compile(r"(Args|Attributes|Returns|Yields|Raises|Examples?|Notes?|Limits)( \([^)]*\))?: ?(.*)")
_ITEM = re.compile(r"(\*{0,2}[A-Za-z_][\w.]*(?:, \*{0,2}[A-Za-z_][\w.]*)*): (.*)")


def main(arguments: list[str]) -> int:
    """Write the page, or check it; return the exit code."""
    text = make_page()
    if arguments == ["--check"]:
        current = PAGE.read_text() == text if PAGE.exists() else False
        print("docs/api.md is up to date" if current else "docs/api.md is old: run python docs/make_api.py")
        return 0 if current else 1
    PAGE.write_text(text)
    print(f"wrote {PAGE.relative_to(ROOT)}")
    return 0


def make_page() -> str:
    """Return the whole page."""
    package = importlib.import_module("remat_plan")
    names = [name for name in package.__all__ if not isinstance(getattr(package, name), ModuleType)]
    parts = [_HEAD, *(entry(f"rp.{name}", getattr(package, name)) for name in names)]
    for name in SUBMODULES:
        if importlib.util.find_spec(f"remat_plan.{name}") is not None:
            parts += list(submodule(name))
    parts.append("# What they return\n")
    for module, classes in RESULTS:
        parts += [entry(name, getattr(importlib.import_module(module), name)) for name in classes]
    return "\n".join(parts)


def submodule(name: str) -> Iterator[str]:
    """The public functions and classes of a module such as ``rp.linen``."""
    module = importlib.import_module(f"remat_plan.{name}")
    yield f"# rp.{name}\n\n{prose(inspect.getdoc(module) or '')}"
    own = [k for k, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == module.__name__]
    for function in getattr(module, "__all__", sorted(k for k in own if not k.startswith("_"))):
        yield entry(f"rp.{name}.{function}", getattr(module, function))


def entry(title: str, thing: Any) -> str:
    """One function, class or value: heading, signature, docstring; of a class its methods too."""
    lines = [f"## {title}", ""]
    if inspect.isfunction(thing):
        lines += ["```text", signature(title, thing), "```", ""]
    lines.append(prose(inspect.getdoc(thing) or ""))
    if inspect.isclass(thing):
        for name, member in vars(thing).items():
            lines += [*method(name, member)]
    return "\n".join(lines)


def method(name: str, member: Any) -> Iterator[str]:
    """A public method or property of a class."""
    if name.startswith("_") or not (isinstance(member, property | staticmethod) or inspect.isfunction(member)):
        return
    doc = inspect.getdoc(member)
    if not doc:
        return
    if isinstance(member, property):
        yield f"### `.{name}`\n"
    else:
        function: Callable[..., Any] = member.__func__ if isinstance(member, staticmethod) else member
        yield f"### `{signature(f'.{name}', function, bound=not isinstance(member, staticmethod))}`\n"
    yield prose(doc)


def signature(title: str, function: Callable[..., Any], bound: bool = False) -> str:
    """Name, parameters and what is returned, on one line where there is room or ``bound``."""
    found = inspect.signature(function)
    rows = parameters(list(found.parameters.values())[1 if bound else 0 :])
    returned = "" if found.return_annotation is found.empty else f" -> {annotation(found.return_annotation)}"
    line = f"{title}({', '.join(rows)}){returned}"
    if bound or len(line) <= 100:
        return line
    return "\n".join([f"{title}(", *(f"    {row}," for row in rows), f"){returned}"])


def parameters(given: list[inspect.Parameter]) -> list[str]:
    """Parameters as they are written in the source, with ``*`` where those by keyword begin."""
    texts: list[str] = []
    for p in given:
        if p.kind is p.KEYWORD_ONLY and not any(text.startswith("*") for text in texts):
            texts.append("*")
        star = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        kind = "" if p.annotation is p.empty else f": {annotation(p.annotation)}"
        default = "" if p.default is p.empty else f"{' = ' if kind else '='}{p.default!r}"
        texts.append(f"{star}{p.name}{kind}{default}")
    return texts


def annotation(given: Any) -> str:
    """An annotation as it is written: with postponed evaluation it is a string."""
    return given if isinstance(given, str) else inspect.formatannotation(given)


def prose(doc: str) -> str:
    """A docstring as Markdown: sections as lists, examples as blocks."""
    out: list[str] = []
    for title, lines in sections(doc):
        if title:
            out += ["", f"**{title}**", ""]
        listed = title.startswith(("Args", "Attributes", "Raises"))
        out += list(items(lines)) if listed else list(body(lines))
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(out).strip() + "\n")
    return re.sub(r"(?<!`)``([^`\n]+)``(?!`)", r"`\1`", text)


def sections(doc: str) -> Iterator[tuple[str, list[str]]]:
    """Split a docstring into (title, lines without their indent); the first title is ""."""
    title, lines = "", []
    for line in doc.splitlines():
        found = _SECTION.fullmatch(line)
        if found:
            yield title, lines
            title, lines = found[1] + (found[2] or ""), [found[3]] if found[3] else []
        else:
            lines.append(line.removeprefix("    ") if title else line)
    yield title, lines


def items(lines: list[str]) -> Iterator[str]:
    """``name: text`` with continuation lines, as a list."""
    for line in lines:
        found = _ITEM.fullmatch(line)
        if found:
            yield f"* `{found[1]}`: {found[2]}"
        elif line.strip():
            yield f"  {line.strip()}" if line.startswith(" ") else line
        else:
            yield ""


def body(lines: list[str]) -> Iterator[str]:
    """Paragraphs; sessions that begin with ``>>>`` become blocks."""
    inside = False
    for line in lines:
        begins = line.startswith(">>>")
        if begins and not inside:
            yield "```pycon"
            inside = True
        if inside and not line.strip():
            yield "```"
            inside = False
        yield line
    if inside:
        yield "```"


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main(sys.argv[1:]))
