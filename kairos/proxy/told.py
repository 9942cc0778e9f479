"""Whom a call tells what becomes of it."""

from collections.abc import Callable
from typing import Protocol

from kairos.core.errors import UpstreamFailed, UpstreamUnreachable

InstanceError = UpstreamFailed | UpstreamUnreachable  # it is the instance's fault
OnTrouble = Callable[[UpstreamUnreachable], None]


def trouble(error: InstanceError, instance_id: str) -> UpstreamUnreachable:
    """What a failure there says of the instance: that it should be looked at."""
    if isinstance(error, UpstreamUnreachable):
        return error
    return UpstreamUnreachable(instance_id, error.code)


class Owner(Protocol):
    """Whose call it is."""

    wants_answer: bool

    def counted(self, prompt_tokens: int) -> None:
        """So many tokens the prompt has in truth."""

    def answered(self, answer: bytes | bytearray, *, streamed: bool) -> None:
        """What the engine answered, before the client has all of it; where it `wants_answer`, and
        nothing of one over `MAX_ANSWER_BYTES`."""

    def ended(self, error: Exception | None) -> None:
        """The call has ended: by an error, of which the client has not heard yet, or else whole, or
        because the client left."""
