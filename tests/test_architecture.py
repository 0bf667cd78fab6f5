"""The import list is the architecture: data flows down, and nothing heavy is imported."""

import ast
import doctest
import functools
import importlib
import io
import re
import tokenize
from pathlib import Path

import pytest
from jax.extend.core import primitives

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "remat_plan"
FILES = sorted(PACKAGE.rglob("*.py"))

# Modules that users come in by: they import what they need of the parts, and no part imports them.
DOORS = {
    *("__init__", "__main__", "accumulating", "api", "cli"),
    *("comparing", "fitting", "functions", "linen", "nnx", "sizing", "splitting"),
}

# What each part may import from the package, of those that stand above it here.
MAY_IMPORT = {
    "_compat": set(),
    "small": {"_compat"},
    "solve": set(),
    "graph": {"_compat", "small"},
    "loops": {"_compat", "small", "solve"},
    "cost": {"_compat", "graph"},
    "rewrite": {"_compat", "graph"},
    "structures": {"_compat", "solve", "graph", "loops", "cost", "rewrite"},
    "planning": {"_compat", "small", "solve", "graph", "loops", "cost"},
    "compiled": {"cost"},
    "verify": {"_compat", "small", "cost", "compiled"},
    "clock": {"small", "cost", "verify"},
    "traced": {"_compat", "small", "graph", "rewrite", "structures"},
    "results": {"_compat", "small", "graph", "cost", "compiled", "verify", "clock", "traced"},
    "report": {"small", "graph", "planning", "compiled", "results"},
    "search": {"_compat", "small", "graph", "cost", "planning", "verify", "clock", "traced", "results"},
    "plans": {
        *("_compat", "small", "graph", "rewrite", "planning", "verify"),
        *("clock", "traced", "results", "report", "search"),
    },
    "training": {
        *("_compat", "small", "graph", "cost", "planning", "verify"),
        *("clock", "traced", "results", "search", "plans"),
    },
}

# Folders that ask what an equation *is* (of the registry of structures, of its facts), never what it is called, with
# the names that are compared there all the same. Each is of a thing that only its name tells.
ASK_NO_NAMES = ("api", "planning", "plans", "rewrite", "report", "results", "search", "small", "traced", "verify")
NAMES_ALLOWED = {
    ("planning/limits.py", "name"): "the tag of checkpoint_name, which is that primitive",
    ("planning/names.py", "name"): "the tag of checkpoint_name, which is that primitive",
    ("planning/saving.py", "dot_general"): "jax.checkpoint_policies asks for that primitive by name",
    ("planning/strategies/uniform.py", "dot_general"): "jax.checkpoint_policies asks for that primitive by name",
    ("planning/strategies/values.py", "log"): "a strategy, which happens to have the name of a primitive",
    ("search/candidates.py", "log"): "a strategy, which happens to have the name of a primitive",
}


BROAD = {
    "cli/load.py": "the user's file may raise anything; it is told with its own lines",
    "cli/main.py": "a fault of this library is shown whole, one of the user's function with its own lines",
    "cost/lowered.py": "JAX's lowering rules raise anything for cases they are not for; logged",
    "graph/walks.py": "a rule may refuse what JAX would not ask it for; logged",
    "graph/equal.py": "a foreign __eq__, or a user's derivative rule, may raise anything; the rule is logged",
    "verify/targets.py": "plugins of devices raise anything; reported with what to install",
}
"""Modules that may catch ``Exception``, and why."""


LINES, CODE_LINES, CONSTANTS = 37_141, 22_762, 225
"""The most that the package has: lines, lines with code (no docstrings, no comments), numeric constants of modules.
They are to fall; whoever raises one says why in the same commit."""


def code_lines(text):
    """The lines of a module that hold code."""
    marks = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    rows = {row for t in tokens if t.type not in marks for row in range(t.start[0], t.end[0] + 1)}
    texts = (n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))
    return rows - {row for n in texts for row in range(n.lineno, n.end_lineno + 1)}


def numeric_constants(tree):
    """The names in capitals that a module gives numbers to."""
    for node in tree.body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)]
            numbers = [n for n in ast.walk(node.value) if isinstance(n, ast.Constant) and type(n.value) in (int, float)]
            yield from (name for name in names if numbers and name.lstrip("_").isupper())


def test_the_package_stays_within_its_totals():
    texts = [path.read_text() for path in FILES]
    assert sum(text.count("\n") for text in texts) <= LINES
    assert sum(len(code_lines(text)) for text in texts) <= CODE_LINES
    assert sum(len([*numeric_constants(ast.parse(text))]) for text in texts) <= CONSTANTS


def handlers(path):
    """Each ``except`` of a module: its line, what it catches, whether it raises, its text and that of the line below."""
    text = path.read_text()
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ExceptHandler):
            caught = {name.id for name in ast.walk(node.type) if isinstance(name, ast.Name)} if node.type else {""}
            raises = any(isinstance(inner, ast.Raise) for inner in ast.walk(node))
            yield node.lineno, caught, raises, "\n".join(lines[node.lineno - 1 : node.lineno + 1])


def test_what_raises_nothing_says_why():
    for path in FILES:
        for line, _, raises, text in handlers(path):
            assert raises or "#" in text or "print(" in text, f"{path}:{line}: no comment says why nothing is raised"


def test_few_modules_catch_everything():
    everything = {"", "Exception", "BaseException"}
    broad = {str(p.relative_to(PACKAGE)) for p in FILES if any(found & everything for _, found, _, _ in handlers(p))}
    assert broad == set(BROAD)


def test_warnings_are_not_silenced():
    silenced = [p for p in FILES if re.search(r"catch_warnings|simplefilter|filterwarnings|suppress\(", p.read_text())]
    assert silenced == []


def part_of(path):
    relative = path.relative_to(PACKAGE)
    return relative.parts[0].removesuffix(".py")


@functools.cache
def imports(path):
    """Modules that a file imports, in functions and for types too."""
    found = []

    def walk(node):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                found.extend(a.name for a in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, "imports are absolute"
                found.extend(f"{child.module}.{a.name}" for a in child.names)
                found.append(child.module)
            walk(child)

    walk(ast.parse(path.read_text()))
    return found


def test_data_flows_down():
    wrong = []
    for path in FILES:
        part = part_of(path)
        allowed = {part, *MAY_IMPORT.get(part, {*MAY_IMPORT, *DOORS})}
        for name in imports(path):
            other = name.split(".")[1] if name.startswith("remat_plan.") else part
            if other in {*MAY_IMPORT, *DOORS} - allowed:
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong, "\n".join(wrong)
    unused = {
        (part, other)
        for part, allowed in MAY_IMPORT.items()
        for other in allowed
        if not any(f"remat_plan.{other}" in imports(p) for p in FILES if part_of(p) == part)
        and not any(n.startswith(f"remat_plan.{other}.") for p in FILES if part_of(p) == part for n in imports(p))
    }
    assert not unused, "the table allows what nobody does"


def test_every_part_has_its_place_and_every_place_its_part():
    assert {part_of(p) for p in FILES} == {*MAY_IMPORT, *DOORS}
    assert all((PACKAGE / part).is_dir() for part in MAY_IMPORT), "the root is for doors"


def circles(uses):
    """What is left of a graph (name to names) when all that uses nothing left is taken away, again and again."""
    rest = dict(uses)
    while ready := [name for name, needed in rest.items() if not needed & rest.keys()]:
        for name in ready:
            del rest[name]
    return sorted(rest)


def test_no_cycle_among_parts_or_modules():
    """Imports inside functions count, and those for types alone; not those of a package's opening module."""
    listed = [*MAY_IMPORT]
    assert all(allowed <= {*listed[:n]} for n, allowed in enumerate(MAY_IMPORT.values()))
    modules = {".".join(p.relative_to(ROOT).with_suffix("").parts): p for p in FILES}
    uses = {name: {i for i in imports(path) if i in modules} for name, path in modules.items()}
    assert not circles(uses)
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"b"}}) == ["a", "b", "c", "d"]


def primitive_names():
    """Every primitive that JAX names in public."""
    return {getattr(primitives, name).name for name in dir(primitives) if name.endswith("_p")}


def names_asked_for(text, names):
    """The primitives that a module compares a string with, or holds in a collection to look one up."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Compare):
            inside = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            inside = [node.value]
        elif isinstance(node, ast.Set | ast.Tuple | ast.List):
            inside = node.elts
        elif isinstance(node, ast.Dict):
            inside = node.keys
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("startswith", "endswith")):
            inside = node.args
        else:
            continue
        found |= {n.value for n in inside if isinstance(n, ast.Constant) and n.value in names}
    return found


def test_no_primitive_is_known_by_name_where_it_can_be_asked():
    names = primitive_names()
    assert {"scan", "cond", "while", "dot_general"} <= names
    assert names_asked_for("if op.primitive in ('scan', x) or p == 'cond': pass", names) == {"scan", "cond"}
    found = {
        (str(path.relative_to(PACKAGE)), name)
        for path in FILES
        if part_of(path) in ASK_NO_NAMES
        for name in names_asked_for(path.read_text(), names)
    }
    assert found == set(NAMES_ALLOWED)


def test_solvers_know_no_jax():
    for path in FILES:
        if part_of(path) == "solve":
            assert not [n for n in imports(path) if n.split(".")[0] in ("jax", "jaxlib")], path


def test_private_jax_is_known_in_one_folder():
    for path in FILES:
        if part_of(path) != "_compat":
            assert "jax._src" not in path.read_text(), path
            assert not [n for n in imports(path) if n.split(".")[0] == "jaxlib"], path


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_modules_can_be_read_alone(path):
    text = path.read_text()
    if not text:
        assert path.name == "__init__.py"
        return
    assert len(text.splitlines()) <= 350
    doc = ast.get_docstring(ast.parse(text))
    assert doc, "a module opens with what goes in and what comes out"
    assert "from __future__ import annotations" in text or path.name == "__init__.py"


def test_public_functions_and_classes_have_docs():
    missing = []
    for path in FILES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
                if any(ast.unparse(d) == "overload" for d in node.decorator_list):
                    continue  # the implementation has it
                if not ast.get_docstring(node):
                    missing.append(f"{path.relative_to(ROOT)}: {node.name}")
    assert not missing, "\n".join(missing)


EXAMPLES = [path for path in FILES if re.search(r"^ +>>> ", path.read_text(), re.M)]
LONG = {"api.py", "comparing.py", "fitting.py", "functions.py", "plan.py", "sizing.py", "splitting.py"}


@pytest.mark.parametrize(
    "path",
    [pytest.param(p, marks=[pytest.mark.slow, pytest.mark.texts] if p.name in LONG else ()) for p in EXAMPLES],
    ids=[str(p.relative_to(PACKAGE)) for p in EXAMPLES],
)
def test_examples_in_docstrings(path):
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    failed, tried = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert tried
    assert not failed
