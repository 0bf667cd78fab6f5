"""Results are shown by the row for their type, and know no rendering themselves."""

import ast
import dataclasses
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import remat_plan as rp
from remat_plan.report.renderers import RENDERERS
from remat_plan.results.analysis import Analysis
from remat_plan.results.curves import Comparison, Tradeoff
from remat_plan.results.shown import Shown, renderer_of

FOLDER = Path(rp.__file__).parent / "results"


@dataclasses.dataclass(frozen=True, repr=False)
class Found(Shown):
    size: int


def renderer(word):
    ways = "line", "text", "rich", "html", "plot"
    return SimpleNamespace(**{way: lambda *things, way=way: f"{word} {way} {things[0].size}" for way in ways})


def test_all_ways_to_show_a_result_go_to_its_renderer(monkeypatch):
    monkeypatch.setitem(RENDERERS, Found, renderer("found"))
    thing = Found(3)
    ways = (repr(thing), str(thing), thing.__rich__(), thing._repr_html_(), renderer_of(thing).plot(thing, None))
    assert ways == ("found line 3", "found text 3", "found rich 3", "found html 3", "found plot 3")


def test_the_nearest_type_says_how(monkeypatch):
    class Special(Found):
        pass

    monkeypatch.setitem(RENDERERS, Found, renderer("found"))
    assert str(Special(1)) == "found text 1"
    monkeypatch.setitem(RENDERERS, Special, renderer("special"))
    assert str(Special(1)) == "special text 1"
    assert str(Found(1)) == "found text 1"


def test_a_result_that_nothing_shows_says_so():
    with pytest.raises(TypeError, match="nothing shows a Found"):
        str(Found(1))


@pytest.mark.parametrize("kind", [rp.Plan, Analysis, Tradeoff, Comparison])
def test_all_results_are_shown(kind):
    assert issubclass(kind, Shown)
    assert kind in RENDERERS


def test_importing_the_renderers_imports_no_drawing():
    program = (
        "import sys, remat_plan, remat_plan.report.renderers; sys.exit(bool({'matplotlib', 'rich'} & {*sys.modules}))"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=120).returncode == 0


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.name)
def test_results_import_no_rendering_not_even_inside_functions(path):
    for node in ast.walk(ast.parse(path.read_text())):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert not [name for name in names if name.startswith("remat_plan.report")]
