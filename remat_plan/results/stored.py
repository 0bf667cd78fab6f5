"""Schedules and fingerprints, read back from JSON with every field checked.

In: ``Fields`` of a stored plan. Out: ``Schedule``, ``Fingerprint``; ``ValueError`` that names the field that is wrong.
Fields that are well formed, and not what was written, are told by a digest of all (``digest_of``).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from remat_plan.graph.action import action_of
from remat_plan.graph.fingerprint import Fingerprint
from remat_plan.graph.schedule import Schedule, Segment, check_cover
from remat_plan.results.reading import Fields, check_count, check_text, items_of

DEEPEST = 200
"""Segments inside segments, loops and branches that are read; a deeper schedule no strategy makes."""


DIGEST = "digest"
"""The field of a stored plan with the digest of all others."""


def digest_of(data: Mapping[str, Any]) -> str:
    """The digest of a stored plan's fields, but for itself."""
    text = json.dumps({name: value for name, value in data.items() if name != DIGEST}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def check_digest(fields: Fields) -> None:
    """Raise ``ValueError`` if a stored plan is not what was written. (Plans were written without a digest once.)"""
    if DIGEST in fields.data and fields.text(DIGEST) != digest_of(fields.data):
        raise ValueError(
            f"{fields.at(DIGEST)} is not that of the other fields: one was changed after plan.to_json() wrote them"
        )


def read_schedule(fields: Fields, name: str, equations: int) -> Schedule:
    """Read the schedule of a program with so many equations.

    Raises:
        ValueError: a field is wrong, or the segments do not cover the program; the message names the place.
    """
    found = fields.items(name)
    for item, place in found:
        _check_segment(item, place, 0)
    schedule = tuple(Segment.from_data(item) for item, _ in found)
    _check_cover(schedule, equations, fields.at(name))
    return schedule


def read_fingerprint(fields: Fields) -> Fingerprint:
    """Read the identity of a program.

    Raises:
        ValueError: a field is wrong; the message names it.
    """
    names = ("equations", "labels", "inputs")
    equations, labels, inputs = (fields.texts(name) for name in names)
    if len(equations) != len(labels):
        raise ValueError(f"{fields.at('labels')} has {len(labels)} texts for {len(equations)} equations")
    found = Fingerprint(fields.text("digest"), equations, labels, inputs, fields.wholes("differentiated"))
    fields.finish()
    return found


def _check_segment(data: Any, place: str, depth: int) -> None:
    if depth > DEEPEST:
        raise ValueError(f"{place} is nested too deeply: more than {DEEPEST} levels")
    fields = Fields.of(data, place)
    start, end = fields.count("start"), fields.count("end")
    if end < start:
        raise ValueError(f"{fields.at('end')} is {end}, before its start {start}")
    fields.flag("checkpointed", False)
    for pair, where in fields.items("actions", []):
        value, action = _pair(pair, where)
        check_count(value, f"{where}[0]")
        check_text(action, f"{where}[1]")
        try:
            action_of(action)
        except ValueError as error:
            raise ValueError(f"{where}[1]: {str(error).rstrip('.')}") from None
    for child, where in fields.items("children", []):
        _check_segment(child, where, depth + 1)
    for pair, where in fields.items("choices", []):
        index, choice = _pair(pair, where)
        check_count(index, f"{where}[0]")
        _check_choice(choice, f"{where}[1]", depth + 1)
    fields.finish()


def _check_choice(data: Any, place: str, depth: int) -> None:
    fields = Fields.of(data, place)
    parts = fields.items("parts")
    if not parts:
        raise ValueError(f"{fields.at('parts')} is empty")
    fields.count("slots", default=0)
    fields.finish()
    for part, where in parts:
        pieces = items_of(part, where)
        if len(pieces) not in (2, 3):
            raise ValueError(f"{where} has {len(pieces)} items, not a count, a schedule and perhaps groups")
        check_count(pieces[0][0], pieces[0][1])
        segments = items_of(*pieces[1])
        for segment, at in segments:
            _check_segment(segment, at, depth)
        for groups, at in items_of(*pieces[2]) if len(pieces) == 3 else []:
            check_count(groups, at, 1)
        if segments:
            read = tuple(Segment.from_data(segment) for segment, _ in segments)
            _check_cover(read, read[-1].end, pieces[1][1])


def _pair(data: Any, place: str) -> tuple[Any, Any]:
    found = items_of(data, place)
    if len(found) != 2:
        raise ValueError(f"{place} has {len(found)} items, not 2")
    return found[0][0], found[1][0]


def _check_cover(schedule: Schedule, equations: int, place: str) -> None:
    try:
        check_cover(schedule, 0, equations)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None
