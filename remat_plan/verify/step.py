"""The gradient step of a flat program: what is compiled, evaluated and compared.

In: a flat function (values to values, the loss first), which values are differentiated.
Out: a function of the same values that returns loss, other outputs and gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax


class GradientStep:
    """``value_and_grad`` of a flat program, on flat values.

    Args:
        run: values to a flat sequence of outputs; the first one is the scalar loss.
        differentiated: which values gradients are taken of.
    """

    def __init__(self, run: Callable[..., Sequence[Any]], differentiated: Sequence[bool]):
        self.run, self.differentiated = run, tuple(differentiated)

    def __call__(self, *values: Any) -> tuple[Any, Any, Any]:
        """Return ``(loss, other outputs, gradients)``."""
        moving = [v for v, d in zip(values, self.differentiated, strict=True) if d]
        fixed = [v for v, d in zip(values, self.differentiated, strict=True) if not d]
        (loss, others), gradients = jax.value_and_grad(self._loss, has_aux=True)(moving, fixed)
        return loss, others, gradients

    def _loss(self, moving: list[Any], fixed: list[Any]) -> tuple[Any, list[Any]]:
        sources = (iter(fixed), iter(moving))
        outputs = list(self.run(*(next(sources[d]) for d in self.differentiated)))
        return outputs[0], outputs[1:]
