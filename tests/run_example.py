"""Examples run as a user runs them: as programs, in a process of their own."""

import os
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def run_example(script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """What a script of ``examples`` printed, and its exit code; warnings are errors."""
    return subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / script), *arguments],
        env=os.environ | {"COLUMNS": "200", "PYTHONPATH": str(EXAMPLES.parent)} | environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
