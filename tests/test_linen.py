"""Flax Linen modules that plan themselves: in everything but memory the undecorated modules."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import remat_plan as rp
from remat_plan.plans import book
from tests.helpers import assert_trees_close, count_equations

pytestmark = pytest.mark.usefixtures("quick_search")

nn = pytest.importorskip("flax.linen")

WIDTH, BATCH = 8, 64
X = jnp.asarray(np.random.default_rng(0).normal(size=(BATCH, WIDTH)), jnp.float32)
KEYS = {"params": jax.random.key(0), "dropout": jax.random.key(1)}

slow = functools.partial(pytest.param, marks=pytest.mark.slow)
nothing = functools.partial(rp.linen.remat, strategy="nothing", verify=False)
DOORS = {
    "whole": functools.partial(rp.linen.remat, static_argnums=(2,)),
    "policy": functools.partial(rp.linen.remat, policy=jax.checkpoint_policies.dots_saveable, static_argnums=(2,)),
    "nothing": nothing,
    "memory": functools.partial(rp.linen.remat, strategy="memory", verify=False),
    # The random bits of the dropout are the peak whatever is recomputed, compiled too: there is no less to ask for.
    "budget": functools.partial(rp.linen.remat, budget="99.9%", verify=False),
}


class Block(nn.Module):
    """Everything at once: parameters, batch statistics, dropout, a sown value, a switch."""

    hidden: int = 32

    @nn.compact
    def __call__(self, x, train):
        y = nn.Dense(self.hidden)(x)
        y = nn.BatchNorm(use_running_average=not train)(y)
        y = nn.Dropout(0.3, deterministic=not train)(nn.gelu(y))
        self.sow("intermediates", "hidden", y)
        return x + nn.Dense(x.shape[-1])(y)


def stack(block, layers=3):
    """A model of several blocks without names of their own."""

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x, train=True):
            for _ in range(layers):
                x = block()(x, train)
            return x

    return Model()


def step(block, collections=("batch_stats", "intermediates")):
    """Variables, and what one training step returns: loss, updated collections, gradients."""
    model = stack(block)
    variables = model.init(KEYS, X)

    def loss(params, others):
        out, updates = model.apply(
            {"params": params, **others}, X, mutable=list(collections), rngs={"dropout": jax.random.key(2)}
        )
        return jnp.mean(out**2), updates

    others = {k: v for k, v in variables.items() if k == "batch_stats"}
    return variables, jax.jit(jax.value_and_grad(loss, has_aux=True))(variables["params"], others)


@functools.cache
def plain():
    return step(Block)


@pytest.mark.parametrize("door", ["whole", slow("policy"), slow("nothing"), slow("memory"), slow("budget")])
def test_a_step_is_that_of_the_plain_module(door):
    """Names, initial values, loss, batch statistics, sown values, dropout masks, gradients."""
    block = DOORS[door](Block)
    assert block.__name__ == "Block"
    assert_trees_close(step(block), plain(), 2e-4, 1e-5)
    if door not in ("whole", "policy"):
        plans = list(block.remat_plans.values())
        assert [plan.argnums for plan in plans] == [(), ()]
        assert not any(plan.is_identity for plan in plans) or door == "memory"
        first, later = (set(plan.program.differentiated) for plan in plans)
        assert len(later - first) == 1, "no gradient is taken of the first block's input"
        assert first < later


def test_flax_itself_gives_other_names():
    theirs = stack(nn.remat(Block, static_argnums=(2,))).init(KEYS, X)["params"]
    assert set(theirs) == {f"Checkpoint{name}" for name in plain()[0]["params"]}


def dots(block):
    model = stack(block)
    variables = model.init(KEYS, X, train=False)
    jaxpr = jax.make_jaxpr(jax.grad(lambda p: jnp.sum(model.apply({**variables, "params": p}, X, train=False))))
    return count_equations(jaxpr(variables["params"]).jaxpr, "dot_general")


def test_it_really_recomputes():
    """Three blocks of two products; the backward pass needs the first one's output only."""
    assert dots(Block) == 3 * (2 + 4) - 1, "the input has no gradient"
    assert dots(nothing(Block)) == dots(DOORS["whole"](Block)) == dots(Block) + 3


@pytest.mark.slow
def test_memory_falls():
    class Deep(nn.Module):
        @nn.compact
        def __call__(self, x):
            for _ in range(12):
                x = x + nn.Dense(WIDTH)(jnp.tanh(nn.Dense(4 * WIDTH)(x)))
            return x

    def peak(module):
        model, x = module(), jnp.ones((2048, WIDTH))
        params = model.init(jax.random.key(0), x)
        gradient = jax.jit(jax.grad(lambda p: jnp.sum(model.apply(p, x))), compiler_options=rp.compiler_options())
        return gradient.lower(params).compile().memory_analysis().temp_size_in_bytes

    assert peak(rp.linen.remat(Deep, strategy="memory", verify=False)) < 0.6 * peak(Deep)


def test_decorators_of_classes_and_methods():
    @rp.linen.remat
    class One(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(4)(x)

    @nothing()
    class Two(One):
        pass

    class Three(nn.Module):
        @nothing()
        @nn.compact
        def __call__(self, x):
            return nn.Dense(4)(x)

    class Plain(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(4)(x)

    want = Plain().init(KEYS, X)
    for module in (One, Two, Three):
        assert_trees_close(module().init(KEYS, X), want)
        got = jax.grad(lambda v, m=module: jnp.sum(m().apply(v, X) ** 2))(want)
        assert_trees_close(got, jax.grad(lambda v: jnp.sum(Plain().apply(v, X) ** 2))(want), 2e-4, 1e-5)
    assert len(Two.remat_plans) == len(Three.__call__.remat_plans) == 1


class AutoEncoder(nn.Module):
    """Submodules made in setup, two methods, one of them calls the other."""

    def setup(self):
        self.up, self.down = nn.Dense(16), nn.Dense(WIDTH)

    def encode(self, x, scale=1.0):
        return jnp.tanh(self.up(x)) * scale

    def decode(self, z):
        return self.down(jnp.sin(z))

    def __call__(self, x):
        return self.decode(self.encode(x, scale=2.0))


@pytest.mark.slow
def test_setup_and_other_methods():
    planned = nothing(AutoEncoder, methods=["encode", "decode"])
    variables = AutoEncoder().init(KEYS, X)
    assert_trees_close(planned().init(KEYS, X), variables)

    def run(module):
        def loss(v):
            z = module().apply(v, X, 3.0, method="encode")
            return jnp.mean(module().apply(v, z, method="decode") ** 2) + jnp.mean(module().apply(v, X))

        return jax.value_and_grad(loss)(variables)

    assert_trees_close(run(planned), run(AutoEncoder), 2e-4, 1e-5)
    assert len(planned.remat_plans) == 2


def test_modules_as_fields_and_arguments_and_partial():
    class Outer(nn.Module):
        inner: nn.Module

        @nn.compact
        def __call__(self, x, other):
            return other(self.inner(x)) + nn.Dense(WIDTH)(x)

    class Model(nn.Module):
        outer: object

        @nn.compact
        def __call__(self, x):
            return self.outer(nn.Dense(WIDTH))(x, nn.Dense(WIDTH, name="other"))

    want = Model(Outer).init(KEYS, X)
    for outer in (nothing(Outer), functools.partial(nothing(Outer), name=None)):
        model = Model(outer)
        assert_trees_close(model.init(KEYS, X), want)
        got = jax.grad(lambda v, m=model: jnp.sum(m.apply(v, X) ** 2))(want)
        assert_trees_close(got, jax.grad(lambda v: jnp.sum(Model(Outer).apply(v, X) ** 2))(want), 2e-4, 1e-5)
    dense = nothing(functools.partial(nn.Dense, features=3))
    assert dense().init(KEYS, X)["params"]["kernel"].shape == (WIDTH, 3)


def test_weights_are_shared_between_calls_and_with_modules_around():
    """A module that is called twice; a layer that was handed to it, as tied embeddings are."""

    class Layer(nn.Module):
        embedding: nn.Module

        @nn.compact
        def __call__(self, x):
            return jnp.tanh(self.embedding(x)) + nn.Dense(WIDTH)(x)

    class Model(nn.Module):
        layer: object

        @nn.compact
        def __call__(self, x):
            embedding = nn.Dense(WIDTH, name="embedding")
            first, second = (self.layer(embedding, name=name) for name in ("first", "second"))
            return embedding(first(second(first(x))))

    def variables_and_gradient(layer):
        variables = Model(layer).init(KEYS, X)
        return variables, jax.grad(lambda v: jnp.sum(Model(layer).apply(v, X) ** 2))(variables)

    assert_trees_close(variables_and_gradient(nothing(Layer)), variables_and_gradient(Layer), 2e-4, 1e-5)


@pytest.mark.parametrize("lift", ["scan", slow("jit"), slow("vmap")])
def test_flax_lifts_over_it(lift):
    class Body(nn.Module):
        @nn.compact
        def __call__(self, x, _=None):
            y = nn.Dropout(0.5, deterministic=False)(jnp.tanh(nn.Dense(16)(x)))
            return x + nn.Dense(WIDTH)(y), None

    def run(body):
        over = {
            "scan": lambda: nn.scan(
                body, variable_axes={"params": 0}, split_rngs={"params": True, "dropout": True}, length=4
            ),
            "vmap": lambda: nn.vmap(
                body,
                variable_axes={"params": 0},
                split_rngs={"params": True, "dropout": True},
                in_axes=None,
                axis_size=4,
            ),
            "jit": lambda: nn.jit(body),
        }[lift]()

        class Model(nn.Module):
            @nn.compact
            def __call__(self, x):
                return over(name="body")(x, None)[0]

        variables = Model().init(KEYS, X)
        rngs = {"dropout": jax.random.key(5)}
        return variables, jax.value_and_grad(lambda v: jnp.mean(Model().apply(v, X, rngs=rngs) ** 2))(variables)

    assert_trees_close(run(nothing(Body)), run(Body), 2e-4, 1e-5)


def test_planned_once_for_all_layers_and_steps(monkeypatch):
    made = []
    original = book.plan_program
    monkeypatch.setattr(book, "plan_program", lambda *args: made.append(1) or original(*args))
    block = nothing(Block)
    model = stack(block)
    variables = model.init(KEYS, X)
    assert not made, "nothing is planned while variables are made"
    traces = []

    @jax.jit
    def train(variables, x, key):
        traces.append(1)

        def loss(params):
            out, updates = model.apply(
                {**variables, "params": params}, x, mutable=["batch_stats"], rngs={"dropout": key}
            )
            return jnp.mean(out**2), updates

        gradient, updates = jax.grad(loss, has_aux=True)(variables["params"])
        return {"params": jax.tree.map(lambda p, g: p - 0.1 * g, variables["params"], gradient), **updates}

    for n in range(3):
        variables = train(variables, X, jax.random.key(n))
    assert len(made) == 2, "layers with dropout masks of their own are one program, but the first has a fixed input"
    assert len(traces) == 1
    model.apply(variables, X, train=False)
    assert len(made) == 3, "evaluation is another program"
    assert_trees_close(model.apply(variables, X, train=False), stack(Block).apply(variables, X, train=False))


@pytest.mark.slow
def test_whole_model_in_a_loss():
    model = stack(Block, 2)
    variables = model.init(KEYS, X)
    key = jax.random.key(3)

    def loss(params, others, x):
        out, updates = model.apply({"params": params, **others}, x, mutable=["batch_stats"], rngs={"dropout": key})
        return jnp.mean(out**2), updates

    others = {"batch_stats": variables["batch_stats"]}
    planned = rp.remat(loss, budget="85%", has_aux=True, verify=False)
    got = jax.jit(jax.value_and_grad(planned, has_aux=True))(variables["params"], others, X)
    assert_trees_close(got, jax.value_and_grad(loss, has_aux=True)(variables["params"], others, X), 2e-4, 1e-5)
    (plan,) = planned.plans.values()
    assert not plan.is_identity
    assert plan.predicted_peak_bytes <= plan.budget_bytes


@pytest.mark.slow
def test_no_tracer_leaks():
    model = stack(nothing(Block))
    variables = model.init(KEYS, X)
    with jax.checking_leaks():
        jax.jit(jax.grad(lambda v: jnp.sum(model.apply(v, X, train=False))))(variables)


LENGTH = 7


class Cell(nn.Module):
    @nn.compact
    def __call__(self, x):
        y = nn.BatchNorm(use_running_average=False)(nn.Dense(16)(x))
        return x + nn.Dense(WIDTH)(nn.Dropout(0.3, deterministic=False)(jnp.tanh(y)))


def scanned(make):
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            return make(self, x)

    model = Model()
    variables = model.init(KEYS, X)

    def loss(params):
        out, updates = model.apply(
            {**variables, "params": params}, X, mutable=["batch_stats"], rngs={"dropout": jax.random.key(2)}
        )
        return jnp.mean(out**2), updates

    gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))
    return variables, gradient(variables["params"])


@functools.cache
def scanned_plain():
    over = nn.scan(
        lambda module, x, _: (module(x), None), variable_axes={True: 0}, split_rngs={True: True}, length=LENGTH
    )
    return scanned(lambda self, x: over(Cell(name="cell"), x, None)[0])


@pytest.mark.parametrize(
    "schedule", [slow("plain"), slow("each"), "sqrt", slow(("nested", (2, 2, 2))), slow("binomial")]
)
def test_remat_scan_is_scan(schedule):
    """Layout, initial values, masks, statistics, gradients; a length that does not divide."""
    slots = {"slots": 3} if schedule == "binomial" else {}
    got = scanned(lambda self, x: rp.linen.remat_scan(Cell, LENGTH, schedule=schedule, **slots)(name="cell")(x))
    assert_trees_close(got, scanned_plain(), 2e-4, 1e-5)


@pytest.mark.slow
def test_remat_scan_needs_little_memory():
    def peak(make):
        class Model(nn.Module):
            @nn.compact
            def __call__(self, x):
                return make(x)

        model, x = Model(), jnp.ones((512, WIDTH))
        variables = jax.eval_shape(model.init, jax.random.key(0), x)
        gradient = jax.jit(jax.grad(lambda v, x: jnp.sum(model.apply(v, x))))
        return gradient.lower(variables, x).compile().memory_analysis().temp_size_in_bytes

    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x):
            return x + nn.Dense(WIDTH)(jnp.tanh(nn.Dense(4 * WIDTH)(x)))

    theirs = peak(lambda x: nn.remat_scan(Layer, lengths=(100,))()(x))
    ours = {n: peak(lambda x, n=n: rp.linen.remat_scan(Layer, n)()(x)) for n in (25, 100, 400)}
    assert ours[100] < 0.35 * theirs
    assert ours[400] < 3 * ours[100] < 9 * ours[25], "about sqrt(n)"


def test_remat_scan_shares_what_is_broadcast():
    class Tied(nn.Module):
        @nn.compact
        def __call__(self, x):
            return jnp.tanh(nn.Dense(WIDTH)(x))

    options = {"variable_axes": {}, "variable_broadcast": "params", "split_rngs": {"params": False}}
    model = rp.linen.remat_scan(Tied, 5, **options)()
    variables = model.init(KEYS, X)
    assert variables["params"]["Dense_0"]["kernel"].shape == (WIDTH, WIDTH)

    def by_hand(v):
        x = X
        for _ in range(5):
            x = jnp.tanh(x @ v["params"]["Dense_0"]["kernel"] + v["params"]["Dense_0"]["bias"])
        return jnp.mean(x**2)

    got = jax.grad(lambda v: jnp.mean(model.apply(v, X) ** 2))(variables)
    assert_trees_close(got, jax.grad(by_hand)(variables), 2e-4, 1e-5)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: rp.linen.remat(3), TypeError, "needs a module class or a method, not int"),
        (lambda: rp.linen.remat(nn.Dense(3), budget=1), TypeError, r"write rp\.linen\.remat\(Dense, \.\.\.\)"),
        (lambda: rp.linen.remat(Block, verify=False), ValueError, "verify is only for planning"),
        (lambda: rp.linen.remat(Block, budget=1, policy=jnp.sin), ValueError, "either policy or budget"),
        (lambda: rp.linen.remat(Block, strategy="magic"), ValueError, "strategy='magic'"),
        (lambda: rp.linen.remat(Block, strategy="memory", static_argnums=0), ValueError, "the module itself"),
        (lambda: rp.linen.remat(Block, strategy="memory", methods="encode"), TypeError, "list of names of methods"),
        (lambda: rp.linen.remat_scan(Block, 3, variable_axes={"params": 1}), ValueError, "is not supported, use 0"),
    ],
)
def test_bad_input(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_shared_collections_cannot_be_updated():
    model = rp.linen.remat_scan(Cell, 3, variable_axes={"params": 0}, variable_broadcast="batch_stats")()
    shapes = rp.linen.remat_scan(Cell, 3)().init(KEYS, X)
    stats = jax.tree.map(lambda s: s[0], shapes["batch_stats"])
    variables = {"params": shapes["params"], "batch_stats": stats}
    with pytest.raises(ValueError, match=r"shared collections \['batch_stats'\] are updated"):
        model.apply(variables, X, mutable=["batch_stats"], rngs={"dropout": jax.random.key(0)})
