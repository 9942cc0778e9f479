"""A request in flight on an instance; what its end says of how quick the instance is."""

from kairos.core.dispatcher.speed import Speed
from kairos.core.events import Finished
from kairos.core.model import Request


class Booking:
    """A request in flight on an instance, and what is known of how far it is."""

    generated: int = 0  # tokens of its answer, when last told
    first_token_at: int | None = None  # None: not told
    computed: int = 0  # tokens of its prompt, as expected,
    computing_us: float = 0.0  # and in what time,
    beside: int = 0  # with so many other calls there
    charged_us: float = 0.0  # for its service (`service_cost.py`)

    def __init__(self, request: Request, instance_id: str, at: int, cached_tokens: int) -> None:
        self.request = request
        self.instance_id = instance_id
        self.at = at  # when it was dispatched
        self.cached_tokens = cached_tokens  # of its prompt, expected in the instance's prefix cache

    def lengths(self, finished: Finished | None) -> tuple[int, int, int]:
        """Tokens of the prompt, those of it that were cached, and tokens of the answer: by the
        engine's word, or as far as it is known without that."""
        prompt, cached, answer = self.request.prompt_tokens, self.cached_tokens, self.generated
        if finished is not None:
            prompt = prompt if finished.prompt_tokens is None else finished.prompt_tokens
            cached = cached if finished.cached_tokens is None else finished.cached_tokens
            answer = answer if finished.completion_tokens is None else finished.completion_tokens
        return prompt, cached, answer

    def used_tokens(self, finished: Finished | None) -> int:
        """Of prompt and answer."""
        prompt, _, answer = self.lengths(finished)
        return prompt + answer


def learn_speed(speed: Speed, booking: Booking, finished: Finished, running: int, at: int) -> None:
    """What a call that ended says of how quick its instance is. One whose first token was not told
    came in one piece, and says nothing of the two parts."""
    first_at = booking.first_token_at
    if first_at is None:
        return
    prompt, cached, _ = booking.lengths(finished)
    speed.prompt_took(max(0, prompt - cached), first_at - booking.at)
    if finished.completion_tokens is not None and finished.completion_tokens > 1:
        speed.token_took((at - first_at) / (finished.completion_tokens - 1), running)
