import os
import signal
from pathlib import Path

import pytest

import kairos
from tests.support import vllm as instances
from tests.support.alarm import Alarm
from tests.support.examples import load_profile
from tests.support.kafka import Broker

pytest_plugins = ["tests.support.collection", "tests.support.costs"]

load_profile()


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item, settings):
    alarm = Alarm(item, settings.timeout)
    alarm.set()
    item.cancel_timeout = alarm.cancel
    return True


def pytest_collection_modifyitems(items):
    if kairos.is_compiled:
        reason = "compiled code does not see that a part of the brain is replaced"
        for each in items:
            if each.get_closest_marker("interpreted"):
                each.add_marker(pytest.mark.skip(reason=reason))


def pytest_configure():
    # A shell that runs the tests in the background makes them, and all processes that they start,
    # ignore what tests send: SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def data() -> Path:
    """The directory of the real data sets. In CI it must be there; elsewhere a test may skip."""
    path = Path(os.environ.get("KAIROS_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not path.is_dir() and "CI" not in os.environ:
        pytest.skip(f"no real data in {path}; set KAIROS_DATA")
    return path


@pytest.fixture(scope="session")
def kafka(tmp_path_factory):
    """The address of a real Kafka, one for all tests: name topics and groups apart."""
    if given := os.environ.get("KAIROS_TEST_BUS"):
        yield given
        return
    with Broker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker.url


@pytest.fixture(scope="session")
def second_kafka(tmp_path_factory):
    broker = Broker(tmp_path_factory.mktemp("kafka") / "second")
    try:
        yield broker
    finally:
        broker.kill()


@pytest.fixture
def broker(second_kafka):
    """A second real Kafka, which a test may crash, and whose topics it may spoil. It runs when a
    test begins; which topics are there then depends on the tests before."""
    if not second_kafka.runs:
        second_kafka.kill()
        second_kafka.start()
    return second_kafka


@pytest.fixture(scope="session")
def vllm(tmp_path_factory):
    """The URLs of two real vLLM instances, the same for all tests."""
    if given := os.environ.get("KAIROS_TEST_VLLM"):
        yield given.split(",")
        return
    with instances.running(tmp_path_factory.mktemp("vllm")) as urls:
        yield urls
