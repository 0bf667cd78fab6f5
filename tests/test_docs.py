"""What the documents say runs: the Python blocks of README.md and docs/*.md.

The blocks of one file share a namespace and run in order. A comment in the line before a block says more:
``<!-- needs: flax -->`` leaves it out where that module is not installed, ``<!-- not run -->`` always.
"""

import importlib
import importlib.util
import re
from pathlib import Path
from typing import NamedTuple

import pytest

import remat_plan as rp

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

_BLOCK = re.compile(r"(?:^<!-- (?P<mark>[^\n]*?) -->\n)?^```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)(?:#[^)]*)?\)")
_OUTPUT = re.compile(r"^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def lines(text: str) -> list[str]:
    """The lines of an output without figures, which differ between versions and devices, and without gaps."""
    text = re.sub(r"\b[0-9a-f]{16}\b|[-+]?\d[\d.]*(%| [kMG]?(B|FLOP)\b)?", "#", text)
    return [" ".join(re.sub(r"\bcompiles?\b", "compiles", line).split()) for line in text.splitlines()]


class Block(NamedTuple):
    """One Python block: its code, the first line of it in the file, and the comment before it."""

    code: str
    line: int
    mark: str

    @property
    def runs(self) -> bool:
        return self.mark != "not run" and not self.missing

    @property
    def missing(self) -> list[str]:
        needed = self.mark.removeprefix("needs:").split(",") if self.mark.startswith("needs:") else []
        return [name.strip() for name in needed if not is_installed(name.strip())]


def is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # a parent package is missing
        return False


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [Block(m["code"], text.count("\n", 0, m.start("code")), m["mark"] or "") for m in _BLOCK.finditer(text)]


LONG = {
    "README.md",
    "faq.md",
    "index.md",
    "guide.md",
    "loops.md",
    "measuring.md",
    "migrating.md",
    "strategies.md",
    "structures.md",
    "training.md",
}
CASES = [pytest.param(p, marks=[pytest.mark.slow, pytest.mark.texts] if p.name in LONG else ()) for p in PAGES]


@pytest.mark.parametrize("page", CASES, ids=lambda page: page.name)
def test_blocks_run_and_print_the_lines_that_are_shown(page, tmp_path, monkeypatch, capsys):
    if is_installed("matplotlib"):
        importlib.import_module("matplotlib").use("Agg")
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__main__"}
    for block in blocks(page):
        if block.runs:
            code = "\n" * block.line + block.code  # line numbers of the file in tracebacks
            exec(compile(code, str(page), "exec"), namespace)
    printed = capsys.readouterr().out
    for shown in _OUTPUT.findall(page.read_text()):
        if shown.startswith("<"):  # one line, broken to fit the page
            assert " ".join(lines(shown)) in lines(printed)
        else:  # rows of decisions and of batches, which begin with numbers, are of one version and device
            assert {line for line in lines(shown) if line[:1].isalpha()} <= set(lines(printed))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_is_found_and_marked_in_words_that_are_known(page):
    found = blocks(page)
    assert len(found) == page.read_text().count("```python")
    for block in found:
        assert re.fullmatch(r"|not run|needs: [\w., ]+", block.mark), block.mark


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_fit_the_site_and_write_shares_as_the_program_does(page):
    assert [line for block in blocks(page) for line in block.code.splitlines() if len(line) > 88] == []
    assert re.findall(r"\d %(?![\w(])", page.read_text()) == []


def test_few_blocks_are_never_run():
    marks = [block.mark for page in PAGES for block in blocks(page)]
    assert marks.count("not run") <= 2


def test_the_output_shown_has_the_lines_of_a_plan(capsys):
    """Figures differ between machines and versions; what they are called does not."""
    page = ROOT / "docs/guide.md"
    shown = _OUTPUT.search(page.read_text())
    assert shown is not None
    first = blocks(page)[0]
    exec(compile(first.code, "example.py", "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    for text in (shown[1], printed):
        assert "example.py:7" in text
    label = re.compile(r"^  ([A-Za-z][A-Za-z, ]+?)(?:  |: )", re.MULTILINE)
    assert label.findall(shown[1]) == label.findall(printed)
    header = re.compile(r"^ *equations .*source$", re.MULTILINE)
    words = [found.group().split() for text in (shown[1], printed) if (found := header.search(text))]
    assert len(words) == 2
    assert words[0] == words[1]


def test_every_public_name_is_in_the_reference():
    """A name is shown from the module that defines it, under the name that users write."""
    page = (ROOT / "docs/api.md").read_text()
    entries = dict(re.findall(r"^::: (\S+)\n    options: \{heading: rp\.([\w.]+),", page, re.MULTILINE))
    shown = {name: path for path, name in entries.items()}
    assert set(shown) == {*rp.__all__, "linen", "nnx"}
    for name, path in shown.items():
        module, _, last = path.rpartition(".")
        assert getattr(rp, name) is getattr(importlib.import_module(module), last), path


def test_every_page_is_in_the_menu_of_the_site():
    menu = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert len(menu) == len(set(menu))
    for page in PAGES:
        assert page.relative_to(ROOT).as_posix() in menu
    assert all((ROOT / page).exists() for page in menu if page != "benchmarks/results/index.md")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_inside_the_repository_lead_somewhere(page):
    for target in _LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), target
