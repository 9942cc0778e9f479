"""Value types. Time is an int: instants (`_at`) are microseconds since the Unix epoch (live) or
since the start of the run (simulated), durations (`_us`) are microseconds. Sizes end in `_tokens`.

Values are `msgspec.Struct`s, not dataclasses: one is made in 0.3 µs instead of 1.5 µs, and written
to the fact log and read back without a line of conversion code.
"""

from typing import Literal

import msgspec

SECOND = 1_000_000  # µs

# What may name a workflow, an app, an agent or a request, as clients say it.
IDENTIFIER = r"\A[A-Za-z0-9_][A-Za-z0-9_.:@/+=-]{0,127}\Z"
# W3C trace context; its group is the trace id.
TRACEPARENT = r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"

# The answer's length that a call is expected to have if it sets no lower limit itself.
EXPECTED_COMPLETION_TOKENS = 256

PARENTS_LIMIT = 32  # calls that one call names as those that led to it


def _prefix_marks() -> tuple[int, ...]:
    """Every 64 up to 1,024, then eight to a doubling, up to a million: so the longest beginning
    that two prompts share is known to an eighth, and a prompt has under a hundred marks."""
    marks = list(range(64, 1024, 64))
    for octave in (1 << bit for bit in range(10, 20)):
        marks += range(octave, 2 * octave, octave // 8)
    return tuple(marks)


PREFIX_MARKS = _prefix_marks()

USER = "user"  # upstream of a workflow's first agent, and receiver of its result


# What says a thing of who makes a call. declared: headers of ours; alias: headers, or fields of the
# body, that others take for it; route: the base URL or the API key; trace: W3C trace context;
# inferred: what it has in common with earlier calls; none: nothing does.
Source = Literal["declared", "alias", "route", "trace", "inferred", "none"]


class Sources(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Which source each field of a request is from."""

    workflow_id: Source = "none"  # none: it began one
    app: Source = "none"
    agent: Source = "none"
    upstream: Source = "none"


class Budget(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a workflow may use at most. None: as much as it likes."""

    calls: int | None = None
    tokens: int | None = None  # of prompts and answers
    wall_us: int | None = None  # from the arrival of its first call on


def least(budget: Budget, other: Budget | None) -> Budget:
    """Of each, the smaller."""
    if other is None or other == budget:
        return budget
    return Budget(
        _smaller(budget.calls, other.calls),
        _smaller(budget.tokens, other.tokens),
        _smaller(budget.wall_us, other.wall_us),
    )


def _smaller(one: int | None, other: int | None) -> int | None:
    return min((each for each in (one, other) if each is not None), default=None)


class Request(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One LLM call, made by one agent inside one workflow."""

    id: str
    tenant: str = "default"
    workflow_id: str  # unique within the tenant
    app: str | None = None
    agent: str | None = None
    upstream: str | None = None  # the agent whose message led to this call
    parent_ids: tuple[str, ...] = ()  # the requests whose answers led to this call, where known
    sources: Sources = Sources()
    attempt: int = 1  # a call that is tried again keeps its id and counts up
    trace_id: str | None = None  # of the trace that records it (W3C); None: none does
    key: str | None = None  # the name of the API key that its caller showed, if that has one
    service_class: str = "standard"  # how urgent it is (`entitlements.py`)
    deadline_at: int | None = None  # nobody waits for its answer after that; None: not told
    budget: Budget | None = None  # that its client asks for, for the workflow
    model: str | None = None  # None: any instance will do
    workflow_started_at: int  # as its client says, or when its first call arrived
    arrived_at: int  # at the gateway
    prompt_tokens: int  # estimated; the truth arrives with Finished
    least_prompt_tokens: int = 0  # that it has for certain
    completion_tokens: int  # expected; the truth arrives with Finished
    completion_limit: int | None = None  # tokens that the answer has at most; None: not told
    sequences: int = 1  # that an engine generates for it, each with its own answer
    # Hashes of the prompt's beginning, up to each of `PREFIX_MARKS` that lies within it; prompts
    # that begin alike have the same. The marks count in `prefix_units`, in which the whole prompt
    # is so long: tokens, or what stands for them while they are not counted.
    prefix: tuple[int, ...] = ()
    prefix_units: int = 0


# What an instance does of calls: all; or it computes prompts for instances that generate the
# answers, to which their caches go.
Phase = Literal["both", "prefill", "decode"]


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """One engine that serves requests, and its limits."""

    id: str
    models: tuple[str, ...]
    max_num_seqs: int
    kv_tokens: int | None = None  # None: not known, so memory never refuses a request
    block_size: int = 16  # tokens
    max_num_batched_tokens: int | None = None  # of a step; None: not known
    prefix_caching: bool = True
    priority: bool = False  # it orders what waits inside it by the priority that calls carry
    token_us: float | None = None  # per token of an answer, from a profile; None: only as measured
    phase: Phase = "both"
    usd_per_hour: float | None = None  # what it costs; None: not told
