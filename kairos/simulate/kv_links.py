"""Transfer times of KV caches between instances, and from a host's memory to its device."""

from collections.abc import Mapping
from math import ceil

import msgspec

from kairos.core import SetupError

_GBIT = 1e9 / 8  # bytes


class CacheLink(msgspec.Struct, frozen=True, kw_only=True):
    """Links of an instance. Bytes are the total of its devices."""

    gbit_s: float  # to other instances, each direction
    latency_us: float = 20.0  # of a transfer, beside its bytes
    # The share of a transfer that lies beside the computing of the prompt: 0 where whole caches are
    # read when the prompt is done (NixlConnector), up to (layers - 1) / layers where each layer
    # goes as soon as it is computed.
    overlapped: float = 0.0
    host_gb_s: float = 25.0  # from its host's memory: PCIe 4.0 x16 as it is reached
    bytes_per_token: float | None = None  # of its model; None: those of all


class KvLinks:
    """Transfers one after the other, each at the rate of the slower of both ends.

    An instance sends one cache at a time and takes in one at a time; first come, first served.
    """

    def __init__(self, links: Mapping[str, CacheLink], bytes_per_token: float) -> None:
        """Create the links by instance; an instance without one is in no pair.

        Raises:
            SetupError: A value is out of range.
        """
        for name, each in links.items():
            if not (each.gbit_s > 0 and each.host_gb_s > 0 and each.latency_us >= 0):
                raise SetupError(f"{name}: the rates of a link are above 0, its latency 0 or more")
            if not 0 <= each.overlapped <= 1:
                raise SetupError(f"{name}: of a transfer a share from 0 to 1 can be overlapped")
        self._links, self._bytes_per_token = links, bytes_per_token
        self._sends_until: dict[str, float] = {}
        self._takes_until: dict[str, float] = {}
        self._loads_until: dict[str, float] = {}
        self.bytes_moved = 0.0  # between instances

    def between(self, source: str, target: str, tokens: int, at: int) -> int:
        """Return when a whole transfer has arrived, if it can be sent from `at` on; µs."""
        size = tokens * self._bytes(target)
        ends = self._links[source], self._links[target]
        per_us = min(each.gbit_s for each in ends) * _GBIT / 1e6
        share = 1 - max(each.overlapped for each in ends)
        begins = max(at, self._sends_until.get(source, 0.0), self._takes_until.get(target, 0.0))
        done = begins + share * size / per_us
        self._sends_until[source] = self._takes_until[target] = done
        self.bytes_moved += size
        return ceil(done + max(each.latency_us for each in ends))

    def from_host(self, instance: str, tokens: int, at: int) -> int:
        """Return the same for a cache in the host's memory."""
        link = self._links[instance]
        per_us = link.host_gb_s * 1e9 / 1e6
        begins = max(at, self._loads_until.get(instance, 0.0))
        done = begins + tokens * self._bytes(instance) / per_us
        self._loads_until[instance] = done
        return ceil(done + link.latency_us)

    def _bytes(self, instance: str) -> float:
        own = self._links[instance].bytes_per_token
        return self._bytes_per_token if own is None else own
