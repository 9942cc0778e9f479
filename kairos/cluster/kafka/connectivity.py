"""Which errors of a cluster pass, and whether it can be reached: logged once when that changes.

librdkafka reports every failed attempt of every client; those reports are logged at DEBUG.
"""

import logging
import threading
import time
from typing import Any

import confluent_kafka as kafka

logger = logging.getLogger(__name__)

_PROBE_S = 1.0
_ERROR = kafka.KafkaError
_LOST = {_ERROR._ALL_BROKERS_DOWN, _ERROR._AUTHENTICATION, _ERROR._SSL}

# Errors that Kafka's protocol calls retriable; librdkafka does not mark most of them so. A broker
# that has just started returns any of these until it leads its partitions.
_RETRIABLE = (
    _ERROR.UNKNOWN_TOPIC_OR_PART,
    _ERROR.LEADER_NOT_AVAILABLE,
    _ERROR.NOT_LEADER_FOR_PARTITION,
    _ERROR.REQUEST_TIMED_OUT,
    _ERROR.BROKER_NOT_AVAILABLE,
    _ERROR.REPLICA_NOT_AVAILABLE,
    _ERROR.NETWORK_EXCEPTION,
    _ERROR.COORDINATOR_LOAD_IN_PROGRESS,
    _ERROR.COORDINATOR_NOT_AVAILABLE,
    _ERROR.NOT_COORDINATOR,
    _ERROR.NOT_ENOUGH_REPLICAS,
    _ERROR.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    _ERROR.NOT_CONTROLLER,
    _ERROR.KAFKA_STORAGE_ERROR,
    _ERROR.FETCH_SESSION_ID_NOT_FOUND,
    _ERROR.INVALID_FETCH_SESSION_EPOCH,
    _ERROR.FENCED_LEADER_EPOCH,
    _ERROR.UNKNOWN_LEADER_EPOCH,
    _ERROR.OFFSET_NOT_AVAILABLE,
    _ERROR.UNSTABLE_OFFSET_COMMIT,
    _ERROR.THROTTLING_QUOTA_EXCEEDED,
)
_LOCAL = (
    *(_ERROR._ALL_BROKERS_DOWN, _ERROR._TRANSPORT, _ERROR._RESOLVE),
    *(_ERROR._TIMED_OUT, _ERROR._WAIT_COORD),
)
_TRANSIENT = frozenset(_RETRIABLE + _LOCAL)


def is_transient(error: Any) -> bool:
    """Return whether a `KafkaError` is transient: it disappears once the cluster has recovered."""
    return bool(error.retriable()) or error.code() in _TRANSIENT


class Connectivity:
    """Reachability of one cluster, shared by its clients, which run in threads of their own."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._lock = threading.Lock()
        self._cut_off: set[object] = set()  # the clients that cannot reach it

    def lose(self, client: object, why: str) -> None:
        with self._lock:
            is_news = not self._cut_off
            self._cut_off.add(client)
        if is_news:
            logger.warning("the bus cannot be reached at %s, trying again: %s", self._servers, why)

    def regain(self, client: object) -> None:
        if self.forget(client):
            logger.warning("the bus at %s is reached again", self._servers)

    def forget(self, client: object) -> bool:
        """Forget a client. Return whether it was the last one that could not reach the cluster."""
        with self._lock:
            was_last = self._cut_off == {client}
            self._cut_off.discard(client)
        return was_last


class Contact:
    """Reachability of the cluster for one client.

    All methods but `settings` are called only by the thread that polls the client.
    """

    def __init__(self, reach: Connectivity) -> None:
        self._reach = reach
        self._doubt: str | None = None  # why it may be out of reach
        self._probes_at = 0.0

    def settings(self) -> dict[str, object]:
        return {"error_cb": self._failed, "logger": _Diagnostics()}

    def made(self) -> None:
        """Note that the client received something from the cluster."""
        if self._doubt is not None:
            self._doubt = None
            self._reach.regain(self)

    def probe(self, client: Any) -> None:
        """While the cluster's state is uncertain, query it from time to time.

        An error may be outdated, and a client that receives nothing may be connected or not.
        """
        if self._doubt is not None and time.monotonic() >= self._probes_at:
            try:
                client.list_topics(timeout=_PROBE_S)
            except kafka.KafkaException:
                self._reach.lose(self, self._doubt)
                self._probes_at = time.monotonic() + _PROBE_S
            else:
                self.made()

    def close(self) -> None:
        self._reach.forget(self)

    def _failed(self, error: Any) -> None:
        if error.code() in _LOST:
            self._doubt = error.str()
        else:
            logger.debug("librdkafka: %s", error.str())


class _Diagnostics:
    """A `logging.Logger` with the one method that librdkafka calls."""

    def log(self, _level: int, text: str, *parts: object) -> None:
        logger.debug(text, *parts)
