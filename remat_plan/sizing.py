"""The largest batch, sequence or model whose training step fits: ``rp.largest`` and ``rp.max_batch``.

In: a training step with marked functions in it, a function from sizes to its arguments, a budget. Out:
``LargestSizes``. Only wiring: ``training.sizes`` searches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict, Unpack

from remat_plan.clock.store import Cost, check_cost
from remat_plan.graph.frameworks import check_function
from remat_plan.planning.constraints import make_constraints
from remat_plan.results.steps import LargestSizes
from remat_plan.small import garbage
from remat_plan.small.budget import parse_budget
from remat_plan.small.doors import door, integer, unknown_argument
from remat_plan.small.progress import Progress
from remat_plan.small.wording import name_of, short
from remat_plan.training.calls import CallKind
from remat_plan.training.fitted import find_marks, make_call
from remat_plan.training.schedules import Measuring
from remat_plan.training.settings import Settings
from remat_plan.training.sizes import Sizes, largest_of
from remat_plan.verify.targets import resolve, traced_for_target


class SizeOptions(TypedDict, total=False):
    """What ``largest`` takes beside a budget and a dimension."""

    multiple_of: int
    overheads: Sequence[float]
    donate_argnums: int | Sequence[int]
    static_argnums: int | Sequence[int]
    in_shardings: Any
    out_shardings: Any
    compiler_options: Mapping[str, Any] | None
    offload: bool
    may_offload: Sequence[str]
    host_budget: int | str | None
    target: str | None
    cost: Cost
    progress: bool | None


@door
def max_batch(
    train_step: Callable[..., Any],
    make_args: Callable[[int], Sequence[Any]],
    *,
    budget: int | str | float,
    **options: Unpack[SizeOptions],
) -> LargestSizes:
    """Find the largest batch with which a training step fits a memory budget, plain and planned.

    This is ``largest`` with ``dimension="batch"``, which says what arguments there are and what is raised.

    Example:
        >>> import jax, jax.numpy as jnp, remat_plan as rp
        >>> def loss_fn(w, x):
        ...     for _ in range(8):
        ...         x = jnp.tanh(x @ w)
        ...     return jnp.mean(x**2)
        >>> def train_step(w, x):
        ...     return w - jax.grad(rp.mark(loss_fn))(w, x)
        >>> f32 = lambda *shape: jax.ShapeDtypeStruct(shape, "float32")
        >>> found = rp.max_batch(train_step, lambda n: (f32(64, 64), f32(n, 64)), budget="1MB", multiple_of=64)
        >>> 0 < found.plain < found.largest
        True
    """
    if unknown := [name for name in options if name not in SizeOptions.__annotations__]:
        raise unknown_argument(unknown[0], SizeOptions.__annotations__, "of rp.max_batch")
    return largest(train_step, make_args, budget=budget, dimension="batch", **options)


@door
@traced_for_target
@garbage.seldom_in
def largest(
    train_step: Callable[..., Any],
    make_args: Callable[[int], Sequence[Any]],
    *,
    budget: int | str | float,
    dimension: str = "size",
    multiple_of: int = 8,
    overheads: Sequence[float] = (0.1, 0.3),
    donate_argnums: int | Sequence[int] = (),
    static_argnums: int | Sequence[int] = (),
    in_shardings: Any = None,
    out_shardings: Any = None,
    compiler_options: Mapping[str, Any] | None = None,
    offload: bool = False,
    may_offload: Sequence[str] = (),
    host_budget: int | str | None = None,
    target: str | None = None,
    cost: Cost = "table",
    progress: bool | None = None,
) -> LargestSizes:
    """Find the largest size with which a training step fits a memory budget, plain and planned.

    The size is whatever ``make_args`` makes arguments of: examples in a batch, the length of a sequence, pixels along
    a side, layers. Memory may grow with it along a line or, as attention scores do, along a parabola.

    Args:
        train_step: the step, with marks, as ``fit`` takes it.
        make_args: returns the arguments of the step for a size, as arrays or (better, since nothing is run) as
            ``jax.ShapeDtypeStruct``.
        budget: bytes on one device, as in ``plan``, but not as a share.
        dimension: what the size is called where it is shown: ``"sequence"``, ``"layers"``.
        multiple_of: the smallest size; all others are multiples of it.
        overheads: limits on predicted overhead (0.1 is 10%); each gets a row, in addition to the step as written and
            to the largest size without a limit.
        donate_argnums, static_argnums, in_shardings, out_shardings, compiler_options, offload, may_offload,
            host_budget, target, cost, progress: as in ``fit``. With ``cost="measured"``, overheads are predicted with
            rates of the attached device.

    Returns:
        One row per limit; ``print`` it. ``.plain`` is the largest size of the step as written, ``.largest`` that with
        no limit. To run one, pass its arguments to ``fit`` with the same budget.

    Raises:
        TypeError, ValueError: an argument is wrong, or nothing is marked; the message says what to do.

    Example:
        >>> import jax, jax.numpy as jnp, remat_plan as rp
        >>> def loss_fn(w, x):
        ...     for _ in range(4):
        ...         x = x + jax.nn.softmax(x @ w @ x.T) @ x
        ...     return jnp.mean(x**2)
        >>> def train_step(w, x):
        ...     return w - jax.grad(rp.mark(loss_fn))(w, x)
        >>> f32 = lambda *shape: jax.ShapeDtypeStruct(shape, "float32")
        >>> def make_args(length):
        ...     return f32(64, 64), f32(length, 64)
        >>> found = rp.largest(train_step, make_args, budget="16MB", dimension="sequence", multiple_of=64)
        >>> found.dimension, found.plain < found.largest
        ('sequence', True)
    """
    check_function(train_step, "train_step must be")
    check_function(make_args, "make_args must be")
    if not isinstance(dimension, str) or not dimension:
        raise ValueError(f"dimension={short(dimension)}: say what the size is called, as in dimension='sequence'.")
    multiple_of, limits = integer("multiple_of", multiple_of), (*_limits(overheads), None)
    check_cost(cost)
    parsed, device = parse_budget(budget), resolve(target)
    if parsed.fraction is not None:
        raise ValueError(f"budget={budget!r}: each size has its own peak, so a share has no meaning; give bytes.")
    budget_bytes = parsed.resolve(0, device.device_memory_bytes)
    host = make_constraints(offload=offload, may_offload=may_offload, host_budget=host_budget)
    others = in_shardings, out_shardings, compiler_options, host

    seen: dict[CallKind, int] = {}

    with Progress("remat_plan", progress) as shown:

        def step_at(size: int) -> Measuring:
            shown.say(f"tracing the step with {dimension} {size}")
            args = make_args(size)
            if not isinstance(args, (tuple, list)) or hasattr(args, "_fields"):
                raise TypeError(f"make_args({size}) returned {short(args)}: return a tuple of the step's arguments.")
            told = Settings.of(train_step, args, static_argnums, (), donate_argnums, *others)
            call = make_call(train_step, tuple(args), {}, told)[0]
            if (other := seen.setdefault(call.kind, size)) != size:
                raise ValueError(
                    f"the step has arguments of the same shapes with {dimension} {other} and {size}, so none is "
                    "the largest. Make them of the size that is given; if it is rounded up, set multiple_of to what "
                    "it is rounded to."
                )
            return find_marks(call.step(), device, shown, cost)[0]

        sizes = Sizes(step_at, multiple_of, budget_bytes)
        plain = sizes.as_written()
        found = [plain, *(sizes.within(limit, max(plain.size, multiple_of)) for limit in limits)]
    return LargestSizes(
        name=name_of(train_step),
        target=device.platform if device.name == "default" else device.name,
        budget=parsed.text,
        budget_bytes=budget_bytes,
        dimension=dimension,
        multiple_of=multiple_of,
        rows=(plain, *(largest_of(found, limit) for limit in limits)),
        compiles=sizes.compiles,
    )


def _limits(overheads: Any) -> Sequence[float]:
    """Limits on overhead in order; ``ValueError`` says what they are where they are none."""
    try:
        limits = sorted(overheads)
        if all(limit >= 0 for limit in limits):
            return limits
    except TypeError:  # no collection, or not of numbers
        pass
    raise ValueError(f"overheads={short(overheads)}: give a list of shares, such as [0.1, 0.3] for 10% and 30%.")
