"""What values are made of, and what segments that are the same function have in common."""

import jax
import jax.numpy as jnp

from remat_plan.graph.build import build
from remat_plan.graph.merge import identity
from remat_plan.graph.schedule import as_is
from remat_plan.graph.uses import Borders, makers


def graph_of(fn, *args):
    return build(jax.make_jaxpr(fn)(*args), (True,) * len(args))


def contents(graph, start, end):
    borders, segment = Borders(graph), as_is(start, end)
    return borders.contents(segment, borders.interface(segment)[0], lambda op: identity(op.eqn))


def test_makers_stop_at_what_is_given_and_at_the_start():
    graph = graph_of(lambda x: jnp.sin(jnp.cos(jnp.tanh(x))), 1.0)
    (end,) = graph.outputs
    assert makers(graph, [end]) == [0, 1, 2]
    assert makers(graph, [end], graph.ops[0].outputs) == [1, 2]
    assert makers(graph, [end], start=2) == [2]


def test_values_have_numbers_of_their_own():
    def top_twice(x):
        values, places = jax.lax.top_k(x, 2)
        return jnp.sin(values), places + 1

    graph = graph_of(top_twice, jnp.arange(4.0))
    _, number = contents(graph, 0, len(graph.ops))
    assert len({*number.values()}) == len(number)


def test_segments_that_do_the_same_with_other_values_are_one_function():
    def two_layers(x, y):
        return jnp.sin(x) - jnp.cos(y), jnp.sin(y) - jnp.cos(x)

    graph = graph_of(two_layers, 1.0, 2.0)
    assert [op.primitive for op in graph.ops] == ["sin", "cos", "sub"] * 2
    first, second = contents(graph, 0, 3), contents(graph, 3, 6)
    assert first[0] == second[0]
    assert contents(graph, 0, 2)[0] != first[0]


def test_what_no_equation_tells_of_itself_is_unlike_all_else():
    looped = graph_of(lambda x: jax.lax.fori_loop(0, 3, lambda _, x: jnp.sin(x), x), 1.0)
    assert contents(looped, 0, len(looped.ops)) is None
