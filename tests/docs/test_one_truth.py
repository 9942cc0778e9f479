"""Check docs/design/one-truth.md, as far as the text of modules shows it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXTS = {
    str(path.relative_to(ROOT)): path.read_text()
    for top in ("kairos", "client")
    for path in sorted((ROOT / top).rglob("*.py"))
}
# By concept: how it shows, and where it may.
PLACES = {
    "TLS contexts": (r"ssl\.(SSLContext\(|create_default_context)", {"kairos/settings/tls.py"}),
    "bytes of a token": (
        r"(?im)^_?\w*(bytes|chars)_per_token\b[^=\n]*= *[\d.]+",
        {"kairos/core/model.py"},
    ),
    "bodies of errors": (
        r"def error_body\b|\"type\": \"error\", \"error\"",
        # The second plays an engine.
        {"kairos/request/client_response.py", "kairos/simulate/standin/delivery.py"},
    ),
    "events of a stream": (
        r"startswith\((b\"data:\"|_DATA)\)",
        {
            "kairos/proxy/sse.py",
            "kairos/proxy/llm/http_llm.py",
            "kairos/request/identity/engine_reply.py",
        },
    ),
    "refusals that pass": (
        r"(in|=) \(429, 503\)",
        {
            "kairos/proxy/llm/http_llm.py",
            "kairos/batches/driver.py",
            # Whether a replay goes on reporting ends.
            "kairos/simulate/replay_client.py",
        },
    ),
    "positions of workflows": (r"class \w*WorkflowTracker\b", {"kairos/core/workflow_tracker.py"}),
    "rate of arrival": (r"class \w*(Demand|ArrivalRate)\b", {"kairos/core/pool_demand.py"}),
}


@pytest.mark.parametrize("concept", PLACES)
def test_a_concept_has_its_places_and_no_other(concept):
    pattern, places = PLACES[concept]
    assert {path for path, text in TEXTS.items() if re.search(pattern, text)} == places


def test_each_place_that_the_page_names_is_there():
    page = (ROOT / "docs" / "design" / "one-truth.md").read_text()
    for path in re.findall(r"`((?:kairos|tests|scripts)/[\w./-]+)", page):
        assert (ROOT / path).exists(), path
