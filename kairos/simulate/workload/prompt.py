"""Composition of prompts without their texts, so that they share prefixes as real ones do."""

from bisect import bisect_right
from collections.abc import Sequence
from hashlib import blake2b, shake_128
from struct import unpack
from typing import NamedTuple

from kairos.core import PREFIX_MARKS
from kairos.simulate.workload.workflow_file import FileCall


class PromptPiece(NamedTuple):
    """A stretch of a prompt. Token number `i` of two pieces of the same name is the same token."""

    name: str
    tokens: int  # 1 or more


Prompt = tuple[PromptPiece, ...]  # one after the other; neighbours have different names


def length(prompt: Prompt) -> int:
    """Return the number of tokens."""
    return sum(piece.tokens for piece in prompt)


def prompts(calls: Sequence[FileCall]) -> tuple[Prompt, ...]:
    """Return the prompt of each call of a workflow, in the order of the file.

    No call may have more cached or shared tokens than its prompt. From its start a prompt has:

    1. `cached_prefix_tokens` tokens of the prompt before: that of the latest earlier call of the
       same agent and parallel group, up to its length; nothing without such a call.
    2. If that is shorter, the agent's shared prefix of `shared_prefix_tokens` in its place.
    3. Tokens that no other prompt has.

    Deviation: where a real prompt continues the answer to the one before, this one has tokens of
    its own. No replay can make an engine produce a given text, so answers are never found in a
    cache; recorded cached tokens of answers count up to the length of the prompt before.
    """
    before: dict[tuple[str, str | None], tuple[Prompt, int]] = {}
    made: list[Prompt] = []
    for call in calls:
        chain = call.agent, call.parallel_group
        prompt, known = before.get(chain, ((), 0))
        tokens = min(call.cached_prefix_tokens or 0, known)
        prompt = cut(prompt, known - tokens)
        shared = shared_name(call.app, call.agent)
        wanted = call.shared_prefix_tokens or 0
        if wanted > tokens and all(piece.name == shared for piece in prompt):
            prompt, tokens = (PromptPiece(shared, wanted),), wanted
        if tokens < call.prompt_tokens:
            own = PromptPiece(f"{call.workflow_id}#{call.call_index}", call.prompt_tokens - tokens)
            prompt = (*prompt, own)
        made.append(prompt)
        before[chain] = prompt, call.prompt_tokens
    return tuple(made)


def cut(prompt: Prompt, tokens: int) -> Prompt:
    """Return the prompt without its last `tokens` tokens."""
    kept = len(prompt)
    while tokens and prompt[kept - 1].tokens <= tokens:
        kept -= 1
        tokens -= prompt[kept].tokens
    if not tokens:
        return prompt[:kept]
    name, last = prompt[kept - 1]
    return (*prompt[: kept - 1], PromptPiece(name, last - tokens))


def prefix_hashes(prompt: Prompt) -> tuple[int, ...]:
    """Return hashes of the prompt's prefixes up to each of `PREFIX_MARKS`: see `Request.prefix`.

    A chain with a link for each piece, which includes the number of tokens. Hashes within a piece
    follow from its link: its first mark has the first four bytes, and so on.
    """
    hashes: tuple[int, ...] = ()
    chain, tokens = "", 0
    for piece in prompt:
        chain = blake2b(f"{chain} {tokens} {piece.name}".encode(), digest_size=8).hexdigest()
        tokens += piece.tokens
        marks = bisect_right(PREFIX_MARKS, tokens) - len(hashes)
        if marks:
            hashes += unpack(f">{marks}I", shake_128(chain.encode()).digest(4 * marks))
    return hashes


def shared_name(app: str, agent: str) -> str:
    """Return the name of an agent's shared prefix; no call's own piece has this name."""
    return f"{app!r}/{agent!r}"
