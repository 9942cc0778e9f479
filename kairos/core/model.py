"""Value types.

Time is an int: instants (`_at`) are microseconds since the Unix epoch (live) or since the start of
the run (simulated), durations (`_us`) are microseconds. Sizes end in `_tokens`.

Values are `msgspec.Struct`s, not dataclasses: creating one takes 0.3 µs instead of 1.5 µs, and they
are written to the fact log and read back without conversion code.
"""

from typing import Literal

import msgspec

SECOND = 1_000_000  # µs

# Pattern of the names of workflows, apps, agents and requests that clients may use.
IDENTIFIER_PATTERN = r"\A[A-Za-z0-9_][A-Za-z0-9_.:@/+=-]{0,127}\Z"
# W3C trace context; its group is the trace id.
TRACEPARENT_PATTERN = r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"

BYTES_PER_TOKEN = 4  # of text that was not tokenized: English, under a 32k-128k vocabulary
# Assumed length of an answer, unless the call sets a lower limit.
EXPECTED_COMPLETION_TOKENS = 256

PARENTS_LIMIT = 32  # maximum number of parents that a call may name


def _prefix_marks() -> tuple[int, ...]:
    """Return the marks: every 64 up to 1,024, then eight per doubling, up to a million.

    So the longest common prefix of two prompts is known to an eighth, and a prompt has under a
    hundred marks.
    """
    marks = list(range(64, 1024, 64))
    for octave in (1 << bit for bit in range(10, 20)):
        marks += range(octave, 2 * octave, octave // 8)
    return tuple(marks)


PREFIX_MARKS = _prefix_marks()

USER = "user"  # upstream of a workflow's first agent, and receiver of its result


# Source of a field of a call's identity. declared: headers of Kairos; alias: headers, or fields of
# the body, that others use for it; route: the base URL or the API key; trace: W3C trace context;
# inferred: from what it has in common with earlier calls; none: no source.
Source = Literal["declared", "alias", "route", "trace", "inferred", "none"]


class Sources(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Source of each identity field of a request."""

    workflow_id: Source = "none"  # none: it began a workflow
    app: Source = "none"
    agent: Source = "none"
    upstream: Source = "none"


class Budget(msgspec.Struct, frozen=True, omit_defaults=True):
    """Maximum that a workflow may use. None: unlimited."""

    calls: int | None = None
    tokens: int | None = None  # tokens of prompts and answers
    wall_us: int | None = None  # time since the arrival of its first call


def least(budget: Budget, other: Budget | None) -> Budget:
    """Return the smaller limit of each kind."""
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
    """An LLM call, made by one agent inside one workflow."""

    id: str
    tenant: str = "default"
    workflow_id: str  # unique within the tenant
    app: str | None = None
    agent: str | None = None
    upstream: str | None = None  # the agent whose message led to this call
    parent_ids: tuple[str, ...] = ()  # the requests whose answers led to this call, if known
    sources: Sources = Sources()
    attempt: int = 1  # number of the attempt; a retried call keeps its id
    trace_id: str | None = None  # id of the W3C trace that records it; None: not traced
    key: str | None = None  # name of the caller's API key, if it has one
    service_class: str = "standard"  # how urgent it is (`entitlements.py`)
    deadline_at: int | None = None  # time after which its answer is useless; None: no deadline
    budget: Budget | None = None  # budget that its client sets for the workflow
    model: str | None = None  # None: any instance will do
    workflow_started_at: int  # as declared by its client, or the arrival of its first call
    arrived_at: int  # arrival at the gateway
    prompt_tokens: int  # estimate; the actual number arrives with Finished
    least_prompt_tokens: int = 0  # certain lower bound of the prompt's tokens
    completion_tokens: int  # expectation; the actual number arrives with Finished
    completion_limit: int | None = None  # maximum tokens of the answer; None: no limit
    sequences: int = 1  # number of answers that an engine generates for it
    # Hashes of the prompt's prefixes, up to each of `PREFIX_MARKS` within it; prompts with the same
    # prefix have the same hashes. The marks count in the unit of `prefix_units`, the length of the
    # whole prompt: tokens, or a substitute while they are not counted.
    prefix: tuple[int, ...] = ()
    prefix_units: int = 0


# Phases of calls that an instance serves: both; or prefill (it computes prompts and transfers their
# KV cache) or decode (it generates the answers from that).
Phase = Literal["both", "prefill", "decode"]


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """An engine that serves requests, and its limits."""

    id: str
    models: tuple[str, ...]
    max_num_seqs: int
    kv_tokens: int | None = None  # KV memory; None: unknown, so memory never limits placement
    block_size: int = 16  # tokens of a KV block
    max_num_batched_tokens: int | None = None  # token budget of a step; None: unknown
    prefix_caching: bool = True
    priority: bool = False  # whether it orders its waiting calls by their priority
    token_us: float | None = None  # profiled time per answer token; None: only measured
    phase: Phase = "both"
    usd_per_hour: float | None = None  # price; None: unknown
