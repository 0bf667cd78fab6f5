"""Stored data, read with care: every field is checked, and what is wrong is named by its place.

In: what ``json.loads`` returned. Out: ``Fields``, whose methods return one field each, of the right type, or raise
``ValueError`` that names it, for example ``schedule[3].end``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, TypeVar
from unicodedata import category

_MISSING = object()

LARGEST = 2**63 - 1
"""No integer beyond it is read: more bytes, steps or equations there are nowhere, and arithmetic on it may overflow."""

_UNPRINTABLE = ("Cc", "Cs")
"""Classes of characters that are in no text we write, line ends and tabs apart: what controls a terminal, and halves of
surrogate pairs, which cannot be printed."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of one JSON object.

    Attributes:
        data: the object.
        place: where it stands; "" for the whole.
        asked: the fields that were read.
    """

    data: dict[str, Any]
    place: str = ""
    asked: set[str] = field(default_factory=set)

    @staticmethod
    def of(data: Any, place: str) -> Fields:
        """The fields of what has to be an object."""
        return Fields(check_type(data, dict, place, "an object"), place)

    def at(self, name: str) -> str:
        """The place of a field."""
        return f"{self.place}.{name}" if self.place else name

    def any(self, name: str, default: Any = _MISSING) -> Any:
        """A field as it is; without a default it has to be there."""
        self.asked.add(name)
        found = self.data.get(name, default)
        if found is _MISSING:
            raise ValueError(f"{self.at(name)} is missing")
        return found

    def text(self, name: str, among: Collection[str] = ()) -> str:
        """A string; one of some, where they are given."""
        found = check_text(self.any(name), self.at(name))
        if among and found not in among:
            raise ValueError(f"{self.at(name)} is {found!r}, not one of {', '.join(map(repr, among))}")
        return found

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings."""
        return tuple(check_text(item, place) for item, place in self.items(name))

    def flag(self, name: str, default: Any = _MISSING) -> bool:
        """True or false."""
        return check_type(self.any(name, default), bool, self.at(name), "true or false")

    def whole(self, name: str) -> int:
        """An integer of either sign."""
        return check_whole(self.any(name), self.at(name))

    def wholes(self, name: str) -> tuple[int, ...]:
        """A list of integers of either sign."""
        return tuple(check_whole(item, place) for item, place in self.items(name))

    def count(self, name: str, least: int = 0, default: Any = _MISSING) -> int:
        """An integer of at least ``least``."""
        return check_count(self.any(name, default), self.at(name), least)

    def count_or_none(self, name: str) -> int | None:
        """An integer of at least 0, or null."""
        return None if self.any(name) is None else self.count(name)

    def counts(self, name: str) -> tuple[int, ...]:
        """A list of integers of at least 0."""
        return tuple(check_count(item, place) for item, place in self.items(name))

    def number(self, name: str) -> float:
        """A finite number of at least 0."""
        return check_number(self.any(name), self.at(name), 0)

    def number_or_none(self, name: str) -> float | None:
        """A finite number of at least 0, or null."""
        return None if self.any(name) is None else self.number(name)

    def change(self, name: str) -> float:
        """A finite number of at least -1: by which share something grows."""
        return check_number(self.any(name), self.at(name), -1)

    def change_or_none(self, name: str) -> float | None:
        """The same, or null."""
        return None if self.any(name) is None else self.change(name)

    def span(self, name: str) -> tuple[int, int]:
        """Two integers of at least 0, as a list."""
        found = self.counts(name)
        if len(found) != 2:
            raise ValueError(f"{self.at(name)} has {len(found)} numbers, not 2")
        return found[0], found[1]

    def items(self, name: str, default: Any = _MISSING) -> list[tuple[Any, str]]:
        """The items of a list, each with its place."""
        return items_of(self.any(name, default), self.at(name))

    def inside(self, name: str) -> Fields:
        """The fields of an object inside."""
        return Fields.of(self.any(name), self.at(name))

    def finish(self) -> None:
        """Raise ``ValueError`` if there are fields that nothing asked for."""
        if more := sorted(set(self.data) - self.asked):
            raise ValueError(f"{self.at(more[0])} is not a field that is known here")


def items_of(found: Any, place: str) -> list[tuple[Any, str]]:
    """The items of what has to be a list, each with its place."""
    return [(item, f"{place}[{n}]") for n, item in enumerate(check_type(found, list, place, "a list"))]


def read_objects(fields: Fields, name: str, read: Callable[[Fields], T]) -> Iterator[T]:
    """Read each object of a list; none may have fields that ``read`` does not ask for."""
    for item, place in fields.items(name):
        inside = Fields.of(item, place)
        yield read(inside)
        inside.finish()


def check_type(found: Any, kind: type, place: str, words: str) -> Any:
    """Return what is of a type, or raise ``ValueError``."""
    if not isinstance(found, kind):
        raise ValueError(f"{place} is {kind_of(found)}, not {words}")
    return found


def check_number(found: Any, place: str, least: int) -> float:
    """Return a finite number of at least ``least``, or raise ``ValueError``."""
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise ValueError(f"{place} is {kind_of(found)}, not a number")
    if isinstance(found, int):
        return float(check_count(found, place, least))
    if not isfinite(found) or found < least:
        raise ValueError(f"{place} is {found}, not a finite number of at least {least}")
    return found


def check_text(found: Any, place: str) -> str:
    """Return a string that can be printed, or raise ``ValueError``."""
    text = check_type(found, str, place, "a string")
    if wrong := next((c for c in text if category(c) in _UNPRINTABLE and c not in "\n\t"), None):
        raise ValueError(f"{place} has the character {wrong!r}, which cannot be printed")
    return text


def check_whole(found: Any, place: str) -> int:
    """Return an integer of at most ``LARGEST``, of either sign, or raise ``ValueError``."""
    if isinstance(found, bool) or not isinstance(found, int):
        raise ValueError(f"{place} is {kind_of(found)}, not an integer")
    if abs(found) > LARGEST:
        raise ValueError(f"{place} is an integer of more than 64 bits")
    return found


def check_count(found: Any, place: str, least: int = 0) -> int:
    """Return an integer of at least ``least``, or raise ``ValueError``."""
    if check_whole(found, place) < least:
        raise ValueError(f"{place} is {found}, less than {least}")
    return found


def kind_of(found: Any) -> str:
    """What a JSON value is, in words.

    >>> kind_of(None), kind_of([1]), kind_of(True), kind_of(3)
    ('null', 'a list', 'true or false', 'an integer')
    """
    if found is None:
        return "null"
    words = {dict: "an object", list: "a list", str: "a string", bool: "true or false", int: "an integer"}
    return words.get(type(found), "a number")
