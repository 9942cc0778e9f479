"""What stands in the log of a run, and what of it counts.

Whoever executes a run first claims it. From where its claim stands, what others write counts no
more; so the order of the log alone says which of two executors has the run, and every reader finds
the same results. An executor that reads another's claim behind its own has lost the run.

Of a run that goes on for longer than its log is kept, the claim is gone: then whoever wrote the
first entry that is left has it.
"""

import msgspec

from kairos.live.runs.journal_changes import JournalChange


class RunClaimed(msgspec.Struct, frozen=True, tag="claim"):
    """The run is its writer's from here on. `who`: for people."""

    who: str


class RecordTold(msgspec.Struct, frozen=True, tag="record"):
    """What is known of the run (`run_store.RunRecord`), as JSON."""

    record: msgspec.Raw


LogEntry = RunClaimed | RecordTold | JournalChange

_read = msgspec.json.Decoder(LogEntry).decode


class RunLog:
    """Reads the log of one run in its order. `holder`: whose results count by now; empty: nothing
    has been read."""

    def __init__(self, holder: str = "") -> None:
        self.holder, self.claimed_by = holder, ""

    def read(self, writer: str, entry: bytes) -> LogEntry | None:
        """The next entry; None: it does not count.

        Raises:
            msgspec.MsgspecError, ValueError: it is none.
        """
        read = _read(entry)
        if isinstance(read, RunClaimed):
            self.holder, self.claimed_by = writer, read.who
            return read
        self.holder = self.holder or writer
        return read if writer == self.holder else None
