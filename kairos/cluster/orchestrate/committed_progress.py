"""How far an orchestrator has come, as it commits it: whoever goes on from there needs it."""

import logging

import msgspec

logger = logging.getLogger(__name__)

METADATA_BYTES = 4_000  # Kafka takes 4,096


class CommittedProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The offset beside it is that of the first event of the oldest workflow that is open."""

    learnt: int  # what ended before this offset has been learnt from
    silent_until: int  # and what had been silent for so long at this instant, too
    began_at: int | None  # when records began to be followed
    epochs: dict[str, int] = {}  # in force at the offset: see `records.py`

    def encoded(self) -> str:
        text = msgspec.json.encode(self).decode()
        if len(text.encode()) > METADATA_BYTES:  # of some hundred pools
            text = msgspec.json.encode(msgspec.structs.replace(self, epochs={})).decode()
        return text


def read_progress(metadata: str) -> CommittedProgress | None:
    """None: there is none, or it is no use, which is said."""
    if not metadata:
        return None
    try:
        return msgspec.json.decode(metadata, type=CommittedProgress)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        logger.warning("how far learning had come is not known: %s", error)
        return None
