"""`kairos plan-hardware --deploy`: what it prints is valid, and is the pool that was planned."""

import json
import re
import tomllib
from importlib import resources

import jsonschema
import kubernetes_validate
import pytest
import yaml

from kairos.core import SetupError
from kairos.settings import load_settings, parse_engine
from kairos.simulate import FileCall
from tests.deploy.test_manifests import KUBERNETES
from tests.support.cli.command import invoke
from tests.support.simulate.model import write_workflows


@pytest.fixture
def export(tmp_path):
    path = tmp_path / "day.jsonl"
    write_workflows(
        path,
        (
            FileCall(
                workflow_id=f"w{i}",
                app="docs",
                agent="write",
                upstream="user",
                call_index=0,
                prompt_tokens=2000,
                completion_tokens=800,
                workflow_start_ms=i * 1000,
            )
            for i in range(40)
        ),
    )
    return path


def plan(export, *words):
    options = ["--export", export, "--target", "p95=60s", "--no-pairs", *words]
    found = invoke("plan-hardware", *map(str, options))
    if found.exception and not isinstance(found.exception, SystemExit):
        raise found.exception
    return found.stdout


def planned(export, *words):
    """Instances of the chosen pool."""
    chosen = json.loads(plan(export, *words, "--json"))["chosen"]
    return sum(each["count"] for each in chosen["instances"])


# A model that needs several devices, at a rate that needs several instances.
LARGE = ("--hardware", "h100", "--model", "llama-3-70b", "--rate", "8")


def test_the_compose_file_is_valid_and_has_the_instances_of_the_plan(export):
    found = yaml.safe_load(plan(export, *LARGE, "--deploy", "compose"))
    vendored = resources.files("check_jsonschema") / "builtin_schemas/vendor/compose-spec.json"
    schema = json.loads(vendored.read_text("utf-8"))
    jsonschema.Draft202012Validator(schema).validate(found)
    services = found["services"]
    engines = {name: each for name, each in services.items() if name != "kairos"}
    assert len(engines) == planned(export, *LARGE) > 1
    told = [each for each in services["kairos"]["command"] if each.startswith("--engine=")]
    named = {parse_engine(each.removeprefix("--engine=")).id.partition(":")[0] for each in told}
    assert named == set(engines)


def test_in_compose_each_device_has_one_engine_and_as_many_as_its_layout_wants(export):
    services = yaml.safe_load(plan(export, *LARGE, "--deploy", "compose"))["services"]
    given = []
    for name, each in services.items():
        if name == "kairos":
            continue
        [device] = each["deploy"]["resources"]["reservations"]["devices"]
        given += device["device_ids"]
        options = dict(o.split("=") for o in each["command"] if o.startswith("--") and "=" in o)
        tensor = int(options.get("--tensor-parallel-size", 1))
        stages = int(options.get("--pipeline-parallel-size", 1))
        assert tensor * stages == len(device["device_ids"]) > 1
    assert given == [str(number) for number in range(len(given))]


@pytest.mark.parametrize("hardware", ["h100", "mi300x", "gaudi3"])
def test_manifests_are_valid_and_have_the_instances_of_the_plan(export, hardware):
    words = ("--hardware", hardware, "--rate", "20")
    documents = list(yaml.safe_load_all(plan(export, *words, "--deploy", "kubernetes")))
    for each in documents:
        kubernetes_validate.validate(each, KUBERNETES, strict=True)
        assert each["metadata"]["namespace"] == "kairos"
    sets = [each for each in documents if each["kind"] == "StatefulSet"]
    assert sum(each["spec"]["replicas"] for each in sets) == planned(export, *words)
    for each in sets:
        pod = each["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["automountServiceAccountToken"] is False
        limits = pod["containers"][0]["resources"]["limits"]
        assert sum("/" in name for name in limits) == 1


def test_the_engines_in_the_manifests_are_those_that_kairos_is_told(export, tmp_path):
    text = plan(export, "--hardware", "h100", "--rate", "20", "--deploy", "kubernetes")
    documents = list(yaml.safe_load_all(text))
    [settings] = [each for each in documents if each["kind"] == "ConfigMap"]
    path = tmp_path / "kairos.toml"
    path.write_text(settings["data"]["engines.toml"])
    assert tomllib.loads(path.read_text())["engine"]
    engines = load_settings(path, {}, {}).engine
    pods = [
        f"http://{each['metadata']['name']}-{number}.{each['spec']['serviceName']}.kairos.svc:8000"
        for each in documents
        if each["kind"] == "StatefulSet"
        for number in range(each["spec"]["replicas"])
    ]
    assert [each.url for each in engines] == pods
    assert all(f"--max-num-seqs={each.max_num_seqs}" in text for each in engines)


def test_names_are_such_as_dns_takes(export):
    for each in yaml.safe_load_all(plan(export, *LARGE, "--deploy", "kubernetes")):
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", each["metadata"]["name"])


def test_compose_is_refused_for_devices_that_it_cannot_give_out(export):
    with pytest.raises(SetupError, match="--deploy kubernetes"):
        plan(export, "--hardware", "gaudi3", "--deploy", "compose")


def test_in_compose_each_model_of_an_application_has_a_variable(tmp_path):
    path = tmp_path / "day.jsonl"
    write_workflows(
        path,
        (
            FileCall(
                workflow_id=f"w{i}",
                app="docs",
                agent=agent,
                upstream=None,
                call_index=at,
                prompt_tokens=900,
                completion_tokens=90,
                workflow_start_ms=i * 1000,
                model=model,
            )
            for i in range(40)
            for at, (agent, model) in enumerate([("plan", "qwen2.5-7b"), ("write", "llama-3-8b")])
        ),
    )
    services = yaml.safe_load(plan(path, "--hardware", "h100", "--deploy", "compose"))["services"]
    variables = {
        each["command"][0].partition(":")[0] for name, each in services.items() if name != "kairos"
    }
    assert variables == {"${VLLM_MODEL_QWEN2_5_7B", "${VLLM_MODEL_LLAMA_3_8B"}
