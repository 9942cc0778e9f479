"""Applications as generative models: the lengths of agents' answers, and their receivers.

traces/README.md documents the format, key by key; `applications/` holds the three of the Kairos
paper, each figure with its source. Agents call one after the other: branches and loops, no fan-out.
"""

import math
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from importlib.resources import as_file, files
from itertools import chain, pairwise, takewhile
from itertools import count as count_from
from pathlib import Path
from random import Random
from typing import Annotated, NamedTuple

import msgspec

from kairos.core import InvalidFile, SetupError
from kairos.host import read_toml
from kairos.simulate.workload.workflow_file import MAX_TOKENS, FileCall, Name, write_workflows
from kairos.simulate.workload.workflows import MAX_WORKFLOW_CALLS, Workflow, workflow

BUILT_IN = ("qa", "rg", "cg")
TASK = "task"  # what a prompt may hold beside agents' answers: the user's task
MOST_TOKENS = 1_000_000

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Size = Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)]
# Percentile (`p50`) -> value: with p0 and p100, both ascending.
Percentiles = Annotated[dict[str, float], msgspec.Meta(min_length=2, max_length=101)]


class TaskKind(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A kind of task that users give, and its part of all."""

    name: Name
    tokens: Percentiles
    weight: Annotated[float, msgspec.Meta(gt=0, le=1e9)] = 1.0
    source: str = ""


class Next(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A possible receiver of an agent's answer."""

    agent: Name
    probability: Share = 1.0  # if it comes to this one
    task: Name | None = None  # only in tasks of this kind


class Agent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An agent: its prompt, from start to end, its answer, and what follows.

    The answer goes to the first of `next` that its kind of task allows, that has calls left, and
    that a draw with its probability selects; without one, the workflow ends.
    """

    shared_prefix_tokens: Size = 0  # a system prompt
    reads: tuple[Name, ...] = (TASK,)  # the task, and agents' latest answers, in this order
    other_tokens: Size = 0  # at the end of the prompt
    completion_tokens: Percentiles
    gap_ms: Percentiles | None = None  # a tool's time before the call
    max_calls: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1  # in a workflow
    next: tuple[Next, ...] = ()
    source: str = ""


class GenerativeApplication(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Generative model of an application's workflows."""

    app: Name
    entry: Name
    tasks: Annotated[tuple[TaskKind, ...], msgspec.Meta(min_length=1)]
    agents: Annotated[dict[Name, Agent], msgspec.Meta(min_length=1)]
    source: str = ""


def load_application(name: str) -> GenerativeApplication:
    """Return a built-in application, or the one in the file with that name (`.toml`).

    Raises:
        SetupError: It does not exist, or its file is malformed.
    """
    if name in BUILT_IN:
        with as_file(files("kairos.simulate.workload") / "applications" / f"{name}.toml") as path:
            return _read(path)
    if not name.endswith(".toml"):
        raise SetupError(
            f"no application is called '{name}'; built in are {', '.join(BUILT_IN)}, "
            "and one of your own is a file whose name ends in .toml"
        )
    return _read(Path(name))


def generate(model: GenerativeApplication, count: int, seed: int) -> list[Workflow]:
    """Generate `count` workflows; number n is the same for any count.

    Raises:
        SetupError: The count is negative.
    """
    if count < 0:
        raise SetupError(f"the number of workflows must be 0 or more; it is {count}")
    return [workflow(calls) for calls in generated_calls(model, count, seed)]


def write_generated(path: Path, application: str, count: int, seed: int) -> None:
    """Write generated workflows as a workflow file; `application` as in `load_application`.

    Raises:
        SetupError, InvalidFile: There is no such application, or the file cannot be written.
    """
    model = load_application(application)
    write_workflows(path, chain.from_iterable(generated_calls(model, count, seed)))


def generated_calls(
    model: GenerativeApplication, count: int, seed: int
) -> Iterator[list[FileCall]]:
    """The calls of each, as they go into a workflow file."""
    for number in range(1, count + 1):
        random = Random(f"{seed}/{model.app}/{number}")  # noqa: S311  (a workload, no secret)
        yield [*_Run(model, f"{model.app}-{number:06}", random).calls()]


class _Said(NamedTuple):
    """Words that may stand in a prompt."""

    whose: str
    number: int  # of this agent's answers; with `whose` it says which text this is
    tokens: int


class _Run:
    """A workflow in progress."""

    def __init__(self, model: GenerativeApplication, workflow_id: str, random: Random) -> None:
        self._model, self._id, self._random = model, workflow_id, random
        (self._task,) = random.choices(model.tasks, [each.weight for each in model.tasks])
        self._said = {TASK: _Said(TASK, 0, drawn(self._task.tokens, random))}  # the latest
        self._read: dict[str, list[_Said]] = {}  # by an agent in its latest prompt

    def calls(self) -> Iterator[FileCall]:
        upstream, name = "user", self._model.entry
        for index in count_from(0):
            yield self._call(index, upstream, name)
            follows = next(filter(self._goes_to, self._model.agents[name].next), None)
            if follows is None:
                return
            upstream, name = name, follows.agent

    def _call(self, index: int, upstream: str, name: str) -> FileCall:
        agent = self._model.agents[name]
        shared = agent.shared_prefix_tokens
        reads = [self._said[each] for each in agent.reads if each in self._said]
        both = zip(reads, self._read.get(name, ()), strict=False)
        known = [here for here, _ in takewhile(lambda pair: pair[0] == pair[1], both)]
        self._read[name] = reads
        answer = _Said(name, self._made(name) + 1, drawn(agent.completion_tokens, self._random))
        self._said[name] = answer
        return FileCall(
            workflow_id=self._id,
            app=self._model.app,
            agent=name,
            upstream=upstream,
            call_index=index,
            prompt_tokens=max(1, shared + _tokens(reads) + agent.other_tokens),
            completion_tokens=answer.tokens,
            gap_ms=drawn(agent.gap_ms, self._random) if agent.gap_ms else None,
            cached_prefix_tokens=shared + _tokens(known) if known else None,
            shared_prefix_tokens=shared or None,
        )

    def _made(self, agent: str) -> int:
        return self._said[agent].number if agent in self._said else 0

    def _goes_to(self, to: Next) -> bool:
        if to.task not in (None, self._task.name):
            return False
        if self._made(to.agent) == self._model.agents[to.agent].max_calls:
            return False
        return self._random.random() < to.probability


def _tokens(words: Iterable[_Said]) -> int:
    return sum(each.tokens for each in words)


def drawn(percentiles: Percentiles, random: Random) -> int:
    """Draw a value from the distribution.

    Between two percentiles its logarithm grows linearly, since lengths are skewed; from zero on,
    the value itself.
    """
    points = _points(percentiles)
    percent = random.random() * 100
    right = max(1, bisect_left(points, (percent,)))
    (left_percent, low), (right_percent, high) = points[right - 1 : right + 1]
    share = (percent - left_percent) / (right_percent - left_percent)
    if low <= 0:
        return round(low + share * (high - low))
    return round(low * math.exp(share * math.log(high / low)))


def _points(percentiles: Percentiles) -> list[tuple[float, float]]:
    return sorted((float(name[1:]), value) for name, value in percentiles.items())


def _read(path: Path) -> GenerativeApplication:
    model = read_toml(path, GenerativeApplication)
    if problem := next(_problems(model), None):
        raise InvalidFile(path, problem)
    return model


def _problems(model: GenerativeApplication) -> Iterator[str]:
    if model.entry not in model.agents:
        yield f"entry: there is no agent '{model.entry}'; there are {', '.join(model.agents)}"
    if TASK in model.agents:
        yield f"an agent may not be called '{TASK}': prompts read the user's task under this name"
    if sum(agent.max_calls for agent in model.agents.values()) > MAX_WORKFLOW_CALLS:
        yield f"max_calls come to more than {MAX_WORKFLOW_CALLS} calls in a workflow"
    for kind in model.tasks:
        yield from _problems_of(f"tasks: {kind.name}: tokens", kind.tokens, least=1)
    for name, agent in model.agents.items():
        for problem in _problems_of_agent(model, agent):
            yield f"agents.{name}.{problem}"
    for name, agent in model.agents.items():
        if _most_prompt_tokens(model, agent) > MAX_TOKENS:
            yield f"agents.{name}: its prompts may be of more than {MAX_TOKENS} tokens"


def _problems_of_agent(model: GenerativeApplication, agent: Agent) -> Iterator[str]:
    agents, kinds = ", ".join(model.agents), [each.name for each in model.tasks]
    yield from _problems_of("completion_tokens", agent.completion_tokens, least=1)
    if agent.gap_ms is not None:
        yield from _problems_of("gap_ms", agent.gap_ms, least=0)
    for read in agent.reads:
        if read not in (TASK, *model.agents):
            yield f"reads: there is no agent '{read}'; there are {TASK}, {agents}"
    for to in agent.next:
        if to.agent not in model.agents:
            yield f"next: there is no agent '{to.agent}'; there are {agents}"
        if to.task not in (None, *kinds):
            yield f"next: there is no task '{to.task}'; there are {', '.join(kinds)}"


def _most_prompt_tokens(model: GenerativeApplication, agent: Agent) -> float:
    texts = {name: max(each.completion_tokens.values()) for name, each in model.agents.items()}
    texts[TASK] = max(value for kind in model.tasks for value in kind.tokens.values())
    return (
        agent.shared_prefix_tokens + agent.other_tokens + sum(texts[each] for each in agent.reads)
    )


def _problems_of(where: str, percentiles: Percentiles, *, least: int) -> Iterator[str]:
    if not all(re.fullmatch(r"p\d{1,3}(\.\d{1,6})?", name) for name in percentiles):
        yield f"{where}: percentiles are written p0, p50, p99.9"
        return
    percents, values = zip(*_points(percentiles), strict=True)
    if percents[0] != 0 or percents[-1] != 100:
        yield f"{where}: give p0 and p100, the least and the greatest value"
    if len({*percents}) < len(percents):
        yield f"{where}: a percentile is given twice"
    if any(later < earlier for earlier, later in pairwise(values)):
        yield f"{where}: values must ascend with the percentiles"
    if not all(least <= value <= MOST_TOKENS for value in values):
        yield f"{where}: values must be from {least} to {MOST_TOKENS}"
