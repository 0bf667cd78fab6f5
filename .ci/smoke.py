"""What somebody does first with the package, run where nothing but its wheel is installed: one plan, planned gradients.

python -P .ci/smoke.py    # from any folder; -P keeps the clone out of the import path
"""

import jax
import jax.numpy as jnp

import remat_plan as rp


def loss_fn(params, x):
    for inner, outer in params:
        x = x + jax.nn.gelu(x @ inner) @ outer
    return jnp.mean(x**2)


params = [(jnp.full((64, 256), 0.01), jnp.full((256, 64), 0.01)) for _ in range(4)]
x = jnp.ones((1024, 64))
plan = rp.plan(loss_fn, params, x, budget="60%")
assert plan.compiled_peak_bytes is not None and plan.compiled_peak_bytes <= plan.budget_bytes, plan
plain, planned = (
    jax.jit(jax.grad(fn), compiler_options=rp.compiler_options())(params, x) for fn in (loss_fn, plan.apply(loss_fn))
)
for one, other in zip(jax.tree.leaves(plain), jax.tree.leaves(planned), strict=True):
    assert jnp.allclose(one, other, rtol=1e-4, atol=1e-7)
print(f"remat_plan {rp.__version__} from {rp.__file__}: {plan!r}")
