"""From ``PATH.py:FUNCTION`` to a loss function with its example arguments.

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
from dataclasses import dataclass, fields
from pathlib import Path
from types import ModuleType
from typing import Any

from remat_plan.cli.errors import InputError, user_error

SHAPE = "(loss_fn, args) or (loss_fn, args, options)"


@dataclass(frozen=True, slots=True)
class Options:
    """What FUNCTION may say beside the loss function and its arguments; the meaning is that of ``rp.plan``."""

    argnums: Any = 0
    has_aux: bool = False
    static_argnums: Any = ()
    kwargs: Mapping[str, Any] | None = None

    def as_arguments(self) -> dict[str, Any]:
        """Return them as keyword arguments."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


@dataclass(frozen=True, slots=True)
class Problem:
    """A loss function, the arguments to plan it on, and how it is to be differentiated."""

    loss_fn: Callable[..., Any]
    args: tuple[Any, ...]
    options: Options


def load(text: str) -> Problem:
    """Import the file, call the function, check what it returns.

    Args:
        text: ``PATH.py:FUNCTION``.

    Raises:
        InputError: no such file or function, the file or the function raises, or it returns something else.
    """
    path, name = split(text)
    return check(call(find(import_file(path), path, name), f"{path.name}:{name}"), f"{path.name}:{name}")


def split(text: str) -> tuple[Path, str]:
    """Return path and function name.

    Raises:
        InputError: one of them is missing, or there is no such file.
    """
    head, colon, name = text.rpartition(":")
    if not colon or not head or not name.isidentifier():
        raise InputError(
            f"{text!r} does not name a function in a file.",
            "Write PATH.py:FUNCTION, for example train.py:problem.",
        )
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


def import_file(path: Path) -> ModuleType:
    """Import a file by its place.

    Raises:
        InputError: importing it raises.
    """
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


def find(module: ModuleType, path: Path, name: str) -> Callable[[], Any]:
    """Return the function of that name, which must need no arguments.

    Raises:
        InputError: there is none, or it needs arguments.
    """
    function = getattr(module, name, None)
    if function is None:
        own = [k for k, v in vars(module).items() if inspect.isfunction(v) and v.__module__ == module.__name__]
        close = difflib.get_close_matches(name, own, n=1)
        defined = f"It defines {', '.join(own)}." if own else "It defines no function."
        raise InputError(
            f"{path.name} has no function {name!r}.", defined + (f" Did you mean {close[0]!r}?" if close else "")
        )
    if not callable(function):
        raise InputError(
            f"{path.name}:{name} is not a function but {type(function).__name__}.",
            f"Name a function that returns {SHAPE}.",
        )
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise InputError(
            f"{path.name}:{name} cannot be called without arguments ({error}).",
            f"FUNCTION takes none and returns {SHAPE}. If {name} is the loss function itself, "
            f"add `def problem(): return {name}, (its, arguments)` and name that.",
        ) from None
    except ValueError:  # a builtin without a signature
        pass
    return function


def call(function: Callable[[], Any], label: str) -> Any:
    """Call the user's function.

    Raises:
        InputError: it raises.
    """
    try:
        return function()
    except (Exception, SystemExit) as error:
        raise user_error(error, label, "It runs before anything is planned: mend it there.") from error


def check(made: Any, label: str) -> Problem:
    """Check what FUNCTION returned.

    Raises:
        InputError: it is no loss function with arguments.
    """
    if not isinstance(made, (tuple, list)) or len(made) not in (2, 3):
        raise InputError(f"{label} returned something else: {_tell(made)}.", f"It must return {SHAPE}.")
    loss_fn, args, options = (*made, None)[:3]
    if not callable(loss_fn):
        raise InputError(
            f"the first thing that {label} returned is {_tell(loss_fn)}, not a function.", f"It must return {SHAPE}."
        )
    if not isinstance(args, (tuple, list)) or hasattr(args, "_fields"):
        raise InputError(
            f"the second thing that {label} returned is {_tell(args)}.",
            "It must be a tuple of the loss function's arguments; of one argument: (params,).",
        )
    known = [f.name for f in fields(Options)]
    advice = f"It must be a dict with some of {', '.join(known)}; they mean what they mean in remat_plan.plan."
    if options is not None and not isinstance(options, Mapping):
        raise InputError(f"the third thing that {label} returned is {_tell(options)}.", advice)
    unknown = sorted({str(key) for key in options or ()} - set(known))
    if unknown:
        raise InputError(f"the options that {label} returned have an unknown {unknown[0]!r}.", advice)
    return Problem(loss_fn, tuple(args), Options(**(options or {})))


def _tell(thing: Any) -> str:
    if isinstance(thing, (tuple, list)):
        return f"a {type(thing).__name__} of {len(thing)}"
    return "None" if thing is None else f"of type {type(thing).__name__}"
