"""Error for callers whose calls killed engines."""

from kairos.core.errors import KairosError


class CallerBreaksEngines(KairosError):
    """Engines died of calls of the same agent.

    After a delay, its next call is admitted and runs alone.
    """

    status = 429
    code = "caller_breaks_engines"

    def __init__(self, retry_after_s: int) -> None:
        super().__init__(
            "engines died while serving calls of this agent: its next calls run alone, one at a "
            f"time; try again in {retry_after_s} s, and change the request"
        )
        self.retry_after_s = retry_after_s
