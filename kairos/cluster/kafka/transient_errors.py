"""Errors of a cluster that are transient, and therefore retried."""

from typing import Any

import confluent_kafka as kafka

_ERROR = kafka.KafkaError

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
    _ERROR._ALL_BROKERS_DOWN,
    _ERROR._TRANSPORT,
    _ERROR._RESOLVE,
    _ERROR._TIMED_OUT,
    _ERROR._WAIT_COORD,
)
_TRANSIENT = frozenset(_RETRIABLE + _LOCAL)


def is_transient(error: Any) -> bool:
    """Return whether a `KafkaError` is transient: it disappears once the cluster has recovered."""
    return bool(error.retriable()) or error.code() in _TRANSIENT
