"""What a consumer's thread does when the cluster answers with an error."""

import confluent_kafka as kafka
import pytest

from kairos.cluster.kafka import poll
from kairos.cluster.kafka.connectivity import Connectivity, Contact
from kairos.cluster.kafka.poll import PollThread

ERROR = kafka.KafkaError


@pytest.fixture
def thread():
    return PollThread(
        {},
        ["tasks"],
        contact=Contact(Connectivity("nowhere:9092")),
        first=None,
        tells_ends=False,
        put=lambda _item: None,
        is_full=lambda: False,
    )


class Cluster:
    """Answers with errors, then well."""

    def __init__(self, *codes):
        self.codes = list(codes)

    def ask(self, what, _answer_s):
        if self.codes:
            raise kafka.KafkaException(ERROR(self.codes.pop(0)))
        return f"{what} found"


@pytest.mark.parametrize(
    "code",
    [
        ERROR.NOT_COORDINATOR,
        ERROR.COORDINATOR_LOAD_IN_PROGRESS,
        ERROR.COORDINATOR_NOT_AVAILABLE,
        ERROR.NOT_LEADER_FOR_PARTITION,
        ERROR.LEADER_NOT_AVAILABLE,
        ERROR.UNSTABLE_OFFSET_COMMIT,
        ERROR.REQUEST_TIMED_OUT,
        ERROR._TRANSPORT,
        ERROR._TIMED_OUT,
        ERROR._ALL_BROKERS_DOWN,
    ],
)
def test_a_broker_that_has_just_started_is_asked_again(thread, monkeypatch, code):
    monkeypatch.setattr(poll, "_AGAIN_S", 0)
    assert thread._insist(Cluster(code, code).ask, "offsets") == "offsets found"


@pytest.mark.parametrize(
    "code",
    [
        ERROR.GROUP_AUTHORIZATION_FAILED,
        ERROR.TOPIC_AUTHORIZATION_FAILED,
        ERROR.INVALID_GROUP_ID,
        ERROR.UNSUPPORTED_VERSION,
    ],
)
def test_what_will_not_pass_is_raised(thread, code):
    with pytest.raises(kafka.KafkaException):
        thread._insist(Cluster(code).ask, "offsets")


def test_who_asks_in_vain_says_what_to_do(thread, monkeypatch, caplog):
    monkeypatch.setattr(poll, "_AGAIN_S", 0)
    monkeypatch.setattr(poll, "_SILENT_S", 0)
    assert thread._insist(Cluster(ERROR.UNSTABLE_OFFSET_COMMIT).ask, "offsets") == "offsets found"
    [told] = caplog.messages
    assert told.startswith("reading tasks waits: ")
    assert "find-hanging" in told
