"""The text of a compiled XLA module, taken apart.

In: what ``compiled.as_text()`` returns: optimised HLO, instructions in the order in which they run (operands first).
Out: ``Module``: computations by name, their instructions with opcode, type, operands, attributes.

Format: XLA's ``HloInstruction::ToString``. One instruction a line, or more where a kernel has metadata of its author:

    ROOT %name = f32[8,16]{1,0:T(8,128)} fusion(%a, %b), kind=kLoop, calls=%fused, backend_config={...}

Limits: attributes stay text, read by those who ask for one; what a line says in another form is skipped.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

_LINE = re.compile(r"\s+(ROOT )?%?([\w.\-]+) = (.*?) ?\b([a-z][\w\-]*)\(")
_HEADER = re.compile(r"(ENTRY )?%?([\w.\-]+) ")
_NAME = re.compile(r"%([\w.\-]+)")
_ARRAY = re.compile(r"\b([a-z]+)(\d*)[a-z0-9]*\[([\d,<=]*)\](?:{([^}]*)})?")
_HOST_MEMORY = "S(5)"
_LAYOUT = re.compile(r"\]{([\d,]+)")
_TYPE_NAMES = {"f": "float", "bf": "bfloat", "s": "int", "u": "uint", "c": "complex"}
_CALLED = "({[^}]*}|%?[\\w.\\-]+)"


class Array(NamedTuple):
    """An array as a compiled module has it, on the device or its host.

    It is of the kind ``"f"``, ``"bf"``, ``"s"``, ``"u"``, ``"c"`` or ``"pred"``.
    """

    kind: str
    item_bytes: float
    shape: tuple[int, ...]
    on_host: bool = False

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> float:
        """Bytes, without padding."""
        return self.item_bytes * self.size

    @property
    def dtype(self) -> str:
        """The type of an element by the name that JAX has for it.

        >>> Array("bf", 2.0, (8,)).dtype
        'bfloat16'
        """
        return f"{_TYPE_NAMES[self.kind]}{int(8 * self.item_bytes)}" if self.kind in _TYPE_NAMES else "bool"


class Instruction(NamedTuple):
    """One line of a computation: ``inside`` stands between its parentheses, ``attributes`` behind them.

    Names are without ``%``; the type is that of its result, as text.
    """

    name: str
    opcode: str
    type: str
    operands: tuple[str, ...]
    inside: str
    attributes: str

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The arrays of its result: one, or those of a tuple, those of tuples inside it in order."""
        return arrays_of(self.type)

    @property
    def array(self) -> Array | None:
        """The first of them."""
        return next(iter(self.arrays), None)

    @property
    def size(self) -> int:
        """Elements of its result."""
        return sum(array.size for array in self.arrays)

    @property
    def bytes(self) -> float:
        """Bytes of its result."""
        return sum(array.bytes for array in self.arrays)

    @property
    def minor_first(self) -> tuple[int, ...]:
        """The order of its dimensions in memory, neighbours first; that of C where the text has none.

        >>> Instruction("x", "copy", "f32[8,4,2]{2,0,1}", (), "", "").minor_first
        (2, 0, 1)
        """
        if found := _LAYOUT.search(self.type):
            return tuple(int(n) for n in found.group(1).split(","))
        return tuple(reversed(range(len(self.array.shape)))) if self.array is not None else ()

    def called(self, key: str) -> tuple[str, ...]:
        """The computations that an attribute names: ``calls``, ``body``, ``branch_computations``, ...

        >>> Instruction("f", "fusion", "f32[]", (), "", ", kind=kLoop, calls=%fused.1").called("calls")
        ('fused.1',)
        """
        found = re.search(rf"\b{key}={_CALLED}", self.attributes)
        return tuple(re.findall(r"[\w.\-]+", found.group(1))) if found else ()

    def numbers(self, key: str) -> tuple[int, ...]:
        """The numbers of an attribute in braces, such as ``lhs_contracting_dims={1}``; none where it is not there."""
        found = re.search(rf"\b{key}={{([\d,]*)}}", self.attributes)
        return tuple(int(n) for n in found.group(1).split(",") if n) if found else ()

    def word(self, key: str) -> str:
        """An attribute that is a word or a quoted text; "" where it is not there."""
        found = re.search(rf'\b{key}="?([^",\s]*)', self.attributes)
        return found.group(1) if found else ""


@dataclass(frozen=True, slots=True)
class Computation:
    """Instructions by name in the order in which they run; the result of the root is returned."""

    name: str
    instructions: dict[str, Instruction]
    root: Instruction

    def operand(self, instruction: Instruction, index: int) -> Instruction | None:
        """An operand; None where there is none, or none that was understood."""
        names = instruction.operands
        return self.instructions.get(names[index]) if index < len(names) else None

    def operand_array(self, instruction: Instruction, index: int) -> Array | None:
        """The array of an operand; None where there is none."""
        found = self.operand(instruction, index)
        return None if found is None else found.array


@dataclass(frozen=True, slots=True)
class Module:
    """A compiled module: its computations by name, and the one that is run."""

    computations: dict[str, Computation]
    entry: Computation

    def called(self, instruction: Instruction, *keys: str) -> list[Computation]:
        """The computations that an instruction calls under any of some attributes."""
        names = [name for key in keys for name in instruction.called(key)]
        return [self.computations[name] for name in names if name in self.computations]


@functools.lru_cache(maxsize=4096)  # types: a module has some hundreds
def arrays_of(text: str) -> tuple[Array, ...]:
    """The arrays of a type; tokens and the like have no bytes.

    >>> [(a.kind, a.bytes, a.on_host) for a in arrays_of("(bf16[8,4]{1,0:T(8,128)S(5)}, s32[], token[])")]
    [('bf', 64.0, True), ('s', 4.0, False)]
    """
    found = []
    for kind, bits, shape, layout in _ARRAY.findall(text):
        if bits or kind == "pred":
            sizes = tuple(int(n.strip("<=")) for n in shape.split(",") if n)
            found.append(Array(kind, int(bits or 8) / 8, sizes, _HOST_MEMORY in layout))
    return tuple(found)


def parse(text: str) -> Module | None:
    """Take a module apart; None for a text without an entry computation.

    >>> text = '''ENTRY %main (x: f32[4]) -> f32[4] {
    ...   %x = f32[4]{0} parameter(0)
    ...   ROOT %y = f32[4]{0} negate(%x), metadata={op_name="neg"}
    ... }'''
    >>> module = parse(text)
    >>> module.entry.root.opcode, module.entry.root.operands
    ('negate', ('x',))
    """
    computations: dict[str, Computation] = {}
    entry, name, is_entry = None, "", False
    instructions: dict[str, Instruction] = {}
    root = last = None
    for line in _whole_lines(text):
        if line.startswith("  "):
            read = _instruction(line) if name else None
            if read is not None:
                is_root, last = read
                instructions[last.name] = last
                root = last if is_root else root
        elif line.endswith("{") and (header := _HEADER.match(line)):
            is_entry, name, instructions, root, last = bool(header.group(1)), header.group(2), {}, None, None
        elif line == "}" and name and last is not None:
            made = computations[name] = Computation(name, instructions, root or last)
            entry, name = made if is_entry else entry, ""
    return None if entry is None else Module(computations, entry)


def _whole_lines(text: str) -> Iterator[str]:
    """The lines of a text, those of one instruction as one: what the author of a kernel says of it may go over several.

    >>> [*_whole_lines('  %a = f32[] custom-call(), x={k={' + chr(10) + '"block": 512' + chr(10) + '}}, y=1')]
    ['  %a = f32[] custom-call(), x={k={"block": 512}}, y=1']
    """
    held = ""
    for line in text.splitlines():
        if held.startswith("  ") and line[:1] not in ("", " ") and line != "}":
            held += line
            continue
        if held:
            yield held
        held = line
    yield held


def _instruction(line: str) -> tuple[bool, Instruction] | None:
    """Whether a line is the root, and its instruction; None for a line that has none."""
    found = _LINE.match(line)
    if found is None:
        return None
    root, name, type_text, opcode = found.groups()
    end = _closing(line, found.end())
    inside = line[found.end() : end]
    operands = () if opcode in ("constant", "parameter") else tuple(_NAME.findall(inside))
    return bool(root), Instruction(name, opcode, type_text, operands, inside, line[end + 1 :])


def _closing(line: str, start: int) -> int:
    """Where the parenthesis closes that was opened right before ``start``; types inside have some of their own."""
    end = line.find(")", start)
    if end < 0:
        return len(line)
    if line.find("(", start, end) < 0:
        return end
    depth = 1
    for position in range(start, len(line)):
        depth += {"(": 1, ")": -1}.get(line[position], 0)
        if not depth:
            return position
    return len(line)
