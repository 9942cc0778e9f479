"""An agent that says no name is known by its system prompt and by the names of its tools."""

import re
from collections import OrderedDict
from hashlib import blake2b

_READ = 2048  # characters of a system prompt: what changes from call to call stands late in it
_MAX_KNOWN = 4096  # system prompts of which the name is remembered
# What differs between two calls of one agent: dates, ids, numbers.
_VARYING = re.compile(
    r"\S*\d\S*|\b(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec|mon|tue|wed|thu|fri|sat|sun)"
    r"(?:uary|ruary|ch|il|e|y|ust|tember|ober|ember|day|sday|nesday|rsday|urday)?\b",
    re.IGNORECASE,
)


class Fingerprints:
    """Remembers those that it saw last. A name says nothing of the prompt that it stands for."""

    def __init__(self) -> None:
        self._names: OrderedDict[int, str] = OrderedDict()  # by hash of what it stands for

    def name(self, system: str, tools: tuple[str, ...]) -> str | None:
        """None: there is nothing to know it by."""
        seen = system[: 2 * _READ]
        if not (seen.strip() or tools):
            return None
        key = hash((seen, tools))
        name = self._names.get(key)
        if name is None:
            name = self._names[key] = _fingerprint(seen, tools)
            if len(self._names) > _MAX_KNOWN:
                self._names.popitem(last=False)
        else:
            self._names.move_to_end(key)
        return name


def _fingerprint(system: str, tools: tuple[str, ...]) -> str:
    masked = " ".join(_VARYING.sub("#", system).split())[:_READ]
    said = "\0".join([masked, *sorted(tools)])
    return f"agent-{blake2b(said.encode('utf-8', 'replace'), digest_size=6).hexdigest()}"
