"""The Kubernetes manifests: valid, and what they promise of themselves, without a cluster."""

import asyncio
import re
from types import SimpleNamespace

import certifi
import jsonschema
import kubernetes_validate
import pytest
import yaml
from fastapi import FastAPI

from agents import cg, qa, rg
from kairos.cluster import cluster_of
from kairos.cluster.kafka.topic_setup import describe
from kairos.core import inbox_topic
from kairos.gateway.operators.admin import add_scaling
from kairos.settings import load_settings
from tests.deploy.files import (
    DEPLOY,
    EXAMPLES,
    KEDA,
    KEDA_ENGINES,
    MANIFESTS,
    OURS,
    compose,
    containers,
    documents,
    of_kind,
)
from tests.support.simulate import build

KUBERNETES = "1.34"
# What each kind of trigger must be told, by KEDA's documentation.
TRIGGERS = {
    "kafka": ["bootstrapServers", "consumerGroup", "topic", "lagThreshold"],
    "metrics-api": ["url", "valueLocation", "targetValue"],
    "prometheus": ["serverAddress", "query", "threshold"],
}
SCALED_OBJECT = {
    "type": "object",
    "additionalProperties": False,
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "properties": {
        "apiVersion": {"const": "keda.sh/v1alpha1"},
        "kind": {"const": "ScaledObject"},
        "metadata": {"type": "object", "required": ["name", "namespace"]},
        "spec": {
            "type": "object",
            "additionalProperties": False,
            "required": ["scaleTargetRef", "triggers"],
            "properties": {
                "scaleTargetRef": {"type": "object", "required": ["name"]},
                "minReplicaCount": {"type": "integer"},
                "maxReplicaCount": {"type": "integer"},
                "cooldownPeriod": {"type": "integer"},
                "pollingInterval": {"type": "integer"},
                "advanced": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {
                        "horizontalPodAutoscalerConfig": {
                            "type": "object",
                            "required": ["behavior"],
                        }
                    },
                },
                "triggers": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "additionalProperties": False,
                        "required": ["type", "metadata"],
                        "properties": {
                            "type": {"enum": [*TRIGGERS]},
                            "metricType": {"enum": ["Value", "AverageValue"]},
                            # Of a trigger, KEDA takes strings only.
                            "metadata": {
                                "type": "object",
                                "additionalProperties": {"type": "string"},
                            },
                            "authenticationRef": {"type": "object", "required": ["name"]},
                        },
                        "allOf": [
                            {
                                "if": {"properties": {"type": {"const": kind}}},
                                "then": {"properties": {"metadata": {"required": needed}}},
                            }
                            for kind, needed in TRIGGERS.items()
                        ],
                    },
                },
            },
        },
    },
}


def named(document):
    return f"{document['kind']} {document['metadata']['name']}"


@pytest.fixture(params=containers(), ids=lambda each: each[0])
def running(request):
    return request.param


@pytest.mark.parametrize("document", documents(*MANIFESTS, *EXAMPLES), ids=named)
def test_a_manifest_is_valid(document):
    kubernetes_validate.validate(document, KUBERNETES, strict=True)
    if document["kind"] != "Namespace":
        assert document["metadata"]["namespace"] == "kairos"


def test_the_namespace_comes_first():
    assert documents(MANIFESTS[0])[0]["kind"] == "Namespace"


def test_an_image_is_that_of_compose(running):
    ours = {each["image"] for each in compose()["services"].values() if OURS in each["image"]}
    assert {running[2]["image"].rpartition("/")[2]} == ours


def test_a_pod_is_what_the_restricted_standard_asks_for(running):
    _, pod, container = running
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_a_pod_gets_no_token_and_no_variables_of_services(running):
    _, pod, _ = running
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False  # KAIROS_PORT would be a setting


def test_a_container_has_bounds_and_is_watched(running):
    _, _, container = running
    assert set(container["resources"]["requests"]) == {"cpu", "memory"}
    assert "memory" in container["resources"]["limits"]
    assert "readinessProbe" in container
    assert "livenessProbe" in container or "ports" not in container


def test_a_probe_asks_the_port_that_is_served(running):
    _, _, container = running
    if "ports" in container:
        (port,) = container["ports"]
        assert f"--port={port['containerPort']}" in container["args"]
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert container[probe]["httpGet"]["port"] == port["name"]


def test_secrets_come_from_secrets(running):
    examples = {each["metadata"]["name"]: each["stringData"] for each in documents(*EXAMPLES)}
    _, pod, container = running
    for variable in container["env"]:
        key = variable["valueFrom"]["secretKeyRef"]
        assert key["key"] in examples[key["name"]]
    for volume in pod["volumes"]:
        assert "secret" not in volume or volume["secret"]["secretName"] in examples


def test_each_service_has_a_user_of_its_own_on_kafka():
    user_of = {}
    for name, _, container in containers():
        (user,) = {each["valueFrom"]["secretKeyRef"]["name"] for each in container["env"]}
        user_of[name.partition("-")[0]] = user
    assert len(set(user_of.values())) == len(user_of) == 4


def test_services_and_budgets_find_their_pods():
    pods = [each["spec"]["template"]["metadata"]["labels"] for each in of_kind("Deployment")]
    selectors = [each["spec"]["selector"] for each in of_kind("Service")]
    selectors += [
        each["spec"]["selector"]["matchLabels"]
        for kind in ("PodDisruptionBudget", "Deployment")
        for each in of_kind(kind)
    ]
    for selector in selectors:
        assert sum(selector.items() <= labels.items() for labels in pods) == 1
    assert len(of_kind("PodDisruptionBudget")) == len(pods)


def test_the_gateway_is_called_where_its_service_is():
    (gateway,) = (each for each in of_kind("Service") if each["metadata"]["name"] == "gateway")
    url = f"--url=http://gateway:{gateway['spec']['ports'][0]['port']}"
    for name, _, container in containers():
        assert (url in container["args"]) == name.startswith("agents-")


def test_settings_are_mounted_where_they_are_looked_for(running):
    _, _, container = running
    mounts = {each["mountPath"] for each in container["volumeMounts"]}
    assert "--config=/etc/kairos/kairos.toml" in container["args"]
    assert {"/etc/kairos/kairos.toml", "/etc/kairos/kafka-ca"} <= mounts


def test_the_settings_are_understood_and_reach_the_client(tmp_path):
    (map_,) = of_kind("ConfigMap")
    path = tmp_path / "kairos.toml"
    text, authority = map_["data"]["kairos.toml"], "/etc/kairos/kafka-ca/ca.crt"
    assert authority in text
    path.write_text(text.replace(authority, certifi.where()))
    environ = {"KAFKA_USERNAME": "somebody", "KAFKA_PASSWORD": "a secret"}
    settings = load_settings(path, environ, {})
    client = cluster_of(settings, environ).client()
    assert len(settings.engine) == 2
    assert client["sasl.username"] == "somebody"
    assert client["sasl.password"] == "a secret"
    assert client["security.protocol"] == "SASL_SSL"


def test_the_probe_of_agents_looks_for_the_port_of_the_brokers():
    (map_,) = of_kind("ConfigMap")
    port = int(re.search(r'^bus = "kafka://[^:]+:(\d+)"$', map_["data"]["kairos.toml"], re.M)[1])
    for name, _, container in containers():
        if name.startswith("agents-"):
            command = container["readinessProbe"]["exec"]["command"]
            assert f":{port:04X} 01 " in command


@pytest.mark.parametrize("document", of_kind("ScaledObject", KEDA), ids=named)
def test_agents_are_scaled_by_the_lag_of_all_their_inboxes(document):
    jsonschema.validate(document, SCALED_OBJECT)
    app = {"agents-qa": qa.app, "agents-rg": rg.app, "agents-cg": cg.app}[
        document["spec"]["scaleTargetRef"]["name"]
    ]
    inboxes = {inbox_topic(app.name, agent) for agent in app.agents}
    assert all("authenticationRef" in each for each in document["spec"]["triggers"])
    triggers = [each["metadata"] for each in document["spec"]["triggers"]]
    assert {each["topic"] for each in triggers} == inboxes
    assert all(each["consumerGroup"] == each["topic"] for each in triggers)
    (partitions,) = {describe(inbox).partitions for inbox in inboxes}
    assert document["spec"]["maxReplicaCount"] == partitions


def scaling_answer():
    """What the operators' port answers an autoscaler."""
    app = FastAPI()
    add_scaling(app, SimpleNamespace(balancer=build.balancer(), decides=True))
    (route,) = (each for each in app.routes if each.path == "/admin/scaling")
    return asyncio.run(route.endpoint())


def test_engines_are_scaled_by_what_the_operators_port_answers():
    (document,) = of_kind("ScaledObject", KEDA_ENGINES)
    jsonschema.validate(document, SCALED_OBJECT)
    answer = scaling_answer()
    (authentication,) = of_kind("TriggerAuthentication", KEDA_ENGINES)
    for trigger in document["spec"]["triggers"]:
        assert trigger["metadata"]["url"].endswith(":8001/admin/scaling")
        assert isinstance(answer[trigger["metadata"]["valueLocation"]], float)
        assert trigger["metricType"] == "Value"  # of the whole pool
        assert trigger["authenticationRef"]["name"] == authentication["metadata"]["name"]
    behavior = document["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    autoscaler = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": document["metadata"],
        "spec": {
            "scaleTargetRef": document["spec"]["scaleTargetRef"],
            "minReplicas": document["spec"]["minReplicaCount"],
            "maxReplicas": document["spec"]["maxReplicaCount"],
            "behavior": behavior,
        },
    }
    kubernetes_validate.validate(autoscaler, KUBERNETES, strict=True)


def test_the_page_on_scaling_asks_prometheus_for_what_rules_record():
    page = (DEPLOY.parent / "docs" / "operations" / "scale.md").read_text()
    triggers = yaml.safe_load(re.search(r"```text\n(triggers:.*?)```", page, re.S)[1])["triggers"]
    (document,) = of_kind("ScaledObject", KEDA_ENGINES)
    document["spec"]["triggers"] = triggers
    jsonschema.validate(document, SCALED_OBJECT)
    groups = yaml.safe_load((DEPLOY / "prometheus-rules.yml").read_text())["groups"]
    recorded = {rule.get("record") for group in groups for rule in group["rules"]}
    assert {each["metadata"]["query"] for each in triggers} <= recorded


def test_what_is_scaled_is_not_given_a_number_of_replicas():
    scaled = {each["spec"]["scaleTargetRef"]["name"] for each in of_kind("ScaledObject", KEDA)}
    for deployment in of_kind("Deployment"):
        is_scaled = deployment["metadata"]["name"] in scaled
        assert ("replicas" in deployment["spec"]) != is_scaled
