"""What prompts of a flow begin with for every row, so that it can be computed before the rows are
there (Helium, section 5, proactive caching).

Operators whose prompts begin alike have one such beginning together: of two of which one begins
with the other, the longer stands for both. A prompt that is the same for every row throughout is
asked once, and needs no beginning.
"""

from collections.abc import Iterator, Sequence

import msgspec

from kairos.core.model import PREFIX_MARKS
from kairos.workflows.compile.call_shapes import fixed
from kairos.workflows.compile.check import every
from kairos.workflows.compile.operators import Generation, Operator
from kairos.workflows.compile.prompts import Prompt, Speaker, Text, beginning, prompts
from kairos.workflows.compile.values import BYTES_PER_TOKEN

MOST_PREFIXES = 256
# A shorter one is in no index of what engines hold, and takes them less than a step.
LEAST_TOKENS = PREFIX_MARKS[0]


class StaticPrefix(msgspec.Struct, frozen=True):
    """`messages`: by role, of which the last may go on. `operators`: whose prompts begin so, or
    with a part of it."""

    operators: tuple[str, ...]
    model: str | None
    messages: tuple[tuple[str, str], ...]
    tokens: int  # about

    @property
    def body(self) -> dict[str, object]:
        """See `prompts.beginning`."""
        return beginning(self.messages)


def static_prefixes(operators: Sequence[Operator]) -> tuple[StaticPrefix, ...]:
    """Of operators as `in_order` gives them; at most MOST_PREFIXES."""
    models = {e.name: e.params.model for e in every(operators) if isinstance(e.params, Generation)}
    found: list[StaticPrefix] = []
    for name, prompt in prompts(operators).items():
        if (count := fixed(prompt)) == len(prompt):
            continue
        messages = tuple(_messages(prompt[:count]))
        tokens = sum(len(text.encode()) for _, text in messages) // BYTES_PER_TOKEN
        if tokens >= LEAST_TOKENS:
            _add(found, StaticPrefix((name,), models[name], messages, tokens))
    return tuple(found[:MOST_PREFIXES])


def _messages(pieces: Prompt) -> Iterator[tuple[str, str]]:
    """Those that have begun to say something."""
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
    """Whether the one begins with the other."""
    whole, last = short.messages[:-1], short.messages[-1]
    if len(short.messages) > len(long.messages) or long.messages[: len(whole)] != whole:
        return False
    role, text = long.messages[len(whole)]
    return role == last[0] and text.startswith(last[1])
