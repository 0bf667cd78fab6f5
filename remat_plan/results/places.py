"""Source files as people call them.

In: the file that a traceback names. Out: its name without folders; of a cell of a notebook, whose file is temporary and
named after a process and a hash, the number that stands beside the cell, ``In[3]``; ``cell`` where nobody knows it.
"""

from __future__ import annotations

import os
import re
import sys

_CELL = re.compile(r"ipykernel_\d+[/\\]\d+\.py$|<?ipython-input-\d+-\w+(\.py)?>?$")


def is_cell(file: str) -> bool:
    """Tell whether a file is a cell of a notebook."""
    return bool(_CELL.search(file))


def file_label(file: str) -> str:
    """Return the name of a file.

    >>> file_label("/home/me/model.py"), file_label("/tmp/ipykernel_71/1234567.py"), file_label("<ipython-input-3-ab>")
    ('model.py', 'cell', 'cell')
    """
    if not is_cell(file):
        return os.path.basename(file)
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    named = shell.compile.format_code_name(file) if shell is not None else None
    return named[1] if named else "cell"
