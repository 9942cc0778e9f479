"""Address of a Kafka cluster, and the options (TLS, SASL) with which clients connect to it."""

import re
from collections.abc import Mapping

import msgspec

from kairos.core import SetupError
from kairos.settings import Settings

MESSAGE_BYTES = 1 << 20  # of key, value and headers together
_OVERHEAD_BYTES = 1 << 16  # that Kafka adds to a message, and the bus to a dead letter
_SERVER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+):([0-9]{1,5})")
_OPTION = re.compile(r"[a-z][a-z0-9]*(\.[a-z0-9]+)*")
_AS_THEY_ARE = ("error_cb", "log_level")  # librdkafka names that contain an underscore

# Options that users cannot set: other values would lose messages, their order, or callbacks.
OWNED = frozenset(
    {
        "acks",
        "auto.offset.reset",
        "bootstrap.servers",
        "default.topic.config",
        "delivery.timeout.ms",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "enable.idempotence",
        "enable.partition.eof",
        "fetch.queue.backoff.ms",
        "fetch.wait.max.ms",
        "group.id",
        "group.instance.id",
        "group.protocol",
        "heartbeat.interval.ms",
        "isolation.level",
        "linger.ms",
        "logger",
        "max.poll.interval.ms",
        "message.max.bytes",
        "message.timeout.ms",
        "metadata.broker.list",
        "partition.assignment.strategy",
        "partitioner",
        "plugin.library.paths",
        "queue.buffering.max.ms",
        "queued.max.messages.kbytes",
        "request.required.acks",
        "session.timeout.ms",
        "topic.metadata.propagation.max.ms",
        "topic.metadata.refresh.interval.ms",
        "transaction.timeout.ms",
        "transactional.id",
    }
)


class KafkaCluster(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster's address and client options. `options` are librdkafka's, including secrets."""

    servers: str  # host:port, with commas
    options: Mapping[str, str] = {}
    message_bytes: int = MESSAGE_BYTES

    @property
    def batch_bytes(self) -> int:
        """Largest batch that a topic must accept, in bytes (`max.message.bytes`)."""
        return self.message_bytes + _OVERHEAD_BYTES

    def client(self, **settings: object) -> dict[str, object]:
        """Return a client's configuration. Underscores in names of `settings` become dots."""
        return {
            "bootstrap.servers": self.servers,
            "client.id": "kairos",
            "reconnect.backoff.max.ms": 1_000,
            "message.max.bytes": self.batch_bytes,
            **self.options,
            **{
                name if name in _AS_THEY_ARE else name.replace("_", "."): value
                for name, value in settings.items()
            },
        }

    def __repr__(self) -> str:
        return f"KafkaCluster(servers={self.servers!r}, options={sorted(self.options)})"


def cluster_of(settings: Settings, environ: Mapping[str, str]) -> KafkaCluster | None:
    """Return the Kafka cluster that the settings name; None if the bus is in memory.

    Raises:
        SetupError: The address or an option is invalid, or a secret is missing.
    """
    reached = parse_bus(settings.bus)
    if reached is None:
        return None
    options: dict[str, str] = {}
    for name, value in settings.kafka.items():
        option = name.removesuffix("_env")
        _check_name(option)
        if option in options:
            raise SetupError(f"[kafka] sets '{option}' twice, with and without _env")
        options[option] = value if option == name else _secret(name, value, environ)
    _check(options)
    return msgspec.structs.replace(reached, options=options)


def parse_bus(url: str) -> KafkaCluster | None:
    """Parse `memory` (returns None) or `kafka://HOST:PORT[,HOST:PORT]`.

    Raises:
        SetupError: The URL is neither.
    """
    if url == "memory":
        return None
    if "@" in url:
        raise SetupError("--bus: put user and password into the table [kafka], not into the URL")
    servers = url.removeprefix("kafka://").rstrip("/")
    found = [_SERVER.fullmatch(server) for server in servers.split(",")]
    if not url.startswith("kafka://") or not all(
        server is not None and 0 < int(server[2]) < 65536 for server in found
    ):
        raise SetupError(f"--bus {url}: write memory or kafka://HOST:PORT[,HOST:PORT]")
    return KafkaCluster(servers=servers)


def _check_name(option: str) -> None:
    if option in OWNED:
        how = "that is what --bus is for" if option == "bootstrap.servers" else "Kairos sets it"
        raise SetupError(f"[kafka] cannot have '{option}': {how}")
    if not _OPTION.fullmatch(option):
        raise SetupError(f"[kafka] '{option}' is not an option of the Kafka client (librdkafka)")


def _secret(name: str, variable: str, environ: Mapping[str, str]) -> str:
    if secret := environ.get(variable):
        return secret
    raise SetupError(f"[kafka] {name}: the variable {variable} is not set")


def _check(options: Mapping[str, str]) -> None:
    protocol = options.get("security.protocol", "plaintext").upper()
    for option in options:
        family = option.partition(".")[0].upper()
        if family in ("SASL", "SSL") and family not in protocol.split("_"):
            raise SetupError(
                f"[kafka] '{option}' has no effect: security.protocol is {protocol.lower()}"
            )
    import confluent_kafka as kafka

    try:
        # The constructor rejects invalid options. Without an address it does not connect.
        kafka.Producer({**options, "log_level": 0})
    except kafka.KafkaException as error:
        problem = error.args[0].str().removeprefix("Failed to create producer: ")
        raise SetupError(f"[kafka] {problem}") from None
