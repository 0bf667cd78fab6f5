"""Plans as text: JSON of their fields, with the number of its form and a digest.

In: a ``Plan``, or the text that one was written to. Out: the text; the ``Plan``, whole, or ``ValueError`` that names
what is wrong. Fields that are well formed, and not what was written, are told by the digest of all.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, TypeVar

from remat_plan.graph.action import action_of
from remat_plan.graph.fingerprint import Fingerprint
from remat_plan.graph.schedule import Choice, Part, Schedule, Segment, check_cover, inside_of, is_written
from remat_plan.graph.ways import WAYS, Split, Way
from remat_plan.results.codec import check_count, decode, encode, kind_of, store_as, store_kinds
from remat_plan.results.decisions import count_segments
from remat_plan.results.evidence import MemoryTrace, Search
from remat_plan.small.wording import short

T = TypeVar("T")

FORMAT = 9
"""Number of the form of stored plans: one more with each change that an older version could not read."""
DEEPEST = 200
"""Segments inside segments, loops, branches and slices that are read; a deeper schedule no strategy makes."""
DIGEST = "digest"
"""The field of a stored plan with the digest of all others."""


def digest_of(data: Mapping[str, Any]) -> str:
    """The digest of a stored plan's fields, but for itself."""
    text = json.dumps({name: value for name, value in data.items() if name != DIGEST}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def write_plan(plan: Any) -> str:
    """Return a plan as text, equal for equal plans."""
    data = {**encode(plan), "format": FORMAT}
    return json.dumps({**data, DIGEST: digest_of(data)}, sort_keys=True)


def read_plan(kind: type[T], source: str) -> T:
    """Read a plan, of the class of plans, back; see ``Plan.from_json``."""
    if not isinstance(source, str):
        found = type(source).__name__
        raise TypeError(f"Plan.from_json needs the text that plan.to_json() returned, not {found}.")
    deep = "Plan.from_json: the text is nested too deeply to be a plan."
    try:
        data = json.loads(source)
    except RecursionError:
        raise ValueError(deep) from None
    except ValueError as error:
        is_path = "{" not in source and "\n" not in source
        hint = f" If {short(source)} is a path, pass the text of the file: Path(...).read_text()." if is_path else ""
        raise ValueError(f"Plan.from_json: this is not JSON ({error}).{hint}") from None
    try:
        return _read(kind, data)
    except RecursionError:
        raise ValueError(deep) from None
    except ValueError as error:
        raise ValueError(f"Plan.from_json: this is not a plan that can be read: {error}.") from None


def _read(kind: type, data: Any) -> Any:
    if not isinstance(data, dict):
        raise ValueError(f"the text is {kind_of(data)}, not an object")
    if "format" not in data:
        raise ValueError("it has no format number, so plan.to_json() did not write it")
    if (version := check_count(data["format"], "format")) != FORMAT:
        raise ValueError(
            f"it has format {version}, but this version of remat_plan reads format {FORMAT}; plan again with "
            "rp.plan(...), and store that plan"
        )
    plan = decode(kind, {name: field for name, field in data.items() if name not in ("format", DIGEST)})
    if _depth(plan.schedule) > DEEPEST:
        raise ValueError(f"schedule is nested too deeply: more than {DEEPEST} levels")
    if not is_written(plan.schedule):
        _check_cover(plan.schedule, len(plan.program.equations), "schedule")
    told, there = sum(d.count for d in plan.decisions), count_segments(plan.schedule)
    if told != there:
        raise ValueError(f"decisions has rows for {told} segments, and schedule has {there}")
    # Last, since what is wrong by itself has a better message. (Plans were written without a digest once.)
    if DIGEST in data and data[DIGEST] != digest_of(data):
        raise ValueError(f"{DIGEST} is not that of the other fields: one was changed after plan.to_json() wrote them")
    return plan


def _depth(schedule: Schedule) -> int:
    return 1 + max((_depth(inside_of(segment)) for segment in schedule), default=-1)


def _check_cover(schedule: Schedule, equations: int, place: str) -> None:
    try:
        check_cover(schedule, 0, equations)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None


def _check_segment(segment: Segment, place: str) -> None:
    if segment.end < segment.start:
        raise ValueError(f"{place}.end is {segment.end}, before its start {segment.start}")
    for n, (_, action) in enumerate(segment.actions):
        try:
            action_of(action)
        except ValueError as error:
            raise ValueError(f"{place}.way.actions[{n}][1]: {str(error).rstrip('.')}") from None


def _check_split(way: Split, place: str) -> None:
    check_count(way.slices, f"{place}.slices", 2)
    if not way.sliced:
        raise ValueError(f"{place}.sliced is empty")
    _check_cover(way.sliced, way.sliced[-1].end, f"{place}.sliced")


def _check_choice(choice: Choice, place: str) -> None:
    if not choice.parts:
        raise ValueError(f"{place}.parts is empty")


def _check_part(part: Part, place: str) -> None:
    for n, groups in enumerate(part.groups):
        check_count(groups, f"{place}[2][{n}]", 1)
    if part.schedule:
        _check_cover(part.schedule, part.schedule[-1].end, f"{place}[1]")


def _check_fingerprint(program: Fingerprint, place: str) -> None:
    equations, labels = len(program.equations), len(program.labels)
    if equations != labels:
        raise ValueError(f"{place}.labels has {labels} texts for {equations} equations")


def _check_trace(trace: MemoryTrace, place: str) -> None:
    positions, live = trace.positions, trace.live_bytes
    if len(positions) != len(live):
        raise ValueError(f"{place}.live_bytes has {len(live)} numbers for {len(positions)} positions")
    if any(b <= a for a, b in pairwise((-1, *positions, trace.steps))):
        raise ValueError(f"{place}.positions do not rise from 0 to below {place}.steps, {trace.steps}")


store_as(Segment, "sparse", _check_segment)
store_kinds(Way, WAYS)
for _way in WAYS.values():
    store_as(_way, "sparse", _check_split if issubclass(_way, Split) else None)
store_as(Choice, "sparse", _check_choice)
store_as(Part, "list", _check_part)
store_as(Fingerprint, check=_check_fingerprint)
store_as(MemoryTrace, check=_check_trace)
store_as(Search, "bare")
