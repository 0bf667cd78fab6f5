"""The package as it is installed: one version, types marked, everything in it."""

import importlib.util
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import remat_plan as rp

ROOT = Path(__file__).resolve().parents[1]
BUILDER = """
import sys
from hatchling.build import build_sdist, build_wheel
print(build_wheel(sys.argv[1]), build_sdist(sys.argv[1]), sep="\\n")
"""


def test_the_version_is_one():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "version" not in project
    assert "version" in project["dynamic"]
    assert f"## {rp.__version__}" in (ROOT / "CHANGELOG.md").read_text()
    assert f"\nversion: {rp.__version__}\n" in (ROOT / "CITATION.cff").read_text()


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("hatchling") is None, reason="hatchling is not installed")
def test_wheel_and_source_have_everything(tmp_path):
    command = [sys.executable, "-c", BUILDER, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True)
    wheel, source = done.stdout.split()
    assert rp.__version__ in wheel
    with zipfile.ZipFile(tmp_path / wheel) as archive:
        inside = set(archive.namelist())
    files = [p for p in (ROOT / "remat_plan").rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    assert ROOT / "remat_plan" / "py.typed" in files
    assert {str(p.relative_to(ROOT)) for p in files} <= inside
    with tarfile.open(tmp_path / source) as archive:
        told = {name.partition("/")[2] for name in archive.getnames()}
    assert {"remat_plan/py.typed", "LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml"} <= told
