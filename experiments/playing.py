"""A recorded workflow as one fixed engine would have served it: service times, and true rests.

The engine is Llama-3-8B in bfloat16 on an NVIDIA A40. From the model card and the data sheet:

- Prefill is bound by arithmetic: 2 x 8.03e9 FLOP per token of prompt at half of 149.7 TFLOP/s make
  215 us per token. Tokens found in the prefix cache are not prefilled again.
- Decode is bound by memory: each step reads 16.06 GB of weights, and the KV cache of the batch, 16
  sequences of 2,000 tokens at 128 KiB each, 4.19 GB; at four fifths of 696 GB/s that makes 36.4 ms
  per token. All sequences of the batch share the step, so each call waits for all of it.

Deviation: attention over long prompts, and longer contexts in the batch, cost nothing extra. Only
proportions matter for an order, and the same times serve for learning and for the truth.
"""

import msgspec

from experiments.recordings import RecordedCall, Workflow
from kairos.core import Arrived, Event, Finished, Request, SetupError, WorkflowEnded

PREFILL_US_PER_TOKEN = 215
DECODE_US_PER_TOKEN = 36_400
# What a request is expected to complete before anything ran: the gateway's default.
EXPECTED_COMPLETION_TOKENS = 256
TENANT = "default"


def service_us(call: RecordedCall) -> int:
    """Execution latency of one call, at least 1."""
    prefilled = max(0, call.prompt_tokens - (call.cached_prefix_tokens or 0))
    return prefilled * PREFILL_US_PER_TOKEN + call.completion_tokens * DECODE_US_PER_TOKEN


def waits_for(workflow: Workflow) -> list[list[int]]:
    """Per call, the indices of the earlier calls that had to end first.

    A call waits for the one before it. Calls that share a `parallel_group` are a sub-agent (so it
    is in the only recordings that have one): a chain of its own, which follows the call of the main
    chain before it in the file. It runs beside the main chain until the first call there that began
    after the sub-agent's end, which waits for it; if there is none, it delays only the end.

    Raises:
        SetupError: it was not recorded when a sub-agent ended, or when the calls after it began.
    """
    before: list[list[int]] = [[] for _ in workflow]
    last: dict[str | None, int] = {}  # by group: the latest call of each chain
    running: dict[str, int] = {}  # sub-agents that the main chain has not waited for, likewise
    for index, call in enumerate(workflow):
        group = call.parallel_group
        previous = last.get(group, last.get(None))
        if previous is not None:
            before[index].append(previous)
        if group is None:
            ended = [g for g, end in running.items() if _ended_before(workflow[end], call)]
            before[index].extend(running.pop(each) for each in ended)
        else:
            running[group] = index
        last[group] = index
    return before


def _ended_before(earlier: RecordedCall, later: RecordedCall) -> bool:
    if earlier.end_ms is None or later.start_ms is None:
        raise SetupError(f"workflow {later.workflow_id}: calls beside a sub-agent need their times")
    return earlier.end_ms <= later.start_ms


class Played(msgspec.Struct, frozen=True):
    """A workflow as served with nothing in its way: no queue, no tools, no users. Lists by call."""

    workflow: Workflow
    started_at: list[int]  # µs from its start
    ended_at: list[int]
    remaining_us: list[int]  # the truth: longest path of service times from the call on, included


def play(workflow: Workflow) -> Played:
    """Every call is served as soon as those it waits for have ended."""
    service = [service_us(call) for call in workflow]
    before = waits_for(workflow)
    started: list[int] = []
    ended: list[int] = []
    for index, waits in enumerate(before):
        started.append(max((ended[each] for each in waits), default=0))
        ended.append(started[-1] + service[index])
    after_us = [0] * len(workflow)  # longest path that begins after the call
    for index in reversed(range(len(workflow))):
        for each in before[index]:
            after_us[each] = max(after_us[each], service[index] + after_us[index])
    remaining = [own + rest for own, rest in zip(service, after_us, strict=True)]
    return Played(workflow, started, ended, remaining)


def request_id(call: RecordedCall) -> str:
    return f"{call.workflow_id}/{call.call_index}"


def facts(played: Played, start_at: int) -> list[tuple[int, Event]]:
    """What Kairos would have been told, and when, in order. Calls name their upstream agent only,
    not their parents: the least that an agent tells."""
    told: list[tuple[int, int, Event]] = []
    for call, started, ended in zip(
        played.workflow, played.started_at, played.ended_at, strict=True
    ):
        request = Request(
            id=request_id(call),
            workflow_id=call.workflow_id,
            app=call.app,
            agent=call.agent,
            upstream=call.upstream,
            workflow_started_at=start_at,
            arrived_at=start_at + started,
            prompt_tokens=call.prompt_tokens,
            completion_tokens=EXPECTED_COMPLETION_TOKENS,
        )
        finished = Finished(
            request.id, call.prompt_tokens, call.completion_tokens, call.cached_prefix_tokens
        )
        told.append((request.arrived_at, 1, Arrived(request)))
        told.append((start_at + ended, 0, finished))  # an end leads to what arrives with it
    told.sort(key=lambda fact: fact[:2])
    end_at = start_at + max(played.ended_at)
    ends = WorkflowEnded(TENANT, played.workflow[0].workflow_id)
    return [*((at, event) for at, _, event in told), (end_at, ends)]
