"""Limits of the settings: the last allowed value is accepted, and the next is refused with a
message that names it. A limit that is off by one, or gone, fails here."""

import pytest

from kairos.core import SetupError
from kairos.settings import (
    BatchSettings,
    FlowSettings,
    RetrievalSettings,
    TelemetrySettings,
    load_settings,
)
from kairos.settings.config import MAX_WORKERS
from kairos.settings.flows import MOST_FLOW_BYTES


def batches(**fields):
    return BatchSettings(**{"directory": "d"} | fields)


def flows(**fields):
    return FlowSettings(**{"directory": "d"} | fields)


def telemetry(**fields):
    return TelemetrySettings(**{"otlp_endpoint": "http://c:4318"} | fields)


def engines(count):
    return tuple(f"http://e{number}:80" for number in range(count))


# What makes the settings, the name, what is allowed and what is not.
LIMITS = [
    *(
        (batches, name, [1], [0, -1])
        for name in ("max_file_bytes", "max_lines", "max_files", "max_bytes", "max_open")
    ),
    (batches, "keep_days", [1, 3_650], [0, 3_651]),
    (batches, "directory", ["d"], [""]),
    *((flows, name, [1], [0, -1]) for name in ("max_flows", "max_running")),
    (flows, "max_flow_bytes", [1, MOST_FLOW_BYTES], [0, MOST_FLOW_BYTES + 1]),
    (flows, "directory", ["d"], [""]),
    (RetrievalSettings, "processors", [()], [("http://p:1",)]),
    (RetrievalSettings, "hold_mb", [1_024], [4, 2_048]),
    *(
        (RetrievalSettings, name, [engines(64)], [engines(65), engines(1) * 2, ("ftp://e:80",)])
        for name in ("embedders", "rerankers")
    ),
    *(
        (RetrievalSettings, name, [("http://e:80,api_key_env=K",)], [(f"http://{wrong}",)])
        for name in ("embedders", "rerankers")
        for wrong in ("user:secret@e:80", "e:80,key=K", "e:80,api_key_env=K,api_key_env=L")
    ),
    (
        RetrievalSettings,
        "collections",
        ["d", "postgresql://u@h:1/n", "postgres:///n", None],
        ["", "a\0b", "postgresql://u:secret@h/n", "postgresql://h", "redis://h/n"],
    ),
    (telemetry, "sample_ratio", [0.0, 1.0], [-0.01, 1.01]),
    (telemetry, "service_name", ["n", "n" * 128], ["", "n" * 129]),
]


@pytest.mark.parametrize(
    ("make", "name", "allowed", "refused"), LIMITS, ids=[str(each[1]) for each in LIMITS]
)
def test_a_limit_of_a_table_is_where_it_is_said_to_be(make, name, allowed, refused):
    for value in allowed:
        assert getattr(make(**{name: value}), name) == value
    for value in refused:
        with pytest.raises(ValueError, match=name) as told:
            make(**{name: value})
        assert "secret" not in str(told.value)


COUNTS = (
    *("max_waiting", "max_wait_s", "stall_s", "answer_s", "workflow_idle_s", "max_body_bytes"),
    *("max_held_bytes", "max_connections", "budget_calls", "budget_tokens", "budget_s"),
)


@pytest.mark.parametrize(
    ("name", "allowed", "refused"),
    [
        *((name, [1], [0, -1]) for name in COUNTS),
        ("caller_share", [0.001, 1.0], [0.0, 1.001, -1.0]),
        ("workers", [0, MAX_WORKERS], [-1, MAX_WORKERS + 1]),
    ],
)
def test_a_limit_of_the_service_is_where_it_is_said_to_be(name, allowed, refused):
    for value in allowed:
        assert getattr(load_settings(None, {}, {name: value}), name) == value
    for value in refused:
        with pytest.raises(SetupError, match=name):
            load_settings(None, {}, {name: value})


def test_workers_share_one_port_and_not_a_bus():
    load_settings(None, {}, {"workers": 2})
    with pytest.raises(SetupError, match="leave out --workers"):
        load_settings(None, {}, {"workers": 2, "bus": "kafka://h:9092"})


def test_a_key_that_is_named_must_be_there():
    asked = RetrievalSettings(embedders=("http://e:80,api_key_env=K",))
    asked.check_keys({"K": "k"})
    for environ in ({}, {"K": ""}):
        with pytest.raises(SetupError, match="e:80: the variable K is not set"):
            asked.check_keys(environ)
