"""Check that a process of the deployment has more memory than its bounds add up to."""

import tomllib

import pytest

from kairos.core.orchestrator.orchestrator import (
    MAX_ENDED_BYTES,
    MAX_OPEN_BYTES,
    MAX_TO_LEARN_BYTES,
)
from kairos.gateway.api.gateway import READERS
from kairos.settings import Settings
from tests.deploy.files import compose, containers, of_kind

MIB = 1 << 20
# Of a process that has nothing to do, and of tables that are bounded in entries.
PROCESS_BYTES = 256 * MIB
REMEMBERED_BYTES = MAX_OPEN_BYTES + MAX_TO_LEARN_BYTES + MAX_ENDED_BYTES
COPIES = 5  # of a large body, while it is read: as `tests.acceptance.attacks` measures
READ_BYTES = READERS * COPIES * Settings().max_body_bytes
UNITS = {"g": 1024 * MIB, "Gi": 1024 * MIB, "m": MIB, "Mi": MIB}


def bytes_of(limit):
    unit = limit.lstrip("0123456789")
    return int(limit.removesuffix(unit)) * UNITS[unit]


def needed(command, max_held_bytes):
    needed_bytes = PROCESS_BYTES + REMEMBERED_BYTES
    return needed_bytes + max_held_bytes + READ_BYTES if command == "serve" else needed_bytes


COMMANDS = ("serve", "balance", "orchestrate")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_container_has_the_memory_that_its_bounds_add_up_to(command):
    (config,) = (each for each in of_kind("ConfigMap") if each["metadata"]["name"] == "kairos")
    settings = tomllib.loads(config["data"]["kairos.toml"])
    limits = [
        bytes_of(container["resources"]["limits"]["memory"])
        for _, _, container in containers()
        if command in container.get("args", [])
    ]

    assert limits
    assert min(limits) >= needed(command, settings["max_held_bytes"])


@pytest.mark.parametrize("command", COMMANDS)
def test_a_service_has_the_memory_that_its_bounds_add_up_to(command):
    services = [
        each for each in compose()["services"].values() if command in (each.get("command") or [])
    ]

    assert services
    for each in services:
        held_bytes = int(each["environment"]["KAIROS_MAX_HELD_BYTES"]) if command == "serve" else 0
        assert bytes_of(each["mem_limit"]) >= needed(command, held_bytes)
