"""docker-compose.yml: what it promises of itself, without Docker."""

import json
import re
from importlib import resources

import jsonschema
import pytest

from tests.deploy.files import COMPOSE, DEPLOY, OURS, compose, env_file, in_profile

SERVICES = compose()["services"]
PROFILES = ("cpu", "gpu")


@pytest.fixture(params=SERVICES)
def service(request):
    return SERVICES[request.param]


def test_it_is_what_the_compose_specification_allows():
    vendored = resources.files("check_jsonschema") / "builtin_schemas/vendor/compose-spec.json"
    schema = json.loads(vendored.read_text("utf-8"))
    jsonschema.Draft202012Validator(schema).validate(compose())


def test_an_image_has_a_version(service):
    assert re.fullmatch(r"[a-z0-9./-]+:v?[0-9]+\.[0-9]+\.[0-9]+(-[a-z0-9.]+)?", service["image"])


def test_nothing_runs_as_root_or_can_become_it(service):
    user = str(service["user"]).partition(":")[0]
    assert user not in ("", "0", "root")
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not {"privileged", "cap_add", "pid", "ipc", "network_mode"} & set(service)


def test_a_service_is_watched_and_started_again(service):
    assert service["restart"] == "unless-stopped"
    check = service["healthcheck"]
    assert check["test"][0] == "CMD"
    assert {"interval", "timeout", "retries", "start_period"} <= set(check)


def test_a_service_has_bounds(service):
    assert "pids_limit" in service
    assert "mem_limit" in service or "gpu" in service["profiles"]
    assert service["logging"]["options"] == {"max-size": "10m", "max-file": "3"}


def test_our_own_services_write_nowhere_but_to_memory():
    for service in SERVICES.values():
        if service["image"].startswith(OURS):
            assert service["read_only"] is True
            assert "volumes" not in service


def test_ports_are_published_on_loopback_only(service):
    for port in service.get("ports", []):
        assert port.startswith("127.0.0.1:")


def test_a_mounted_file_is_there_and_read_only_and_data_is_in_named_volumes(service):
    named = compose()["volumes"]
    for volume in service.get("volumes", []):
        source, _, *mode = volume.split(":")
        if source.startswith("."):
            assert (DEPLOY / source).is_file()
            assert mode == ["ro"]
        else:
            assert source in named


@pytest.mark.parametrize("profile", PROFILES)
def test_one_of_the_two_pairs_of_engines_runs_and_has_the_names_that_are_called(profile):
    running = in_profile(SERVICES, profile)
    aliases = [
        alias
        for name, service in running.items()
        if "profiles" in service
        for alias in service["networks"]["engines"]["aliases"]
    ]
    assert sorted(aliases) == ["engine-1", "engine-2"]


@pytest.mark.parametrize("profile", PROFILES)
def test_what_is_waited_for_runs_and_can_be_healthy(profile):
    running = in_profile(SERVICES, profile)
    for service in running.values():
        for name, how in service.get("depends_on", {}).items():
            assert name in running or how["required"] is False
            assert how["condition"] == "service_healthy"


def test_only_those_who_call_engines_share_a_network_with_them():
    there = {name for name, each in SERVICES.items() if "engines" in each["networks"]}
    engines = {name for name, each in SERVICES.items() if "profiles" in each}
    assert there - engines == {"gateway", "balancer"}


def test_there_is_a_profile_by_default_and_a_file_for_the_other():
    assert env_file(DEPLOY / ".env") == {"COMPOSE_PROFILES": "cpu"}
    assert env_file(DEPLOY / "gpu.env")["COMPOSE_PROFILES"] == "gpu"


def test_the_limit_that_an_engine_is_given_is_the_one_that_kairos_is_told():
    services = compose({"KAIROS_MAX_NUM_SEQS": "77"})["services"]
    for name in ("standin-1", "standin-2", "vllm-1", "vllm-2"):
        assert "--max-num-seqs=77" in services[name]["command"]
    for name in ("gateway", "balancer"):
        engines = [each for each in services[name]["command"] if each.startswith("--engine=")]
        assert engines == [
            f"--engine=http://engine-{number}:8000,max_num_seqs=77" for number in (1, 2)
        ]


def test_each_gpu_has_one_engine():
    devices = [
        device
        for name in ("vllm-1", "vllm-2")
        for device in SERVICES[name]["deploy"]["resources"]["reservations"]["devices"]
    ]
    assert [each["device_ids"] for each in devices] == [["0"], ["1"]]


def test_no_secret_is_in_the_file():
    assert not re.search(r"(?i)(password|token|secret)\w*: *(?!\$\{)[\"']?\w", COMPOSE.read_text())
