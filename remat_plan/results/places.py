"""Source files as people call them.

In: the file that a traceback names. Out: its name without folders; ``cell`` for a cell of a notebook, whose file is
temporary and named after a process and a hash.
"""

from __future__ import annotations

import os
import re

_CELL = re.compile(r"ipykernel_\d+[/\\]\d+\.py$|<?ipython-input-\d+-\w+(\.py)?>?$")


def file_label(file: str) -> str:
    """Return the name of a file.

    >>> file_label("/home/me/model.py"), file_label("/tmp/ipykernel_71/1234567.py"), file_label("<ipython-input-3-ab>")
    ('model.py', 'cell', 'cell')
    """
    return "cell" if _CELL.search(file) else os.path.basename(file)
