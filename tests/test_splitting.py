"""``rp.split``: the same values and derivatives, slice by slice; errors that name the equation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import remat_plan as rp
from remat_plan import splitting
from tests.helpers import few

X = jnp.linspace(-1.0, 1.0, 20 * 8).reshape(20, 8)
W = jnp.sin(jnp.arange(8.0 * 32)).reshape(8, 32)
LABELS = jnp.arange(20)


def loss(x, w, labels):
    logits = x @ w
    picked = jnp.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=1) - picked)


def penalised(x, w, labels):
    return loss(x, w, labels) + 1e-2 * jnp.sum(w**2)


def attention(q, k, v):
    return jax.nn.softmax(q @ k.T) @ v


def tiled(x, up, down):
    return jax.nn.gelu(x @ up) @ down


def with_aux(x, w):
    y = x @ w
    return jnp.sum(y**2), {"y": jnp.tanh(y), "best": jnp.argmax(y, axis=1)}


EXAMPLES = {
    "loss": (loss, (X, W, LABELS)),
    "penalised": (penalised, (X, W, LABELS)),
    "attention": (attention, (X, jnp.cos(X), X + 1)),
    "mlp": (tiled, (X, W, W.T)),
    "aux": (with_aux, (X, W)),
}


def scans_in(jaxpr):
    """Lengths of the loops of a program, those inside others too."""
    return [e.params["length"] for e in equations_in(jaxpr.jaxpr) if e.primitive.name == "scan"]


def equations_in(jaxpr):
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in jax.tree.leaves(list(eqn.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            inner = getattr(inner, "jaxpr", inner)
            yield from equations_in(inner) if hasattr(inner, "eqns") else ()


def close(found, wanted, rtol=1e-4, atol=1e-5):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=atol), found, wanted)


def scalar(fn, *fixed):
    """A scalar of all floating-point results of a function of two arrays."""

    def total(x, w):
        leaves = jax.tree.leaves(fn(x, w, *fixed))
        return sum(jnp.sum(jnp.sin(y)) for y in leaves if jnp.issubdtype(y.dtype, jnp.floating))

    return total


CASES = [(name, slices) for name in EXAMPLES for slices in (4, 7)]


def test_a_count_beside_a_loss_is_nothing_that_is_differentiated():
    def counted(x, w, labels):
        return loss(x, w, labels), jnp.sum(jnp.argmax(x @ w, axis=1) == labels)

    gradient = jax.value_and_grad(rp.split(counted, slices=5), 1, has_aux=True)
    assert scans_in(jax.make_jaxpr(gradient)(X, W, LABELS)) == [5], "its gradient is made in the forward pass"
    ((value, count), found), ((wanted, right), exact) = (
        fn(X, W, LABELS) for fn in (gradient, jax.value_and_grad(counted, 1, has_aux=True))
    )
    assert count == right
    assert jnp.allclose(value, wanted)
    assert jnp.allclose(found, exact, atol=1e-6)


@pytest.mark.parametrize(("name", "slices"), few(CASES, [("loss", 7), ("mlp", 7), ("aux", 4)]))
def test_values_and_gradients(name, slices):
    fn, args = EXAMPLES[name]
    found = rp.split(fn, axis=0, slices=slices)
    close(found(*args), fn(*args))
    plain, split = scalar(fn, *args[2:]), scalar(found, *args[2:])
    close(jax.jit(jax.grad(split, (0, 1)))(*args[:2]), jax.grad(plain, (0, 1))(*args[:2]))


@pytest.mark.parametrize("name", few(["loss", "penalised", "mlp"], ["penalised"]))
def test_other_transformations(name):
    fn, (x, w, *rest) = EXAMPLES[name]
    plain, split = scalar(fn, *rest), scalar(rp.split(fn, slices=4), *rest)
    close(jax.jvp(split, (x, w), (x, w)), jax.jvp(plain, (x, w), (x, w)), rtol=1e-3)

    def curvature(f):
        return jax.grad(lambda w: jnp.sum(jax.grad(f, 1)(x, w) ** 2))

    close(curvature(split)(w), curvature(plain)(w), rtol=1e-3, atol=1e-2)
    both = jnp.stack([x, 2 * x])
    close(jax.vmap(jax.grad(split), (0, None))(both, w), jax.vmap(jax.grad(plain), (0, None))(both, w), rtol=1e-3)


@pytest.mark.parametrize("fn", [loss, penalised])
def test_it_is_one_loop_and_no_large_value_is_whole(fn):
    split = rp.split(fn, slices=4)
    program = jax.make_jaxpr(jax.grad(split))(X, W, LABELS)
    assert scans_in(program) == [4], "the gradient is made in the forward pass"
    shapes = {tuple(v.aval.shape) for e in equations_in(program.jaxpr) for v in e.outvars}
    assert (20, 32) not in shapes
    assert (5, 32) in shapes


def test_what_has_no_derivative_runs_in_slices_too():
    best = rp.split(lambda x, w: jnp.argmax(x @ w, axis=1), slices=5)
    close(best(X, W), jnp.argmax(X @ W, axis=1))
    assert scans_in(jax.make_jaxpr(best)(X, W)) == [5]


def test_axes_by_argument():
    plain = jax.grad(loss, (0, 1))(X, W, LABELS)
    for axis in (0, -2, (0, None, None), [0, None, 0], (None, None, 0)):
        close(jax.grad(rp.split(loss, axis=axis, slices=4), (0, 1))(X, W, LABELS), plain)
    pair = rp.split(lambda p, w: p["a"] @ w + p["b"] @ w, axis=({"a": 0, "b": None}, None), slices=4)
    close(pair({"a": X, "b": 2 * X}, W), 3 * X @ W)
    columns = rp.split(lambda w, x: x @ w, axis=1, slices=4)
    close(columns(W, X), X @ W)


def test_low_precision_is_summed_in_32_bits():
    x, w = jnp.ones((512, 2), jnp.bfloat16), jnp.ones((2, 4), jnp.bfloat16)
    total = rp.split(lambda x, w: jnp.sum(x @ w, axis=0), slices=128)
    made = total(x, w)
    assert made.dtype == jnp.bfloat16
    assert made.tolist() == [1024.0] * 4
    gradient = jax.grad(lambda w: jnp.sum(total(x, w).astype(jnp.float32)))(w)
    assert gradient.dtype == jnp.bfloat16
    assert gradient.tolist() == [[512.0] * 4] * 2


def test_keywords_closures_and_planned_functions():
    scaled = rp.split(lambda x, *, scale: jnp.tanh(x @ W) * scale, slices=4)
    close(scaled(X, scale=2.0), jnp.tanh(X @ W) * 2.0)

    def outer(w):
        return rp.split(lambda x: jnp.sum(jnp.tanh(x @ w) ** 2), slices=4)(X)

    plain = jax.grad(lambda w: jnp.sum(jnp.tanh(X @ w) ** 2))(W)
    close(jax.jit(jax.grad(outer))(W), plain)
    plan = rp.plan(outer, W, strategy="memory", verify=False)
    close(jax.grad(plan.apply(outer))(W), plain)


def test_the_function_keeps_its_name():
    assert rp.split(loss, slices=2).__name__ == "loss"


def printing(x):
    jax.debug.print("{}", x[0, 0])
    return 2 * x


@pytest.mark.parametrize(
    ("fn", "told"),
    [
        (
            lambda x: jnp.cumsum(x @ W, axis=0),
            r"cumsum.* reads dot_general float32\[20,32\] test_splitting.py:\d+ whole",
        ),
        (lambda x: x - jnp.mean(x, axis=0), r"sub test_splitting.py:\d+ reads the argument float32\[20,8\] whole"),
        (lambda x: jnp.max(x), r"reduce_max test_splitting.py:\d+ reads the argument"),
        (printing, r"an effect must happen once, but slices would repeat it: debug\w* test_splitting.py:\d+"),
        (lambda x: W * 2, "does not read the argument that axis names"),
    ],
)
def test_what_cannot_be_split(fn, told):
    with pytest.raises(ValueError, match=told):
        rp.split(fn, slices=2)(X)


@pytest.mark.parametrize(
    ("options", "args", "error", "told"),
    [
        ({"slices": 21}, (X, W), ValueError, r"slices=21: dimension 0 of float32\[20,8\] has room for 20 at most"),
        ({"slices": 2, "axis": 2}, (X, W), ValueError, r"axis=2: an array of shape \(20, 8\) has no dimension 2"),
        ({"slices": 2, "axis": "0"}, (X, W), TypeError, "is no dimension; give integers or None"),
        ({"slices": 2, "axis": (0,)}, (X, W), ValueError, "does not fit 2 positional arguments"),
        ({"slices": 2, "axis": (None, None)}, (X, W), ValueError, "no positional argument is an array"),
        ({"slices": 2}, (1.0, 2.0), ValueError, "no positional argument is an array"),
        (
            {"slices": 2, "axis": (0, 1)},
            (X, W),
            ValueError,
            r"dimension 1 of an argument float32\[8,32\] is not the axis",
        ),
    ],
)
def test_wrong_arguments_of_the_call(options, args, error, told):
    with pytest.raises(error, match=told):
        rp.split(lambda x, w: x @ w, **options)(*args)


@pytest.mark.parametrize(
    ("fn", "options", "error", "told"),
    [
        (loss, {"slices": 1}, ValueError, "slices=1: give an integer of at least 2"),
        (loss, {"slices": 2.0}, TypeError, "slices=2.0: give an integer"),
        (loss, {"slices": True}, TypeError, "slices=True: give an integer"),
        (3, {"slices": 2}, TypeError, "rp.split needs a function"),
        (loss, {}, ValueError, "give a number of slices, such as slices=8, or a budget, such as budget='2GB'"),
        (loss, {"slices": 4, "budget": "2GB"}, ValueError, "slices=4 and budget='2GB': give one of them; a budget"),
        (loss, {"slices": 4, "target": "cpu"}, ValueError, "target='cpu' is what a budget is for: give a budget too"),
        (loss, {"budget": "50%", "target": "gpu:h1000"}, ValueError, "gpu:h1000"),
        (loss, {"budget": "2 loaves"}, ValueError, "budget='2 loaves' is not understood"),
        (loss, {"budget": True}, TypeError, "budget=True: a budget is bytes as an integer"),
        (loss, {"slices": 2, "axes": 0}, TypeError, "Did you mean 'axis'"),
    ],
)
def test_wrong_arguments_of_the_door(fn, options, error, told):
    with pytest.raises(error, match=told):
        rp.split(fn, **options)


TOKENS = jax.random.normal(jax.random.key(0), (256, 8))
HEAD = jax.random.normal(jax.random.key(1), (8, 1024))
MANY = jnp.arange(256)
LOGITS_BYTES = 4 * 256 * 1024


def step_bytes(fn, *argnums):
    step = jax.jit(jax.value_and_grad(fn, argnums or (0, 1)))
    memory = step.lower(TOKENS, HEAD, MANY).compile().memory_analysis()
    return memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes


BUDGETS = [(loss, "50%"), (penalised, LOGITS_BYTES // 2), (penalised, "200kB")]


@pytest.mark.parametrize(("fn", "budget"), few(BUDGETS, [(penalised, LOGITS_BYTES // 2)]))
def test_a_budget_finds_the_fitting_slices(fn, budget):
    split = rp.split(fn, budget=budget)
    size = {"50%": step_bytes(fn) // 2, "200kB": 200_000}.get(budget, budget)
    assert step_bytes(split) <= 1.01 * size
    program = jax.make_jaxpr(jax.grad(split, (0, 1)))(TOKENS, HEAD, MANY)
    (slices,) = scans_in(program)
    assert slices in (2, 4, 8, 16, 32, 64, 128, 256)
    fewer = rp.split(fn, slices=slices // 2) if slices > 2 else fn
    assert step_bytes(fewer) > size, "half of them would not fit"
    close(jax.jit(jax.grad(split, (0, 1)))(TOKENS, HEAD, MANY), jax.grad(fn, (0, 1))(TOKENS, HEAD, MANY))


def test_a_budget_that_is_met_leaves_the_function_as_it_is():
    split = rp.split(loss, budget="100%")
    assert scans_in(jax.make_jaxpr(jax.grad(split))(TOKENS, HEAD, MANY)) == []


def test_a_budget_is_for_the_target_that_is_named(monkeypatch):
    asked = []
    search = splitting.fitting_slices
    monkeypatch.setattr(
        splitting, "fitting_slices", lambda judge, *rest: asked.append(judge.target.name) or search(judge, *rest)
    )
    jax.make_jaxpr(jax.grad(rp.split(loss, budget="50%", target="cpu")))(TOKENS, HEAD, MANY)
    assert asked == ["cpu"]


def test_a_budget_that_no_number_of_slices_meets():
    with pytest.raises(rp.BudgetError, match="the lowest compiled peak found.* slices need least.*rp.remat") as caught:
        jax.grad(rp.split(loss, budget="5kB"), (0, 1))(TOKENS, HEAD, MANY)
    least = caught.value.minimum_bytes
    assert 4 * 8 * 1024 < least < LOGITS_BYTES // 4
    found = rp.split(loss, budget=least)
    close(jax.jit(jax.grad(found, (0, 1)))(TOKENS, HEAD, MANY), jax.grad(loss, (0, 1))(TOKENS, HEAD, MANY))


@pytest.mark.slow
def test_the_search_is_for_each_program_once(monkeypatch):
    counted = []
    search = splitting.fitting_slices
    monkeypatch.setattr(splitting, "fitting_slices", lambda *args: counted.append(1) or search(*args))

    split = rp.split(lambda x: jnp.sum(jnp.tanh(x @ HEAD) ** 2), budget="50%")
    for _ in range(2):
        jax.make_jaxpr(jax.grad(split))(TOKENS)
    assert len(counted) == 1
    jax.make_jaxpr(jax.grad(split))(TOKENS[:128])
    assert len(counted) == 2
    there = {}
    inside = rp.split(lambda x: jnp.sum(jnp.tanh(x @ there["w"]) ** 2), budget="50%")

    def closing(w):
        there["w"] = w
        return inside(TOKENS)

    for _ in range(2):  # it closes over what is differentiated, so that nothing that was emitted is kept
        close(jax.jit(jax.grad(closing))(HEAD), jax.grad(lambda w: jnp.sum(jnp.tanh(TOKENS @ w) ** 2))(HEAD), atol=1e-3)
    assert len(counted) == 3


def test_what_is_differentiated_counts():
    """The gradient of the weights alone needs no gradient of the tokens."""
    tokens = jnp.tile(TOKENS, (1, 32))
    weights = jnp.tile(HEAD[:, :64], (32, 1))

    def fn(x, w):
        return jnp.mean(jnp.tanh(x @ w) ** 2)

    def least(argnums):
        with pytest.raises(rp.BudgetError) as caught:
            jax.grad(rp.split(fn, budget="5kB"), argnums)(tokens, weights)
        return caught.value.minimum_bytes

    assert least(1) + 0.9 * tokens.nbytes < least((0, 1))


@pytest.mark.slow
def test_a_budget_under_other_transformations():
    split = rp.split(loss, budget="50%")
    x, labels = jnp.stack([TOKENS, 2 * TOKENS]), jnp.stack([MANY, MANY])
    found, wanted = (jax.vmap(jax.grad(fn, 1), (0, None, 0))(x, HEAD, labels) for fn in (split, loss))
    close(found, wanted, rtol=1e-3)
    tangents = TOKENS, HEAD

    def jvp(fn):
        return jax.jvp(lambda x, w: fn(x, w, MANY), tangents, tangents)

    close(jvp(split), jvp(loss), rtol=1e-3)


def test_a_budget_for_what_has_no_gradient():
    with pytest.raises(ValueError, match="no gradient goes through .* Give a number of slices, such as slices=8"):
        rp.split(lambda x, w: jnp.argmax(x @ w, axis=1), budget="50%")(TOKENS, HEAD)
