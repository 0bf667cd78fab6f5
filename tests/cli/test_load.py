"""PATH.py:FUNCTION: what is found, and what is said when it is not."""

import re
import sys

import pytest

from remat_plan.cli.errors import InputError
from remat_plan.cli.load import LOSS, STEPS, check, load, split


def say(folder, text, name="own.py"):
    (folder / name).write_text(text)
    return f"{name}:f"


def test_a_file_is_loaded_with_its_neighbours(folder):
    problem = load(
        say(folder, "from train import problem\ndef f():\n    fn, args = problem()\n    return [fn, list(args)]\n")
    )()
    assert problem.fn.__name__ == "loss_fn"
    assert isinstance(problem.args, tuple)
    assert problem.options == {"argnums": 0, "has_aux": False, "static_argnums": (), "kwargs": None}


def test_a_file_in_a_package_may_import_its_siblings(folder):
    inner = folder / "pack" / "inner"
    inner.mkdir(parents=True)
    for where in (folder / "pack", inner):
        (where / "__init__.py").write_text("")
    (inner / "other.py").write_text("FACTOR = 2.0\n")
    (inner / "own.py").write_text("from .other import FACTOR\ndef f():\n    return (lambda x: FACTOR * x), (1.0,)\n")
    assert load("pack/inner/own.py:f")().args == (1.0,)


def test_a_file_may_have_the_name_of_a_module_that_is_there(folder):
    for name in ("json.py", "jax.py"):
        assert load(say(folder, "def f():\n    return (lambda x: x), (1.0,)\n", name))().args == (1.0,)
    assert "dumps" in dir(sys.modules["json"])


def test_dataclasses_work_in_the_file(folder):
    text = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass A:\n    x: int\n"
        "def f():\n    return (lambda x: x), (1.0,), {'kwargs': {}}\n"
    )
    assert load(say(folder, text))().options["kwargs"] == {}


@pytest.mark.parametrize("text", ["train", "train.py", "train.py:", ":f", "train.py:1", "train.py:a.b", ""])
def test_what_names_no_function(folder, text):
    with pytest.raises(InputError, match=r"Write PATH\.py:FUNCTION"):
        split(text)


def test_paths(folder):
    assert split("train.py:problem") == (folder / "train.py", "problem")
    assert split(f"{folder}/train.py:problem")[0] == folder / "train.py"
    with pytest.raises(InputError, match=r"is a folder"):
        split(".:f")
    (folder / "notes.txt").write_text("")
    with pytest.raises(InputError, match=r"must end in \.py"):
        split("notes.txt:f")
    with pytest.raises(InputError, match=r"relative to .*Did you mean train\.py\?"):
        split("trane.py:f")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("def f(:", r"importing own\.py raised SyntaxError"),
        ("import no_such_module_1", r"Is no_such_module_1 installed in this environment\?"),
        ("1 / 0", r'File ".*own\.py", line 1'),
        ("from .other import x\ndef f(): pass", r"attempted relative import"),
        ("import sys; sys.exit('done')", r"called sys\.exit\('done'\)"),
        ("x = 1", r"It defines no function"),
        ("f = 3", r"own\.py:f is not a function but int"),
        ("def f(a): pass", r"cannot be called without arguments"),
        ("def f(): raise ValueError", r"own\.py:f raised ValueError: \(no message\)"),
        ("def f(): return None", r"returned the wrong thing: None"),
    ],
)
def test_what_is_wrong_with_a_file(folder, text, told):
    with pytest.raises(InputError) as caught:
        load(say(folder, text))()
    assert re.search(told, str(caught.value)), caught.value


def test_long_messages_are_cut(folder):
    with pytest.raises(InputError) as caught:
        load(say(folder, "def f(): raise ValueError('line\\n' * 500)"))()
    assert len(str(caught.value).splitlines()) < 20
    assert "more lines" in str(caught.value)


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (print, "returned the wrong thing"),
        ((print,), "a tuple of 1"),
        ((print, (1,), {}, 4), "a tuple of 4"),
        ((3, (1,)), "not a function"),
        ((print, 3), "It must be a tuple of the loss function's arguments"),
        ((print, {"a": 1}), "of type dict"),
        ((print, (1,), [3]), "a list of 1"),
        ((print, (1,), {"hasaux": True}), "returned the unknown option 'hasaux'"),
    ],
)
def test_what_is_wrong_with_what_the_function_returned(made, told):
    with pytest.raises(InputError) as caught:
        check(made, "own.py:f", LOSS)
    assert told in str(caught.value)


def test_a_function_of_the_batch_is_given_one(folder):
    make = load(say(folder, "def f(batch):\n    return print, (batch,), {'donate_argnums': 0}\n"), STEPS)
    assert make(16).args == (16,)
    assert make(16).options["donate_argnums"] == 0
    with pytest.raises(InputError, match="cannot be called with the number of examples in a batch alone"):
        load(say(folder, "def f(): pass", "none.py"), STEPS)
    with pytest.raises(
        InputError, match=r"unknown option 'argnums'\.\nIt must be a dict with some of donate_argnums, "
    ):
        load(say(folder, "def f(batch): return print, (1,), {'argnums': 0}", "other.py"), STEPS)(8)
