"""Past events, from the log: the JSON of `/ui/ask/past`.

It is also the output of `kairos happened --json`, which computes it (`cli/past.py`). Instants are
µs since the epoch.
"""

from datetime import UTC, datetime

import msgspec

from kairos.core import SECOND, InvalidRequest
from kairos.gateway.page.beside import Beside

_LIMIT_S = 120.0


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """Calls in a time interval, and the maximum numbers of waiting and running ones."""

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
    """A change that affected all calls: an instance joined or left, an operator acted."""

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
    """Reader of the log, in a background process."""

    def __init__(self, log_dir: str | None) -> None:
        self._log_dir, self._beside = log_dir, Beside(_LIMIT_S)

    async def ask_past(self, asked: PastQuestion) -> bytes:
        """Return a `Happened` as JSON.

        Raises:
            InvalidRequest: No log is kept, or the time is invalid.
            NotWorkedOut: The log does not cover the time, or another request is running.
        """
        if self._log_dir is None:
            raise InvalidRequest(
                "Kairos keeps no log, so past events are unknown: set log_dir, or start it with "
                "kairos serve --log DIR"
            )
        try:
            begins = datetime.fromtimestamp(asked.begins_at / SECOND, UTC)
        except (OverflowError, ValueError, OSError):
            raise InvalidRequest("there is no such time") from None
        return await self._beside.run(
            *("happened", "--json", "--log", self._log_dir),
            *("--seconds", str(asked.seconds), "--", begins.isoformat()),
        )
