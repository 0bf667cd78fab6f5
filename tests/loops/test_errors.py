"""What ``rp.scan`` says about bad input: what was asked, what is so, what to do."""

import jax
import jax.numpy as jnp
import pytest

import remat_plan as rp

XS = jnp.ones(12)


def add(c, x):
    return c + x, None


def test_symbolic_lengths():
    """``jax.lax.scan`` takes them, and so do the schedules that are written without a number."""
    (rows,) = jax.export.symbolic_shape("rows")
    xs = jax.ShapeDtypeStruct((rows,), "float32")

    def exported(schedule):
        gradient = jax.grad(lambda xs: rp.scan(lambda c, x: (jnp.sin(c + x), None), 0.0, xs, schedule=schedule)[0])
        return jax.export.export(jax.jit(gradient))(xs)

    want = jax.grad(lambda xs: jax.lax.scan(lambda c, x: (jnp.sin(c + x), None), 0.0, xs)[0])(XS)
    for schedule in ("plain", "each"):
        assert jnp.allclose(exported(schedule).call(XS), want)
    for schedule in ("auto", "log", "binomial"):
        with pytest.raises(TypeError, match=r"a loop of rows steps has no schedule.*export the function once for each"):
            exported(schedule)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"slots": 0}, ValueError, "slots=0: give an integer of at least 1, the number of carries"),
        ({"slots": -3, "schedule": "binomial"}, ValueError, "slots=-3"),
        ({"slots": 1.5}, TypeError, "slots=1.5: give an integer"),
        ({"slots": True}, TypeError, "slots=True: give an integer"),
        ({"schedule": rp.Binomial(slots=5)}, ValueError, "slots, for 'binomial', are an argument of their own."),
        ({"schedule": "treeverse"}, ValueError, "is unknown. Choose one of 'plain', 'each', 'sqrt', 'log', 'binomial'"),
        ({"schedule": ("nested",)}, ValueError, "is unknown"),
        ({"schedule": ("nested", (3, 3))}, ValueError, "room for 9 steps, but the loop has 12. Choose"),
        ({"schedule": ("nested", (0, 30))}, ValueError, "each factor must be 1 or more"),
        ({"schedule": ("nested", 12)}, TypeError, "give a tuple of integers"),
        ({"schedule": ("nested", (3, 4.0))}, TypeError, "give a tuple of integers"),
        ({"schedule": "log", "slots": 3}, ValueError, "slots=3 goes with schedule='binomial', not with 'log'"),
        ({"schedule": "each", "budget": "1MB"}, ValueError, "budget='1MB' goes with schedule='auto' or 'binomial'"),
        ({"slots": 3, "budget": "1MB"}, ValueError, "pass either slots=3 or budget"),
        ({"budget": "lots"}, ValueError, "budget='lots' is not understood"),
        ({"budget": 3}, rp.BudgetError, "The minimum is"),
        ({"schedule": "binomial", "budget": 3}, rp.BudgetError, "one stored carry of 4 B"),
        ({"length": 11}, ValueError, "the same number of rows: xs has 12, length has 11"),
        ({"length": 2.5}, TypeError, "length=2.5: give an integer of at least 0"),
    ],
)
def test_options(options, error, text):
    with pytest.raises(error) as raised:
        rp.scan(add, jnp.float32(0), XS, **options)
    assert text in str(raised.value)
    assert str(raised.value).startswith(("rp.scan: ", "budget="))


@pytest.mark.parametrize("schedule", ["plain", "sqrt", "binomial"])
def test_the_same_under_every_schedule(schedule):
    def scan(body, init=0.0, xs=XS, **options):
        return rp.scan(body, init, xs, schedule=schedule, **options)

    with pytest.raises(TypeError, match=r"carry\['a'\] goes in as float32\[3\] and comes out as float32\[\]"):
        scan(lambda c, x: ({"a": c["a"].sum()}, None), {"a": jnp.ones(3)})
    with pytest.raises(TypeError, match="goes in as int32.* and comes out as float32"):
        scan(lambda c, x: (c + x, None), jnp.int32(0))
    with pytest.raises(TypeError, match="the carry changes its structure"):
        scan(lambda c, x: ((c, c), None))
    with pytest.raises(TypeError, match="must return a pair"):
        scan(lambda c, x: c + x)
    with pytest.raises(ValueError, match=r"xs\[0\] has 12, xs\[1\]\['b'\] has 11"):
        scan(add, 0.0, (XS, {"b": XS[1:]}))
    with pytest.raises(TypeError, match="xs is a scalar"):
        scan(add, 0.0, jnp.float32(1))
    with pytest.raises(ValueError, match="pass xs or length"):
        scan(add, 0.0, None)
    with pytest.raises(ValueError, match="length=-1: give an integer of at least 0"):
        scan(add, 0.0, None, length=-1)


def test_the_least_budget_that_is_named_can_be_met():
    last = lambda c, budget: rp.scan(lambda c, x: (jnp.sin(c) * x, None), c, XS, budget=budget)[0].sum()  # noqa: E731
    with pytest.raises(rp.BudgetError) as raised:
        last(jnp.zeros(100), budget=10)
    least = raised.value.minimum_bytes
    assert jax.grad(last)(jnp.zeros(100), budget=least).shape == (100,)
    with pytest.raises(rp.BudgetError):
        last(jnp.zeros(100), budget=least - 1)


def test_forward_mode_of_a_table_says_what_to_use():
    run = lambda c: rp.scan(add, c, XS, slots=3)[0]  # noqa: E731
    with pytest.raises(TypeError, match="schedule='binomial' has no forward-mode derivative.* Use schedule='log'"):
        jax.jvp(run, (1.0,), (1.0,))
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(jax.jit(run), (1.0,), (1.0,))
