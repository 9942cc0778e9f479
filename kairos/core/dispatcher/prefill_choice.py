"""Which instance computes a call's prompt, where another one generates its answer.

The instance for the answer is chosen first, by the placement, as the one that has the call for
longest; then the one for the prompt, where fewest tokens are left to compute before and for it.
Ours; llm-d's scheduler goes in the same order.
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
    """The id of an instance, of those `prefilling` the model's prompts that may be asked, for the
    prompt of a call whose answer is generated elsewhere. None: the answering instance computes it,
    since it serves both phases or there is no other."""
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
    """False: it only generates answers, and all those `prefilling` the model's prompts have a
    step's budget of them. A prompt more would wait inside of one, where nothing goes before it."""
    if instance.phase != "decode":
        return True
    return not prefilling or not all(ledger.busy.is_spent(each, at) for each in prefilling)
