"""The notebooks run as they are; what they show is kept in the files, and small."""

import os
import re
import shlex
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from remat_plan.report.charts import AFTER, BEFORE

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
MOST_BYTES = 300_000


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.slow
@pytest.mark.texts
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_it_runs(path):
    """Any cell that raises fails the test, with the cell and its traceback in the message."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(FOLDER)}})
    settings = {"PYTHONPATH": str(ROOT), "MPLBACKEND": "module://matplotlib_inline.backend_inline"}
    client.execute(env=os.environ | settings | {"XLA_FLAGS": ""})  # steps are timed: code as readers run it
    kinds = {output["output_type"] for cell in code_cells(notebook) for output in cell["outputs"]}
    assert "error" not in kinds
    assert "display_data" in kinds, "there is a picture"


def test_all_are_there():
    assert [p.name for p in NOTEBOOKS] == [
        "01_fit_a_model.ipynb",
        "02_long_sequences.ipynb",
        "03_which_batch_fits.ipynb",
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_outputs_are_kept_and_small(path):
    text = path.read_text()
    notebook = nbformat.reads(text, as_version=4)
    nbformat.validate(notebook)
    assert len(text) < MOST_BYTES
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1)), "run from top to bottom"
    outputs = [output for cell in cells for output in cell.outputs]
    assert not [o for o in outputs if o.output_type == "error" or o.get("name") == "stderr"]
    data = [o.data for o in outputs if "data" in o]
    assert any("image/png" in d for d in data)
    assert any("text/html" in d for d in data)
    assert not re.search(r"/tmp/|/home/|/root/|ipykernel_\d", text), "nothing of the machine that ran it"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_its_charts_have_the_colours_of_those_of_plans(path):
    sources = "\n".join(cell.source for cell in code_cells(nbformat.read(path, as_version=4)))
    assert f'PLAIN, PLANNED, OTHER = "{BEFORE}", "{AFTER}"' in sources


@pytest.mark.parametrize("gpu", [None, "/usr/bin/nvidia-smi"], ids=["cpu", "gpu"])
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_it_installs_from_a_clone_only(path, gpu, tmp_path, monkeypatch):
    """The first cell as it is, but for the command that installs: a name of the index would be anybody's package."""
    first = code_cells(nbformat.read(path, as_version=4))[0].source
    code, commands = re.subn(r"%pip install -q (.*)", r"asked.append(f'\1')", first)
    assert commands == 1
    asked = []
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("shutil.which", lambda name: gpu)
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    with pytest.raises(RuntimeError, match=r"\['remat_plan', .* not installed. Clone remat_plan"):
        exec(code, {"asked": asked})
    assert not asked
    (tmp_path / "pyproject.toml").touch()
    exec(code, {"asked": asked})
    package, *more = shlex.split(asked[0])
    assert re.fullmatch(r"\.\.\[(plot|examples)\]", package)
    assert more == (["jax[cuda12]"] if gpu else []), "a CUDA plugin of the version of jax that is installed"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_nothing_is_installed_where_all_is_there(path):
    first = code_cells(nbformat.read(path, as_version=4))[0].source
    exec(re.sub(r"%pip install", "raise AssertionError #", first), {})  # where tests run, there is all


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_links_lead_to_notebooks_or_the_web(path):
    """Other files of the repository are not beside a notebook everywhere."""
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "markdown":
            for target in re.findall(r"\]\((?!https?:)([^)]+)", cell.source):
                assert (FOLDER / target).is_file(), target
                assert "/" not in target, target
