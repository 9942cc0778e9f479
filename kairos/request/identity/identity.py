"""Identity of a call, and the source of each field (`model.Source`)."""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal

import msgspec

from kairos.core import IDENTIFIER_PATTERN, Source

Headers = Mapping[bytes, bytes]
Field = Literal["workflow_id", "app", "agent", "upstream"]

_IDENTIFIER = re.compile(IDENTIFIER_PATTERN)
_MAX_BYTES = 128  # of an identifier
_KEPT = 4096  # values of headers; most are those of an earlier call


class Identity(msgspec.Struct):
    workflow_id: str | None = None
    app: str | None = None
    agent: str | None = None
    upstream: str | None = None
    started_at: int | None = None  # µs since the epoch, when the user's task began
    parent_ids: tuple[str, ...] = ()  # the requests whose answers led to this call
    attempt: int = 1
    ends_workflow: bool = False  # nothing comes after it
    sources: dict[Field, Source] = {}  # of what is known

    def learn(self, field: Field, value: str | None, source: Source) -> None:
        """Set a field, unless a source of higher rank has set it."""
        if value is not None and getattr(self, field) is None:
            setattr(self, field, value)
            self.sources[field] = source


def valid_identifier(value: bytes | None) -> str | None:
    """Return the value as text if it is a valid identifier, else None."""
    return None if value is None or len(value) > _MAX_BYTES else _read(value)


@lru_cache(_KEPT)
def _read(value: bytes) -> str | None:
    return identifier_of(value.decode("latin-1"))


def identifier_of(text: str) -> str | None:
    """Return the text if it is a valid identifier, else None."""
    return text if _IDENTIFIER.match(text) else None
