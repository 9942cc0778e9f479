"""Helium's cost of a schedule, section 5 of its paper: token steps.

A call's token usage is the tokens that it holds over all of its inference steps. With M tokens of
KV capacity, an answer of `out` tokens, and `new` prompt tokens that it does not share with the call
before it on the same worker (from the root of the radix tree to their lowest common ancestor):

    u = alpha * (out * new + out * (out + 1) / 2)        alpha = 1 / M
    d = alpha * M * out

A call begins when the one before it on its worker has ended, and not before `d` token steps have
passed since each call whose answer it needs: other calls may share the batch. The schedule's
cost is when its last call ends.

As in the paper, only consecutive calls of a worker share a prefix, and alpha is for workers that
are alike but for M; so `d` is the answer's length.
"""

from collections.abc import Mapping, Sequence

from kairos.workflows.compile.call_shapes import ScheduledCall, delay


def new_tokens(before: ScheduledCall | None, call: ScheduledCall) -> int:
    """Return the prompt tokens that a call does not share with the one before on the worker."""
    shared = 0
    for ours, theirs in zip(call.prompt, before.prompt if before else (), strict=False):
        if ours != theirs:
            break
        shared += ours.tokens
    return sum(each.tokens for each in call.prompt) - shared


def usage(before: ScheduledCall | None, call: ScheduledCall, kv_tokens: int) -> float:
    """Return the token usage, in token steps of a worker that holds `kv_tokens`."""
    out = call.completion_tokens
    return (out * new_tokens(before, call) + out * (out + 1) / 2) / kv_tokens


def ends(
    schedule: Sequence[Sequence[str]],
    calls: Mapping[str, ScheduledCall],
    kv_tokens: Sequence[int],
) -> dict[str, float]:
    """Return when each call ends, in token steps.

    Worker i holds `kv_tokens[i]` and runs `schedule[i]` in its order; each call occurs once. Takes
    time linear in calls, segments and dependencies.

    An order in which two workers wait for each other, or one for itself, raises AssertionError.
    """
    ended: dict[str, float] = {}
    positions = [0] * len(schedule)
    free_at = [0.0] * len(schedule)
    blocked: dict[str, list[int]] = {}  # workers, by the call that they wait for
    ready = list(range(len(schedule)))
    while ready:
        worker = ready.pop()
        names = schedule[worker]
        while positions[worker] < len(names):
            at = positions[worker]
            name, call = names[at], calls[names[at]]
            missing = next((each for each in call.after if each not in ended), None)
            if missing is not None:
                blocked.setdefault(missing, []).append(worker)
                break
            starts = [ended[each] + delay(calls[each]) for each in call.after]
            before = calls[names[at - 1]] if at else None
            begins = max(free_at[worker], *starts) if starts else free_at[worker]
            ended[name] = free_at[worker] = begins + usage(before, call, kv_tokens[worker])
            positions[worker] += 1
            ready += blocked.pop(name, ())
    assert not blocked, f"a call waits for '{next(iter(blocked))}', which is after it"
    return ended


def token_steps(
    schedule: Sequence[Sequence[str]],
    calls: Mapping[str, ScheduledCall],
    kv_tokens: Sequence[int],
) -> float:
    """Return when the last call ends; 0 for no calls. For the arguments see `ends`."""
    return max(ends(schedule, calls, kv_tokens).values(), default=0.0)
