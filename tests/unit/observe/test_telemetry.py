"""What /metrics says after a small history, and what it never says."""

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from kairos.core import (
    SECOND,
    AgentRank,
    Arrived,
    Bounced,
    Cancelled,
    Failed,
    Finished,
    FirstToken,
    InstanceJoined,
    InstanceLeft,
    InstanceStatus,
    Orchestrator,
    ProfilesLearnt,
    Record,
)
from kairos.observe import Telemetry
from kairos.observe.telemetry import Count, Times
from tests.support.exposed import exposed
from tests.support.simulate import build


class Watched:
    """A balancer whose every record goes to a telemetry."""

    def __init__(self, **limits) -> None:
        self.balancer = build.balancer()
        self.orchestrator = Orchestrator(**limits)
        self.at = 0
        self.telemetry = Telemetry(lambda: self.balancer, self.orchestrator, lambda: self.at)

    def tell(self, at_s: float, event) -> None:
        self.at = at = int(at_s * SECOND)
        record = Record(at, event, tuple(self.balancer.handle(event, at)))
        self.orchestrator.observe(record)
        self.telemetry(record)

    def arrive(self, at_s: float, name: str, **fields) -> None:
        self.tell(at_s, Arrived(build.request(name, at=int(at_s * SECOND), **fields)))

    def samples(self) -> dict[str, float]:
        """Every sample but the instants at which the series were made, as `name{labels}`."""
        text = exposed(self.telemetry.families()).decode()
        return {
            sample.name + "".join(f"{{{k}={v}}}" for k, v in sample.labels.items()): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if not sample.name.endswith("_created")
        }


@pytest.fixture
def watched():
    return Watched()


def some(samples: dict[str, float], *words: str) -> dict[str, float]:
    return {name: value for name, value in samples.items() if any(w in name for w in words)}


def plain(samples: dict[str, float]) -> dict[str, float]:
    """What calls alone tell."""
    others = ("_bucket", "kairos_workflows", "kairos_pooled", "kairos_bus")
    return {name: v for name, v in samples.items() if not any(each in name for each in others)}


IDLE = {
    "kairos_calls_total{outcome=finished}": 0,
    "kairos_calls_total{outcome=failed}": 0,
    "kairos_calls_total{outcome=cancelled}": 0,
    "kairos_calls_total{outcome=refused}": 0,
    "kairos_queue_seconds_count": 0,
    "kairos_queue_seconds_sum": 0,
    "kairos_ttft_seconds_count": 0,
    "kairos_ttft_seconds_sum": 0,
    "kairos_call_seconds_count": 0,
    "kairos_call_seconds_sum": 0,
    "kairos_prompt_tokens_total": 0,
    "kairos_completion_tokens_total": 0,
    "kairos_requests_waiting": 0,
    "kairos_waiting_work_seconds": 0,
    "kairos_pool_busy_ratio": 0,
}


def test_every_series_is_there_from_the_start(watched):
    assert plain(watched.samples()) == IDLE


def test_finished_calls_are_counted_timed_and_their_tokens_added(watched):
    watched.tell(0, InstanceJoined(build.instance("gpu1:8000", seqs=1)))
    watched.arrive(1, "a")
    watched.arrive(2, "b")
    watched.tell(3.5, FirstToken("a"))
    watched.tell(5, Finished("a", 100, 20))
    watched.tell(6, FirstToken("b"))
    watched.tell(7, Finished("b"))

    assert plain(watched.samples()) == IDLE | {
        "kairos_calls_total{outcome=finished}": 2,
        "kairos_queue_seconds_count": 2,
        "kairos_queue_seconds_sum": 0 + 3,
        "kairos_ttft_seconds_count": 2,
        "kairos_ttft_seconds_sum": 2.5 + 4,
        "kairos_call_seconds_count": 2,
        "kairos_call_seconds_sum": 4 + 5,
        "kairos_prompt_tokens_total": 100,
        "kairos_completion_tokens_total": 20,
        "kairos_requests_running{instance=gpu1:8000}": 0,
        "kairos_kv_booked_tokens{instance=gpu1:8000}": 0,
        "kairos_instance_trusted{instance=gpu1:8000}": 1,
    }


def test_the_work_that_waits_is_told_in_seconds_of_the_pool(watched):
    watched.tell(0, InstanceJoined(build.instance("gpu1:8000", seqs=1)))
    for name in "abc":
        watched.arrive(1, name)
    estimates = watched.balancer.estimates
    work_us = sum(estimates.call_us(estimates.request(name)) for name in "bc")
    samples = watched.samples()
    assert samples["kairos_waiting_work_seconds"] == pytest.approx(work_us / SECOND)
    assert samples["kairos_pool_busy_ratio"] == 1


def test_calls_that_came_back_are_counted_where_they_were(watched):
    for name in "ij":
        watched.tell(0, InstanceJoined(build.instance(name, seqs=1)))
    watched.arrive(1, "a")
    watched.tell(2, Bounced("a", "gone"))

    samples = watched.samples()
    assert samples["kairos_calls_returned_total{instance=i}"] == 1
    assert samples["kairos_instance_trusted{instance=i}"] == 0
    assert samples["kairos_instance_trusted{instance=j}"] == 1
    watched.at += SECOND
    assert watched.samples()["kairos_instance_trusted{instance=i}"] == 0.5


def test_calls_fall_into_the_buckets_of_their_seconds(watched):
    watched.tell(0, InstanceJoined(build.instance("i")))
    for name in "abc":
        watched.arrive(0, name)
    for name, took_s in {"a": 0.02, "b": 4, "c": 400}.items():
        watched.tell(took_s, Finished(name))

    buckets = some(watched.samples(), "kairos_call_seconds_bucket")

    bounds = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300]
    reached = [0, 0, *[1] * 7, *[2] * 6]
    assert buckets == {
        f"kairos_call_seconds_bucket{{le={float(bound)}}}": count
        for bound, count in zip(bounds, reached, strict=True)
    } | {"kairos_call_seconds_bucket{le=+Inf}": 3}


def test_a_call_without_a_first_token_has_no_time_to_it(watched):
    watched.tell(0, InstanceJoined(build.instance("i")))
    watched.arrive(1, "a")
    watched.tell(2, Finished("a", 5, 1))

    assert watched.samples()["kairos_call_seconds_count"] == 1
    assert watched.samples()["kairos_ttft_seconds_count"] == 0


def test_calls_that_did_not_finish_are_counted_but_not_timed(watched):
    watched.tell(0, InstanceJoined(build.instance("i", seqs=1)))
    for name in ("fails", "leaves while running", "leaves while waiting", "goes on", "strands"):
        watched.arrive(1, name)
    watched.tell(2, Failed("fails", "x"))
    watched.tell(2, Cancelled("leaves while waiting"))
    watched.tell(2, Cancelled("leaves while running"))
    watched.tell(3, InstanceLeft("i"))

    assert plain(watched.samples()) == IDLE | {
        "kairos_calls_total{outcome=failed}": 1,
        "kairos_calls_total{outcome=cancelled}": 2,
        "kairos_calls_total{outcome=refused}": 1,
    }


def test_the_gauges_show_what_waits_and_what_runs_where_right_now(watched):
    watched.tell(0, InstanceJoined(build.instance("i", seqs=2, kv=100)))
    watched.tell(0, InstanceJoined(build.instance("j", models=["other"])))
    for name in "abcd":
        watched.arrive(1, name, prompt=10, completion=20)
    gauges = ("requests_waiting", "_running", "_booked")

    assert some(watched.samples(), *gauges) == {
        "kairos_requests_waiting": 2,
        "kairos_requests_running{instance=i}": 2,
        "kairos_requests_running{instance=j}": 0,
        "kairos_kv_booked_tokens{instance=i}": 20,
        "kairos_kv_booked_tokens{instance=j}": 0,
    }
    for name in "abc":
        watched.tell(2, Finished(name))
    watched.tell(3, InstanceLeft("j"))
    samples = some(watched.samples(), *gauges)
    booked = samples.pop("kairos_kv_booked_tokens{instance=i}")
    assert 10 < booked <= 100  # its prompt, and what it is expected to have had of its answer
    assert samples == {"kairos_requests_waiting": 0, "kairos_requests_running{instance=i}": 1}


def test_no_name_that_a_client_chose_is_shown(watched):
    watched.tell(0, InstanceJoined(build.instance("i", models=["secret-model"], seqs=1)))
    chosen = {
        "tenant": "secret-tenant",
        "workflow_id": "secret-workflow",
        "app": "secret-app",
        "agent": "secret-agent",
        "upstream": "secret-upstream",
        "model": "secret-model",
    }
    for name in ("secret-finished", "secret-failed", "secret-running", "secret-waiting"):
        watched.arrive(1, name, **chosen)
    watched.tell(2, FirstToken("secret-finished"))
    watched.tell(3, Finished("secret-finished", 1, 1))
    watched.tell(3, Failed("secret-failed", "secret-reason"))

    assert b"secret" not in exposed(watched.telemetry.families())


def test_two_telemetries_in_one_process_count_apart(watched):
    other = Watched()
    watched.tell(0, InstanceJoined(build.instance("i")))
    watched.arrive(1, "a")
    watched.tell(2, Finished("a"))

    assert plain(other.samples()) == IDLE


def test_what_the_orchestrator_holds_and_gave_up_is_told():
    watched = Watched(max_workflows=3, idle_us=100 * SECOND)
    watched.tell(0, InstanceJoined(build.instance("a")))
    for n in range(4):
        watched.arrive(1 + n, f"r{n}")
        watched.tell(1.5 + n, Finished(f"r{n}"))
    watched.arrive(104, "late")

    samples = watched.samples()
    assert samples["kairos_workflows_open"] == 2  # the last of the four, and the late one
    assert samples["kairos_workflows_evicted_total"] == 1
    assert samples["kairos_workflows_idle_total"] == 2
    assert samples["kairos_workflows_unlearnt_total"] == 0
    assert samples["kairos_pooled_calls_total"] == 0
    assert "kairos_rank_kendall_tau" not in samples

    watched.tell(105, ProfilesLearnt(ranks=(AgentRank("t", "a", "x", 1.0),), kendall_tau=0.75))
    assert watched.samples()["kairos_rank_kendall_tau"] == 0.75


WHOLE = InstanceStatus(
    "i",
    kv_used=0.25,
    running=3,
    waiting=2,
    waiting_for_room=1,
    preemptions=9,
    queried_tokens=800,
    cached_tokens=600,
)


def test_what_an_engine_says_of_itself_is_shown_of_each(watched):
    for name in ("i", "j", "k"):
        watched.tell(0, InstanceJoined(build.instance(name)))
    assert some(watched.samples(), "kairos_engine") == {}
    watched.tell(1, WHOLE)
    watched.tell(1, InstanceStatus("j", running=0))

    assert some(watched.samples(), "kairos_engine") == {
        "kairos_engine_kv_used_ratio{instance=i}": 0.25,
        "kairos_engine_requests_running{instance=i}": 3,
        "kairos_engine_requests_running{instance=j}": 0,
        "kairos_engine_requests_waiting{instance=i}": 2,
        "kairos_engine_preemptions_total{instance=i}": 9,
        "kairos_engine_prefix_queried_tokens_total{instance=i}": 800,
        "kairos_engine_prefix_cached_tokens_total{instance=i}": 600,
    }


def test_what_an_engine_said_too_long_ago_is_not_shown_nor_of_one_that_left(watched):
    watched.tell(0, InstanceJoined(build.instance("i")))
    watched.tell(1, WHOLE)
    watched.at = 4 * SECOND
    assert some(watched.samples(), "kairos_engine")
    watched.at += 1
    assert some(watched.samples(), "kairos_engine") == {}

    watched.tell(5, WHOLE)
    assert some(watched.samples(), "kairos_engine")
    watched.tell(6, InstanceLeft("i"))
    assert some(watched.samples(), "kairos_engine") == {}
    watched.tell(6, InstanceJoined(build.instance("i")))
    assert some(watched.samples(), "kairos_engine") == {}  # it may be another by now


def test_figures_are_shown_as_the_client_library_shows_its_own():
    theirs, ours = CollectorRegistry(), CollectorRegistry()
    calls = Counter("n", "calls", ["outcome"], registry=theirs)
    tokens = Counter("t", "tokens", registry=theirs)
    seconds = Histogram("s", "time", registry=theirs, buckets=(0.01, 1, 2.5))
    our_calls, our_tokens = Count("n", "calls", 0, "outcome", ("a", "b")), Count("t", "tokens", 0)
    our_seconds = Times("s", "time", 0, (0.01, 1, 2.5))
    for each in (our_calls, our_tokens, our_seconds):
        ours.register(each)
    calls.labels("a").inc()
    calls.labels("b")
    our_calls.add(1, "a")
    tokens.inc(7)
    our_tokens.add(7)
    for value in (0.0, 0.01, 0.02, 1, 2.4, 3):
        seconds.observe(value)
        our_seconds.see(value)

    def shown(registry):
        lines = generate_latest(registry).decode().splitlines()
        return [line.split(" ")[0] if "_created" in line else line for line in lines]

    assert shown(ours) == shown(theirs)
