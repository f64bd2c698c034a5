"""A memory pool for clusters, from Python.

    import rackpool
    with rackpool.connect(master="127.0.0.1:7400", rack=0) as pool:
        region = pool.alloc(1 << 20, placement="rack:1")
        region.write(b"hello")
        pool.table("names")[b"greeting"] = region.address.to_bytes(8, "little")

Calls that may wait run without the interpreter's lock; Ctrl-C ends them. What was opened before a
fork is its parent's: a child connects by itself.
"""

from collections.abc import Mapping as _Mapping

from ._core import (
    Cluster,
    Lock,
    Objects,
    Pool,
    Queue,
    Region,
    Table,
    __version__,
    connect,
)
from ._errors import (
    Busy,
    Denied,
    Error,
    Invalid,
    Lost,
    NotFound,
    OutcomeUnknown,
    PoolFull,
    Timeout,
    Unreachable,
)

__all__ = [
    "Busy",
    "Cluster",
    "Denied",
    "Error",
    "Invalid",
    "Lock",
    "Lost",
    "NotFound",
    "Objects",
    "OutcomeUnknown",
    "Pool",
    "PoolFull",
    "Queue",
    "Region",
    "Table",
    "Timeout",
    "Unreachable",
    "__version__",
    "cluster",
    "connect",
]

_Mapping.register(Table)

cluster = Cluster
"""A pool in this process, for tests: ``with rackpool.cluster(racks=2) as c: c.connect(0)``."""
