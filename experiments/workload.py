"""What a pool is offered in a simulated run, and what the pool is."""

from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path

import msgspec
from msgspec.structs import asdict, replace

from experiments.recordings import data_directory
from kairos.core import EngineProfile, StepCost
from kairos.engines import load_profile
from kairos.simulate import Workflow, draw_arrivals, draw_submissions, load_workflows
from kairos.simulate.plan import instance_id
from kairos.simulate.workload.application import GenerativeApplication, generate, load_application
from kairos.simulate.workload.scenario import mixed
from kairos.simulate.workload.submissions import in_order, scaled
from kairos.simulate.workload.workflows import Submission, workflow

APPLICATIONS = Path(__file__).with_name("applications")
MOST_CONTEXT = 200_000  # tokens, of a recorded session
MOST_CALLS = 70  # of a recorded session
AWAY_MS = 600_000  # longer gaps are as long as this
MEMORY_BINDS, COMPUTE_BINDS = "a40-llama2-13b", "a40-llama3-8b"
_LATER = 1_000_000  # added to a seed: another one


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """Either `recorded`, an application of the recordings, or `apps`, generative models."""

    name: str
    recorded: str | None = None
    apps: tuple[tuple[str, float], ...] = ()  # built in, or in applications/, and their weights
    arrivals: str = "azure-conv"
    profile: str = MEMORY_BINDS
    unequal: bool = False  # every second instance: see `lesser`
    workflows: int  # of a run
    pool: int = 4  # instances
    lengths: float = 1.0  # of answers, times what the models say
    branches: float = 1.0  # likewise, of probabilities below 1
    anonymous: float = 0.0  # share of the calls that do not say whose they are
    turns: bool = False  # halfway agents change their ways: see `turned`

    def engine(self) -> EngineProfile:
        return load_profile(self.profile)

    def files(self) -> list[Path]:
        """Of its generative models, those that are not built in."""
        return [path for app, _ in self.apps if (path := own_file(app)) is not None]

    def instances(self) -> dict[str, EngineProfile]:
        both = self.engine(), lesser(self.engine()) if self.unequal else self.engine()
        return {instance_id(number): both[number % 2] for number in range(self.pool)}

    def submissions(self, rate_per_s: float, count: int, seed: int) -> list[Submission]:
        """So many workflows in the order of time: the same for the same arguments."""
        at_us = draw_arrivals(self.arrivals, count, rate_per_s, seed)
        if self.recorded is not None:
            return draw_submissions(
                recorded(self.recorded, self.engine().max_model_len), at_us, seed
            )
        models = [(model(app, self.lengths, self.branches), weight) for app, weight in self.apps]
        sources = [(partial(generate, each, seed=seed), weight) for each, weight in models]
        if not self.turns:
            return mixed(sources, at_us, seed)
        later = [(partial(generate, turned(each), seed=seed), weight) for each, weight in models]
        half = len(at_us) // 2
        return in_order(
            [*mixed(sources, at_us[:half], seed), *mixed(later, at_us[half:], seed + _LATER)]
        )


def own_file(app: str) -> Path | None:
    """Of a generative model that is not built in."""
    path = APPLICATIONS / f"{app}.toml"
    return path if path.exists() else None


def model(app: str, lengths: float, branches: float) -> GenerativeApplication:
    """The generative model, with answers so many times as long, and what may follow as likely."""
    known = load_application(str(own_file(app) or app))
    agents = {
        name: replace(
            agent,
            completion_tokens={
                percent: max(1, round(tokens * lengths))
                for percent, tokens in agent.completion_tokens.items()
            },
            next=tuple(
                each
                if each.probability == 1
                else replace(each, probability=min(1.0, each.probability * branches))
                for each in agent.next
            ),
        )
        for name, agent in known.agents.items()
    }
    return replace(known, agents=agents)


def turned(app: GenerativeApplication) -> GenerativeApplication:
    """Whoever gave the longest answers gives the shortest, and so on."""
    names = sorted(app.agents, key=lambda name: app.agents[name].completion_tokens["p50"])
    lengths = [app.agents[name].completion_tokens for name in reversed(names)]
    agents = {
        name: replace(app.agents[name], completion_tokens=each)
        for name, each in zip(names, lengths, strict=True)
    }
    return replace(app, agents={name: agents[name] for name in app.agents})


def lesser(engine: EngineProfile) -> EngineProfile:
    """With half of the memory and half of the sequences, and twice as slow."""
    cost = {name: 2 * us for name, us in asdict(engine.step).items()}
    return replace(
        engine,
        name=f"half {engine.name}",
        kv_tokens=engine.kv_tokens // 2,
        max_num_seqs=engine.max_num_seqs // 2,
        step=StepCost(**cost),
    )


@cache
def recorded(app: str, context: int) -> Sequence[Workflow]:
    """The application's recorded workflows, with contexts of at most so many tokens."""
    path = data_directory() / "agentic_workflows.jsonl.gz"
    within = [
        each
        for each in _all(path)
        if each.app == app and longest(each) <= MOST_CONTEXT and len(each.calls) <= MOST_CALLS
    ]
    shorter = scaled(within, context)
    factor = sum(map(prompt_tokens, shorter)) / sum(map(prompt_tokens, within))
    return [with_gaps(each, factor) for each in shorter]


@cache
def _all(path: Path) -> Sequence[Workflow]:
    return load_workflows(path)


def longest(each: Workflow) -> int:
    """The longest context of its calls, tokens."""
    return max(call.prompt_tokens + call.completion_tokens for call in each.calls)


def prompt_tokens(each: Workflow) -> int:
    return sum(call.prompt_tokens for call in each.calls)


def with_gaps(each: Workflow, factor: float) -> Workflow:
    """With so many times the gaps before its calls, of which none is longer than AWAY_MS before."""
    calls = [
        call
        if call.gap_ms is None
        else replace(call, gap_ms=round(min(call.gap_ms, AWAY_MS) * factor))
        for call in each.calls
    ]
    return workflow(calls)
