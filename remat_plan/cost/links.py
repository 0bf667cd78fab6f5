"""Seconds of transfers between the memory of a device and that of its host, beside those of kernels.

In: the kernels of a program in order, each with its seconds, transfers among them. Out: seconds of the whole.

What is stored leaves while the kernels before the first fetch run, and those of a loop's step while that step does;
what is fetched arrives while the kernels from there on run. Each way there is one transfer at a time. What the kernels
do not hide comes on top. The device's own memory is read and written by a transfer as by any kernel.

Limits: how early XLA starts a transfer is not known; the first fetch is taken to be hidden as well as the others, as in
a loop whose steps fetch for the next one.
"""

from __future__ import annotations

STORE, FETCH = "store", "fetch"
"""The names of steps that put a value where it is kept, and that bring it back."""


class Link:
    """The transfers of one program."""

    def __init__(self) -> None:
        self._kernels, self._transfers = [0.0, 0.0], [0.0, 0.0]
        self._returning = False

    def run(self, seconds: float, transfer: float = 0.0, returning: bool = False) -> None:
        """Run a kernel of so many seconds; those of a ``transfer``, out or ``returning``, come beside it."""
        self._returning |= returning
        self._kernels[self._returning] += seconds
        self._transfers[self._returning] += transfer

    @property
    def seconds(self) -> float:
        """Of all that was run."""
        return sum(map(max, self._kernels, self._transfers))
