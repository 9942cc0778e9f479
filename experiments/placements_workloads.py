"""What placements are compared on: workflows, how they arrive, and the pool that serves them.

- `colocated-13b`, `colocated-8b`: QA, RG and CG together, as in traces/scenarios, on A40s. With
  Llama-2-13B memory binds; with Llama-3-8B sequences and compute do.
- `claude_code`: recorded sessions of a coding agent, of which 96 % of the prompt tokens were in a
  prefix cache, on Llama-2-13B. Left out are sessions with a context of more than 200,000 tokens
  (144 of 676), which only some models take, and of the others those of more than 70 calls (192),
  since a load is made of hundreds of sessions, and a run of what a minute of computing allows.
  Contexts are scaled to the 4,096 tokens of the model: all prompts, with what was cached of them,
  by one factor (1/51), and answers by another, so that the longest has half of that (1/9). An
  instance then holds 12 contexts of mean length: as many as eight H100 with a model of 70 billion
  weights hold of the recorded ones.
  The gaps before calls are scaled by the prompts' factor too, users' time and tools' alike: a
  session whose context is so much smaller comes back so much sooner, and a user's two minutes (the
  median) are two seconds. At their full length, half an hour in the median session, they would be
  most of the end-to-end latency, whatever serves the calls. Gaps of more than ten minutes (4 %, up
  to 21 hours: somebody was away) count as ten.
- `tau_bench`, `magentic_one`, `ag2`: recorded too, without gaps, and without a word on what was
  cached, so nothing is; contexts scaled to the same model.

There are four instances; two where more workflows would be needed to fill the queue of four than a
minute of computing allows (`colocated-8b`, `magentic_one`).

Arrivals are as bursty as Azure's conversations where the paper's applications come together, else
Poisson; the rates are those of placements_rates.py.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import msgspec
from msgspec.structs import replace

from experiments.recordings import ROOT, data_directory
from kairos.sim.engine.profile import EngineProfile
from kairos.sim.engine.profiles import profile
from kairos.sim.plan import instance_id
from kairos.workload import arrivals
from kairos.workload.scenario import Arriving, read
from kairos.workload.scenario import submissions as scenario_submissions
from kairos.workload.submissions import scaled, submissions
from kairos.workload.workflows import Submission, Workflow, load, workflow

MOST_CONTEXT = 200_000  # tokens, of a recorded session
MOST_CALLS = 70  # of a recorded session
AWAY_MS = 600_000  # longer gaps are as long as this
MEMORY_BINDS, COMPUTE_BINDS = "a40-llama2-13b", "a40-llama3-8b"
_SCENARIO = (
    ROOT / "traces" / "scenarios" / "colocated-high.toml"
)  # but for its rate and its engines


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    app: str | None = None  # of the recordings; None: the paper's applications
    profile: str = MEMORY_BINDS
    workflows: int  # of a run
    pool: int = 4  # instances

    def instances(self) -> dict[str, EngineProfile]:
        engine = profile(self.profile)
        return {instance_id(number): engine for number in range(self.pool)}

    def submissions(self, rate_per_s: float, count: int, seed: int) -> list[Submission]:
        """So many workflows in the order of time: the same for the same arguments."""
        if self.app is None:
            arriving = Arriving(rate_per_s=rate_per_s)
            scenario = replace(read(_SCENARIO), arrivals=arriving, workflows=count)
            return scenario_submissions(scenario, seed)
        at_us = arrivals("poisson", count, rate_per_s, seed)
        return submissions(recorded(self.app, profile(self.profile).max_model_len), at_us, seed)


WORKLOADS = {
    each.name: each
    for each in (
        Workload(name="colocated-13b", workflows=1200),
        Workload(name="colocated-8b", profile=COMPUTE_BINDS, workflows=4000, pool=2),
        Workload(name="claude_code", app="claude_code", workflows=350),
        Workload(name="tau_bench", app="tau_bench_airline", workflows=600),
        Workload(name="magentic_one", app="magentic_one_gaia", workflows=500, pool=2),
        Workload(name="ag2", app="ag2_captain_gaia", workflows=2500),
    )
}


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
    return load(path)


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
