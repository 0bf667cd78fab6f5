"""The one generator of random programs: operations in a row, structures with programs inside them.

In: a ``random.Random`` (seeded, or hypothesis's own, which then shrinks what it draws). Out: a program as data, and the
loss that it stands for. ``print`` a program to see it.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.programs.operations import BINARY, EFFECTS, HALVES, OTHER, UNARY, Given
from tests.programs.structures import STRUCTURES

FLAT = (*UNARY, *BINARY, *OTHER, *OTHER, *["dot"] * 6)
"""Operations alone, products the most."""

NO_EFFECTS = frozenset("vmap while custom_vjp custom_jvp linearized shard_map checkpoint placed".split())
"""Structures that JAX itself runs more than once, or less, or not in order: effects inside are not its promise."""

COMPLEX = frozenset(["complex", "phases"])
"""Not in a ``jax.checkpoint``: JAX cannot save complex values there (its ``reduce_precision`` has no complex types)."""

SPREAD = frozenset(["shard_map", "placed"])
"""Structures that speak of a mesh: there is one of them around a step at most."""


@dataclass(frozen=True)
class Step:
    """One step of a program.

    Attributes:
        name: of an operation or a structure.
        first, second: the operands, counted back from the newest value.
        inner: the programs inside a structure.
    """

    name: str
    first: int
    second: int
    inner: tuple[Any, ...] = ()

    def __str__(self):
        inside = ", ".join("[" + " ".join(map(str, p)) + "]" for p in self.inner)
        return f"{self.name}({inside})" if inside else f"{self.name}:{self.first},{self.second}"


def draw(rng, longest=14, depth=0, structures=tuple(STRUCTURES), effects=False, halves=False, without=frozenset()):
    """A program of at most ``longest`` steps, with structures ``depth`` deep, ``without`` some operations."""
    names = [n for n in (*FLAT, *(HALVES if halves else ()), *(EFFECTS if effects else ())) if n not in without]
    program = []
    for i in range(rng.randint(3 if longest > 6 else 1, longest)):
        name = rng.choice(structures) if depth and rng.random() < 0.35 else rng.choice(names)
        count = STRUCTURES[name][0] if name in STRUCTURES else 0
        told = effects and name not in NO_EFFECTS
        within = tuple(s for s in structures if s not in SPREAD) if name in SPREAD or name == "vmap" else structures
        but = without | COMPLEX if name == "checkpoint" else without
        inner = tuple(draw(rng, 4, depth - 1, within, told, halves, but) for _ in range(count))
        program.append(Step(name, rng.randint(1, 3), rng.randint(1, i + 1), inner))
    return tuple(program)


def names_in(program):
    """The names of all steps, those inside too."""
    return {step.name for step in program} | {n for step in program for p in step.inner for n in names_in(p)}


def run(program, given, x, depth=0):
    """The newest two values of a program."""
    values = [x]
    for i, step in enumerate(program):
        u, v = values[max(-step.first, -len(values))], values[-step.second]
        values.append(_run_step(step, given, u, v, i + 7 * depth, depth))
    return values[-2:]


def _run_step(step, given, u, v, number, depth):
    if step.name in STRUCTURES:
        inner = [_kept(program, depth + 1) for program in step.inner]
        return STRUCTURES[step.name][1](inner, given, u, number)
    if step.name in BINARY:
        return BINARY[step.name](u, v)
    if step.name in OTHER or step.name in EFFECTS:
        return (OTHER | EFFECTS)[step.name](given, u, number)
    return (UNARY | HALVES)[step.name](u)


def _kept(program, depth):
    """A program as a function that keeps the dtype: structures want it."""
    return lambda given, x: run(program, given, x, depth)[-1].astype(x.dtype)


def loss_of(program):
    """The loss that a program stands for, with an aux of several types."""

    def loss(p, x, labels, key, raw):
        values = run(program, Given(p, labels, key, raw), x)
        wide = jnp.promote_types(p["w"].dtype, jnp.float32)
        out = sum(jnp.mean(jnp.sin(v.astype(wide))) for v in values) + jnp.sum(p["b"] * p["w"][0]) / 100
        return out, {"last": values[-1], "labels": labels + 1, "key": key}

    return loss


def arguments(rows=4, dim=6, dtype=None):
    """What every program is called with; ``dtype`` is the default one if None."""
    rng = np.random.default_rng(0)
    p = {
        "w": jnp.asarray(rng.normal(size=(3, dim, dim)) / 3, dtype),
        "b": jnp.asarray(rng.normal(size=dim), dtype),
        "none": jnp.zeros((0, dim), dtype),
    }
    x = jnp.asarray(rng.normal(size=(rows, dim)), dtype)
    return p, x, jnp.asarray([0, 2, 1, 5]), jax.random.key(3), jax.random.PRNGKey(4)
