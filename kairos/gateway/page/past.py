"""What happened at a time that is over, by the log: the JSON of `/ui/ask/past`, and of `kairos
happened --json`, which finds it out (`cli/past.py`). Instants are µs since the epoch."""

from datetime import UTC, datetime

import msgspec

from kairos.core.errors import InvalidRequest
from kairos.core.model import SECOND
from kairos.gateway.page.beside import Beside

_LIMIT_S = 120.0


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of a stretch of time, and how many waited and ran in it at most."""

    at: int  # its beginning
    arrived: int
    dispatched: int
    finished: int
    failed: int
    refused: int  # or given up
    cancelled: int
    waiting: int
    running: int


class PastChange(msgspec.Struct, frozen=True, kw_only=True):
    """What changed for all: an instance came or went, an operator chose."""

    at: int
    what: str


class PastCall(msgspec.Struct, frozen=True, kw_only=True):
    tenant: str
    workflow_id: str
    app: str | None
    agent: str | None
    instance: str | None
    waited_s: float
    took_s: float  # with the wait
    outcome: str  # waits, runs: it had not ended by the end of that time
    why: str | None  # it failed, or was refused


class Happened(msgspec.Struct, frozen=True, kw_only=True):
    begins_at: int
    ends_at: int
    moments: list[Moment]
    changes: list[PastChange]
    failures: dict[str, int]  # calls that failed or were refused, by the reason
    instances: dict[str, int]  # calls that ended, by where
    slowest: list[PastCall]  # those that took longest of all that were here


class PastQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    begins_at: int
    seconds: int


class Past:
    """Has the log read, beside what serves, for one who asks at a time."""

    def __init__(self, log_dir: str | None) -> None:
        self._log_dir, self._beside = log_dir, Beside(_LIMIT_S)

    async def happened(self, asked: PastQuestion) -> bytes:
        """A `Happened` as JSON.

        Raises:
            InvalidRequest: no log is kept, or there is no such time.
            NotWorkedOut: the log says nothing of it, or another asks.
        """
        if self._log_dir is None:
            raise InvalidRequest(
                "Kairos keeps no log, so nothing is known of what is over: set log_dir, or start "
                "it with kairos serve --log DIR"
            )
        try:
            begins = datetime.fromtimestamp(asked.begins_at / SECOND, UTC)
        except (OverflowError, ValueError, OSError):
            raise InvalidRequest("there is no such time") from None
        return await self._beside.run(
            *("happened", "--json", "--log", self._log_dir),
            *("--seconds", str(asked.seconds), "--", begins.isoformat()),
        )
