"""Static prefixes of a flow's prompts, computed before rows arrive.

They are the same for every row (Helium, section 5, proactive caching). Operators whose prompts
begin alike share one: if one of two prefixes extends the other, the longer represents both. A
prompt that is entirely the same for every row is sent once, and needs no prefix.
"""

from collections.abc import Iterator, Sequence

import msgspec

from kairos.core import BYTES_PER_TOKEN, PREFIX_MARKS
from kairos.workflows.compile.call_shapes import fixed
from kairos.workflows.compile.check import llm_operators
from kairos.workflows.compile.operators import Operator
from kairos.workflows.compile.prompts import Prompt, Speaker, Text, beginning, prompts

MOST_PREFIXES = 256
# A shorter one is not in the index of cached prefixes, and takes engines less than a step.
LEAST_TOKENS = PREFIX_MARKS[0]


class StaticPrefix(msgspec.Struct, frozen=True):
    """Static prefix of prompts.

    `messages`: by role; the last one may continue. `operators`: whose prompts begin with it, or
    with a part of it.
    """

    operators: tuple[str, ...]
    model: str | None
    messages: tuple[tuple[str, str], ...]
    tokens: int  # approximate

    @property
    def body(self) -> dict[str, object]:
        """Return the request, see `prompts.beginning`."""
        return beginning(self.messages)


def static_prefixes(operators: Sequence[Operator]) -> tuple[StaticPrefix, ...]:
    """Return the static prefixes of operators in the order of `in_order`; at most MOST_PREFIXES."""
    llms = llm_operators(operators)
    found: list[StaticPrefix] = []
    for name, prompt in prompts(operators).items():
        if (count := fixed(prompt)) == len(prompt):
            continue
        messages = tuple(_messages(prompt[:count]))
        tokens = sum(len(text.encode()) for _, text in messages) // BYTES_PER_TOKEN
        if tokens >= LEAST_TOKENS:
            _add(found, StaticPrefix((name,), llms[name].model, messages, tokens))
    return tuple(found[:MOST_PREFIXES])


def _messages(pieces: Prompt) -> Iterator[tuple[str, str]]:
    """Yield the messages that have some text."""
    role = ""
    for each in pieces:
        if isinstance(each, Speaker):
            role = each.role
        elif isinstance(each, Text):
            yield role, each.text


def _add(found: list[StaticPrefix], new: StaticPrefix) -> None:
    for at, each in enumerate(found):
        if each.model == new.model and (_begins(each, new) or _begins(new, each)):
            longer = max(each, new, key=lambda one: one.tokens)
            both = (*each.operators, *new.operators)
            found[at] = msgspec.structs.replace(longer, operators=both)
            return
    found.append(new)


def _begins(long: StaticPrefix, short: StaticPrefix) -> bool:
    """Return whether one prefix begins with the other."""
    whole, last = short.messages[:-1], short.messages[-1]
    if len(short.messages) > len(long.messages) or long.messages[: len(whole)] != whole:
        return False
    role, text = long.messages[len(whole)]
    return role == last[0] and text.startswith(last[1])
