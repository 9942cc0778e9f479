"""/metrics in the format that is asked for."""

import pytest
from fastapi.testclient import TestClient
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from kairos.gateway import Probes
from kairos.observe.telemetry import Times

TRACE = "0af7651916cd43dd8448eb211c80319c"
# What Prometheus sends.
OPEN_METRICS = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3"


@pytest.fixture
def ask():
    times = Times("kairos_call_seconds", "Of calls", 1.0, (0.1, 1))
    times.see(0.05)
    times.see(0.5, TRACE)
    times.see(0.6)
    client = TestClient(Probes(lambda: True, times.collect))
    return lambda accept: client.get("/metrics", headers={"accept": accept})


def test_who_asks_for_open_metrics_gets_the_trace_of_a_call_of_each_bucket(ask):
    answer = ask(OPEN_METRICS)

    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    [family] = text_string_to_metric_families(answer.text)
    buckets = {s.labels["le"]: s for s in family.samples if s.name.endswith("_bucket")}
    assert {le: sample.value for le, sample in buckets.items()} == {"0.1": 1, "1.0": 3, "+Inf": 3}
    assert [le for le, sample in buckets.items() if sample.exemplar] == ["1.0"]
    assert buckets["1.0"].exemplar.labels == {"trace_id": TRACE}
    assert buckets["1.0"].exemplar.value == 0.5


@pytest.mark.parametrize("accept", ["*/*", "text/plain", "application/openmetrics-text;version=x"])
def test_who_asks_for_anything_else_gets_plain_text_without_it(ask, accept):
    answer = ask(accept)

    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert 'kairos_call_seconds_bucket{le="1.0"} 3.0' in answer.text
    assert TRACE not in answer.text
