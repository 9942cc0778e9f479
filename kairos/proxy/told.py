"""Receivers of a call's results: its owner, and the handler of instances' failures."""

from collections.abc import Callable
from typing import Protocol

from kairos.core import UpstreamFailed, UpstreamUnreachable

InstanceError = UpstreamFailed | UpstreamUnreachable  # it is the instance's fault
OnTrouble = Callable[[UpstreamUnreachable], None]


def trouble(error: InstanceError, instance_id: str) -> UpstreamUnreachable:
    """Return the failure as a reason to probe the instance."""
    if isinstance(error, UpstreamUnreachable):
        return error
    return UpstreamUnreachable(instance_id, error.code)


class Owner(Protocol):
    """Owner of a call."""

    wants_answer: bool

    def counted(self, prompt_tokens: int) -> None:
        """Take the true number of the prompt's tokens."""

    def answered(self, answer: bytes | bytearray, *, streamed: bool) -> None:
        """Take the engine's answer, before the client has all of it.

        Only if `wants_answer`, and only answers up to `MAX_ANSWER_BYTES`.
        """

    def ended(self, error: Exception | None) -> None:
        """Note the end of the call.

        With an error, the client has not been told of it yet; without, the answer is complete or
        the client has left.
        """
