"""Model of engines from a log: step times, estimated from calls' durations.

`kairos calibrate` measures engines that do nothing else. Here nothing is measured actively: each
ended call shows how long its engine took for how many tokens, and concurrent calls show what else
that engine did. So the figures describe the logged load, and may be wrong for another.

Approximations: an answer's tokens are assumed to come evenly, and a prompt to be computed where its
first token came; the time of a prompt that overlaps another is left out. For an answer that was not
streamed the whole call is one observation.
"""

from collections.abc import Sequence
from math import ceil
from statistics import median
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from kairos.core import CallRow, EngineProfile, Instance, SetupError, StepCost
from kairos.simulate.engine.fitting import Steps, fit_step_cost, predicted_us

FEWEST = 12  # observations, of all engines together
FEWEST_OF_ONE = 60  # for figures of its own
MOST_OF_ONE = 250  # evenly over the time: a fit takes long of many, and gains nothing
_LEAST_STEPS = 4
_LEAST_STEP_US = 1.0
_BATCH = 2048  # tokens of a step, where an engine does not tell: vLLM's default

T = TypeVar("T")
_Array = NDArray[np.float64]


class LoggedEngines(msgspec.Struct, frozen=True):
    profiles: dict[str, EngineProfile]  # by instance
    off: float  # the median of how far the model is from a call's times, as a share of them


def logged_engines(
    instances: dict[str, Instance], rows: Sequence[CallRow], longest_tokens: int
) -> LoggedEngines:
    """Return models of the engines.

    `rows` are answered calls with lengths. `longest_tokens` is the maximum of prompt plus answer.

    Raises:
        SetupError: Too few calls ended there.
    """
    seen = {
        each.id: _observations([row for row in rows if row.instance_id == each.id], each)
        for each in instances.values()
    }
    everything = [each for of_one in seen.values() for each in of_one]
    if len(everything) < FEWEST:
        raise SetupError(
            f"of {len(everything)} calls it can be seen how quick the engines are, and it takes "
            f"{FEWEST}: ask again once more have ended"
        )
    of_all = _fitted(everything)
    fits = {
        name: _fitted(of_one) if len(of_one) >= FEWEST_OF_ONE else of_all
        for name, of_one in seen.items()
    }
    off = [
        abs(predicted_us(each, fits[name].step, fits[name].call_us) / each.took_us - 1)
        for name, of_one in seen.items()
        for each in _evenly(of_one)
    ]
    return LoggedEngines(
        {name: _profile(instances[name], fits[name], longest_tokens) for name in fits},
        median(off),
    )


class _Fitted(msgspec.Struct, frozen=True):
    step: StepCost
    call_us: float


def _fitted(observations: Sequence[Steps]) -> _Fitted:
    """Fit the observations.

    If all calls are alike, as of a program that repeats the same request, the parts of a step's
    time cannot be separated, and may all be attributed to variable costs: then a step has a
    constant time.
    """
    found = fit_step_cost(_evenly(observations))
    step = found.step
    own_us = step.fixed_us + max(step.weights_us, min(step.prefill_token_us, step.decode_seq_us))
    if own_us >= _LEAST_STEP_US:
        return _Fitted(step, found.call_us)
    each_us = median(each.took_us / each.steps for each in observations)
    return _Fitted(StepCost(fixed_us=max(_LEAST_STEP_US, each_us)), 0.0)


def _profile(instance: Instance, found: _Fitted, longest_tokens: int) -> EngineProfile:
    block = instance.block_size
    most = instance.max_num_seqs * (ceil(longest_tokens / block) + 1) * block
    return EngineProfile(
        name=instance.id,
        source="the times of calls in a log",
        measured=True,
        # Where it is not known, memory is never short, as for the ledger.
        kv_tokens=most if instance.kv_tokens is None else instance.kv_tokens,
        block_size=block,
        max_num_seqs=instance.max_num_seqs,
        max_num_batched_tokens=instance.max_num_batched_tokens or _BATCH,
        max_model_len=longest_tokens + 1,
        scheduling="priority" if instance.priority else "fcfs",
        prefix_caching=instance.prefix_caching,
        call_us=found.call_us,
        step=found.step,
    )


def _evenly(all_of_them: Sequence[T]) -> Sequence[T]:
    """Return at most `MOST_OF_ONE` items, evenly distributed."""
    if len(all_of_them) <= MOST_OF_ONE:
        return all_of_them
    chosen = np.linspace(0, len(all_of_them) - 1, MOST_OF_ONE).astype(int)
    return [all_of_them[n] for n in chosen.tolist()]


class _Calls:
    """The calls of an engine as columns; instants and durations in µs."""

    def __init__(self, rows: Sequence[CallRow]) -> None:
        def column(values: Sequence[float | None]) -> _Array:
            return np.array([np.nan if each is None else each for each in values], dtype=float)

        self.gone = column([row.dispatched_at for row in rows])
        self.end = column([row.ended_at for row in rows])
        told = column([row.first_token_at for row in rows])
        self.is_streamed = ~np.isnan(told) & (told > self.gone) & (self.end > told)
        self.first = np.where(self.is_streamed, told, self.gone)
        self.prompt = column([row.prompt_tokens for row in rows])
        cached = column([row.cached_tokens or 0 for row in rows])
        self.new = np.maximum(1.0, self.prompt - cached)
        self.pairs = self.new * (self.prompt - self.new) + self.new * (self.new + 1) / 2
        self.answer = column([row.completion_tokens for row in rows])

    def decoded(self, begin: float, end: float) -> _Array:
        """Return the tokens of each answer, except its first, that came in this interval."""
        took = np.maximum(1.0, self.end - self.first)
        shared = np.minimum(end, self.end) - np.maximum(begin, self.first)
        tokens: _Array = np.maximum(0.0, shared) / took * np.maximum(0.0, self.answer - 1)
        return tokens


def _observations(rows: Sequence[CallRow], instance: Instance) -> list[Steps]:
    if not rows:
        return []
    calls = _Calls(rows)
    batch = instance.max_num_batched_tokens or _BATCH
    found: list[Steps | None] = []
    for n in _evenly(range(len(rows))):
        if calls.is_streamed[n]:
            found += [_alone(calls, n, batch), _answer(calls, n, batch)]
        else:
            found.append(_answer(calls, n, batch))
    return [each for each in found if each is not None]


def _answer(calls: _Calls, n: int, batch: int) -> Steps | None:
    """Return the observation from an answer's first token (or its sending) to its last."""
    begin, end, whole = calls.first[n], calls.end[n], not calls.is_streamed[n]
    own_chunks = ceil(calls.new[n] / batch) if whole else 0
    steps = calls.answer[n] - 1 + own_chunks
    if end <= begin or steps < _LEAST_STEPS:
        return None
    began = (calls.first > begin) & (calls.first <= end)
    began[n] |= whole
    prompts = float(calls.new[began].sum())
    decoded = calls.decoded(begin, end)
    return Steps(
        group="whole calls" if whole else "mixed",
        took_us=float(end - begin),
        calls=1 if whole else 0,
        steps=float(steps),
        prefill_steps=min(float(steps), max(float(began.sum()), prompts / batch)),
        prefill_tokens=prompts,
        prefill_seqs=float(began.sum()),
        decode_seqs=float(decoded.sum()),
        kv_tokens=float((decoded * (calls.prompt + calls.answer / 2)).sum()),
        attention_pairs=float(calls.pairs[began].sum()),
    )


def _alone(calls: _Calls, n: int, batch: int) -> Steps | None:
    """Return the observation from a call's sending to its first token; None on overlaps."""
    gone, first = calls.gone[n], calls.first[n]
    others = (calls.gone < first) & (calls.first > gone)
    if others.sum() > 1:
        return None
    steps = ceil(calls.new[n] / batch)
    beside = (calls.first <= gone) & (calls.end >= first)
    return Steps(
        group="prompts",
        took_us=float(first - gone),
        calls=1,
        steps=steps,
        prefill_steps=steps,
        prefill_tokens=float(calls.new[n]),
        prefill_seqs=1,
        decode_seqs=float(steps * beside.sum()),
        kv_tokens=float(steps * (calls.prompt + calls.answer / 2)[beside].sum()),
        attention_pairs=float(calls.pairs[n]),
    )
