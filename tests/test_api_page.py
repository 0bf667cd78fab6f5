"""docs/api.md says what the docstrings say."""

import importlib.util
import inspect
import re
from pathlib import Path

import pytest

import remat_plan as rp

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def maker():
    spec = importlib.util.spec_from_file_location("make_api", ROOT / "docs" / "make_api.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date(maker):
    assert maker.PAGE.read_text() == maker.make_page(), "run: python docs/make_api.py"


def test_every_public_name_is_there(maker):
    page = maker.make_page()
    for name in rp.__all__:
        if not inspect.ismodule(getattr(rp, name)):
            assert f"\n## rp.{name}\n" in page
    for name in ("Tradeoff", "Analysis", "Comparison"):
        assert f"\n## {name}\n" in page
    assert "### `.apply(fn: Callable[P, R]) -> Applied[P, R]`" in page


def test_blocks_are_closed_and_marks_are_markdown(maker):
    page = maker.make_page()
    assert page.count("```") == 2 * len(re.findall(r"^```(?:text|pycon)$", page, re.M))
    assert not re.search(r"(?<!`)``[^`]", page)
    assert "\n\n\n" not in page
    assert not re.search(r" at 0x[0-9a-f]+|/home/|/tmp/", page), "nothing of the machine that wrote it"


def test_signatures_are_written_as_in_the_source(maker):
    def example(a, b: "int" = 3, *rest, c: "str | None" = "x", **more) -> "list[int]":
        """Say."""

    assert maker.signature("f", example) == "f(a, b: int = 3, *rest, c: str | None = 'x', **more) -> list[int]"

    def keywords(*, c=1):
        """Say."""

    assert maker.signature("f", keywords) == "f(*, c=1)"


def test_docstrings_become_markdown(maker):
    doc = (
        "First ``line``.\n\nArgs:\n    a, b: what\n        they are.\n    *c: more.\n\nReturns:\n    A thing.\n\n"
        "Example:\n    >>> 1 + 1\n    2\n"
    )
    assert maker.prose(doc) == (
        "First `line`.\n\n**Args**\n\n* `a, b`: what\n  they are.\n* `*c`: more.\n\n**Returns**\n\nA thing.\n\n"
        "**Example**\n\n```pycon\n>>> 1 + 1\n2\n```\n"
    )
