"""JAX's own tests of rematerialisation, with ``rp.checkpoint`` in place of ``jax.checkpoint`` and ``jax.remat``.

In: a JAX source tree of the installed version (nothing is copied from it). Out: a table of how many tests passed,
failed and were skipped, with stock JAX and with ours; the tests whose outcome differs.

    python benchmarks/jax_remat_tests.py --jax-source PATH

Of every file in ``PATH/tests`` those tests are run that belong to a class named ``Remat...Test`` or whose own text
speaks of ``checkpoint``, ``remat`` or a checkpoint policy of JAX. Both runs choose the same tests. This file is also
the pytest plugin of the runs, which puts ours in JAX's place before any test is imported.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
ROOT = Path(__file__).resolve().parents[1]
OURS, OUTPUT = "REMAT_PLAN_IN_PLACE", "REMAT_PLAN_OUTCOMES"
_SPEAKS = re.compile(r"jax\.(checkpoint|remat)\b|ad_checkpoint|checkpoint_name|checkpoint_polic|new_remat")
_CLASS = re.compile(r"Remat\w*Test$")
_outcomes: dict[str, str] = {}


def chosen_tests(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (class, method) of the tests of one file that are about rematerialisation; ``*`` stands for all."""
    source = path.read_text(encoding="utf-8")
    lines = source.splitlines()
    for node in ast.parse(source).body:
        if not isinstance(node, ast.ClassDef):
            continue
        if _CLASS.search(node.name):
            yield node.name, "*"
            continue
        methods = [m for m in node.body if isinstance(m, ast.FunctionDef) and m.name.startswith("test")]
        texts = ("\n".join(lines[m.lineno - 1 : m.end_lineno]) for m in methods)
        yield from ((node.name, m.name) for m, text in zip(methods, texts, strict=True) if _SPEAKS.search(text))


def is_chosen(test: str, owner: str, chosen: set[tuple[str, str]]) -> bool:
    """Tell whether a collected test (its name may have a number at its end) is one of those chosen."""
    return (owner, "*") in chosen or any((owner, re.sub(pattern, "", test)) in chosen for pattern in ("", r"\d+$"))


def absent_names(path: Path) -> Iterator[tuple[Any, str]]:
    """Yield (module, name) of what a test file imports from JAX and the installed JAX does not have."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "jax":
            try:
                module = importlib.import_module(node.module or "")
            except ImportError:
                continue
            yield from ((module, a.name) for a in node.names if not _has(module, a.name))


def _has(module: Any, name: str) -> bool:
    """Tell whether a module has a name, or a submodule of that name."""
    if hasattr(module, name):
        return True
    return hasattr(module, "__path__") and importlib.util.find_spec(f"{module.__name__}.{name}") is not None


def pytest_configure(config: Any) -> None:
    """Put ours in the place of JAX's, before any test is imported.

    Where the source tree is newer or older than the installed JAX, a test file may import a name that is not there.
    A class that can do nothing takes its place, so that the other tests of the file run.
    """
    for path in config.args:
        for module, name in absent_names(Path(path)):
            setattr(module, name, type(name, (), {}))
    if os.environ.get(OURS):
        import jax
        import jax.ad_checkpoint

        import remat_plan as rp

        for module in (jax, jax.ad_checkpoint):
            for name in ("checkpoint", "remat"):
                if hasattr(module, name):
                    setattr(module, name, rp.checkpoint)


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Leave out the tests that are about something else."""
    known: dict[Path, set[tuple[str, str]]] = {}
    kept = []
    for item in items:
        if item.path not in known:
            known[item.path] = set(chosen_tests(item.path))
        chosen = known[item.path]
        owner = item.cls.__name__ if item.cls else ""
        if is_chosen(item.name, owner, chosen):
            kept.append(item)
    items[:] = kept


def pytest_runtest_logreport(report: Any) -> None:
    """Note how a test ended."""
    if report.when == "call" or report.outcome != "passed":
        _outcomes[report.nodeid] = report.outcome


def pytest_collectreport(report: Any) -> None:
    """Note a file that cannot be imported with the installed JAX."""
    if report.outcome == "failed":
        _outcomes[report.nodeid] = "not imported"


def pytest_sessionfinish() -> None:
    """Write how the tests ended."""
    Path(os.environ[OUTPUT]).write_text(json.dumps(_outcomes))


def run(source: Path, files: Sequence[Path], ours: bool) -> tuple[dict[str, str], float]:
    """Run the chosen tests in a process of their own; return outcomes by test, and seconds."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "outcomes.json"
        paths = os.pathsep.join([str(ROOT), str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": paths, "JAX_PLATFORMS": "cpu", OUTPUT: str(output)}
        environment[OURS] = "1" if ours else ""
        options = ["-q", "--no-header", "--tb=short", "-c", os.devnull, "--rootdir", str(source), "--noconftest"]
        options += ["-p", "no:cacheprovider", "-p", "jax_remat_tests", "--continue-on-collection-errors"]
        command = [sys.executable, "-m", "pytest", *options, *(str(f.relative_to(source)) for f in files)]
        done = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True)
        if not output.exists():
            raise RuntimeError(f"pytest did not finish:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
        return json.loads(output.read_text()), time.perf_counter() - started


def table(stock: dict[str, str], ours: dict[str, str]) -> list[str]:
    """Counts per file, stock beside ours."""
    rows = [
        "| file | passed: stock | ours | failed: stock | ours | skipped: stock | ours |",
        "|---|---|---|---|---|---|---|",
    ]
    files = sorted({name.partition("::")[0] for name in stock if "::" in name})
    for file in [*files, ""]:
        counts = [Counter(o for n, o in run.items() if "::" in n and n.startswith(file)) for run in (stock, ours)]
        cells = [str(c[kind]) for kind in ("passed", "failed", "skipped") for c in counts]
        rows.append(f"| {file.removeprefix('tests/') or '**all**'} | {' | '.join(cells)} |")
    return rows


def report(source: str, stand_ins: Sequence[str], stock: dict[str, str], ours: dict[str, str], seconds: float) -> str:
    """The file that is written."""
    import importlib.metadata

    import jax

    different = sorted(n for n in stock if stock[n] != ours.get(n))
    absent = sorted(n for n, outcome in stock.items() if outcome == "not imported")
    lines = [
        f"## jax {jax.__version__}, jaxlib {importlib.metadata.version('jaxlib')}",
        "",
        f"Tests of the JAX source tree {source}; {seconds:.0f} s for both runs on two busy CPU cores, "
        f"{time.strftime('%Y-%m-%d')}.",
        "",
        *table(stock, ours),
        "",
        f"* tests that pass with stock JAX and not with ours: {sum(stock[n] == 'passed' for n in different)}",
        f"* tests whose outcome differs: {', '.join(different) or 'none'}",
    ]
    if stand_ins:
        lines.append(f"* names that the source tree has and the installed JAX has not: {', '.join(stand_ins)}")
    if absent:
        lines.append(f"* files that the installed JAX cannot import, in both runs: {', '.join(absent)}")
    return "\n".join(lines) + "\n"


INTRO = """# jax_remat_tests

JAX's own tests about rematerialisation (every class `Remat...Test`, and every other test that speaks of
`jax.checkpoint`, `jax.remat`, checkpoint names or policies), run twice: with stock JAX, and with `rp.checkpoint` in
place of `jax.checkpoint` and `jax.remat`. Command: `python benchmarks/jax_remat_tests.py --jax-source PATH`.
"""


def write(path: Path, section: str) -> None:
    """Put a section into the file in place of the one with the same heading."""
    text = path.read_text() if path.exists() else INTRO
    heading = section.splitlines()[0]
    sections = re.split(r"(?m)^(?=## )", text)
    kept = [s.rstrip() for s in sections[1:] if s.splitlines()[0] != heading]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n\n".join([sections[0].rstrip(), *sorted([*kept, section.rstrip()])]) + "\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line, run both, write the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jax-source", type=Path, required=True, help="a JAX source tree of the installed version")
    parser.add_argument("--tree", default="given", help="what the source tree is, for the record (a tag or commit)")
    parser.add_argument("--files", nargs="+", help="names of files in PATH/tests (default: all that have such tests)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the table")
    given = parser.parse_args(arguments)
    source = given.jax_source.resolve()
    folder = source / "tests"
    if not folder.is_dir():
        parser.error(f"{given.jax_source} has no folder tests: give the root of a JAX source tree.")
    files = [folder / name for name in given.files] if given.files else sorted(folder.glob("*_test.py"))
    if missing := [str(f) for f in files if not f.is_file()]:
        parser.error(f"there is no {missing[0]}")
    files = [file for file in files if any(True for _ in chosen_tests(file))]
    print(f"{len(files)} files with such tests", flush=True)
    stock, before = run(source, files, ours=False)
    ours, after = run(source, files, ours=True)
    stand_ins = sorted({f"{m.__name__}.{name}" for file in files for m, name in absent_names(file)})
    section = report(given.tree, stand_ins, stock, ours, before + after)
    print(section)
    write(given.results / "jax_remat_tests.md", section)


if __name__ == "__main__":
    main()
