"""The notebooks run as they are; what they show is kept in the files, and small."""

import json
import os
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
QUICK = {"01_quickstart.ipynb"}
MOST_BYTES = 300_000


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [pytest.param(p, id=p.name, marks=[pytest.mark.texts] if p.name in QUICK else []) for p in NOTEBOOKS],
)
def test_it_runs(path):
    """Any cell that raises fails the test, with the cell and its traceback in the message."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(FOLDER)}})
    client.execute(
        env=os.environ | {"PYTHONPATH": str(ROOT), "MPLBACKEND": "module://matplotlib_inline.backend_inline"}
    )
    kinds = {output["output_type"] for cell in code_cells(notebook) for output in cell["outputs"]}
    assert "error" not in kinds
    assert "display_data" in kinds, "there is a picture"


def test_all_are_there():
    assert [p.name[:3] for p in NOTEBOOKS] == ["01_", "02_", "03_", "04_", "05_"]
    assert {p.name for p in NOTEBOOKS} >= QUICK


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
def test_it_installs_from_a_clone_a_wheel_or_the_index(path, tmp_path, monkeypatch):
    """The first cell as it is, but for the command that installs, which is taken down."""
    first = code_cells(nbformat.read(path, as_version=4))[0].source
    code, commands = re.subn(r"%pip install -q (.*)", r"asked.append(f\1)", first)
    assert commands == 1
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    def asked_in(folder):
        monkeypatch.chdir(folder)
        namespace = {"asked": []}
        exec(code, namespace)
        return namespace["asked"][0].partition("[")[0]

    clone, alone = tmp_path / "clone" / "notebooks", tmp_path / "alone"
    clone.mkdir(parents=True)
    alone.mkdir()
    assert asked_in(alone) == "remat_plan"
    wheel = alone / "remat_plan-0.1.0-py3-none-any.whl"
    wheel.touch()
    assert asked_in(alone) == str(wheel)
    (tmp_path / "clone" / "pyproject.toml").touch()
    assert asked_in(clone) == str(tmp_path / "clone")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_nothing_is_installed_where_all_is_there(path):
    first = code_cells(nbformat.read(path, as_version=4))[0].source
    exec(re.sub(r"%pip install", "raise AssertionError #", first), {})  # where tests run, there is all


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_links_lead_somewhere(path):
    for cell in json.loads(path.read_text())["cells"]:
        for target in re.findall(r"\]\((?!https?:|#|attachment:)([^)#]+)", "".join(cell["source"])):
            if cell["cell_type"] == "markdown":
                assert (FOLDER / target).exists(), target
