"""A real Kafka that a test can end, crash and start again."""

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.support.hanging_transactions import HAPPENED, end_hanging_transactions
from tests.support.ports import free_ports

SCRIPT = Path(__file__).parents[2] / "scripts" / "kafka.sh"
MISSING = 69  # the script's exit status where there is no Kafka, or no Java
READY_S = 60
STOP_S = 20


class Broker:
    """One node on ports of its own. Ends with this process, however that ends.

    A context manager that starts it, and kills it in the end.
    """

    def __init__(self, directory):
        self.directory = directory
        self._port, self._controller_port = free_ports(2)
        self.servers = f"127.0.0.1:{self._port}"
        self.url = f"kafka://{self.servers}"
        self._process = self._watchdog = None

    def __enter__(self):
        return self.start()

    @property
    def runs(self):
        """It was started, and has neither been killed nor ended by itself."""
        return self._process is not None and self._process.poll() is None

    def __exit__(self, *_):
        self.kill()

    def start(self):
        """Start it on what it holds; return once it answers. Without a Kafka: skip, in CI fail."""
        self.directory.mkdir(exist_ok=True)
        said_before = len(self._said())
        log = self.directory / "start.log"
        with log.open("w") as said:
            self._process = subprocess.Popen(
                [
                    *("bash", SCRIPT, "--no-docker", "--data", self.directory),
                    *("--port", str(self._port), "--controller-port", str(self._controller_port)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
        # It reads from a pipe whose other end is ours alone: an end of file when we are gone.
        self._watchdog = subprocess.Popen(
            ["sh", "-c", f"read -r _; kill -KILL -{self._process.pid}"],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            self._await_answer(log)
        except BaseException:
            self.kill()
            raise
        if HAPPENED in self._said()[said_before:]:
            self._await_leaders()
            end_hanging_transactions(self.servers)
        return self

    def _said(self):
        log = self.directory / "kafka.log"
        return log.read_text(errors="replace") if log.exists() else ""

    def stop(self):
        """SIGTERM: it leaves in order."""
        if self._process is not None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_S)
        self.kill()

    def kill(self):
        """SIGKILL: it crashes. Nothing where it has ended already."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):  # the whole group: it may be formatting still
            os.killpg(self._process.pid, signal.SIGKILL)
        self._watchdog.kill()
        self._watchdog.stdin.close()
        self._process.wait()
        self._watchdog.wait()
        self._process = self._watchdog = None

    def _await_leaders(self):
        """Return once it leads all that it holds, some time after its first answer."""
        client, until = self._client(), time.monotonic() + READY_S
        while True:
            assert time.monotonic() < until
            with suppress(KafkaException):
                topics = client.list_topics(timeout=READY_S).topics.values()
                partitions = [one for topic in topics for one in topic.partitions.values()]
                if all(one.error is None and one.leader >= 0 for one in partitions):
                    return
            time.sleep(0.1)

    def _client(self):
        return AdminClient(
            {"bootstrap.servers": self.servers, "reconnect.backoff.max.ms": 200, "log_level": 0}
        )

    def _await_answer(self, log):
        client = self._client()
        until = time.monotonic() + READY_S
        while time.monotonic() < until:
            if (status := self._process.poll()) is not None:
                if status == MISSING and "CI" not in os.environ:
                    pytest.skip(log.read_text())
                pytest.fail(log.read_text())
            with suppress(KafkaException):
                client.list_topics(timeout=1)
                return
        pytest.fail(f"Kafka does not answer after {READY_S} s: {log.read_text()}")
