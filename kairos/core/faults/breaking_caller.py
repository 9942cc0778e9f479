"""What somebody is told whose calls killed engines."""

from kairos.core.errors import KairosError


class CallerBreaksEngines(KairosError):
    """Engines died at calls of the same agent. Another is let in after a while, and runs alone."""

    status = 429
    code = "caller_breaks_engines"

    def __init__(self, retry_after_s: int) -> None:
        super().__init__(
            "engines died at calls of this agent: its next ones run alone, one at a time; "
            f"try again in {retry_after_s} s, and change the request"
        )
        self.retry_after_s = retry_after_s
