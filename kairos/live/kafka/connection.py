"""Where a Kafka cluster is, and what a client must say to be let in."""

from collections.abc import Mapping

import msgspec

from kairos.errors import SetupError

MESSAGE_BYTES = 1 << 20  # of key, value and headers together
_OVERHEAD_BYTES = 1 << 16  # that Kafka adds to a message


class Connection(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster, and how to reach it. `options` are librdkafka's, secrets among them."""

    servers: str  # host:port, with commas
    options: Mapping[str, str] = {}
    message_bytes: int = MESSAGE_BYTES

    def client(self, **settings: object) -> dict[str, object]:
        """The configuration of a client; in names of settings an underscore stands for a dot."""
        return {
            "bootstrap.servers": self.servers,
            "client.id": "kairos",
            "reconnect.backoff.max.ms": 1_000,
            "message.max.bytes": self.message_bytes + _OVERHEAD_BYTES,
            **self.options,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }


def parse_bus(url: str) -> Connection | None:
    """Read `memory` (None) or `kafka://HOST:PORT[,HOST:PORT]`.

    Raises:
        SetupError: it is neither.
    """
    if url == "memory":
        return None
    servers = url.removeprefix("kafka://").rstrip("/")
    if not url.startswith("kafka://") or not servers:
        raise SetupError(f"--bus {url}: write memory or kafka://HOST:PORT[,HOST:PORT]")
    return Connection(servers=servers)
