"""Which errors of a cluster pass by themselves: it is asked again."""

from typing import Any

import confluent_kafka as kafka

_ERROR = kafka.KafkaError

# Those that Kafka's protocol calls retriable, but librdkafka does not tell so of most of them: a
# broker that has just started answers with any of these while it takes over what it leads.
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
    """Of a `KafkaError`: whether it is over once the cluster is well."""
    return bool(error.retriable()) or error.code() in _TRANSIENT
