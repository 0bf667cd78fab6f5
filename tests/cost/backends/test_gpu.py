"""What XLA:GPU and cuBLAS do beside a product, a gather and a scatter."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from remat_plan import _compat
from remat_plan.cost import platforms
from remat_plan.cost.backends.gpu import GPU, adds_product
from remat_plan.cost.facts import FactBook
from remat_plan.cost.fusion import fuse
from remat_plan.cost.hardware import hardware_for
from remat_plan.cost.memory import evaluate, fact_book, region_cost
from remat_plan.cost.program import lower
from remat_plan.verify.compile import compile_memory
from remat_plan.verify.place import place
from remat_plan.verify.targets import resolve
from tests.helpers import CUDA

H100 = hardware_for("gpu:h100", "gpu")
X = jax.ShapeDtypeStruct((2048, 2048), jnp.float32)


def summed(x):
    """A sum of products that a loop adds up, and that is read after it."""
    total, _ = lax.scan(lambda c, i: (c + jnp.sin(x + i) @ x, None), jnp.ones_like(x), jnp.arange(3.0))
    return jnp.sum(jnp.sin(total))


def test_a_product_is_added_to_the_sum_so_far_in_its_memory(monkeypatch):
    """x, the sum, and what is multiplied; without the rule the product beside them."""

    def peak():
        return evaluate(jax.make_jaxpr(summed)(X), H100).peak_bytes / (4 * 2048**2)

    with_rule = peak()
    monkeypatch.setitem(platforms._BACKENDS, "gpu", GPU.without("adds_products"))
    assert (with_rule, peak()) == (pytest.approx(3, abs=0.01), pytest.approx(4, abs=0.01))


def test_the_compiler_does():
    pytest.importorskip(CUDA)
    assert compile_memory(summed, (X,), resolve("gpu:h100")).total_bytes / (4 * 2048**2) == pytest.approx(3, abs=0.3)


@pytest.mark.parametrize(
    ("fun", "adds"),
    [
        (lambda x: x + x @ x, True),
        (lambda x: x[0] + x @ x, False),  # a row is no matrix
        (lambda x: x.astype(jnp.bfloat16) + x.astype(jnp.bfloat16) @ x.astype(jnp.bfloat16), False),
        (lambda x: x * (x @ x), False),
    ],
)
def test_sums_of_matrices_of_32_bits(fun, adds):
    steps = lower(jax.make_jaxpr(fun)(X), fact_book(H100)).steps
    product = next(step for step in steps if step.primitive == "dot_general")
    assert adds_product(product, steps[-1]) == adds


def kernel_names(fun, *args, habit=""):
    book = FactBook(partial(region_cost, hardware=H100), GPU.without(habit))
    return [kernel.step.primitive for kernel in fuse(lower(jax.make_jaxpr(fun)(*args), book))]


ROWS = jax.ShapeDtypeStruct((4096, 128), jnp.float32)
ENDS = jax.ShapeDtypeStruct((32768,), jnp.int32)


IMAGE, KERNEL, CHANNELS = (jax.ShapeDtypeStruct(s, jnp.float32) for s in ((8, 64, 64, 64), (3, 3, 64, 64), (64,)))


def convolved(x, w):
    return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


BEHIND_CONVOLUTIONS = [
    (lambda x, w, b: jax.nn.relu(convolved(x, w) + b), 1),
    (lambda x, w, b: jax.nn.relu(convolved(x, w) + x), 1),
    (lambda x, w, b: jax.nn.relu(convolved(x, w) * b + b), 2),  # as a normalisation does
    (lambda x, w, b: jax.nn.silu(convolved(x, w) + b), 2),
]
"""What is computed behind a convolution, and how many kernels write an image for it all."""


@pytest.mark.parametrize(("fun", "images"), BEHIND_CONVOLUTIONS)
def test_a_convolution_adds_but_knows_no_factors(fun, images):
    timeline = evaluate(jax.make_jaxpr(fun)(IMAGE, KERNEL, CHANNELS), H100)
    assert len(timeline.equations) == 1 + images  # one turns the kernel


@pytest.mark.parametrize(("fun", "images"), BEHIND_CONVOLUTIONS)
def test_so_it_is_compiled(fun, images):
    pytest.importorskip(CUDA)
    traced = jax.jit(fun).trace(*place((IMAGE, KERNEL, CHANNELS), resolve("gpu:h100")))
    text = _compat.lower_for_absent_gpu(traced).compile().as_text()
    entry = text[text.index("ENTRY") :]
    assert len(re.findall(r"= \(?f32\[8,64,64,64\].* (?:fusion|custom-call)\(", entry)) == images


def test_a_scatter_computes_its_updates_but_not_what_it_adds_them_to():
    def summed(x, sent, receivers):
        return (x + 1).at[receivers].add(jnp.tanh(sent))

    sent = jax.ShapeDtypeStruct((*ENDS.shape, 128), jnp.float32)
    found = kernel_names(summed, ROWS, sent, ENDS)
    assert "tanh" not in found
    assert "add" in found
    assert "tanh" in kernel_names(summed, ROWS, sent, ENDS, habit="scatters")


def test_rows_are_fetched_again_in_each_kernel_that_reads_them():
    def read_twice(x, senders):
        rows = x[senders]
        return jnp.tanh(rows), jnp.sin(rows).sum()

    assert "gather" not in kernel_names(read_twice, ROWS, ENDS)
    assert "gather" in kernel_names(read_twice, ROWS, ENDS, habit="repeats_from_bytes")


def few_rows(x, w):
    """Sums over a vocabulary that is no multiple of anything, as of the gradient by what a loss is made of."""
    return jnp.sin(x) @ w.T


@pytest.mark.parametrize(
    ("rows", "words", "dtype", "parts"),
    [(512, 50257, "float32", 8), (512, 50257, "bfloat16", 8), (2048, 50257, "float32", 2)],
)
def test_operands_are_copied_where_sums_are_made_in_parts_of_another_size(rows, words, dtype, parts):
    """Parts that begin at multiples of 16 bytes; both operands are there twice."""
    args = jax.ShapeDtypeStruct((rows, words), dtype), jax.ShapeDtypeStruct((768, words), dtype)
    steps = lower(jax.make_jaxpr(few_rows)(*args), fact_book(H100)).steps
    assert [step.primitive for step in steps].count("pad") == 2
    unit = parts * 16 // args[0].dtype.itemsize
    made = evaluate(jax.make_jaxpr(few_rows)(*args), H100)
    assert made.peak_bytes >= (rows + 768) * (words + -(-words // unit) * unit) * args[0].dtype.itemsize
    pytest.importorskip(CUDA)
    assert compile_memory(few_rows, args, resolve("gpu:h100")).total_bytes == pytest.approx(made.peak_bytes, rel=0.05)


@pytest.mark.parametrize(("rows", "words"), [(4096, 50257), (512, 50272), (512, 1100)])
def test_whole_sums_and_parts_that_divide_them_are_read_as_they_are(rows, words):
    """Many rows are tiles enough; 50272 is eight parts of a multiple of 16 bytes; short sums stay whole."""
    args = jax.ShapeDtypeStruct((rows, words), "float32"), jax.ShapeDtypeStruct((768, words), "float32")
    steps = lower(jax.make_jaxpr(few_rows)(*args), fact_book(H100)).steps
    assert [step.primitive for step in steps].count("pad") == 0
