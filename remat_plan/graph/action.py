"""What may be done with a value between the forward and the backward pass.

In: nothing. Out: ``Action``s by name: ``save`` keeps a value on the device, ``offload`` in the host's memory; a value
without an action is recomputed. Others are added with ``register_action``. An action states what it costs, so that a
search can choose it where it pays: those that are ``offered`` always, others where a request allows them.

Source of offloading: ``jax.checkpoint_policies.save_and_offload_only_these_names``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from jax.ad_checkpoint import checkpoint_name

SAVE, OFFLOAD = "save", "offload"


class Rates(Protocol):
    """What of a device an action may ask for; ``cost.hardware`` has the devices."""

    @property
    def bytes_per_second(self) -> float: ...


@dataclass(slots=True)
class Action:
    """What is done with a value. As it stands, it is kept as it is, on the device or on the host.

    Attributes:
        name: as schedules have it; a verb.
        on_host: whether what is kept is on the host, all that is not on the device.
        offered: whether a search may choose it where the request does not say what it may.
    """

    name: str
    on_host: bool = False
    offered: bool = False

    def takes(self, aval: Any) -> bool:
        """Whether values of a type may be kept so."""
        return True

    def device_bytes(self, size_bytes: int) -> int:
        """Bytes on the device between the passes, of a value of so many bytes."""
        return 0 if self.on_host else size_bytes

    def seconds(self, size_bytes: int, rates: Rates) -> float:
        """What storing such a value takes, and again what fetching it takes; 0 where that is a kernel like any other.

        What takes seconds of its own is fused with nothing.
        """
        return 0.0

    def tag(self, value: Any, name: str) -> Any:
        """Return the value; what is to be kept of it bears the name, so that a policy finds it."""
        return checkpoint_name(value, name)


_ACTIONS: dict[str, Action] = {}


def register_action(action: Action) -> None:
    """Make an action known under its name."""
    _ACTIONS[action.name] = action


def action_of(name: str) -> Action:
    """Return an action by name; ``ValueError`` if there is none of that name."""
    if name not in _ACTIONS:
        known = ", ".join(map(repr, _ACTIONS))
        raise ValueError(f"action {name!r} is not known to this program; it knows {known}.")
    return _ACTIONS[name]


def registered_actions() -> tuple[Action, ...]:
    """Return all actions that are known."""
    return tuple(_ACTIONS.values())


def offered_actions() -> tuple[str, ...]:
    """Return the names of the actions that a search may choose where nothing is said, in the order of their names."""
    return tuple(sorted(name for name, action in _ACTIONS.items() if action.offered))


register_action(Action(SAVE))
register_action(Action(OFFLOAD, on_host=True))
