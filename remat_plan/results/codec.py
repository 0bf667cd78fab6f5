"""Frozen records as plain data for JSON, and back: every field is checked, and what is wrong is named by its place.

In: a record, or what ``json.loads`` returned and the class that it is of. Out: plain data; the record, or
``ValueError`` that names a field, for example ``schedule[3].end``.

The annotation of a field says what it may be:

    int, float            finite, of 64 bits, at least 0 or what ``Annotated[int, 1]`` says
    bool, str             text that can be printed; one of ``Annotated[str, ("a", "b")]``
    X | None, X | Any     or null
    tuple[X, ...]         a list; tuple[X, Y] a list of two
    a dataclass           an object with its fields: all but those that do not count when records are compared

    a class of ``store_kinds``   an object of one of its kinds, with the name of the kind as ``kind``

``store_as`` gives a class another shape, or a check of its fields against each other.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping
from math import isfinite
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints
from unicodedata import category

LARGEST = 2**63 - 1
"""No integer beyond it is read: more bytes, steps or equations there are nowhere, and arithmetic on it may overflow."""

_UNPRINTABLE = ("Cc", "Cs")
"""Classes of characters that are in no text we write, line ends and tabs apart: what controls a terminal, and halves of
surrogate pairs, which cannot be printed."""

Signed = Annotated[int, -LARGEST]
"""An integer of either sign."""
Change = Annotated[float, -1]
"""By which share something grows: less than nothing where it is faster."""

T = TypeVar("T")
Reader = Callable[[Any, str], Any]
"""Reads data at a place, or raises ``ValueError``."""
Shape = Literal["object", "sparse", "list", "bare"]
"""An object; one without the fields that have their defaults; a list of the fields; the only field itself."""


Check = Callable[[Any, str], None]
"""Given a record and its place, raises ``ValueError`` where fields contradict each other."""

_FORMS: defaultdict[type, tuple[Shape, Check | None]] = defaultdict(lambda: ("object", None))


def store_as(kind: type, shape: Shape = "object", check: Check | None = None) -> None:
    """Say how records of a class are stored."""
    _FORMS[kind] = shape, check


_KINDS: dict[type, Mapping[str, type]] = {}


def store_kinds(base: type, kinds: Mapping[str, type]) -> None:
    """Say that where a class is expected there may be records of other classes, by their names; there may be more."""
    _KINDS[base] = kinds


def encode(value: Any) -> Any:
    """Return a record, or what a field of one holds, as plain data.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Point:
    ...     place: tuple[int, int]
    >>> encode(Point((1, 2)))
    {'place': [1, 2]}
    """
    if isinstance(value, tuple):
        return [encode(item) for item in value]
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    shape, data = _FORMS[type(value)][0], encode_fields(value)
    if shape == "bare":
        return data.popitem()[1]
    if shape != "object":
        changed = {f.name for f in dataclasses.fields(value) if getattr(value, f.name) != f.default}
        data = {name: field for name, field in data.items() if name in changed}
    named = [name for kinds in _KINDS.values() for name, kind in kinds.items() if kind is type(value)]
    return list(data.values()) if shape == "list" else {"kind": named[0], **data} if named else data


def encode_fields(record: Any) -> dict[str, Any]:
    """Return all fields of a record as plain data, whatever shape it is stored in."""
    return {f.name: encode(getattr(record, f.name)) for f in dataclasses.fields(record) if f.compare}


def decode(kind: type[T], data: Any, place: str = "") -> T:
    """Return what ``encode`` made data of: a record of a class, or another annotation; ``ValueError`` names a place."""
    return _reader(kind)(data, place)


@functools.cache
def _fields(kind: type) -> dict[str, tuple[Reader, bool]]:
    """The stored fields of a class: what reads each, and whether it must be there."""
    hints = get_type_hints(kind, include_extras=True)
    required = _FORMS[kind][0] == "object"
    return {
        f.name: (_reader(hints[f.name]), required or f.default is dataclasses.MISSING)
        for f in dataclasses.fields(kind)
        if f.compare
    }


def _read_record(kind: type, data: Any, place: str) -> Any:
    (shape, check), fields = _FORMS[kind], _fields(kind)
    if shape == "bare":
        (name,) = fields
        data, places = {name: data}, {name: place}
    elif shape == "list":
        items = _typed(data, list, place, "a list")
        if not sum(required for _, required in fields.values()) <= len(items) <= len(fields):
            raise ValueError(f"{place} has {len(items)} items, not {', '.join(fields)}")
        data = dict(zip(fields, items, strict=False))
        places = {name: f"{place}[{n}]" for n, name in enumerate(fields)}
    else:
        data = _typed(data, dict, place, "an object")
        places = {name: f"{place}.{name}" if place else name for name in (*fields, *data)}
    values = {}
    for name, (read, required) in fields.items():
        if name in data:
            values[name] = read(data[name], places[name])
        elif required:
            raise ValueError(f"{places[name]} is missing")
    if unknown := sorted(data.keys() - fields.keys()):
        raise ValueError(f"{places[unknown[0]]} is not a field that is known here")
    record = kind(**values)
    if check is not None:
        check(record, place)
    return record


def _read_kind(base: type, data: Any, place: str) -> Any:
    fields, kinds = dict(_typed(data, dict, place, "an object")), _KINDS[base]
    name = _text(fields.pop("kind", None), f"{place}.kind", tuple(kinds))
    return _read_record(kinds[name], fields, place)


@functools.cache
def _reader(kind: Any) -> Reader:
    """What reads a value with this annotation."""
    if kind in _KINDS:
        return functools.partial(_read_kind, kind)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return functools.partial(_read_record, kind)
    simple = {int: check_count, float: _number, str: _text, bool: _flag}
    if kind in simple:
        return simple[kind]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return lambda found, place: simple[arguments[0]](found, place, arguments[1])
    if origin is tuple:
        of_any_length = arguments[1:] == (...,)
        readers = (_reader(arguments[0]),) if of_any_length else tuple(map(_reader, arguments))
        return functools.partial(_items, readers=readers, of_any_length=of_any_length)
    (inside,) = (a for a in arguments if a not in (NoneType, Any))
    read = _reader(inside)
    return lambda found, place: None if found is None else read(found, place)


def _items(found: Any, place: str, readers: tuple[Reader, ...], of_any_length: bool) -> tuple[Any, ...]:
    items, read = _typed(found, list, place, "a list"), []
    if not of_any_length and len(items) != len(readers):
        raise ValueError(f"{place} has {len(items)} items, not {len(readers)}")
    for number, (reader, item) in enumerate(zip(itertools.cycle(readers), items, strict=False)):
        read.append(reader(item, f"{place}[{number}]"))  # no comprehension: it would deepen the recursion
    return tuple(read)


def _typed(found: Any, kind: type, place: str, words: str) -> Any:
    if not isinstance(found, kind):
        raise ValueError(f"{place or 'the text'} is {kind_of(found)}, not {words}")
    return found


def _flag(found: Any, place: str) -> bool:
    return _typed(found, bool, place, "true or false")


def _text(found: Any, place: str, among: tuple[str, ...] = ()) -> str:
    text = _typed(found, str, place, "a string")
    if wrong := next((c for c in text if category(c) in _UNPRINTABLE and c not in "\n\t"), None):
        raise ValueError(f"{place} has the character {wrong!r}, which cannot be printed")
    if among and text not in among:
        raise ValueError(f"{place} is {text!r}, not one of {', '.join(map(repr, among))}")
    return text


def check_count(found: Any, place: str, least: int = 0) -> int:
    """Return an integer of at least ``least`` and at most ``LARGEST``, or raise ``ValueError``."""
    if isinstance(found, bool) or not isinstance(found, int):
        raise ValueError(f"{place} is {kind_of(found)}, not an integer")
    if abs(found) > LARGEST:
        raise ValueError(f"{place} is an integer of more than 64 bits")
    if found < least:
        raise ValueError(f"{place} is {found}, less than {least}")
    return found


def _number(found: Any, place: str, least: int = 0) -> float:
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise ValueError(f"{place} is {kind_of(found)}, not a number")
    if isinstance(found, int):
        return float(check_count(found, place, least))
    if not isfinite(found) or found < least:
        raise ValueError(f"{place} is {found}, not a finite number of at least {least}")
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
