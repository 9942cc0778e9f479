"""Choice of the instance that computes a call's prompt for another one. Not in the paper.

The instance for the answer is chosen first, by the placement, since it serves the call for longer;
then the instance for the prompt, with the fewest tokens to compute before it and for it. llm-d's
scheduler uses the same order.
"""

from collections.abc import Sequence

from kairos.core.dispatcher.demand import can_hold
from kairos.core.dispatcher.ledger import Ledger
from kairos.core.model import Instance, Request


def prefill_choice(
    request: Request,
    answering: Instance,
    prefilling: Sequence[Instance],
    ledger: Ledger,
    at: int,
) -> str | None:
    """Return the id of the instance that computes the prompt of a call answered elsewhere.

    None: the `answering` instance computes it, since it serves both phases or is the only one.
    """
    if answering.phase != "decode":
        return None
    able = [each for each in prefilling if can_hold(each, request)]
    if not able:
        return None
    cached = ledger.prefixes.match(request) if request.prefix else {}

    def tokens(instance: Instance) -> int:
        before = ledger.prompts.computing(instance.id, at)[0]
        return before + request.prompt_tokens - cached.get(instance.id, 0)

    return min(able, key=tokens).id


def can_answer(instance: Instance, prefilling: Sequence[Instance], ledger: Ledger, at: int) -> bool:
    """Return whether a call can be sent to the instance now, with regard to its prompt.

    False if the instance only generates answers, and all instances `prefilling` for the model have
    a full step's budget of prompts. One more prompt would wait inside an engine, where its order
    can no longer be changed.
    """
    if instance.phase != "decode":
        return True
    return not prefilling or not all(ledger.busy.is_spent(each, at) for each in prefilling)
