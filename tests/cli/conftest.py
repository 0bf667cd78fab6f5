"""A user's file, and running the command line on it in this process."""

import sys
import textwrap

import pytest

from remat_plan.cli.main import main

TRAIN = """
    import jax, jax.numpy as jnp

    def loss_fn(params, x):
        for w in params:
            x = jnp.tanh(x @ w)
        return jnp.mean(x**2)

    def problem(width=32):
        params = [jax.ShapeDtypeStruct((32, width), "float32")] * 8
        return loss_fn, (params, jax.ShapeDtypeStruct((2048, 32), "float32"))

    def with_aux():
        return (lambda params, x: (loss_fn(params, x), x)), problem()[1], {"has_aux": True}

    def wrong_shapes():
        return problem(width=16)

    def no_scalar():
        return (lambda params, x: x @ params[0]), problem()[1]

    def divides():
        return 1 / 0

    def exits():
        raise SystemExit(4)

    def talks():
        print("hello")
        return problem()

    def integers():
        return (lambda n: n * 1.0), (3,)

    NUMBER = 3
    """


@pytest.fixture(autouse=True)
def _imports_are_undone(monkeypatch):
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and "pytest" in str(sys.modules[name].__file__):
            del sys.modules[name]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working folder, with the user's file in it."""
    (tmp_path / "train.py").write_text(textwrap.dedent(TRAIN))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(folder, capsys):
    """A function from arguments to (exit code, stdout, stderr)."""

    def command(*arguments):
        try:
            code = main(arguments)
        except SystemExit as left:  # argparse, on --help and on wrong options
            code = left.code
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return command
