"""Messages between a process that decides and its performers, and the records that it keeps.

A performer reports facts about its calls. The process that decides writes each decision to a log
that outlives it, and only then sends its performers their orders. The log is a topic of Kafka
(`cluster/pool/`), or a journal in memory that the processes of one host share (`cluster/workers/`).
"""

from typing import Annotated

import msgspec

from kairos.core import Dispatch, KairosError, RateLimits, Record, Refuse


class Declined(msgspec.Struct, frozen=True, tag=True):
    """Refusal of an arrived request, with the fields of the error."""

    request_id: str
    status: Annotated[int, msgspec.Meta(ge=400, le=599)]
    code: str
    message: str
    retry_after_s: Annotated[int, msgspec.Meta(ge=0, le=86_400)] | None = None
    limits: RateLimits | None = None

    @classmethod
    def of(cls, request_id: str, error: KairosError) -> "Declined":
        after_s, limits = error.retry_after_s, error.limits
        return cls(request_id, error.status, error.code, str(error), after_s, limits)

    def error(self) -> KairosError:
        error = KairosError(self.message)
        error.status, error.code, error.retry_after_s = self.status, self.code, self.retry_after_s
        error.limits = self.limits
        return error


# With the turn that it is for: a call that waits again, after its instance failed, is on its next.
Order = tuple[Dispatch | Refuse | Declined, int]


class LoggedDecision(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """A record of the log, with where its fact came from."""

    record: Record
    performer: str = ""  # that reported the fact; empty: the process that decides
    cause: int | None = None  # the number of its message, in the order of the performer or topic
    turn: int = 0  # of the call that waits from then on; 0: the only turn of its wait
    redo: bool = False  # on a Cancelled: the call is to be repeated
