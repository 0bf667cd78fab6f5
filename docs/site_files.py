"""Lays the site out as the repository is, so that relative links lead to the same places in both.

A hook of MkDocs (``mkdocs.yml``). In: the files that it found in ``docs/``. Out: these under ``docs/``, and beside them
those of the rest of the repository that pages link to; and an index of the tables of measurements.
"""

from __future__ import annotations

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
BESIDE = (
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "CITATION.cff", "LICENSE"),
    *("benchmarks/results/*.md", "benchmarks/results/*.png", "notebooks/*.ipynb", "tests/house/*.py", "examples/*.py"),
)
"""What pages link to outside ``docs/``."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Return the files of the site."""
    docs = Path(config.docs_dir)
    of_theme = [file for file in files if file.abs_src_path is None or not Path(file.abs_src_path).is_relative_to(docs)]
    own = [docs / file.src_uri for file in files if file not in of_theme and not file.src_uri.endswith(".py")]
    beside = [path for pattern in BESIDE for path in sorted(ROOT.glob(pattern))]
    laid = [File.generated(config, p.relative_to(ROOT).as_posix(), abs_src_path=str(p)) for p in (*own, *beside)]
    index = File.generated(config, "benchmarks/results/index.md", content=_index(ROOT / "benchmarks" / "results"))
    return Files([*of_theme, *laid, index])


def _index(folder: Path) -> str:
    """A page that lists the tables of a folder by their titles."""
    titles = {path.name: path.read_text(encoding="utf-8").partition("\n")[0] for path in sorted(folder.glob("*.md"))}
    rows = "\n".join(f"* [{title.removeprefix('# ')}]({name})" for name, title in titles.items())
    return f"# Measurements\n\n`make bench` makes these tables anew.\n\n{rows}\n"
