"""Messages between the processes of a run on Ray."""

from pathlib import Path
from typing import Any

import msgspec

from kairos.workflows.compile.costs.latency import Latencies
from kairos.workflows.compile.operators import Declaration
from kairos.workflows.declare.functions import Functions
from kairos.workflows.execute.observation import Fallback
from kairos.workflows.run.run_store import RunRecord


class PoolTold(msgspec.Struct, frozen=True):
    """The pool that performs the calls of all partitions, and its limits."""

    url: str
    key: str | None
    model: str
    capacity: int
    kv_tokens: int | None
    instances: int
    caches_prefixes: bool


class PartitionJob(msgspec.Struct, frozen=True):
    """Everything that a partition is made of. `columns` None: rows are parted by their number."""

    record: RunRecord
    declaration: Declaration  # in which functions have versions
    functions: Functions
    table: object  # as `open_table` takes it
    pool: PoolTold
    partitions: int
    columns: tuple[str, ...] | None
    files: tuple[Path, Path | None]  # as `open_results` takes them: the journal and the cache
    latencies: Latencies  # of its engines
    processors: dict[tuple[str, str], Any]  # actors, by `performers.Key`
    held_from: int  # bytes of the smallest values that stay with Ray
    keys: dict[str, str]  # environment variables that hold keys


class PartShare(msgspec.Struct, frozen=True):
    """A partition's part of what the run may have under way. `stops`: nothing new is to begin."""

    capacity: int
    stops: bool = False


class PartitionEnd(msgspec.Struct, frozen=True):
    """The end of a partition's rows, or groups: `read` of them are its own."""

    reason: str  # done, stopped or budget
    read: int
    fallbacks: dict[str, Fallback] = {}
