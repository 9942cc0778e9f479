"""Compile a declared workflow to a plan: checks, then all passes that are on."""

from collections.abc import Mapping

import msgspec

from kairos.workflows.compile.batches import with_batches
from kairos.workflows.compile.check import check, every_operator, llm_operators
from kairos.workflows.compile.columns import Columns, columns
from kairos.workflows.compile.costs.latency import TYPICAL_LATENCIES, Latencies
from kairos.workflows.compile.graph import ancestors, in_order, outputs_need
from kairos.workflows.compile.operators import Declaration, Generation, Group, Reference
from kairos.workflows.compile.passes.cached import cache_fetches
from kairos.workflows.compile.passes.cse import merge_equal
from kairos.workflows.compile.passes.decoding import PartialDecode, itemised, partial_decodes
from kairos.workflows.compile.passes.dependencies import data_dependencies
from kairos.workflows.compile.passes.identities import collapse
from kairos.workflows.compile.passes.prefill import PartialPrefill, partial_prefills
from kairos.workflows.compile.passes.prune import prune
from kairos.workflows.compile.passes.stages import staged
from kairos.workflows.compile.passes.static_prefixes import StaticPrefix, static_prefixes
from kairos.workflows.compile.passes.staying import staying
from kairos.workflows.compile.primitives import Divided, Primitive, greatest_depths, primitives
from kairos.workflows.compile.query_settings import check_settable
from kairos.workflows.compile.references import reference_renamed

_MOST_ROUNDS = 16


class Passes(msgspec.Struct, frozen=True, kw_only=True):
    """Passes that are on. The output table is the same with any selection."""

    identities: bool = True  # operators that return their input unchanged are removed
    prune: bool = True  # operators that no output needs are removed
    dependencies: bool = True  # operators wait only for what they need
    cse: bool = True  # equal computations are made once, within a row and across rows
    stages: bool = True  # texts are embedded and ingested batch by batch
    prefill: bool = True  # known prefixes of prompts are prefilled while the rest is computed
    cached: bool = True  # results of earlier runs are fetched
    order: bool = True  # calls are ordered for prefix cache hits
    decoding: bool = True  # items of a list are processed while a model still writes it
    touch: bool = True  # static prefixes of prompts are computed while rows are awaited


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Executable plan, with the changes made by passes."""

    declaration: Declaration  # operators in an order of dependencies
    passes: Passes
    revision: str  # of the models, as given by the user; another one invalidates results
    collapsed: Mapping[str, Reference]  # by removed operator, the input that replaces it
    pruned: tuple[str, ...]
    freed: Mapping[str, tuple[str, ...]]  # by operator, dependencies that it need not wait for
    merged: Mapping[str, str]  # by removed operator, the one that replaces it
    fetches: tuple[str, ...]  # operators whose results are looked up first
    partial: tuple[PartialDecode, ...]
    prefills: tuple[PartialPrefill, ...]
    static_prefixes: tuple[StaticPrefix, ...]
    table: Columns
    depths: Mapping[str, int]  # by operator with calls: the greatest depth of its primitives
    staying: frozenset[str]  # operators whose values stay with the processors that make them

    @property
    def columns(self) -> tuple[str, ...]:
        return self.table.required

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(each.column for each in self.declaration.outputs)

    @property
    def models(self) -> tuple[str | None, ...]:
        """Return the models of its calls, None for a call that names none; without duplicates."""
        return tuple(dict.fromkeys(each.model for each in self.generations.values()))

    @property
    def generations(self) -> dict[str, Generation]:
        return llm_operators(self.declaration.operators)

    @property
    def group(self) -> str | None:
        """Return the group that an output needs, if any.

        Rows are gathered by it first, and the output has a row for each group. A group that no
        output needs is ignored, even if it was not pruned.
        """
        declared = self.declaration
        needed = ancestors(declared.operators, outputs_need(declared.outputs))
        groups = (e.name for e in declared.operators if isinstance(e.params, Group))
        return next((name for name in groups if name in needed), None)

    def primitives(self, items: Mapping[str, int] = {}) -> tuple[Primitive, ...]:
        """Return the engines' work for a row as primitives.

        `items`: see `primitives.primitives`.
        """
        divided = Divided(self.fetches, self.partial, self.prefills)
        return primitives(self.declaration, divided, items)


def compile_plan(
    declaration: Declaration,
    passes: Passes | None = None,
    *,
    revision: str = "",
    latencies: Latencies = TYPICAL_LATENCIES,
    values_stay: bool = False,
    batches: Mapping[str, int] = {},
) -> Plan:
    """Compile a declared workflow.

    `latencies`: for weighing savings; `values_stay`: processors may hold values that nobody else
    needs; these are in no cache of results. `batches`: measured efficient batch sizes, by
    `batch_key`.

    Raises InvalidFlow: it cannot be run; the message says where, and what would be right.
    """
    check(declaration)
    check_settable(declaration)
    declaration = with_batches(declaration, batches)
    passes = passes or Passes()
    now = msgspec.structs.replace(declaration, operators=in_order(declaration.operators))
    now, collapsed, pruned = _simplified(now, passes)
    table = columns(now)
    now, freed, merged = _reduced(now, passes)
    if passes.decoding:
        now = itemised(now)
    if passes.stages:
        now = staged(now)
    stay = staying(now) if values_stay else frozenset()
    divided = Divided(
        fetches=cache_fetches(now.operators) if passes.cached else (),
        partial=partial_decodes(now.operators) if passes.decoding else (),
        prefills=partial_prefills(now, latencies) if passes.prefill else (),
    )
    return Plan(
        declaration=now,
        passes=passes,
        revision=revision,
        collapsed=collapsed,
        pruned=pruned,
        freed=freed,
        merged=merged,
        fetches=divided.fetches,
        partial=divided.partial,
        prefills=divided.prefills,
        static_prefixes=static_prefixes(now.operators) if passes.touch else (),
        table=table,
        depths=greatest_depths(primitives(now, divided)),
        staying=stay,
    )


def _simplified(
    declaration: Declaration, passes: Passes
) -> tuple[Declaration, Mapping[str, Reference], tuple[str, ...]]:
    """Remove operators that no output needs, and identities, round by round.

    What is not needed uses no value, so more may be identities without it; and an identity may be
    all that needed others. It ends when nothing changes.
    """
    collapsed: dict[str, Reference] = {}
    pruned: list[str] = []
    now = declaration
    while True:
        if passes.prune:
            before = now
            now = prune(before)
            left = {each.name for each in every_operator(now.operators)}
            pruned += [e.name for e in every_operator(before.operators) if e.name not in left]
        if not passes.identities:
            break
        now, into = collapse(now)
        if not into:
            break
        known = {name: reference_renamed(given, into) for name, given in collapsed.items()}
        collapsed = {**known, **into}
    return now, collapsed, tuple(pruned)


def _reduced(
    declaration: Declaration, passes: Passes
) -> tuple[Declaration, Mapping[str, tuple[str, ...]], Mapping[str, str]]:
    """Remove dependencies and merge equal operators, round by round.

    Merging may free others, and freed operators may become equal. It ends when nothing changes, or
    after the last round, for flows made so that each round frees one.
    """
    freed: dict[str, tuple[str, ...]] = {}
    merged: dict[str, str] = {}
    now = declaration
    for _ in range(_MOST_ROUNDS):
        before = now
        if passes.dependencies:
            now, loose = data_dependencies(now)
            for name, gone in loose.items():
                freed[name] = (*freed.get(name, ()), *gone)
        if passes.cse:
            now, into = merge_equal(now)
            merged |= into
        if now == before or not (passes.dependencies and passes.cse):
            break
    return now, freed, merged
