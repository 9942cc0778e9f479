"""`python -m bench.simulation`: how fast a pool is simulated, in CPU time of one core.

The Azure conversation trace (an hour of 2023: 5.5 requests a second, prompts of 1,155 tokens and
answers of 211 in the mean) on models of `a40-llama3-8b`. Of its requests those that an instance
takes: one of 19,366 is longer than 8,192 tokens. First the engines alone, told of the calls by
turns; then all of what `kairos simulate` does, with the balancer, the policy and learning. The
trace comes from the directory that KAIROS_DATA names, or from shared/data beside the checkout.

What limits the engines: some three steps a call that are decided by themselves (arrivals, chunks,
ends). Tokens that are decoded between two of these cost nothing, nor do a prompt's blocks, which
are found, stored, given back and taken together; so longer answers and prompts are simulated
faster. What limits the whole: five facts a call, each of which the balancer decides and observers
follow, and two facts of each instance a second; the engines are a fifth of it.

`--quick`: one round of the trace's first 2,000 requests, to see that it works. Adds its figures to
bench/results.json, unless quick; takes two minutes.
"""

import argparse
import gc
import os
import sys
import time
from typing import Literal

from rich.console import Console

from bench import report, rows
from bench.report import Figure
from experiments.recordings import data_directory
from kairos.core import PLACEMENTS, POLICIES, SECOND, EngineProfile, KairosError
from kairos.engines import load_profile
from kairos.simulate import Load, World, offered_workload
from kairos.simulate.engine.engine import ModelledEngine
from kairos.simulate.engine.sequence import EngineStats
from kairos.simulate.options import DEFAULTS
from kairos.simulate.users import engine_call
from kairos.simulate.workload.workflows import Submission

TRACE = "azure/AzureLLMInferenceTrace_conv.csv.gz"
PROFILE = "a40-llama3-8b"
INSTANCES = 4
CROWDED = 1  # instances: the trace is too much for it
ROUNDS, QUICK_ROUNDS = 3, 1
QUICK_COUNT = 2_000

TOKENS = "simulated output tokens per second of one core"
TOKENS_CROWDED = "the same on one instance, overloaded, which preempts"
HOUR = f"an hour of the Azure conversation trace on {INSTANCES} instances, all of `kairos simulate`"

# name of the figure, unit, target, which is better
FIGURES: tuple[tuple[str, str, float | None, Literal["lower", "higher"]], ...] = (
    (TOKENS, "1,000 tokens/s", 1_000, "higher"),
    (TOKENS_CROWDED, "1,000 tokens/s", None, "higher"),
    (HOUR, "s", None, "lower"),
)


def trace(count: int | None, engine: EngineProfile) -> list[Submission]:
    """Its requests as workflows of one call. Raises KairosError: there is no such file."""
    submitted, _ = offered_workload(Load(workflows=data_directory() / TRACE, count=count)).of(0)
    return [each for each in submitted if _tokens(each)[2] <= engine.max_model_len]


def _tokens(submission: Submission) -> tuple[int, int, int]:
    call = submission.workflow.calls[0]
    return call.prompt_tokens, call.completion_tokens, call.prompt_tokens + call.completion_tokens


def engines_alone(
    submitted: list[Submission], engine: EngineProfile, number: int
) -> tuple[float, EngineStats]:
    """CPU seconds, and what all engines did together."""
    calls = [(each.at_us, engine_call(each.workflow, 0, each.workflow.id)) for each in submitted]
    gc.collect()
    started = time.process_time()
    engines = [ModelledEngine(engine) for _ in range(number)]
    for place, (at_us, call) in enumerate(calls):
        engines[place % number].add(call, at_us)
        engines[place % number].advance(at_us)
    for each in engines:
        while (at := each.next_at()) is not None:
            each.advance(at)
    seconds = time.process_time() - started
    totals = (sum(counts) for counts in zip(*map(_counts, engines), strict=True))
    return seconds, EngineStats(*totals)


def _counts(engine: ModelledEngine) -> tuple[int, ...]:
    return tuple(getattr(engine.stats, name) for name in EngineStats.__struct_fields__)


def whole_pool(submitted: list[Submission], engine: EngineProfile) -> float:
    """CPU seconds for an hour of virtual time."""
    instances = {f"engine-{number}": engine for number in range(INSTANCES)}
    gc.collect()
    started = time.process_time()
    world = World(submitted, instances, POLICIES[DEFAULTS.policy], PLACEMENTS[DEFAULTS.placement])
    world.run()
    seconds = time.process_time() - started
    assert not world.users.failed, world.users.failed
    return seconds * 3600 * SECOND / submitted[-1].at_us


def measure(console: Console, rounds: int, count: int | None) -> list[Figure]:
    if os.getloadavg()[0] > 1:
        console.print("the machine is busy with something else: figures will be noisy")
    engine = load_profile(PROFILE)
    submitted = trace(count, engine)
    tokens = sum(_tokens(each)[1] for each in submitted)
    values: dict[str, list[float]] = {TOKENS: [], TOKENS_CROWDED: [], HOUR: []}
    details: dict[str, dict[str, object]] = {name: {} for name in values}
    for number in range(rounds):
        console.print(f"round {number + 1} of {rounds}")
        for name, instances in ((TOKENS, INSTANCES), (TOKENS_CROWDED, CROWDED)):
            seconds, stats = engines_alone(submitted, engine, instances)
            values[name].append(tokens / seconds / 1e3)
            details[name] = {"us_per_call": seconds / len(submitted) * 1e6, "stats": stats}
        values[HOUR].append(whole_pool(submitted, engine))
    details[HOUR] = {"policy": DEFAULTS.policy, "calls": len(submitted)}
    return [
        Figure(
            name=name,
            value=report.spread(values[name]).median,
            unit=unit,
            target=target,
            better=better,
            detail={"kairos": report.spread(values[name]), **details[name]},
        )
        for name, unit, target, better in FIGURES
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.simulation", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round of 2,000 requests")
    arguments = parser.parse_args()
    console = report.console()
    try:
        found = measure(
            console,
            QUICK_ROUNDS if arguments.quick else ROUNDS,
            QUICK_COUNT if arguments.quick else None,
        )
    except KairosError as error:
        sys.exit(f"bench: {error}")
    if not arguments.quick:
        rows.keep(found, "simulation")
    report.show(found, console, {"kairos": "Kairos"})


if __name__ == "__main__":
    main()
