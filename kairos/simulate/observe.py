"""Work of an engine, from the arrival times of calls' tokens."""

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence

from kairos.simulate.measured_engine import Generated
from kairos.simulate.workload.steps import Steps

US = 1_000_000


def alone(call: Generated, *, max_num_batched_tokens: int) -> Steps:
    """A call while nothing else ran: from its sending to its first token."""
    steps = math.ceil(call.prompt_tokens / max_num_batched_tokens)
    return Steps(
        group="prompts alone",
        took_us=(call.events_at[0] - call.sent_at) * US,
        calls=1,
        steps=steps,
        prefill_steps=steps,
        prefill_tokens=call.prompt_tokens,
        prefill_seqs=1,
        attention_pairs=_pairs(call.prompt_tokens),
    )


def between(
    group: str,
    calls: Sequence[Generated],
    pacer: Generated,
    window: tuple[float, float],
    *,
    max_num_batched_tokens: int,
) -> Steps | None:
    """Return the work between two tokens of `pacer`, which is one of the calls: each is a step.

    A prompt counts where its first token came. None if the window has no step.
    """
    paces = [at for at, _ in pacer.tokens_at() if window[0] <= at <= window[1]]
    if len(paces) < 2 or paces[-1] == paces[0]:
        return None
    start, end = paces[0], paces[-1]
    begun: list[tuple[float, int]] = []  # when a prompt was done, and its tokens
    decode_seqs = kv_tokens = 0
    for call in calls:
        for at, first, last in _arrivals(call):
            if start < at <= end:
                if first == 1:
                    begun.append((at, call.prompt_tokens))
                decoded = range(max(first, 2), last + 1)
                decode_seqs += len(decoded)
                kv_tokens += sum(call.prompt_tokens + number - 1 for number in decoded)
    steps = sum(last - first + 1 for at, first, last in _arrivals(pacer) if start < at <= end)
    prefill_tokens = sum(tokens for _, tokens in begun)
    # More than one prompt may be in a step, and more than one step may be needed for a prompt.
    shared = len({bisect_right(paces, at) for at, _ in begun})
    chunks = prefill_tokens / max_num_batched_tokens
    return Steps(
        group=group,
        took_us=(end - start) * US,
        steps=steps,
        prefill_steps=min(steps, max(shared, chunks)),
        prefill_tokens=prefill_tokens,
        prefill_seqs=len(begun),
        decode_seqs=decode_seqs,
        kv_tokens=kv_tokens,
        attention_pairs=sum(_pairs(tokens) for _, tokens in begun),
    )


def pace(call: Generated, pacer: Generated) -> None:
    """Estimate when the tokens of a call that was not streamed came.

    One came with each of the pacer's, as every running call gets one in each step, and the last
    when the call ended. Earlier ones count with the pacer's first.
    """
    paces = [at for at, first, last in _arrivals(pacer) for _ in range(first, last + 1)]
    ended_at = call.events_at[-1]
    after = min(bisect_right(paces, ended_at), len(paces) - 1)
    before = max(after - 1, 0)
    # The same step's answers reach us at about the same time, in any order.
    end = before if ended_at - paces[before] < paces[after] - ended_at else after
    call.events_at = paces[max(0, end - call.completion_tokens + 1) : end + 1]


def _arrivals(call: Generated) -> Iterator[tuple[float, int, int]]:
    """Yield when an event came, with the numbers of its first and last token."""
    before = 0
    for at, number in call.tokens_at():
        yield at, before + 1, number
        before = number


def _pairs(tokens: int) -> int:
    return tokens * (tokens + 1) // 2
