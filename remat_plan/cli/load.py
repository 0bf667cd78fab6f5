"""From ``PATH.py:FUNCTION`` to a loss function, or a training step, with its example arguments.

In: the text a user typed. Out: ``Problem``; ``InputError`` that tells what is so and what to do.

The file is imported as Python would import it: its folder comes first on ``sys.path``, or, for a file inside a
package, the folder that holds the package, so that its own imports work.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from remat_plan.cli.errors import InputError, user_error
from remat_plan.small.wording import did_you_mean


@dataclass(frozen=True, slots=True)
class Kind:
    """What FUNCTION is to return: a function, in words and as an argument is called; its arguments; options of a door.

    Attributes:
        options: what may be said beside it and its arguments, with what holds where it is not said.
        inputs: what FUNCTION itself is given, in words; "" for nothing.
    """

    what: str
    name: str
    options: Mapping[str, Any]
    door: str
    inputs: str = ""

    @property
    def shape(self) -> str:
        """What is to be returned, as code."""
        return f"({self.name}, args) or ({self.name}, args, options)"


_OF_LOSSES = {"argnums": 0, "has_aux": False, "static_argnums": (), "kwargs": None}
_OF_JIT: dict[str, Any] = dict.fromkeys(("in_shardings", "out_shardings", "compiler_options"))
_OF_STEPS = {"donate_argnums": (), "static_argnums": (), **_OF_JIT}
LOSS = Kind("loss function", "loss_fn", _OF_LOSSES, "remat_plan.plan")
STEP = Kind("training step", "train_step", _OF_STEPS, "remat_plan.fit")
STEPS = replace(STEP, inputs="the number of examples in a batch")


@dataclass(frozen=True, slots=True)
class Problem:
    """A function, the arguments to plan it on, and all options of its kind."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    options: Mapping[str, Any]


def load(text: str, kind: Kind = LOSS) -> Callable[..., Problem]:
    """Import the file, find the function; return one that calls it and checks what it returns.

    Raises:
        InputError: no such file or function, or the file raises. What is returned raises it where the function raises,
            or returns something else.
    """
    path, name = split(text)
    function = _find(_import_file(path), path, name, kind)
    label = f"{path.name}:{name}"

    def make(*inputs: Any) -> Problem:
        try:
            made = function(*inputs)
        except (Exception, SystemExit) as error:
            raise user_error(error, label, "This runs before anything is planned; fix it there.") from error
        return check(made, label, kind)

    return make


def split(text: str) -> tuple[Path, str]:
    """Return path and function name; ``InputError`` if one of them is missing, or there is no such file."""
    head, colon, name = text.rpartition(":")
    if not colon or not head or not name.isidentifier():
        advice = "Write PATH.py:FUNCTION, for example train.py:problem."
        raise InputError(f"{text!r} does not name a function in a file.", advice)
    path = Path(head).expanduser()
    if path.is_dir():
        raise InputError(f"{head} is a folder.", "Name a Python file in it: PATH.py:FUNCTION.")
    if not path.is_file():
        raise InputError(f"there is no file {head}.", f"The path is relative to {Path.cwd()}.{_near(path)}")
    if path.suffix != ".py":
        raise InputError(f"{head} is not a Python file.", "Its name must end in .py.")
    return path.resolve(), name


def _near(path: Path) -> str:
    found = [p.name for p in path.parent.glob("*.py")] if path.parent.is_dir() else []
    close = difflib.get_close_matches(path.name, found, n=1)
    return f" Did you mean {path.parent / close[0]}?" if close else ""


def _import_file(path: Path) -> ModuleType:
    folder, parts = path.parent, [path.stem]
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    name = ".".join(parts)
    sys.path.insert(0, str(folder))
    try:
        if len(parts) > 1:
            return importlib.import_module(name)
        return _import_alone(name, path)
    except (Exception, SystemExit) as error:
        raise user_error(error, f"importing {path.name}", "The file must be importable by itself.") from error


def _import_alone(name: str, path: Path) -> ModuleType:
    """Import a file under its own name, or under another where an imported module has that name already."""
    taken = name in sys.modules or name in sys.stdlib_module_names
    name = f"_remat_plan_file_{name}" if taken else name
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


def _find(module: ModuleType, path: Path, name: str, kind: Kind) -> Callable[..., Any]:
    """Return the function of that name, which must need no arguments, or the one that its kind is given."""
    function = getattr(module, name, None)
    if function is None:
        own = [k for k, v in vars(module).items() if inspect.isfunction(v) and v.__module__ == module.__name__]
        defined = f"It defines {', '.join(own)}." if own else "It defines no function."
        raise InputError(f"{path.name} has no function {name!r}.", defined + did_you_mean(name, own))
    if not callable(function):
        what = f"{path.name}:{name} is not a function but {type(function).__name__}."
        raise InputError(what, f"Name a function that returns {kind.shape}.")
    try:
        inspect.signature(function).bind(*([1] if kind.inputs else []))
    except TypeError as error:
        given, takes = (f"with {kind.inputs} alone", kind.inputs) if kind.inputs else ("without arguments", "none")
        raise InputError(
            f"{path.name}:{name} cannot be called {given} ({error}).",
            f"FUNCTION takes {takes} and returns {kind.shape}. If {name} is the {kind.what} itself, "
            f"add `def problem({'batch' if kind.inputs else ''}): return {name}, (its, arguments)` and name that.",
        ) from None
    except ValueError:  # a builtin without a signature
        pass
    return function


def check(made: Any, label: str, kind: Kind) -> Problem:
    """Check what FUNCTION returned; ``InputError`` if it is no function with arguments."""
    if not isinstance(made, (tuple, list)) or len(made) not in (2, 3):
        raise InputError(f"{label} returned the wrong thing: {_tell(made)}.", f"It must return {kind.shape}.")
    fn, args, options = (*made, None)[:3]
    if not callable(fn):
        what = f"the first thing that {label} returned is {_tell(fn)}, not a function."
        raise InputError(what, f"It must return {kind.shape}.")
    if not isinstance(args, (tuple, list)) or hasattr(args, "_fields"):
        advice = f"It must be a tuple of the {kind.what}'s arguments; with one argument: (params,)."
        raise InputError(f"the second thing that {label} returned is {_tell(args)}.", advice)
    advice = f"It must be a dict with some of {', '.join(kind.options)}, which mean the same as in {kind.door}."
    if options is not None and not isinstance(options, Mapping):
        raise InputError(f"the third thing that {label} returned is {_tell(options)}.", advice)
    unknown = sorted({str(key) for key in options or ()} - kind.options.keys())
    if kind is LOSS and unknown and unknown[0] in STEP.options:
        raise InputError(
            f"{label} returned {unknown[0]!r}, which is an option of a whole training step.",
            f"For a training step use `remat-plan fit {label}`; here {label} must return {kind.shape}.",
        )
    if unknown:
        raise InputError(f"{label} returned the unknown option {unknown[0]!r}.", advice)
    return Problem(fn, tuple(args), {**kind.options, **(options or {})})


def _tell(thing: Any) -> str:
    if isinstance(thing, (tuple, list)):
        return f"a {type(thing).__name__} of {len(thing)}"
    return "None" if thing is None else f"of type {type(thing).__name__}"
