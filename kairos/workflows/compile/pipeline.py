"""From a declared workflow to a plan: it is checked, then each pass that is on does its part."""

from collections.abc import Mapping

import msgspec

from kairos.workflows.compile.batches import with_batches
from kairos.workflows.compile.check import check, every
from kairos.workflows.compile.columns import Columns, columns
from kairos.workflows.compile.costs.latency import TYPICAL, Latencies
from kairos.workflows.compile.graph import ancestors, in_order, outputs_need
from kairos.workflows.compile.operators import (
    Declaration,
    Generation,
    Group,
    Reference,
    RegisteredCall,
)
from kairos.workflows.compile.passes.cached import CacheFetch, cache_fetches
from kairos.workflows.compile.passes.cse import merge_equal
from kairos.workflows.compile.passes.decoding import PartialDecode, itemised, partial_decodes
from kairos.workflows.compile.passes.dependencies import data_dependencies
from kairos.workflows.compile.passes.identities import collapse
from kairos.workflows.compile.passes.prefill import PartialPrefill, partial_prefills
from kairos.workflows.compile.passes.prune import prune
from kairos.workflows.compile.passes.stages import staged
from kairos.workflows.compile.passes.static_prefixes import StaticPrefix, static_prefixes
from kairos.workflows.compile.passes.staying import staying
from kairos.workflows.compile.primitive_graph import PrimitiveGraph
from kairos.workflows.compile.primitives import Divided, primitives
from kairos.workflows.compile.query_settings import check_settable

_MOST_ROUNDS = 16


class Passes(msgspec.Struct, frozen=True, kw_only=True):
    """Which passes are on. Whatever is, the table that comes out is the same."""

    identities: bool = True  # operators that give what they are given are left out
    prune: bool = True  # what no output needs is left out
    dependencies: bool = True  # operators wait for what they need alone
    cse: bool = True  # what is asked twice is computed once, within a row and across rows
    stages: bool = True  # what is embedded and ingested goes batch by batch
    prefill: bool = True  # prompts begin while their rest is found out
    cached: bool = True  # results of earlier runs are fetched
    order: bool = True  # a run keeps the order in which most of prompts is found in caches
    decoding: bool = True  # items of a list begin while a model still writes it
    touch: bool = True  # what prompts begin with for every row is computed while rows are awaited


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is executed, and what the passes made of what was declared."""

    declaration: Declaration  # operators in an order in which each follows what it needs
    passes: Passes
    revision: str  # of the models, as whoever runs it says; other ones mean other results
    collapsed: Mapping[str, Reference]  # per operator that gives it unchanged, what that is
    pruned: tuple[str, ...]
    freed: Mapping[str, tuple[str, ...]]  # per operator, what it needs not wait for
    merged: Mapping[str, str]  # per operator that is gone, the one that stands for it
    fetches: tuple[CacheFetch, ...]
    partial: tuple[PartialDecode, ...]
    prefills: tuple[PartialPrefill, ...]
    static_prefixes: tuple[StaticPrefix, ...]
    table: Columns
    depths: Mapping[str, int]  # by operator that is asked: of its primitives, the greatest
    staying: frozenset[str]  # operators whose values stay with the processors that make them

    @property
    def columns(self) -> tuple[str, ...]:
        return self.table.required

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(each.column for each in self.declaration.outputs)

    @property
    def models(self) -> tuple[str | None, ...]:
        """Those that its calls name, None for one that names none; each once."""
        params = [each.params for each in every(self.declaration.operators)]
        return tuple(dict.fromkeys(p.model for p in params if isinstance(p, Generation)))

    @property
    def functions(self) -> tuple[str, ...]:
        params = [each.params for each in every(self.declaration.operators)]
        return tuple(dict.fromkeys(p.function for p in params if isinstance(p, RegisteredCall)))

    @property
    def group(self) -> str | None:
        """With one, rows are gathered by it first, and what comes out is a row for each group. One
        that no output needs does not count, whether it was pruned or not."""
        declared = self.declaration
        needed = ancestors(declared.operators, outputs_need(declared.outputs))
        groups = (e.name for e in declared.operators if isinstance(e.params, Group))
        return next((name for name in groups if name in needed), None)

    def primitives(self, items: Mapping[str, int] = {}) -> PrimitiveGraph:
        """What engines do for a row, part by part; `items` as
        `kairos.workflows.compile.primitives` has it."""
        divided = Divided(self.fetches, self.partial, self.prefills)
        return primitives(self.declaration, divided, items)


def compile_plan(
    declaration: Declaration,
    passes: Passes | None = None,
    *,
    revision: str = "",
    latencies: Latencies = TYPICAL,
    values_stay: bool = False,
    batches: Mapping[str, int] = {},
) -> Plan:
    """`latencies`: that savings are weighed by; `values_stay`: with processors, where nobody else
    needs them. Those are in no cache of results. `batches`: efficient ones that were measured, by
    `batch_key`.

    Raises InvalidFlow: it cannot be run; says where, and what would be right."""
    check(declaration)
    check_settable(declaration)
    declaration = with_batches(declaration, batches)
    passes = passes or Passes()
    now = msgspec.structs.replace(declaration, operators=in_order(declaration.operators))
    collapsed: Mapping[str, Reference] = {}
    if passes.identities:
        fewer = collapse(now)
        now, collapsed = fewer.declaration, fewer.into
    pruned: tuple[str, ...] = ()
    merged: Mapping[str, str] = {}
    if passes.prune:
        before = now
        now = prune(before)
        left = {each.name for each in every(now.operators)}
        pruned = tuple(each.name for each in every(before.operators) if each.name not in left)
    table = columns(now)
    now, freed, merged = _reduced(now, passes)
    if passes.decoding:
        now = itemised(now)
    if passes.stages:
        now = staged(now)
    stay = staying(now) if values_stay else frozenset()
    divided = Divided(
        fetches=cache_fetches(now.operators, stay) if passes.cached else (),
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
        depths=primitives(now, divided).depths,
        staying=stay,
    )


def _reduced(
    declaration: Declaration, passes: Passes
) -> tuple[Declaration, Mapping[str, tuple[str, ...]], Mapping[str, str]]:
    """Dependencies and equal operators, round by round: what is merged may free others, and what is
    free may equal others. It ends when nothing is left to go, or with the last round: of flows that
    are made so that each round frees one."""
    freed: dict[str, tuple[str, ...]] = {}
    merged: dict[str, str] = {}
    now = declaration
    for _ in range(_MOST_ROUNDS):
        before = now
        if passes.dependencies:
            loose = data_dependencies(now)
            now = loose.declaration
            for name, gone in loose.of.items():
                freed[name] = (*freed.get(name, ()), *gone)
        if passes.cse:
            both = merge_equal(now)
            now = both.declaration
            merged |= both.into
        if now == before or not (passes.dependencies and passes.cse):
            break
    return now, freed, merged
