"""Workflows as they are asked for: when, how often, and how long."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import cycle
from random import Random

from msgspec.structs import replace

from kairos.core import SetupError
from kairos.simulate.workload.workflow_file import FileCall
from kairos.simulate.workload.workflows import Submission, Workflow, workflow

_ID_LENGTH = 240  # of 256: the rest is for what is appended


def draw_submissions(
    workflows: Sequence[Workflow], at_us: Sequence[int], seed: int
) -> list[Submission]:
    """Return one workflow for each instant, shuffled by the seed, so that a few are a fair sample.

    When the workflows run out they repeat in the same order, named ID~2, ID~3, ...: ids differ, and
    no repetition finds the prompts of another in a cache.
    """
    order = Random(seed).sample(workflows, len(workflows))  # noqa: S311  (a workload, no secret)
    return in_order(
        Submission(at_us=at, workflow=each) for at, each in zip(at_us, cycle(order), strict=False)
    )


def in_order(planned: Iterable[Submission]) -> list[Submission]:
    """Return submissions by instant; the repetitions of an id are named ID~2, ID~3, ..."""
    ordered = sorted(planned, key=lambda each: each.at_us)
    used = {each.workflow.id for each in ordered}
    times: Counter[str] = Counter()
    return [replace(each, workflow=_apart(each.workflow, times, used)) for each in ordered]


def _apart(original: Workflow, times: Counter[str], used: set[str]) -> Workflow:
    times[original.id] += 1
    if times[original.id] == 1:
        return original
    while (name := f"{original.id[:_ID_LENGTH]}~{times[original.id]}") in used:
        times[original.id] += 1
    used.add(name)
    return renamed(original, name)


def renamed(original: Workflow, workflow_id: str) -> Workflow:
    """Return the same workflow with another id and its own prompts."""
    return workflow([replace(call, workflow_id=workflow_id) for call in original.calls])


def scaled(workflows: Sequence[Workflow], max_tokens: int) -> list[Workflow]:
    """Return the workflows with contexts that fit a model: calls of at most `max_tokens`.

    Nothing is cut off. In an app with a longer call, all prompts, with their cached and shared
    parts, are multiplied by one factor, so their proportions remain. Completions stay as they are,
    since they determine the time; only if an app's longest exceeds half of `max_tokens` they are
    all multiplied, too, so that it equals that half. Other apps are not changed.

    Raises:
        SetupError: `max_tokens` cannot hold a call.
    """
    if max_tokens < 2:
        raise SetupError(f"a context must hold 2 tokens or more; it is {max_tokens}")
    by_app: defaultdict[str, list[FileCall]] = defaultdict(list)
    for each in workflows:
        by_app[each.app].extend(each.calls)
    factors = {app: _factors(calls, max_tokens) for app, calls in by_app.items()}
    return [
        each if factors[each.app] is None else workflow(_shorter(each.calls, factors[each.app]))
        for each in workflows
    ]


_Ratio = tuple[int, int]  # whole numbers: rounding may not make anything too long
_UNCHANGED = 1, 1


def _factors(calls: Sequence[FileCall], max_tokens: int) -> tuple[_Ratio, _Ratio] | None:
    """Return the factors for prompts and completions; None: all calls fit."""
    if all(call.prompt_tokens + call.completion_tokens <= max_tokens for call in calls):
        return None
    longest = max(call.completion_tokens for call in calls)
    half = max_tokens // 2
    completions = (half, longest) if longest > half else _UNCHANGED
    prompts = _UNCHANGED
    for call in calls:
        room = max_tokens - _times(call.completion_tokens, completions)
        if room * prompts[1] < prompts[0] * call.prompt_tokens:
            prompts = room, call.prompt_tokens
    return prompts, completions


def _times(tokens: int, ratio: _Ratio) -> int:
    return max(1, tokens * ratio[0] // ratio[1])


def _shorter(calls: Sequence[FileCall], factors: tuple[_Ratio, _Ratio] | None) -> list[FileCall]:
    assert factors is not None
    prompts, completions = factors
    return [
        replace(
            call,
            prompt_tokens=_times(call.prompt_tokens, prompts),
            completion_tokens=_times(call.completion_tokens, completions),
            cached_prefix_tokens=_part(call.cached_prefix_tokens, prompts),
            shared_prefix_tokens=_part(call.shared_prefix_tokens, prompts),
        )
        for call in calls
    ]


def _part(tokens: int | None, ratio: _Ratio) -> int | None:
    return tokens and tokens * ratio[0] // ratio[1]
