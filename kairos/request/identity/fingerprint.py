"""Recognition of unnamed agents by their system prompt and the names of their tools."""

import ctypes
import re
from functools import lru_cache, partial
from hashlib import blake2b

from kairos.core import SharedLru
from kairos.request.identity.conversation import Conversation
from kairos.request.native import READING, Reading

_READ = 2048  # characters of a system prompt: what changes from call to call stands late in it
_MAX_KNOWN = 4096  # prompts and tools of which the name is remembered
_MAX_ALIKE = 16  # agents of one system prompt
# What differs between two calls of one agent: dates, ids, numbers.
_DIGIT = re.compile(r"\d")
_DATE = re.compile(
    r"\b(?=[jfmasondtw])"
    r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec|mon|tue|wed|thu|fri|sat|sun)"
    r"(?:uary|ruary|ch|il|e|y|ust|tember|ober|ember|day|sday|nesday|rsday|urday)?\b",
    re.IGNORECASE,
)
_WORDS, _WORD = 8192, 32  # words that are kept as they are masked, and their characters

Tools = frozenset[str]


class Fingerprints:
    """Memory of the last agents of each tenant. An agent's name reveals nothing of its prompt.

    An agent may be offered fewer tools than before, or more, and is the same: with none, for
    example, for its final answer. Two agents with one prompt are distinguished if each has tools
    that the other lacks.
    """

    def __init__(self) -> None:
        # By tenant and hash of what it stands for, as the client spelt it, which need not be
        # decoded.
        self._spelt: SharedLru[tuple[str, int], str | None] = SharedLru(_MAX_KNOWN)
        # By tenant and hash of what it stands for.
        self._names: SharedLru[tuple[str, int], str] = SharedLru(_MAX_KNOWN)
        # By tenant and prompt, masked.
        self._alike: SharedLru[tuple[str, str], list[tuple[Tools, str]]] = SharedLru(_MAX_KNOWN)

    def name(self, talk: Conversation, tenant: str) -> str | None:
        """Return the agent's name; None if it has neither system prompt nor tools."""
        key = tenant, talk.agent_key()
        find = partial(self._name, talk, tenant)
        return self._spelt.recall(tenant, key, find)

    def _name(self, talk: Conversation, tenant: str) -> str | None:
        system, tools = talk.system()[: 2 * _READ], talk.tools()
        if not (system.strip() or tools):
            return None
        key = tenant, hash((system, tools))
        find = partial(self._find, system, frozenset(tools), tenant)
        return self._names.recall(tenant, key, find)

    def _find(self, system: str, tools: Tools, tenant: str) -> str:
        masked = _masked(system)
        alike = self._alike.recall(tenant, (tenant, masked), list)
        for place, (known, name) in enumerate(alike):
            if tools <= known or known <= tools:
                alike[place] = known | tools, name
                return name
        name = f"agent-{_digest(masked, *sorted(tools))}"
        if len(alike) < _MAX_ALIKE:
            alike.append((tools, name))
        return name


def _masked(system: str) -> str:
    if READING is not None and system.isascii():
        return _masked_ascii(system, READING)[:_READ]
    words = [_masked_word(each) if len(each) <= _WORD else _mask(each) for each in system.split()]
    return " ".join(words)[:_READ]


def _masked_ascii(system: str, reading: Reading) -> str:
    masked = ctypes.create_string_buffer(len(system) + 1)
    size = reading.masked(system.encode(), len(system), ctypes.addressof(masked))
    return masked.raw[:size].decode()


def _mask(word: str) -> str:
    return "#" if _DIGIT.search(word) else _DATE.sub("#", word)


_masked_word = lru_cache(_WORDS)(_mask)  # most words are those of an earlier prompt


def _digest(*parts: str) -> str:
    said = "\0".join(parts).encode("utf-8", "replace")
    return blake2b(said, digest_size=6).hexdigest()
