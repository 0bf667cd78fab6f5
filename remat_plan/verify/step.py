"""The gradient step of a flat program: what is compiled, evaluated and compared.

In: a flat function (values to values), which values are differentiated.
Out: a function of values that runs forward and backward pass: of a loss, ``value_and_grad``; of any other function,
its VJP, with one cotangent for each output of floating point as further arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from remat_plan import _compat


class _Step:
    """A flat program, values to a flat sequence of outputs; which of the values gradients are taken of."""

    def __init__(self, run: Callable[..., Sequence[Any]], differentiated: Sequence[bool]):
        self.run, self.differentiated = run, tuple(differentiated)

    def outputs(self, moving: Sequence[Any], fixed: Sequence[Any]) -> list[Any]:
        """Run it on the values that gradients are taken of, and the others."""
        return list(self.run(*_compat.merge_lists(self.differentiated, fixed, moving)))


class GradientStep(_Step):
    """``value_and_grad`` of a flat program whose first output is the scalar loss."""

    def __call__(self, *values: Any) -> tuple[Any, Any, Any]:
        """Return ``(loss, other outputs, gradients)``."""
        fixed, moving = _compat.partition_list(self.differentiated, values)
        (loss, others), gradients = jax.value_and_grad(self._loss, has_aux=True)(moving, fixed)
        return loss, others, gradients

    def _loss(self, moving: list[Any], fixed: list[Any]) -> tuple[Any, list[Any]]:
        loss, *others = self.outputs(moving, fixed)
        return loss, others


class PullbackStep(_Step):
    """Forward and backward pass of a flat program that is no loss.

    Its peak is that of arguments, cotangents, outputs, gradients and temporaries together.
    """

    def __call__(self, *values: Any) -> tuple[Any, Any, Any]:
        """Return ``(outputs of floating point, other outputs, gradients)``.

        Values are those of the program, then one cotangent per output of floating point (shape and dtype as it).
        """
        n = len(self.differentiated)
        fixed, moving = _compat.partition_list(self.differentiated, values[:n])

        def run(*moving: Any) -> tuple[list[Any], list[Any]]:
            outputs = self.outputs(moving, fixed)
            others, floats = _compat.partition_list([_compat.is_float(jax.typeof(x)) for x in outputs], outputs)
            return floats, others

        outputs, pull, others = jax.vjp(run, *moving, has_aux=True)
        return outputs, others, list(pull(list(values[n:])))
