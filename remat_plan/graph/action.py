"""What may be done with a value between the forward and the backward pass.

In: nothing. Out: ``Action``s by name: ``save`` keeps a value on the device, ``offload`` in the host's memory; a value
without an action is recomputed. Others are added with ``register_action``.

Source of offloading: ``jax.checkpoint_policies.save_and_offload_only_these_names``.
"""

from __future__ import annotations

from typing import Any, Protocol

from jax.ad_checkpoint import checkpoint_name

SAVE = "save"
OFFLOAD = "offload"


class Action(Protocol):
    """What is done with a value.

    Attributes:
        name: as schedules have it.
        on_host: whether what is kept is on the host.
    """

    name: str
    on_host: bool

    def device_bytes(self, size_bytes: int) -> int:
        """Bytes on the device between the passes, of a value of so many bytes."""
        ...

    def tag(self, value: Any, name: str) -> Any:
        """Return the value; what is to be kept of it bears the name, so that a policy finds it."""
        ...


class Save:
    """Keep the value as it is."""

    name = SAVE
    on_host = False

    def device_bytes(self, size_bytes: int) -> int:
        """All of it."""
        return size_bytes

    def tag(self, value: Any, name: str) -> Any:
        """Name the value itself."""
        return checkpoint_name(value, name)


class Offload:
    """Keep the value in the host's memory."""

    name = OFFLOAD
    on_host = True

    def device_bytes(self, size_bytes: int) -> int:
        """None of it."""
        return 0

    def tag(self, value: Any, name: str) -> Any:
        """Name the value itself."""
        return checkpoint_name(value, name)


_ACTIONS: dict[str, Action] = {}


def register_action(action: Action) -> None:
    """Make an action known under its name."""
    _ACTIONS[action.name] = action


def action_of(name: str) -> Action:
    """Return an action by name.

    Raises:
        ValueError: there is none of that name.
    """
    if name not in _ACTIONS:
        known = ", ".join(map(repr, _ACTIONS))
        raise ValueError(f"action {name!r} is not known to this program; it knows {known}.")
    return _ACTIONS[name]


register_action(Save())
register_action(Offload())
