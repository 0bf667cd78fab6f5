"""All structures that the library knows, made known.

In: nothing. Out: the registry of ``graph.structure``, filled when this module is imported.
"""

from __future__ import annotations

from remat_plan.graph.structure import register
from remat_plan.structures.call import Call, ShardMap
from remat_plan.structures.cond import Cond
from remat_plan.structures.scan import Scan

for structure in (Scan(), Cond(), Call(), ShardMap()):
    register(structure)
