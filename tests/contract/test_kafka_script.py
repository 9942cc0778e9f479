"""`scripts/kafka.sh`, and the broker of the tests that it starts."""

import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.kafka import MISSING, SCRIPT

ROOT = Path(__file__).parents[2]


def run(*words, **environ):
    """The script's exit status, and what it said."""
    ended = subprocess.run(
        ["bash", SCRIPT, *words],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": os.environ["PATH"]} | environ,
    )
    return ended.returncode, ended.stderr


def test_a_home_without_kafka_is_named(tmp_path):
    assert run(KAFKA_HOME=str(tmp_path)) == (
        1,
        f"kafka: KAFKA_HOME={tmp_path} holds no Kafka (no libs/kafka_2.*.jar)\n",
    )


def test_without_java_it_says_which_to_install(tmp_path):
    (tmp_path / "libs").mkdir()
    (tmp_path / "libs" / "kafka_2.13-4.0.0.jar").touch()
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    java.chmod(0o755)

    status, said = run(KAFKA_HOME=str(tmp_path), PATH=f"{tmp_path}:{os.environ['PATH']}")

    assert status == MISSING
    assert said.startswith("kafka: Kafka needs Java 17 or newer")


def test_a_taken_port_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        status, said = run("--port", str(port))

    assert status == 1
    assert f"something listens on 127.0.0.1:{port} already" in said


@pytest.mark.parametrize("words", [["--prot", "1"], ["--port", "x"], ["--port"]])
def test_options_that_are_not_understood_are_answered(words):
    status, said = run(*words)

    assert status != 0
    assert said


@pytest.mark.kafka
def test_what_a_broker_took_survives_its_crash_and_its_end(broker):
    producer = Producer({"bootstrap.servers": broker.servers, "acks": "all"})
    admin = AdminClient({"bootstrap.servers": broker.servers})
    admin.create_topics([NewTopic("kept")])["kept"].result(60)
    for again in (broker.kill, broker.stop):
        producer.produce("kept", b"x")
        assert producer.flush(60) == 0
        again()
        broker.start()

    reader = Consumer({"bootstrap.servers": broker.servers, "group.id": "test"})
    assert ends(reader, TopicPartition("kept", 0)) == (0, 2)
    reader.close()


def ends(reader, partition):
    """Asked again while the broker, which has just begun, does not lead the partition yet."""
    until = time.monotonic() + 60
    while True:
        try:
            return reader.get_watermark_offsets(partition, 10)
        except KafkaException as error:
            code = error.args[0].code()
            if code != KafkaError.NOT_LEADER_FOR_PARTITION or time.monotonic() > until:
                raise
            time.sleep(0.1)


@pytest.mark.kafka
def test_a_broker_ends_with_the_process_that_started_it(tmp_path):
    """However it ends: here it is killed."""
    program = (
        "import os, signal, sys, pathlib; from tests.support.kafka import Broker;"
        "broker = Broker(pathlib.Path(sys.argv[1])).start();"
        "print(broker._process.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program, tmp_path], stdout=subprocess.PIPE, cwd=ROOT
    )
    pid = int(parent.stdout.readline())
    gone = os.pidfd_open(pid)
    try:
        parent.communicate(timeout=60)
        assert parent.returncode == -signal.SIGKILL
        assert select.select([gone], [], [], 60) == ([gone], [], [])
    finally:
        os.close(gone)
