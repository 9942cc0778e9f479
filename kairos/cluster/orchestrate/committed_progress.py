"""Progress of an orchestrator, as committed to Kafka for its successor."""

import logging

import msgspec

logger = logging.getLogger(__name__)

METADATA_BYTES = 4_000  # Kafka takes 4,096


class CommittedProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress, committed with the offset of the oldest open workflow's first event."""

    learnt: int  # workflows that ended before this offset have been learnt from
    silent_until: int  # and those that had been idle for too long at this instant
    began_at: int | None  # when records began to be followed
    epochs: dict[str, int] = {}  # in force at the offset: see `records.py`

    def encoded(self) -> str:
        text = msgspec.json.encode(self).decode()
        if len(text.encode()) > METADATA_BYTES:  # of some hundred pools
            text = msgspec.json.encode(msgspec.structs.replace(self, epochs={})).decode()
        return text


def read_progress(metadata: str) -> CommittedProgress | None:
    """Parse committed progress. None: nothing is committed, or it is unreadable (logged)."""
    if not metadata:
        return None
    try:
        return msgspec.json.decode(metadata, type=CommittedProgress)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        logger.warning("cannot read the committed progress of learning: %s", error)
        return None
