"""Halo's workflows on devices that have one model at a time, by Kairos and by simpler rules.

Workflows are those of Halo's Table 2 by their shape and by lengths, since its data sets are not at
hand: W1 a chain over a document, W2 answer, critique, revision, W4 three judges, a summary of what
they say and a verdict, W6 four turns that grow. W3 and W5 are W2 and W4 with two models, `three` is
W4 with three. Documents are of 100 to 500 words, evenly; answers as `kairos simulate --flow` makes
them up. So many rows share a document as `shared` says.

All systems run in one simulator, on the same devices, rows and answers, each from empty devices:
the first loads count. What they are allowed is generous to the baselines: rows stream from operator
to operator, and a model that is there is not loaded again.

- `topological`: one operator after the other, each on all devices, which share its rows. It is
  Halo's data parallelism (DP), too, and what a naive scheduler before vLLM does.
- `engine per operator`: the same, with an engine started for each, as Halo's figure 13 shows it.
- `round robin`, `co-located`: operators bound to devices, as in Halo's Table 4.
- `fixed`: a model to a device, nothing is ever switched; where there are enough devices.
- `one at a time`: one device, one call at a time.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from random import Random

import msgspec
from msgspec.structs import replace

from experiments.grids import around
from experiments.kv_tiers import KvTiers
from experiments.model_devices import HostedFlow, HostMemory, HostOptions, simulate_host
from experiments.report import commit
from kairos import flow
from kairos.capacity.hardware import Link
from kairos.core import PLACEMENTS, POLICIES, SECOND, EngineProfile, Interval
from kairos.engines import load_profile
from kairos.workflows import Functions, Passes, Plan
from kairos.workflows.compile.device_work import DevicePlan, LoadTime, OperatorWork
from kairos.workflows.compile.flow_work import work_of_flow
from kairos.workflows.compile.placement import place_operators
from kairos.workflows.compile.placement_baselines import co_located, data_parallel, round_robin
from kairos.workflows.compile.prediction import predict_flow
from kairos.workflows.execute.model_turns import DeviceTurn

DEVICES = 2
BASELINES = ("topological", "engine per operator", "round robin", "co-located", "fixed")
KAIROS, ONE = "kairos", "one at a time"
SWITCHING = ("W3", "W5", "three")  # workflows of more than one model
ALIKE = ("W1", "W2", "W4", "W6")

_EIGHT = load_profile("h200-llama3-8b")
# Llama-3.2-3B by the same arithmetic as h200-llama3-8b.toml: 6.43 GB of weights, 2.82 GFLOP a token
# in the layers and 3.21 with the output embedding, 114,688 bytes of KV a token.
_THREE = replace(
    _EIGHT,
    name="h200-llama3.2-3b",
    kv_tokens=1_100_000,
    step=replace(
        _EIGHT.step,
        weights_us=1_674.0,
        prefill_token_us=9.5,
        decode_seq_us=10.8,
        kv_token_us=0.02987,
        attention_us=0.0007,
    ),
)
PROFILES = {"small": _THREE, "large": _EIGHT, "reasoner": _EIGHT}
# Halo's figure 13 shows 22 s for the start of an 8B engine. Of a 3B one, the weights' part is less.
_STARTS = {"small": 13.0, "large": 22.0, "reasoner": 22.0}
# From host memory over PCIe 5 at 25 GB/s, and half a second.
_WAKES = {"small": 0.8, "large": 1.2, "reasoner": 1.2}
LOADS = {
    "start": {name: LoadTime(load_us=s * SECOND) for name, s in _STARTS.items()},
    "sleep": {
        name: LoadTime(load_us=s * SECOND, wake_us=_WAKES[name] * SECOND)
        for name, s in _STARTS.items()
    },
}
# The larger model's caches, a million tokens of them, over PCIe 5 as the weights.
HOST_MEMORY = HostMemory(
    tiers=KvTiers(bytes_per_token=131_072, host=Link(gbit_s=200)), tokens=1_000_000
)
_JUDGES = ("politics", "economics", "society")


def workflow(name: str) -> flow.Flow:
    """One of Table 2, whose models are `small`, `large` and `reasoner`."""
    made = flow.Flow(name, max_tokens=128, on_cut="keep")
    doc = made.input("doc")
    match name:
        case "W1":
            _chain(made, doc, ("large",) * 3)
        case "W2":
            _chain(made, doc, ("large",) * 3)
        case "W3":
            _chain(made, doc, ("small", "large", "small"))
        case "W6":
            _chain(made, doc, ("large",) * 4, grows=True)
        case "W4":
            _vote(made, doc, ("large",) * 5)
        case "W5":
            _vote(made, doc, ("small", "large", "small", "large", "small"))
        case "three":
            _vote(made, doc, ("small", "large", "reasoner", "large", "small"))
    return made


def _chain(
    made: flow.Flow, doc: flow.Operand, models: Sequence[str], *, grows: bool = False
) -> None:
    said: list[flow.Operand] = []
    for n, model in enumerate(models):
        before = said if grows else said[-1:]
        prompt = "{{ d.text }}\n{{ s | join }}\nStep " + str(n)
        said.append(made.llm(f"step{n}", prompt, d=doc, s=before, model=model))
    made.output("out", said[-1])


def _vote(made: flow.Flow, doc: flow.Operand, models: Sequence[str]) -> None:
    said = [
        made.llm(role, "{{ d.text }}\nYou judge its " + role, d=doc, model=model)
        for role, model in zip(_JUDGES, models, strict=False)
    ]
    summary = made.llm("summary", "{{ s | join }}\nSum up.", s=said, model=models[3])
    prompt = "{{ d.text }}\n{{ s }}\nDecide."
    made.output("out", made.llm("verdict", prompt, d=doc, s=summary, model=models[4]))


def rows(count: int, seed: int, shared: int = 1) -> list[Mapping[str, object]]:
    """As many as `shared` on end have the same document."""
    random = Random(seed)  # noqa: S311  (no secret)
    texts = [
        " ".join(f"w{random.randrange(1_000)}" for _ in range(random.randint(100, 500)))
        for _ in range(-(-count // shared))
    ]
    return [{"text": texts[n // shared]} for n in range(count)]


class SwitchingRun(msgspec.Struct, frozen=True, kw_only=True):
    """What is run. `without`: what is switched off, for ablations. `host_memory`: contexts are
    copied to it, and come back where that is quicker than to compute them."""

    workflow: str
    system: str = KAIROS
    seed: int = 1
    rows: int = 400
    shared: int = 1
    devices: int = DEVICES
    loads: str = "start"
    without: str = ""
    max_open_rows: int = 4_096
    per_s: float | None = None  # rows arrive so often, Poisson; None: all are there
    host_memory: bool = False


def run(asked: SwitchingRun) -> HostedFlow | None:
    """None: the system cannot: `fixed` with more models than devices."""
    passes = Passes(cached=False, cse=asked.without != "merging")
    plan = workflow(asked.workflow).compile(passes)
    table = rows(asked.rows, asked.seed, asked.shared)
    host = _host(plan, table, asked)
    if host is None:
        return None
    return simulate_host(plan, iter(table), Functions(), host)


def _host(
    plan: Plan, table: Sequence[Mapping[str, object]], asked: SwitchingRun
) -> HostOptions | None:
    profiles = {name: _profile(PROFILES[name], asked) for name in plan.models if name is not None}
    devices = 1 if asked.system == ONE else asked.devices
    works = work_of_flow(plan, predict_flow(plan, table), profiles, devices)
    loads = LOADS[asked.loads]
    host = HostOptions(
        turns=(),
        works=works,
        loads=loads,
        profiles=profiles,
        policy=POLICIES["fcfs" if asked.without == "order" else "kairos"],
        placement=PLACEMENTS["kairos"],
        max_open_rows=asked.max_open_rows,
        memory=HOST_MEMORY if asked.host_memory else None,
        arrives_at=_arrivals(asked),
    )
    if asked.system == KAIROS:
        return replace(host, turns=_turns(_planned(works, loads, asked)))
    if asked.system == "fixed":
        names = list(profiles)
        turns = [
            [DeviceTurn(names[n % len(names)], _operators(works, names[n % len(names)]))]
            for n in range(devices)
        ]
        return replace(host, turns=turns) if len(names) <= devices else None
    rule = {"round robin": round_robin, "co-located": co_located}.get(asked.system, data_parallel)
    return _bound(host, rule(works, loads, devices), asked.system == "engine per operator")


def _profile(known: EngineProfile, asked: SwitchingRun) -> EngineProfile:
    if asked.system == ONE:
        return replace(known, max_num_seqs=1)
    if asked.without == "batching":
        return replace(known, max_num_seqs=16)
    return replace(known, prefix_caching=False) if asked.without == "kv" else known


def _planned(
    works: Sequence[OperatorWork], loads: Mapping[str, LoadTime], asked: SwitchingRun
) -> DevicePlan:
    if asked.without == "optimizer":
        return round_robin(works, loads, asked.devices)
    return place_operators(works, loads, asked.devices, replicas=asked.without != "replicas")


def _turns(plan: DevicePlan) -> list[list[DeviceTurn]]:
    return [[DeviceTurn(*turn) for turn in plan.models(n)] for n in range(plan.devices)]


def _operators(works: Sequence[OperatorWork], model: str) -> tuple[str, ...]:
    return tuple(each.name for each in works if each.model == model)


def _bound(host: HostOptions, plan: DevicePlan, starts_each: bool) -> HostOptions:
    """Operators are bound to devices: each is a model of its own to whoever routes its calls."""
    of = {each.name: each.model for each in host.works}
    turns = [
        [DeviceTurn(each.operator, (each.operator,)) for each in plan.phases if each.device == n]
        for n in range(plan.devices)
    ]
    loads = {name: host.loads[model] for name, model in of.items()}
    works = [replace(each, model=each.name) for each in host.works]
    if starts_each:
        profiles = {name: host.profiles[model] for name, model in of.items()}
        return replace(host, turns=turns, works=works, loads=loads, profiles=profiles)
    return replace(host, turns=turns, works=works, loads={**host.loads, **loads}, weights=of)


def _arrivals(asked: SwitchingRun) -> Callable[[int], int]:
    if asked.per_s is None:
        return lambda _: 0
    random = Random(f"arrivals {asked.seed}")  # noqa: S311  (no secret)
    at, found = 0.0, []
    for _ in range(asked.rows):
        at += random.expovariate(asked.per_s)
        found.append(round(at * SECOND))
    return found.__getitem__


class SwitchingRow(msgspec.Struct, frozen=True, kw_only=True):
    """A run, and what came of it. Seconds from the first row to the end of the last."""

    commit: str
    run: SwitchingRun
    s: float | None  # None: the system cannot run it
    loads: int = 0
    calls: int = 0
    cached_share: float = 0.0  # of prompts' tokens


def measured(runs: Iterable[SwitchingRun]) -> Iterator[SwitchingRow]:
    at_commit = commit()
    for asked in runs:
        ran = run(asked)
        if ran is None:
            yield SwitchingRow(commit=at_commit, run=asked, s=None)
            continue
        tokens = ran.prompt_tokens_computed + ran.prompt_tokens_cached
        yield SwitchingRow(
            commit=at_commit,
            run=asked,
            s=float(f"{ran.simulated_s:.6g}"),
            loads=ran.loads,
            calls=ran.figures.calls,
            cached_share=round(ran.prompt_tokens_cached / max(1, tokens), 4),
        )


def speedup(
    rows: Iterable[SwitchingRow], ours: SwitchingRun, theirs: SwitchingRun
) -> Interval | None:
    """Their seconds over ours, seed by seed; None: one of them has no run."""
    s = {each.run: each.s for each in rows if each.s is not None}
    seeds = sorted({each.seed for each in s})
    pairs = [(s.get(replace(ours, seed=n)), s.get(replace(theirs, seed=n))) for n in seeds]
    found = [them / us for us, them in pairs if us and them]
    return around(found) if found else None
