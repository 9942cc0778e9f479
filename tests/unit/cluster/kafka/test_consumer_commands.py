"""What is asked of a consumer from another thread, and what becomes of it."""

import confluent_kafka as kafka
import pytest

from kairos.cluster.kafka.consumer_commands import Commits, ConsumerQuestions
from kairos.core import Unavailable

WHERE = ("t", 0)


class Consumer:
    def __init__(self):
        self.committed = []

    def commit(self, offsets, asynchronous):
        self.committed.append([(o.topic, o.partition, o.offset, o.metadata) for o in offsets])


def test_commits_are_made_one_after_the_other_in_the_order_in_which_they_were_wanted():
    consumer, commits = Consumer(), Commits()
    first = commits.add({WHERE: (1, "a")}, {WHERE: 1})
    second = commits.add({WHERE: (2, "b")}, {WHERE: 1})
    commits.see_to(consumer, {WHERE: 1})
    commits.see_to(consumer, {WHERE: 1})
    assert consumer.committed == [[("t", 0, 1, "a")]]
    commits.answered(None, [])
    assert first.result(0) is None
    commits.see_to(consumer, {WHERE: 1})
    assert consumer.committed[1:] == [[("t", 0, 2, "b")]]
    commits.answered(kafka.KafkaError(kafka.KafkaError.ILLEGAL_GENERATION), [])
    with pytest.raises(Unavailable, match="did not take a commit"):
        second.result(0)


def test_a_partition_that_went_and_came_back_is_not_committed_by_what_was_known_before():
    consumer, commits = Consumer(), Commits()
    late = commits.add({WHERE: (1, "")}, {WHERE: 1})
    commits.see_to(consumer, {WHERE: 2})
    assert consumer.committed == []
    with pytest.raises(Unavailable, match="revoked"):
        late.result(0)


def test_an_error_of_one_partition_is_one_of_the_commit():
    consumer, commits = Consumer(), Commits()
    taken = commits.add({WHERE: (1, "")}, {WHERE: 1})
    commits.see_to(consumer, {WHERE: 1})

    class Partition:
        error = kafka.KafkaError(kafka.KafkaError.OFFSET_METADATA_TOO_LARGE)

    commits.answered(None, [Partition()])
    with pytest.raises(Unavailable):
        taken.result(0)


def test_whoever_still_waits_when_the_thread_ends_is_told_and_so_is_who_comes_later():
    consumer, commits, questions = Consumer(), Commits(), ConsumerQuestions()
    under_way = commits.add({WHERE: (1, "")}, {WHERE: 1})
    commits.see_to(consumer, {WHERE: 1})
    waiting = [commits.add({WHERE: (2, "")}, {WHERE: 1}), questions.add(lambda _: 1)]
    commits.refuse()
    questions.refuse()
    late = [commits.add({WHERE: (3, "")}, {WHERE: 1}), questions.add(lambda _: 1)]
    for each in (under_way, *waiting, *late):
        with pytest.raises(Unavailable, match="not read any more"):
            each.result(0)
    commits.answered(None, [])  # too late, and no error


def test_who_gave_up_is_passed_over():
    consumer, commits, questions = Consumer(), Commits(), ConsumerQuestions()
    given_up = [commits.add({WHERE: (1, "")}, {WHERE: 1}), questions.add(lambda _: 1)]
    for each in given_up:
        each.cancel()
    kept = questions.add(lambda asked: asked is consumer)
    failing = questions.add(lambda _: 1 / 0)
    questions.see_to(consumer)
    commits.see_to(consumer, {WHERE: 1})
    assert kept.result(0) is True
    assert consumer.committed == []
    with pytest.raises(ZeroDivisionError):
        failing.result(0)
