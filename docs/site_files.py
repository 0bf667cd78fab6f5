"""Lays the site out as the repository is, so that relative links lead to the same places in both.

A hook of MkDocs (``mkdocs.yml``). In: the files in ``docs/``. Out: these under ``docs/``, and beside them the files of
the repository that pages link to; an index of the tables of measurements; the notebooks in the menu, by their titles.
``docs/index.md`` is the home page.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
BESIDE = (
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "CITATION.cff", "LICENSE"),
    *("benchmarks/results/**/*.md", "benchmarks/results/*.png", "notebooks/*.ipynb"),
    *("tests/house/*.py", "examples/*.py"),
)
"""What pages link to outside ``docs/``."""
PLACES = {"docs/index.md": "index.html", "README.md": "readme/index.html"}
"""Pages that do not lie as in the repository: the home page, and README, which would be the home page otherwise."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the notebooks into the menu, under ``Tutorials``, and the version below each page."""
    version = re.search(r'^__version__ = "(.+)"', (ROOT / "remat_plan" / "__init__.py").read_text(), re.MULTILINE)
    config.copyright = f"remat_plan {version[1]}" if version else None
    notebooks = [{_title(path): path.relative_to(ROOT).as_posix()} for path in sorted(ROOT.glob("notebooks/*.ipynb"))]
    tutorials = next(section["Tutorials"] for section in config.nav or [] if "Tutorials" in section)
    tutorials.extend(notebooks)
    return config


@event_priority(100)  # before the plugin that renders notebooks looks for them
def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Return the files of the site."""
    docs = Path(config.docs_dir)
    of_theme = [file for file in files if file.abs_src_path is None or not Path(file.abs_src_path).is_relative_to(docs)]
    own = [docs / file.src_uri for file in files if file not in of_theme and not file.src_uri.endswith(".py")]
    beside = [path for pattern in BESIDE for path in sorted(ROOT.glob(pattern))]
    laid = [_laid(config, path) for path in (*own, *beside)]
    index = File.generated(config, "benchmarks/results/index.md", content=_index(ROOT / "benchmarks" / "results"))
    return Files([*of_theme, *laid, index])


def _laid(config: MkDocsConfig, path: Path) -> File:
    """A file of the repository as a file of the site."""
    name = path.relative_to(ROOT).as_posix()
    file = File.generated(config, name, abs_src_path=str(path))
    if name in PLACES:
        file.dest_uri = PLACES[name]
    return file


def _title(notebook: Path) -> str:
    """The first heading of a notebook."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    lines = [line for cell in cells if cell["cell_type"] == "markdown" for line in cell["source"]]
    return next((line.removeprefix("# ").strip() for line in lines if line.startswith("# ")), notebook.stem)


def _index(folder: Path) -> str:
    """A page that lists the tables of a folder by their titles."""
    titles = {path.name: path.read_text(encoding="utf-8").partition("\n")[0] for path in sorted(folder.glob("*.md"))}
    rows = "\n".join(f"* [{title.removeprefix('# ')}]({name})" for name, title in titles.items())
    return f"# Measurements\n\n`make bench` regenerates these tables.\n\n{rows}\n"
