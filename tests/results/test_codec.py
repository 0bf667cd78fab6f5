"""One codec for records: what is written is read back, and annotations say what is refused."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest

from remat_plan.graph.schedule import Choice, Part, Segment, as_is, saving, structured
from remat_plan.results import stored  # noqa: F401 (says how ways are stored)
from remat_plan.results.codec import LARGEST, Change, Signed, decode, encode, store_as
from remat_plan.results.evidence import Search, Tried


@dataclass(frozen=True)
class Inner:
    size: Annotated[int, 1] = 1
    word: Annotated[str, ("good", "bad")] = "good"


@dataclass(frozen=True)
class Outer:
    count: int
    sign: Signed
    share: float
    change: Change | None
    asked: int | Any
    flag: bool
    text: str
    pair: tuple[int, str]
    inners: tuple[Inner, ...]
    seconds: float = field(default=0.0, compare=False)


GOOD = Outer(3, -2, 0.5, None, None, True, "a\nb", (1, "x"), (Inner(), Inner(2, "bad")), seconds=9.0)


def test_what_is_written_is_read_back():
    data = encode(GOOD)
    assert "seconds" not in data, "what does not count when records are compared is not stored"
    assert data["inners"] == [{"size": 1, "word": "good"}, {"size": 2, "word": "bad"}]
    assert decode(Outer, data) == GOOD
    assert decode(Outer, {**data, "share": 1}).share == 1.0, "an integer is a number"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"count": -1}, "here.count is -1, less than 0"),
        ({"count": True}, "here.count is true or false, not an integer"),
        ({"sign": -LARGEST - 1}, "here.sign is an integer of more than 64 bits"),
        ({"share": -0.5}, "here.share is -0.5, not a finite number of at least 0"),
        ({"change": -1.5}, "here.change is -1.5, not a finite number of at least -1"),
        ({"asked": "x"}, "here.asked is a string, not an integer"),
        ({"flag": 1}, "here.flag is an integer, not true or false"),
        ({"text": "\x07"}, r"here.text has the character '\x07', which cannot be printed"),
        ({"pair": [1]}, "here.pair has 1 items, not 2"),
        ({"pair": [1, 2]}, "here.pair[1] is an integer, not a string"),
        ({"inners": {}}, "here.inners is an object, not a list"),
        ({"inners": [{"size": 0, "word": "good"}]}, "here.inners[0].size is 0, less than 1"),
        ({"inners": [{"size": 1, "word": "ugly"}]}, "here.inners[0].word is 'ugly', not one of 'good', 'bad'"),
        ({"inners": [{"size": 1}]}, "here.inners[0].word is missing"),
        ({"more": 1}, "here.more is not a field that is known here"),
    ],
)
def test_what_is_wrong_is_named_by_its_place(change, told):
    with pytest.raises(ValueError, match=f"^{re.escape(told)}$"):
        decode(Outer, {**encode(GOOD), **change}, "here")


def test_defaults_may_be_left_out_where_a_class_says_so():
    @dataclass(frozen=True)
    class Sparse:
        start: int
        marks: tuple[int, ...] = ()

    store_as(Sparse, "sparse")
    assert encode(Sparse(1)) == {"start": 1}
    assert decode(Sparse, {"start": 1}) == Sparse(1)
    with pytest.raises(ValueError, match="start is missing"):
        decode(Sparse, {"marks": []})


def test_schedules_are_stored_as_they_were():
    steps = (saving(0, 4, (2,)), as_is(4, 6))
    choice = Choice((Part(6, steps, (2, 3)), Part(1, (as_is(0, 6),))), slots=2)
    data = encode(structured(3, choice))
    inner = [{"start": 0, "end": 4, "way": {"kind": "keep", "actions": [[2, "save"]]}}, {"start": 4, "end": 6}]
    parts = [[6, inner, [2, 3]], [1, [{"start": 0, "end": 6}]]]
    way = {"kind": "plain", "choices": [[3, {"parts": parts, "slots": 2}]]}
    assert data == {"start": 3, "end": 4, "way": way}
    assert encode(decode(Segment, data)) == data


@pytest.mark.parametrize(
    ("way", "told"),
    [
        (
            {"kind": "twice"},
            "way.kind is 'twice', not one of 'plain', 'keep', 'around', 'split', 'written'",
        ),
        ({"actions": []}, "way.kind is null, not a string"),
        ({"kind": "plain", "actions": []}, "way.actions is not a field that is known here"),
        ({"kind": "keep", "schedule": []}, "way.schedule is not a field that is known here"),
        ([], "way is a list, not an object"),
    ],
)
def test_a_way_has_a_kind_and_the_fields_of_that(way, told):
    with pytest.raises(ValueError, match=told):
        decode(Segment, {"start": 0, "end": 4, "way": way})


def test_a_search_is_stored_as_its_rows():
    search = Search((Tried("plain", 3, 4, -0.1, None, 0.2, True, False),))
    assert encode(search) == [dataclasses.asdict(search.rows[0])]
    assert decode(Search, encode(search), "search") == search
    with pytest.raises(ValueError, match=r"search\[0\]\.overhead is -2.0"):
        decode(Search, [{**encode(search)[0], "overhead": -2.0}], "search")
