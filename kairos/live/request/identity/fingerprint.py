"""An agent that says no name is known by its system prompt and by the names of its tools."""

import ctypes
import re
from collections import OrderedDict
from functools import lru_cache
from hashlib import blake2b

from kairos.live.request.identity.conversation import Conversation
from kairos.live.request.native import READING, Reading

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
    """Remembers those that it saw last. A name says nothing of the prompt that it stands for.

    An agent may be offered fewer tools than before, or more, and is the same: with none it is to
    speak at last, say. Two with one prompt are told apart where each has tools that the other has
    not.
    """

    def __init__(self) -> None:
        # By hash of what it stands for as the client spelt it, which need not be decoded.
        self._spelt: OrderedDict[int, str | None] = OrderedDict()
        self._names: OrderedDict[int, str] = OrderedDict()  # by hash of what it stands for
        self._alike: OrderedDict[str, list[tuple[Tools, str]]] = OrderedDict()  # by prompt, masked

    def name(self, talk: Conversation) -> str | None:
        """None: there is nothing to know it by."""
        key = talk.agent_key()
        if key in self._spelt:
            self._spelt.move_to_end(key)
            return self._spelt[key]
        name = self._spelt[key] = self._name(talk.system(), talk.tools())
        if len(self._spelt) > _MAX_KNOWN:
            self._spelt.popitem(last=False)
        return name

    def _name(self, system: str, tools: tuple[str, ...]) -> str | None:
        seen = system[: 2 * _READ]
        if not (seen.strip() or tools):
            return None
        key = hash((seen, tools))
        name = self._names.get(key)
        if name is None:
            name = self._names[key] = self._find(_masked(seen), frozenset(tools))
            if len(self._names) > _MAX_KNOWN:
                self._names.popitem(last=False)
        else:
            self._names.move_to_end(key)
        return name

    def _find(self, masked: str, tools: Tools) -> str:
        alike = self._alike.setdefault(masked, [])
        self._alike.move_to_end(masked)
        if len(self._alike) > _MAX_KNOWN:
            self._alike.popitem(last=False)
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
