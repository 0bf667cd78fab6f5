"""Taking calls apart: what is traced, what is static, what is differentiated."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import remat_plan as rp
from remat_plan.graph.argnums import fixed_arguments, normalize_argnums
from remat_plan.graph.call import check_loss, make_call, struct_of
from remat_plan.graph.frameworks import sort_leaves
from tests.zoo import Params, V, W, X

S = jax.ShapeDtypeStruct


@pytest.mark.parametrize("leaf", [V, np.zeros(3), 1, 2.0, 1j, S((2,), "float32"), np.float32(1), jax.random.key(0)])
def test_arrays_and_numbers_are_traced(leaf):
    assert sort_leaves([leaf]) == [(True, False)]


@pytest.mark.parametrize("leaf", [True, False, None, "text", jnp.sin, object()])
def test_everything_else_is_static(leaf):
    assert not any(traced for traced, _ in sort_leaves([leaf]))


def test_a_call_is_put_together_again():
    seen = []

    def fn(p, x, flag, name, *, scale, more):
        seen.append((type(p), flag, name, more))
        return jnp.sum(p.w) * scale

    call = make_call(fn, (Params(W, V, "n"), X, True, "text"), {"scale": 2.0, "more": (None, {"a": "b"})}, 0)
    assert call.traced == (True, True, True, False, False, False, True)
    assert call.differentiated == (True, True, False, False)
    assert call.static == (True, "text", "b")
    call.trace()
    assert seen == [(Params, True, "text", (None, {"a": "b"}))]


def test_all_leaves_of_an_argument_are_differentiated():
    call = make_call(lambda a, b, c: 0.0, (V, {"x": V, "y": [V, None]}, V), {}, (1, 2))
    assert call.differentiated == (False, True, True, True)


def test_static_arguments_are_not_looked_into():
    call = make_call(lambda a, b: a * b[0], (V, (2.0, jnp.ones(3))), {}, 0, (1,))
    assert len(call.leaves) == 1
    _, closed, _ = call.trace()
    assert len(closed.jaxpr.invars) == 1


def test_static_arguments_need_not_be_hashable():
    call = make_call(lambda a, b: jnp.sum(a) * b["k"][0], (V, {"k": [2.0]}), {}, 0, (1,))
    call.trace()


@pytest.mark.parametrize(
    ("leaf", "dtype", "weak"),
    [
        (2.0, "float32", True),
        (3, "int32", True),
        (np.float64(2), "float32", False),
        (np.zeros(2, np.float64), "float32", False),
        (np.zeros(2, np.int64), "int32", False),
        (jnp.asarray(1.0), "float32", True),
        (jnp.zeros(2, jnp.bfloat16), "bfloat16", False),
    ],
)
def test_types_of_leaves_are_those_of_jit(leaf, dtype, weak):
    struct = struct_of(leaf)
    assert (str(struct.dtype), struct.weak_type) == (dtype, weak)
    aval = jax.make_jaxpr(lambda x: x)(leaf).in_avals[0]
    assert (str(aval.dtype), aval.weak_type, aval.shape) == (dtype, weak, struct.shape)


def test_keys_keep_their_type():
    assert struct_of(jax.random.key(0)).dtype == jax.random.key(0).dtype


@pytest.mark.parametrize(
    ("given", "found"), [(0, (0,)), (-1, (2,)), ((0, -1), (0, 2)), (np.int64(1), (1,)), ([2], (2,))]
)
def test_argnums(given, found):
    assert normalize_argnums(given, 3) == found


def test_losses_that_are_fine():
    call = make_call(jnp.sum, (W,), {}, 0)
    check_loss(call, S((), "float32"), False)
    check_loss(call, S((), "bfloat16"), False)
    check_loss(call, (S((), "float32"), None), True)
    check_loss(call, [S((), "float32"), {"a": S((3,), "int32")}], True)
    check_loss(call, (S((), "float32"), S((3,), "int32")), False)


def flagged(x, flag=False, *, power=1):
    return jnp.sum(x) ** power if flag else jnp.mean(x)


@pytest.mark.parametrize(
    ("count", "numbers", "names", "want"),
    [
        (2, 1, (), ({1}, {"flag"})),
        (1, 1, (), (set(), {"flag"})),
        (1, -1, (), (set(), {"flag"})),
        (2, (), ("flag",), ({1}, {"flag"})),
        (1, (), ("flag", "power"), (set(), {"flag", "power"})),
        (2, (-1, 1), ("power",), ({1}, {"flag", "power"})),
    ],
)
def test_what_is_static_is_so_by_position_and_by_name(count, numbers, names, want):
    assert fixed_arguments(flagged, count, numbers, names) == want


def test_static_positions_of_functions_with_any_number_of_arguments():
    assert fixed_arguments(lambda *args: args, 2, (1, 4)) == ({1}, set())
    assert fixed_arguments(lambda *args: args, 2, -1) == ({1}, set())
    for fn, count, numbers in ((flagged, 2, 2), (flagged, 1, -3), (lambda *args: args, 2, -3)):
        with pytest.raises(ValueError, match=rf"static_argnums={numbers}: the function gets {count}"):
            fixed_arguments(fn, count, numbers)


def test_static_arguments_may_be_given_by_name_or_left_out():
    def repeated(x, times=2):
        for _ in range(times):
            x = jnp.sin(x)
        return jnp.sum(x)

    doors = {
        "remat": rp.remat(repeated, budget="200%", verify=False, static_argnums=1),
        "mark": rp.remat(repeated, static_argnums=1),
        "checkpoint": rp.checkpoint(repeated, static_argnums=1),
        "planned": rp.checkpoint(repeated, strategy="memory", verify=False, static_argnames="times"),
    }
    for door, fn in doors.items():
        for args, kwargs in (((), {}), ((3,), {}), ((), {"times": 3})):
            want = jax.grad(repeated)(V, *args, **kwargs)
            assert jnp.allclose(jax.grad(fn)(V, *args, **kwargs), want), door
            assert jnp.allclose(jax.jit(lambda x, fn=fn, a=args, k=kwargs: jax.grad(fn)(x, *a, **k))(V), want), door
