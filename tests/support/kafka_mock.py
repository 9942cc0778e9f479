"""librdkafka's own stand-in for a Kafka cluster: no Java, no disk, and no transactions that hold.

What it cannot do is said in `tests/contract/cluster/test_bus.py`, where it matters.
"""

import ctypes
from pathlib import Path

import confluent_kafka


class MockCluster:
    """One broker in this process, until the process ends.

    It is never destroyed: in that, librdkafka has crashed the interpreter, after the last test.
    """

    def __init__(self):
        packages = Path(confluent_kafka.__file__).parents[1]
        [library] = packages.glob("confluent_kafka.libs/librdkafka-*")
        self._c = ctypes.CDLL(library)
        for name in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_mock_cluster_new"):
            getattr(self._c, name).restype = ctypes.c_void_p
        self._c.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
        self._cluster = ctypes.c_void_p(self._c.rd_kafka_mock_cluster_new(self._client_of(""), 1))
        self._c.rd_kafka_mock_group_initial_rebalance_delay_ms(self._cluster, 0)
        self.servers = self._c.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()

    def _client_of(self, servers):
        problem = ctypes.create_string_buffer(512)
        settings = ctypes.c_void_p(self._c.rd_kafka_conf_new())
        for name, value in {"log_level": "0", "bootstrap.servers": servers}.items():
            self._c.rd_kafka_conf_set(settings, name.encode(), value.encode(), problem, 512)
        producer = 0
        return ctypes.c_void_p(self._c.rd_kafka_new(producer, settings, problem, 512))

    def create(self, topic, partitions=4):
        self._c.rd_kafka_mock_topic_create(self._cluster, topic.encode(), partitions, 1)

    def send_header(self, topic, name):
        """Have a message there whose header has that name, in bytes."""
        sender = self._client_of(self.servers)
        head = (ctypes.c_int(9), ctypes.c_char_p(name), ctypes.c_char_p(b"x"), ctypes.c_ssize_t(1))
        to = (ctypes.c_int(1), ctypes.c_char_p(topic.encode()))
        self._c.rd_kafka_producev(sender, *to, *head, ctypes.c_int(0))
        assert self._c.rd_kafka_flush(sender, 10_000) == 0
        self._c.rd_kafka_destroy(sender)

    def go_down(self):
        self._c.rd_kafka_mock_broker_set_down(self._cluster, 1)

    def come_up(self):
        self._c.rd_kafka_mock_broker_set_up(self._cluster, 1)
