"""Teola's applications on simulated engines, orchestrated by modules or as Kairos does.

The flows are those of `examples/`, with answers of a given length, over made-up documents of a
given number of passages: 128 words, of which 15 are the last of the passage before, for the paper's
256 tokens and 30.

`chain` is what LlamaIndex does: the modules of `MODULES` one after the other, each waiting for all
of the one before, whatever it needs of it. `parallel modules` is the paper's LlamaDistPC: a module
waits for the modules that it needs something of. Both batch what comes as it comes. The engines are
the same for all, and have prefix caches; the embedder and the reranker take batches of up to 16,
the most efficient ones, which is generous to the chain. `chain, batches of 4` has them as figure 4
says that they are where each request is for itself.

Timings are the paper's where it gives any. Embedding, rerank: `simulate/processors.py`. The model
is Llama-2-13B on two RTX 3090, two instances:

- prefill: figure 7 has 0.5 s for 512 tokens and 0.8 s for 1,024: 820 us a token, by least squares
- decode: 25.7 GB of weights at 80 % of 2 * 936 GB/s, 17.2 ms; 1.05 ms of sampling, as in
  `a40-llama2-13b.toml`, and 4 ms for 80 all-reduces of 50 us over PCIe, assumed
- KV cache: (0.9 * 48 GB - 26 GB) / 819,200 bytes

A search of the web takes 0.5 s, assumed.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from statistics import fmean
from time import process_time

import msgspec
from msgspec.structs import replace

from experiments.flow_workloads import words
from kairos.core import PLACEMENTS, POLICIES, SECOND, EngineProfile, StepCost
from kairos.simulate import World
from kairos.simulate.clock import VirtualClock
from kairos.simulate.flow_client import FlowClient
from kairos.simulate.flow_simulation import functions_runner
from kairos.simulate.processors import TEOLA, Surroundings
from kairos.simulate.users import Feed
from kairos.workflows import (
    FlowLimits,
    Generation,
    LoadedFlow,
    Passes,
    Plan,
    load_flow,
    topology_aware,
)
from kairos.workflows.compile.graph import ancestors
from kairos.workflows.compile.operators import Branch, Chunking, Declaration, MapOver, Operator
from kairos.workflows.compile.pipeline import compile_plan
from kairos.workflows.compile.references import needs, referred
from kairos.workflows.execute.batching import blind
from kairos.workflows.execute.observation import Activity

EXAMPLES = Path(__file__).parents[1] / "examples"
INDEX = ("passages", "vectors", "collection")
# In the order in which a user lists them. Where all is one after the other by what it needs, none.
MODULES: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "naive_rag": (INDEX, ("asked",), ("found",), ("notes", "answer")),
    "advanced_rag": (
        INDEX,
        ("expanded",),
        ("asked",),
        ("found",),
        ("best",),
        ("more", "last", "first", "second", "answer"),
    ),
    "contextual_retrieval": (
        ("passages", "placed"),
        ("vectors", "collection"),
        ("asked",),
        ("found",),
        ("best",),
        ("answer",),
    ),
    "web_search": (),
}
# Whose answers have the length that is asked for. Others say what they say.
ANSWERS = frozenset({"note", "answer", "first", "second", "guess", "informed"})

OVERLAPPING = ("dependencies", "stages", "prefill", "decoding")
CHAIN, SMALL, PARALLEL, ALL = "chain", "chain, batches of 4", "parallel modules", "kairos"
SYSTEMS = (CHAIN, SMALL, PARALLEL, *OVERLAPPING, ALL)

SIZE, OVERLAP = 128, 15
FUNCTION_US = SECOND // 2
IN_SMALL_BATCHES = {
    kind: replace(times, batch=min(4, times.batch)) if kind in ("embed", "rerank") else times
    for kind, times in TEOLA.items()
}
LLAMA = EngineProfile(
    name="2x3090-llama2-13b",
    source="the paper on Teola, and arithmetic",
    measured=False,
    kv_tokens=20_992,
    max_num_batched_tokens=1_024,
    max_model_len=4_096,
    call_us=2_000,
    step=StepCost(
        fixed_us=5_050,
        weights_us=17_161,
        prefill_token_us=820,
        decode_seq_us=270,
        kv_token_us=0.547,
    ),
)
INSTANCES = 2


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """`rate_per_s`: at which queries arrive, Poisson; None: there is one."""

    app: str
    system: str
    chunks: int = 48
    answer_tokens: int = 20
    seed: int = 1
    queries: int = 1
    rate_per_s: float | None = None


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """`latency_s`: mean of the queries. `path_s`: the longest way through what needs what, with the
    times that things took; where nothing overlapped, as in a chain, they took these alone.
    `planning_s`: CPU time for the plan of a query. `answers`: all of them, in order."""

    latency_s: float
    path_s: float
    planning_s: float
    calls: int
    answers: tuple[Mapping[str, object], ...]
    activities: tuple[Activity, ...]


def run(asked: Run, passes: Passes | None = None) -> Outcome:
    loaded = load_flow(EXAMPLES / f"{asked.app}.yaml", EXAMPLES / "functions.py")
    declared = sized(loaded.declaration, asked.answer_tokens)
    declared = in_modules(declared, MODULES[asked.app], parallel=asked.system == PARALLEL)
    began_s = process_time()
    plan = compile_plan(declared, passes or passes_of(asked.system))
    planning_s = process_time() - began_s
    arrivals = _arrivals(asked)
    client = _simulated(plan, loaded, asked, arrivals)
    assert client.ended == "done"
    assert not client.failed, client.failed
    ended = [client.ended_at_us[0, row] for row in range(asked.queries)]
    return Outcome(
        latency_s=fmean(end - at for end, at in zip(ended, arrivals, strict=True)) / SECOND,
        path_s=longest_path_us(declared, client.timeline.activities) / SECOND,
        planning_s=planning_s,
        calls=client.executor.figures.calls,
        answers=tuple(client.written[0, row] for row in range(asked.queries)),
        activities=tuple(client.timeline.activities),
    )


def _simulated(plan: Plan, loaded: LoadedFlow, asked: Run, arrivals: Sequence[int]) -> FlowClient:
    instances = {f"engine-{number}": LLAMA for number in range(INSTANCES)}
    limits = FlowLimits(
        capacity=INSTANCES * LLAMA.max_num_seqs, kv_tokens=INSTANCES * LLAMA.kv_tokens
    )
    around = Surroundings(
        processors=IN_SMALL_BATCHES if asked.system == SMALL else TEOLA,
        order=topology_aware if asked.system == ALL else blind,
        function_us=FUNCTION_US,
        shortest_answer=1.0,
    )
    clients: list[FlowClient] = []

    def client(clock: VirtualClock, feed: Feed) -> FlowClient:
        made = FlowClient(
            plan,
            limits,
            iter(rows(asked)),
            functions_runner(loaded.functions),
            clock,
            feed,
            arrives_at=lambda row: arrivals[row],
            around=around,
        )
        clients.append(made)
        return made

    world = World((), instances, POLICIES["kairos"], PLACEMENTS["kairos"], clients=client)
    clients[0].generated = world.fleet.progress
    world.run()
    return clients[0]


def passes_of(system: str) -> Passes:
    """Of the system, those that overlap; all of them for Kairos."""
    if system == ALL:
        return Passes()
    on = {name: name == system for name in Passes.__struct_fields__}
    return Passes(**on)


def sized(declaration: Declaration, answer_tokens: int) -> Declaration:
    """With passages and answers of the sizes of a run."""

    def of(operator: Operator) -> Operator:
        match operator.params:
            case Generation() as params if operator.name in ANSWERS:
                return replace(operator, params=replace(params, max_tokens=answer_tokens))
            case Chunking():
                return replace(operator, params=Chunking(SIZE, OVERLAP))
            case MapOver(body=body) as params:
                return replace(operator, params=replace(params, body=tuple(map(of, body))))
        return operator

    return replace(declaration, operators=tuple(map(of, declaration.operators)))


def in_modules(
    declaration: Declaration, modules: Sequence[Sequence[str]], *, parallel: bool
) -> Declaration:
    """Each operator of a module waits for all of the module before; or, in parallel, of the modules
    of which its own needs anything."""
    operators = {each.name: each for each in declaration.operators}
    after: dict[str, tuple[str, ...]] = {}
    for number, module in enumerate(modules):
        used = {name for each in module for name in needs(operators[each])}
        waits = [
            before
            for at, before in enumerate(modules[:number])
            if (not used.isdisjoint(before) if parallel else at == number - 1)
        ]
        after |= {each: tuple(name for before in waits for name in before) for each in module}
    changed = [replace(e, after=after.get(e.name, ())) for e in declaration.operators]
    return replace(declaration, operators=tuple(changed))


def longest_path_us(declaration: Declaration, activities: Sequence[Activity]) -> int:
    """Of the first row: of an operator with a body, from its first call's beginning to its last
    one's end."""
    spans: dict[str, tuple[int, int]] = {}
    for each in activities:
        if each.row == 0:
            name = each.node.split(".")[0]
            begun, ended = spans.get(name, (each.begun_us, each.ended_us))
            spans[name] = (min(begun, each.begun_us), max(ended, each.ended_us))
    free = tuple(replace(each, after=()) for each in declaration.operators)
    chosen_by = _chosen_by(free)
    ends: dict[str, int] = {}
    for operator in free:  # in a file, each follows what it needs
        needed = {*needs(operator), *chosen_by.get(operator.name, ())} & ends.keys()
        begun, ended = spans.get(operator.name, (0, 0))
        ends[operator.name] = max((ends[name] for name in needed), default=0) + ended - begun
    return max(ends.values())


def _chosen_by(operators: Sequence[Operator]) -> dict[str, set[str]]:
    """Of what is computed only where a branch chooses it, what the branch goes by."""
    found: dict[str, set[str]] = {}
    for each in operators:
        if isinstance(each.params, Branch):
            by = {ref.operator for argument in each.inputs.values() for ref in referred(argument)}
            cases = ancestors(operators, set(needs(each)) - by)
            for name in cases - ancestors(operators, by):
                found.setdefault(name, set()).update(by)
    return found


def rows(asked: Run) -> Iterator[Mapping[str, object]]:
    """A document of so many passages, and a question of 15 to 40 tokens."""
    drawn = Random(f"{asked.seed}/{asked.chunks}")  # noqa: S311
    length = asked.chunks * (SIZE - OVERLAP) + OVERLAP
    for number in range(asked.queries):
        name = f"{asked.seed} {number}"
        yield {
            "text": words(f"document {name}", 2 * length),
            "question": words(f"question {name}", drawn.randint(15, 40)),
        }


def _arrivals(asked: Run) -> list[int]:
    if asked.rate_per_s is None:
        return [0] * asked.queries
    drawn, at, found = Random(f"arrivals {asked.seed}"), 0.0, []  # noqa: S311
    for _ in range(asked.queries):
        found.append(round(at * SECOND))
        at += drawn.expovariate(asked.rate_per_s)
    return found
