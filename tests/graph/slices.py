"""Every claim that ``axis_of`` makes of a program's equations, run on uneven slices and compared with the whole.

In: a function and its arguments. Out: how many claims were made; an assertion where one does not hold.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from remat_plan import _compat
from remat_plan.graph.axes import axis_of
from remat_plan.graph.slice_equation import Slice, run_slice

JOIN = {"add": np.add, "max": np.maximum, "min": np.minimum}


def equations(fn, *args):
    """Each equation of a function, with the values that it reads."""
    closed = jax.make_jaxpr(fn)(*args)
    found = []

    def run(eqn, values):
        found.append((eqn, values))
        return _compat.bind(eqn, values)

    jaxpr, consts = _compat.open_jaxpr(closed)
    env = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *jax.tree.leaves(args)), strict=True))
    _compat.run_equations(jaxpr.eqns, env, jaxpr.outvars, run)
    return found


def only(fn, *args):
    """The one equation of a function."""
    ((eqn, values),) = equations(fn, *args)
    return eqn, values


def claims_of(eqn):
    """The axes that are claimed, asked by each dimension of each operand and result."""
    n, m = len(eqn.invars), len(eqn.outvars)
    found = []
    for i, atom in enumerate((*eqn.invars, *eqn.outvars)):
        for d in range(len(getattr(atom.aval, "shape", ()))):
            known = [d if j == i else None for j in range(n + m)]
            axis = axis_of(eqn, known[:n], known[n:])
            if axis is not None:
                assert (*axis.operands, *axis.results)[i] == d
                assert axis_of(eqn, axis.operands, axis.results) == axis
                if axis not in found:
                    found.append(axis)
    return found


def units_of(eqn, axis):
    """How many units an axis can have at most."""
    places = zip((*eqn.invars, *eqn.outvars), (*axis.operands, *axis.results), strict=True)
    return math.gcd(*[a.aval.shape[d] for a, d in places if isinstance(d, int)])


def pieces_of(whole):
    """Slices of 1, 2, 3, ... units and what is left."""
    start, part = 0, 1
    while start < whole:
        part = min(part, whole - start)
        yield Slice(part, whole, start)
        start, part = start + part, part + 1


def in_slices(eqn, values, axis, pieces):
    """Run an equation slice by slice and join the results."""
    made = []
    values = [np.asarray(x) for x in values]  # cut and joined without compiling for each shape
    for piece in pieces:
        args = [x if d is None else _rows(x, d, piece) for x, d in zip(values, axis.operands, strict=True)]
        made.append([np.asarray(y) for y in run_slice(eqn, args, axis, piece)])
        for v, d, x in zip(eqn.outvars, axis.results, made[-1], strict=True):
            n = v.aval.shape
            assert x.dtype == v.aval.dtype
            assert x.shape == tuple(piece.of(n[i]) if i == d else n[i] for i in range(len(n)))
    joined = []
    for place, parts in zip(axis.results, zip(*made, strict=True), strict=True):
        is_cut = isinstance(place, int)
        joined.append(np.concatenate(parts, place) if is_cut else functools.reduce(JOIN[place], parts))
    return joined


def _rows(x, d, piece):
    n = x.shape[d]
    return x[(*[slice(None)] * d, slice(piece.first(n), piece.first(n) + piece.of(n)))]


def close(got, expected):
    """Equal, up to rounding."""
    for x, y in zip(got, expected, strict=True):
        assert x.dtype == y.dtype
        if jnp.issubdtype(x.dtype, np.inexact):
            exact = jnp.promote_types(x.dtype, "float32")
            np.testing.assert_allclose(np.asarray(x, exact), np.asarray(y, exact), rtol=2e-5, atol=2e-5)
        else:
            np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


def check_claims(fn, *args):
    """Check all claims of all equations of a function; return how many there were."""
    count = 0
    for eqn, values in equations(fn, *args):
        whole = _compat.bind(eqn, values)
        for axis in claims_of(eqn):
            units = units_of(eqn, axis)
            if units > 1:  # one unit is the whole
                close(in_slices(eqn, values, axis, pieces_of(units)), whole)
                count += 1
    return count
