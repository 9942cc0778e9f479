"""What the gateway says of itself is true: requests made from its OpenAPI description, such as it
allows and such as it does not, are answered as it says."""

import asyncio
from collections import Counter

import hypothesis
import pytest
import requests
import schemathesis
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from kairos.request import HOT_ROUTES
from kairos.settings import BatchSettings
from tests.e2e.client import Answer
from tests.e2e.flows import REPORTS, kept_in, put

CHECKS = [
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
EXAMPLES = 20  # for each route, of either kind
_SETTINGS = hypothesis.settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[hypothesis.Phase.generate],
    suppress_health_check=list(hypothesis.HealthCheck),
)

MESSAGES = "/v1/messages"


@pytest.fixture
async def described(kairos, standin):
    """A Kairos, and what it says of itself."""
    served = await kairos(standin.url)
    said = (await served.ask("GET", "/openapi.json")).json()
    return served, schemathesis.openapi.from_dict(said)


async def test_requests_made_from_the_description_are_answered_as_it_says(described):
    served, schema = described
    answered = {}
    for each in schema.get_all_operations():
        operation = each.ok()
        for mode in _modes(operation):
            statuses = await asyncio.to_thread(_ask, operation, mode, served.url)
            answered[operation.path, mode] = statuses
    for path in HOT_ROUTES:
        assert answered[path, GenerationMode.POSITIVE][200] > 0
        assert answered[path, GenerationMode.NEGATIVE][400] > 0
        assert answered[path, GenerationMode.NEGATIVE][200] == 0


async def test_what_is_known_is_told_as_described(described):
    served, schema = described
    names = {"X-Kairos-Workflow-Id": "a/b", "X-Kairos-App": "qa", "X-Kairos-Agent": "writer"}
    assert (await served.chat(names)).status == 200
    for path, method in (
        ("/v1/workflows/{workflow_id}", "GET"),
        ("/v1/workflows/{workflow_id}/end", "POST"),
        ("/v1/workflows/{workflow_id}", "GET"),
        ("/v1/agents", "GET"),
        ("/v1/models/{name}", "GET"),
    ):
        asked = schema[path][method].Case(path_parameters={"workflow_id": "a/b", "name": "tiny"})
        answer = await asyncio.to_thread(
            asked.call_and_validate, base_url=served.url, checks=CHECKS
        )
        assert answer.status_code == 200


async def test_files_and_batches_are_answered_as_described(kairos, standin, tmp_path):
    kept = BatchSettings(directory=str(tmp_path), max_open=10_000, max_files=10_000)
    served = await kairos(standin.url, batches=kept)
    schema = schemathesis.openapi.from_dict((await served.ask("GET", "/openapi.json")).json())
    asked = {each.ok().path: each.ok() for each in schema.get_all_operations()}
    of_batches = [path for path in asked if path.startswith(("/v1/files", "/v1/batches"))]
    assert len(of_batches) == 6
    for operation in (each.ok() for each in schema.get_all_operations()):
        if operation.path in of_batches:
            for mode in _modes(operation):
                await asyncio.to_thread(_ask, operation, mode, served.url)


async def test_flows_are_answered_as_described(kairos, standin, tmp_path):
    served = await kairos(standin.url, flows=kept_in(tmp_path))
    assert (await put(served, REPORTS, "a")).status == 400
    assert (await put(served)).status == 200
    schema = schemathesis.openapi.from_dict((await served.ask("GET", "/openapi.json")).json())
    of_flows = [
        each.ok() for each in schema.get_all_operations() if each.ok().path.startswith("/v1/flows")
    ]
    assert len(of_flows) == 5
    for operation in of_flows:
        await asyncio.to_thread(_ask, operation, GenerationMode.POSITIVE, served.url)
    for path, method, body in (
        ("/v1/flows", "GET", None),
        ("/v1/flows/{name}", "GET", None),
        ("/v1/flows/{name}/invoke", "POST", {"inputs": {"text": "x"}}),
        ("/v1/flows/{name}", "DELETE", None),
    ):
        given = {} if body is None else {"body": body, "media_type": "application/json"}
        asked = schema[path][method].Case(path_parameters={"name": "reports"}, **given)
        answer = await asyncio.to_thread(
            asked.call_and_validate, base_url=served.url, checks=CHECKS
        )
        assert answer.status_code == 200, (path, answer.content)


def _modes(operation):
    """Of a path alone there is nothing that it does not allow."""
    given = {each["in"] for each in operation.definition.raw.get("parameters", ())}
    return GenerationMode if given - {"path"} else [GenerationMode.POSITIVE]


def _ask(operation, mode, url):
    """Returns how often each status was answered."""
    statuses = Counter()
    with requests.Session() as session:

        @_SETTINGS
        @hypothesis.given(operation.as_strategy(generation_mode=mode))
        def ask(case):
            if mode is GenerationMode.POSITIVE:
                _make_plausible(case)
            answer = case.call_and_validate(base_url=url, session=session, checks=CHECKS)
            statuses[answer.status_code] += 1
            assert answer.status_code not in (500, 502, 503)
            if answer.status_code >= 400:
                headers = {name: values[0] for name, values in answer.headers.items()}
                Answer(answer.status_code, headers, answer.content).error()

        ask()
    return statuses


def _make_plausible(case):
    """Ask for the model that is there, with a limit that fits, while somebody waits for it."""
    case.headers.pop("X-Kairos-Deadline", None)
    if isinstance(case.body, dict):
        case.body["model"] = "tiny"
        for limit in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
            if case.body.get(limit) is not None or (limit, case.path) == ("max_tokens", MESSAGES):
                case.body[limit] = 9
