"""Rows that take minutes each to make, kept as JSON beside their table: a run goes on where the last one stopped.

In: records of one kind, each with a key. Out: a file with one record a line, written again after each.

A row that is there is not made again; to make it again, delete its line. Two runs at once, for two targets say, may
share a file: what the other wrote since is read before each write.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Kept(Generic[T]):
    """The records in a file.

    Attributes:
        path: of the file.
        restore: makes a record of the fields that were written.
        key: tells records apart.
    """

    path: Path
    restore: Callable[..., T]
    key: Callable[[T], Hashable]

    def read(self) -> list[T]:
        """What is there, in the order it came; nothing where there is no file."""
        if not self.path.exists():
            return []
        return [self.restore(**fields) for fields in json.loads(self.path.read_text(encoding="utf-8"))]

    def find(self, key: Hashable) -> T | None:
        """The record with this key."""
        return next((record for record in self.read() if self.key(record) == key), None)

    def put(self, record: T) -> T:
        """Write a record, in the place of one with the same key; return it."""
        records = [r for r in self.read() if self.key(r) != self.key(record)] + [record]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lines = ",\n".join(json.dumps(asdict(r)) for r in records)  # pyright: ignore[reportArgumentType]
        self.path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
        return record
