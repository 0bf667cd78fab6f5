"""The command line: reports, files, exit codes; no traceback on bad input."""

import json
import os
import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

import remat_plan as rp
from remat_plan.cli import main as module
from remat_plan.small.doors import WHILE_NOTE
from tests.helpers import CUDA, has_module

pytestmark = pytest.mark.usefixtures("quick_search")

ROOT = Path(__file__).resolve().parents[2]
QUICK = "--budget", "60%", "--no-verify"


def test_analyze_shows_what_is_saved_and_where(run):
    code, out, err = run("analyze", "train.py:problem")
    assert (code, err) == (0, "")
    assert "Plain JAX saves" in out
    assert "train.py:6" in out


def test_plan_prints_the_plan_and_writes_the_files(run, folder):
    files = "--json", "plan.json", "--html", "plan.html", "--plot", "plan.png"
    code, out, err = run("plan", "train.py:problem", "--budget", "60%", *files)
    assert code == 0
    plan = rp.Plan.from_json((folder / "plan.json").read_text())
    assert plan.compiled_peak_bytes <= plan.budget_bytes
    assert plan.fingerprint in out
    assert (folder / "plan.html").read_text().startswith("<!doctype html>")
    assert plan.fingerprint in (folder / "plan.html").read_text()
    assert (folder / "plan.png").read_bytes().startswith(b"\x89PNG")
    assert err.split() == ["wrote", "plan.json", "wrote", "plan.html", "wrote", "plan.png"]
    assert sorted(p.name for p in folder.iterdir() if p.is_file()) == ["plan.html", "plan.json", "plan.png", "train.py"]


@pytest.mark.slow
def test_a_plan_that_was_written_applies_in_a_program(run, folder):
    run("plan", "train.py:problem", *QUICK, "--json", "plan.json")
    program = (
        "import jax, jax.numpy as jnp, remat_plan as rp, train\n"
        "fn, (params, x) = train.problem()\n"
        "plan = rp.Plan.from_json(open('plan.json').read())\n"
        "print(jax.eval_shape(jax.grad(plan.apply(fn)), params, x)[0].shape)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)  # fmt: skip
    assert done.stdout == "(32, 32)\n", done.stderr


def test_without_verification_nothing_is_compiled(run):
    code, out, _ = run("plan", "train.py:problem", *QUICK)
    assert code == 0
    assert "not compiled (verify=False)" in out


def test_measure_runs_both_steps_on_arguments_that_were_shapes(run, folder):
    code, out, err = run("measure", "train.py:problem", "--budget", "60%", "--rounds", "2", "--json", "measured.json")
    assert code == 0
    assert "overhead, measured" in out
    assert "Medians of 2 rounds" in out
    assert "budget" in err  # the plan, in one line
    assert json.loads((folder / "measured.json").read_text())["plain"]["seconds"] > 0
    assert run("measure", "train.py:problem")[0] == 2


def test_tradeoff(run, folder):
    code, out, _ = run("tradeoff", "train.py:problem", "--points", "5", "--json", "curve.json", "--plot", "curve.svg")
    assert code == 0
    points = json.loads((folder / "curve.json").read_text())["points"]
    assert 2 <= len(points) <= 2 * 5
    assert out.count("#####") >= 1
    assert "<svg" in (folder / "curve.svg").read_text()


STEP = """
import jax, jax.numpy as jnp, remat_plan as rp

def loss_fn(w, x):
    for _ in range(8):
        x = jnp.tanh(x @ w)
    return jnp.mean(x**2)

def train_step(w, x):
    return w - jax.grad(rp.remat(loss_fn))(w, x)

def step(batch=4096):
    shape = lambda *s: jax.ShapeDtypeStruct(s, "float32")
    return train_step, (shape(64, 64), shape(batch, 64)), {"donate_argnums": 0}

def unmarked():
    return (lambda w, x: w - jax.grad(loss_fn)(w, x)), step()[1]

def endless():
    return (lambda w: jax.lax.while_loop(lambda c: c < 9, lambda c: c + w, w)), (jax.ShapeDtypeStruct((), "float32"),)

def bare_step():
    return (lambda w, x: (loss_fn(w, x), train_step(w, x))), step()[1]
"""


def test_fit(run, folder):
    (folder / "step.py").write_text(STEP)
    files = "--json", "step.json", "--html", "step.html", "--plot", "step.png"
    code, out, _ = run("fit", "step.py:step", "--budget", "60%", *files)
    assert code == 0
    report = json.loads((folder / "step.json").read_text())
    assert report["planned"]["peak_bytes"] <= report["budget_bytes"] < report["plain"]["peak_bytes"]
    assert "parameters and state of the model" in out


@pytest.mark.slow
def test_max_batch(run, folder):
    (folder / "step.py").write_text(STEP)
    code, out, _ = run("max-batch", "step.py:step", "--budget", "2MB", "--multiple-of", "128", "--json", "sizes.json")
    assert code == 0
    batches = [row["size"] for row in json.loads((folder / "sizes.json").read_text())["rows"]]
    assert 0 < batches[0] < batches[-1]
    assert all(str(batch) in out for batch in batches)
    code, out, _ = run("largest", "step.py:step", "--budget", "2MB", "--multiple-of", "128", "--dimension", "examples")
    assert code == 0
    assert "Largest examples" in out
    assert all(str(batch) in out for batch in batches)


def test_what_is_wrong_with_a_step(run, folder):
    (folder / "step.py").write_text(STEP)
    code, _, err = run("fit", "step.py:unmarked", "--budget", "60%")
    assert code == 2
    assert "no gradient is taken through a marked function" in err
    assert run("fit", "step.py:step", "--budget", "1kB")[0] == 1
    code, _, err = run("plan", "step.py:endless", "--budget", "60%")
    assert code == 2
    assert "lax.while_loop or lax.fori_loop with dynamic start/stop values" in err
    assert WHILE_NOTE in err
    code, _, err = run("max-batch", "step.py:step")
    assert code == 2
    assert "max-batch needs a budget" in err
    code, out, _ = run("max-batch", "step.py:step", "--budget", "1kB", "--multiple-of", "128")
    assert code == 1, out


def test_compare_has_a_line_for_each_budget(run, folder):
    code, out, _ = run(
        "compare", "train.py:problem", "--budget", "80%,70%", "--budget", "2%", "--strategy", "auto", "--no-verify",
        "--json", "all.json", "--html", "all.html",
    )  # fmt: skip
    assert code == 0
    assert [line.split()[1] for line in out.splitlines() if line.startswith("auto")] == ["80%", "70%", "2%"]
    assert "least reached" in out
    rows = json.loads((folder / "all.json").read_text())["rows"]
    assert [row["plan"] is None for row in rows] == [False, False, True]
    assert rp.Plan.from_json(json.dumps(rows[0]["plan"])).budget == "80%"


@pytest.mark.slow
def test_strategies_are_compared(run):
    code, out, _ = run("compare", "train.py:problem", "--strategy", "auto,memory", "--strategy", "dots", "--budget", "80%", "--no-verify")  # fmt: skip
    assert code == 0
    lines = [line.split()[:2] for line in out.splitlines()]
    assert [line for line in lines if line[:1] in (["auto"], ["memory"], ["dots"])] == [
        ["auto", "80%"], ["memory", "80%"], ["dots", "-"],
    ]  # fmt: skip


def test_a_plan_without_a_budget(run):
    code, out, _ = run("plan", "train.py:problem", "--strategy", "each_block", "--no-verify")
    assert code == 0
    assert "strategy each_block" in out
    code, _, err = run("plan", "train.py:problem", "--strategy", "chain", "--no-verify")
    assert code == 2
    assert "needs a budget" in err


def test_the_help_tells_the_strategies(run):
    for command in ("plan", "compare"):
        _, out, _ = run(command, "--help")
        assert all(f"    {row.name} " in out for row in rp.strategies())


def test_json_to_stdout_is_nothing_but_json(run):
    code, out, err = run("plan", "train.py:talks", *QUICK, "--json", "-")
    assert code == 0
    assert rp.Plan.from_json(out).strategy == "auto"
    assert "hello" in err


def test_options_of_the_problem_are_used(run):
    code, out, _ = run("analyze", "train.py:with_aux")
    assert code == 0
    assert "Plain JAX saves" in out


def test_a_number_is_no_share(run):
    code, out, err = run("plan", "train.py:problem", "--budget", "60")
    assert (code, out) == (2, "")
    assert 'Did you mean "60%"' in " ".join(err.split())


def test_a_budget_that_cannot_be_met_is_1(run, folder):
    code, out, err = run("plan", "train.py:problem", "--budget", "1%", "--no-verify", "--json", "plan.json")
    assert (code, out) == (1, "")
    assert "is below the lowest predicted peak found" in err
    assert not (folder / "plan.json").exists()
    code, out, _ = run("compare", "train.py:problem", "--budget", "1%", "--no-verify")
    assert code == 1
    assert "least reached" in out


BAD = {
    "plan train.py:problem": "plan needs a budget",
    "plan train.py:problem --budget 60x": "--budget='60x' is not understood",
    "plan train.py:problem --budget -5": "--budget",
    "plan train.py:problem --budget 60% --strategy nonsense": "nonsense",
    "plan train.py:problem --budget 60% --target gpu:h9000": "gpu:h9000",
    "compare train.py:problem --budget 60%,x": "--budget='x' is not understood",
    "tradeoff train.py:problem --points 1": "--points",
    "tradeoff train.py:problem --budget 60%": "unrecognized arguments: --budget",
    "plan train.py:problem --budgt=60%": "unrecognized arguments: --budgt=60%. Did you mean '--budget'?",
    "fit train.py:problem --tarjet gpu:h100": "Did you mean '--target'?",
    "analyze": "PATH.py:FUNCTION",
    "nonsense train.py:problem": "nonsense",
    "analyze train.py": "Write PATH.py:FUNCTION, for example train.py:problem.",
    "analyze trian.py:problem": "there is no file trian.py.",
    "analyze train.py:porblem": "Did you mean 'problem'?",
    "analyze train.py:wrong_shapes": "tracing loss_fn raised TypeError",
    "analyze train.py:no_scalar": "must return a real floating-point scalar",
    "analyze train.py:integers": "which has no gradient",
    "analyze train.py:divides": "train.py:divides raised ZeroDivisionError: division by zero",
    "analyze train.py:exits": "called sys.exit(4)",
    "analyze train.py:problem --json -x": "--json",
    "analyze train.py:problem --html -": "only --json can go to stdout",
    "analyze train.py:problem --html no/such/folder.html": "there is no folder no/such",
    "analyze train.py:problem --html .": "is a folder",
    "analyze train.py:problem --plot picture": "must end in an image format",
    "analyze train.py:problem --json a --html ./a": "two reports go to the same file",
}


@pytest.mark.parametrize("words", BAD)
def test_bad_input_is_2_and_told_without_a_traceback(run, folder, words):
    code, out, err = run(*words.split())
    assert code == 2
    assert BAD[words] in err
    assert out == ""
    assert "Traceback" not in err
    assert not re.search(r'File ".*remat_plan/remat_plan', err), "no lines of the library"
    assert [p.name for p in folder.iterdir() if p.is_file()] == ["train.py"]


def test_the_users_own_line_is_shown(run, folder):
    _, _, err = run("analyze", "train.py:wrong_shapes")
    assert f'File "{folder}/train.py", line 6, in loss_fn\n    x = jnp.tanh(x @ w)\n' in err
    assert "jax.make_jaxpr(loss_fn)(*args)" in err
    _, _, err = run("analyze", "train.py:divides")
    assert "return 1 / 0" in err


def test_a_failure_of_the_library_is_3_and_asks_for_a_report(run, monkeypatch):
    library = {}
    exec("def fail(*args, **kwargs):\n    raise RuntimeError('the compiler is out of sorts')", library)
    monkeypatch.setattr(module.rp, "plan", library["fail"])
    code, _, err = run("plan", "train.py:problem", *QUICK)
    assert code == 3
    assert "Traceback" in err
    assert "Please report it" in err


def test_stopping_is_130(run, monkeypatch):
    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(module.rp, "analyze", stop)
    assert run("analyze", "train.py:problem") == (130, "", "remat-plan: stopped\n")


def test_the_installed_command_is_this_one():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"remat-plan": f"{module.__name__}:main"}


@pytest.mark.parametrize("command", ["", "analyze ", "plan ", "tradeoff ", "compare "])
def test_help_teaches(run, command):
    code, out, _ = run(*f"{command}--help".split())
    assert code == 0
    assert "PATH.py:FUNCTION" in out
    assert max(map(len, out.splitlines())) <= 120
    if command in ("", "plan ", "compare "):
        assert f"remat-plan {command or 'plan '}train.py:problem" in out


def test_the_example_of_the_help_works(run, folder):
    _, out, _ = run("--help")
    lines = out.splitlines()
    first = next(i for i, line in enumerate(lines) if line.strip() == "# train.py")
    last = next(i for i, line in enumerate(lines) if line.strip().startswith("return loss_fn"))
    (folder / "shown.py").write_text("\n".join(line.removeprefix("    ") for line in lines[first : last + 1]))
    code, out, err = run("analyze", "shown.py:problem")
    assert code == 0, err


def test_as_a_module_and_into_a_reader_that_stops(folder):
    command = f"{sys.executable} -W error -m remat_plan analyze train.py:problem | true"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_strategies_are_listed(run):
    code, out, err = run("strategies")
    assert (code, err) == (0, "")
    assert all(row.name in out for row in rp.strategies())


def test_what_is_kept_and_what_is_not_recomputed_can_be_said(run, folder):
    limits = "--never-recompute", "tanh,dot_general", "--must-save", "nothing_of_that_name"
    code, _, err = run("plan", "train.py:problem", *QUICK, *limits)
    assert code == 2
    assert "nothing_of_that_name" in err
    code, _, err = run("plan", "train.py:problem", *QUICK, "--never-recompute", "tanh,dot_general")
    assert code == 1, "all that there is to recompute"


@pytest.mark.slow
def test_what_is_not_split_can_be_said(run, folder):
    code, _, err = run("plan", "train.py:problem", *QUICK, "--never-split", "tanh,nothing_of_that_name")
    assert code == 2
    assert "never_split: 'nothing_of_that_name' is no name and no primitive" in err
    for never in ("all", "tanh,dot_general"):
        code, _, err = run("plan", "train.py:problem", *QUICK, "--never-split", never)
        assert code == 0, err


SCANNED = """
    import jax, jax.numpy as jnp
    from jax.ad_checkpoint import checkpoint_name

    def loss_fn(ws, x):
        step = lambda x, w: (x + jnp.tanh(checkpoint_name(x @ w, "product")), None)
        return jnp.mean(jax.lax.scan(step, x, ws)[0].astype("float32") ** 2)

    def problem():
        shapes = (8, 8192, 8192), (8192, 8192)
        return loss_fn, tuple(jax.ShapeDtypeStruct(shape, "bfloat16") for shape in shapes)
    """


@pytest.mark.skipif(not has_module(CUDA), reason="the CUDA plugin is not installed")
def test_what_may_go_to_the_host_can_be_said(run, folder):
    (folder / "scanned.py").write_text(textwrap.dedent(SCANNED))
    h100 = "scanned.py:problem", "--target", "gpu:h100"
    plan = "plan", *h100, "--budget", "90%", "--no-verify"
    code, out, err = run(*plan, "--offload", "--json", "plan.json")
    assert (code, err) == (0, "wrote plan.json\n")
    moved = rp.Plan.from_json((folder / "plan.json").read_text()).host_bytes
    assert moved > 10**6
    assert "host memory" in out
    for asked, moves in (
        ([], False),
        (["--offload", "--host-budget", "1MB"], False),
        (["--may-offload", "product"], True),
    ):
        code, out, _ = run(*plan, *asked)
        assert code == 0
        assert ("host memory" in out) == moves
    assert "offload 1 value" in out
    assert "'product' bfloat16[8192,8192]" in out
    code, _, err = run(*plan, "--may-offload", "product,nobody")
    assert code == 2
    assert "may_offload: no value is named 'nobody'" in err
    assert "on host" in run("compare", *h100, "--budget", "90%", "--no-verify", "--offload")[1]
    assert "on host" in run("tradeoff", *h100, "--points", "4", "--offload")[1]


def test_what_may_go_to_the_host_of_a_step_is_handed_on(run, folder, monkeypatch):
    (folder / "steps.py").write_text(STEP)
    asked = []

    def stop(*args, **options):
        asked.append(options)
        raise module.InputError("far enough")

    monkeypatch.setattr(module.rp, "fit", stop)
    monkeypatch.setattr(module.rp, "largest", stop)
    given = "--budget", "24GB", "--may-offload", "hidden,stream", "--host-budget", "64GB"
    run("fit", "steps.py:step", *given)
    run("max-batch", "steps.py:step", *given)
    for options in asked:
        found = options["offload"], options["may_offload"], options["host_budget"]
        assert found == (False, ["hidden", "stream"], "64GB")
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (["--host-budget", "1GB"], "--host-budget='1GB' is for --offload, or --may-offload"),
        (["--offload", "--host-budget", "60%"], "--host-budget='60%': give bytes of the host's memory"),
        (["--may-offload", "h", "--host-budget", "lots"], "--host-budget='lots': give bytes of the host's memory"),
    ],
)
def test_bytes_of_the_host_are_checked_before_the_file_is_read(run, asked, told):
    for command in ("plan", "measure", "fit", "max-batch", "largest", "compare", "tradeoff"):
        budget = [] if command == "tradeoff" else ["--budget", "60%"]
        code, out, err = run(command, "absent.py:problem", *budget, *asked)
        assert (code, out) == (2, "")
        assert told in err
        assert "absent.py" not in err


def test_the_fastest_step_needs_no_budget_and_tells_what_was_tried(run):
    code, out, err = run("plan", "train.py:problem", "--goal", "time", "--search")
    assert (code, err) == (0, "")
    assert "schedules by the compiler" in out
    assert "as written" in out or "segments recomputed" in out
    code, _, err = run("plan", "train.py:problem", "--goal", "tiem")
    assert code == 2
    assert "--goal" in err


def test_costs_and_own_regions_are_handed_on(run, monkeypatch):
    asked = []
    monkeypatch.setattr(module.rp, "tradeoff", lambda *args, **options: asked.append(options) or run_out())

    def run_out():
        raise module.InputError("far enough")

    run("tradeoff", "train.py:problem", "--cost", "measured", "--existing", "keep")
    assert (asked[0]["cost"], asked[0]["existing"]) == ("measured", "keep")


def test_help_says_that_a_share_will_do(run):
    for command in ("plan", "fit"):
        assert "a share of" in run(command, "--help")[1].partition("options:")[2]
    assert "60%" in run("fit", "train.py:problem")[2]


def test_a_training_step_given_to_plan_is_sent_to_fit(run, folder):
    (folder / "steps.py").write_text(STEP)
    for command in ("plan", "measure"):
        code, _, err = run(command, "steps.py:step", "--budget", "60%")
        assert code == 2
        assert "remat-plan fit steps.py:step" in err
    assert "remat-plan fit steps.py:bare_step" in run("plan", "steps.py:bare_step", "--budget", "60%")[2]
