"""The import list is the architecture: data flows down, and nothing heavy is imported."""

import ast
import doctest
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "remat_plan"
FILES = sorted(PACKAGE.rglob("*.py"))

# What each part may import from the package. Parts are folders, or modules at the top.
MAY_IMPORT = {
    "_compat": set(),
    "units": set(),
    "collector": set(),
    "policies": set(),
    "graph": {"_compat"},
    "cost": {"_compat", "units", "graph"},
    "solve": {"units"},
    "loops": {"_compat", "units", "solve"},
    "rewrite": {"_compat", "policies", "graph", "loops"},
    "planning": {"_compat", "units", "graph", "cost", "solve", "rewrite"},
    "verify": {"_compat", "units"},
    "report": {"_compat", "units", "graph", "cost", "planning", "rewrite"},
    "program": {"_compat", "units", "collector", "graph", "planning", "rewrite"},
    "reuse": {"_compat", "graph", "rewrite", "program"},
    "plan": {"_compat", "units", "graph", "report", "rewrite", "program", "reuse"},
    "by_name": {"units", "graph", "cost", "planning", "rewrite", "verify"},
    "scores": {*("_compat", "graph", "cost", "planning", "rewrite", "verify", "report", "program")},
    "choosing": {*("planning", "rewrite", "verify", "report", "program", "by_name", "scores")},
    "session": {
        *("units", "collector", "planning", "rewrite", "report"),
        *("plan", "by_name", "scores", "choosing"),
    },
    "functions": {
        *("_compat", "units", "policies", "graph", "planning", "rewrite", "verify", "report"),
        *("program", "reuse", "plan", "session"),
    },
}


def part_of(path):
    relative = path.relative_to(PACKAGE)
    return relative.parts[0].removesuffix(".py")


def imports(path, lazy=True):
    """Modules that a file imports at run time (not under TYPE_CHECKING); with ``lazy``, those in functions too."""
    found = []

    def walk(node, inside):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            if isinstance(child, ast.Import):
                found.extend((a.name, inside) for a in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, "imports are absolute"
                found.extend((f"{child.module}.{a.name}", inside) for a in child.names)
                found.append((child.module, inside))
            walk(child, inside or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)))

    walk(ast.parse(path.read_text()), False)
    return [name for name, inside in found if lazy or not inside]


def test_data_flows_down():
    wrong = []
    for path in FILES:
        part = part_of(path)
        allowed = MAY_IMPORT.get(part)
        for name in imports(path):
            if not name.startswith("remat_plan."):
                continue
            other = name.split(".")[1]
            if allowed is not None and other != part and other not in allowed and other in MAY_IMPORT:
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
            if part != "__init__" and part in MAY_IMPORT and other in ("api", "cli", "compare", "linen", "nnx"):
                wrong.append(f"{path.relative_to(ROOT)} imports the door {name}")
    assert not wrong, "\n".join(wrong)


def test_the_order_has_no_cycle():
    done = set()
    rest = dict(MAY_IMPORT)
    while rest:
        ready = [part for part, uses in rest.items() if uses <= done]
        assert ready, f"a cycle among {sorted(rest)}"
        done.update(ready)
        for part in ready:
            del rest[part]


def test_every_part_has_its_place():
    known = {
        *MAY_IMPORT,
        "__init__",
        "__main__",
        "api",
        "cli",
        "compare",
        "linen",
        "nnx",
        "loop",
        "fit",
        "checkpoint",
    }
    assert {part_of(p) for p in FILES} <= known


def test_solvers_know_no_jax():
    for path in FILES:
        if part_of(path) == "solve":
            assert not [n for n in imports(path) if n.split(".")[0] in ("jax", "jaxlib")], path


def test_private_jax_is_known_in_one_file():
    for path in FILES:
        if path.name != "_compat.py":
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
                if not ast.get_docstring(node):
                    missing.append(f"{path.relative_to(ROOT)}: {node.name}")
    assert not missing, "\n".join(missing)


HEAVY = ("flax", "matplotlib", "scipy", "optax", "rich", "pandas", "IPython")

TIMED = f"""
import time
import jax, numpy
began = time.process_time()
import remat_plan
took = time.process_time() - began
import sys
print(took, *[m for m in {HEAVY!r} if m in sys.modules])
"""


def test_importing_is_light():
    """No heavy module, no backend, and well under the time that JAX itself takes."""
    best = 9.0
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", TIMED],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        took, *heavy = done.stdout.split()
        assert not heavy
        best = min(best, float(took))
        if best < 0.15:
            break
    assert best < 0.15


def test_importing_starts_no_backend():
    code = "import remat_plan, jax; from jax._src import xla_bridge as b; assert not b._backends"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def test_public_names():
    import remat_plan as rp

    assert sorted(rp.__all__) == list(rp.__all__)
    for name in rp.__all__:
        assert getattr(rp, name).__doc__
    assert re.fullmatch(r"\d+\.\d+\.\d+", rp.__version__)


@pytest.mark.parametrize(
    "path", [p for p in FILES if re.search(r"^ +>>> ", p.read_text(), re.M)], ids=lambda p: str(p.relative_to(PACKAGE))
)
def test_examples_in_docstrings(path):
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    failed, tried = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert tried
    assert not failed
