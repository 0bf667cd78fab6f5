"""``python -m remat_plan``: the command line; see ``remat_plan.cli.main``."""

from __future__ import annotations

import sys

from remat_plan.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
