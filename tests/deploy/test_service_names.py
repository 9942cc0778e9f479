"""Names of the services in `deploy/`: without keys a gateway answers by no others."""

import aiohttp
import pytest

from kairos import service
from kairos.settings import Settings, load_settings
from tests.deploy.files import OURS, compose, of_kind

_COMMANDS = "serve", "balance", "orchestrate"
_OTHERS = "evil.example", "gateway.evil.example", "prometheus"


def composed():
    """Yield each service of Compose: its settings, and the name by which others call it."""
    for name, each in compose()["services"].items():
        if each["image"].startswith(OURS) and each["command"][0] in _COMMANDS:
            yield f"compose {name}", load_settings(None, each["environment"], {}), [name]


def manifests(directory):
    (config,) = of_kind("ConfigMap")
    path = directory / "kairos.toml"
    path.write_text(config["data"]["kairos.toml"])
    settings = load_settings(path, {}, {})
    for each in of_kind("Service"):
        name, space = each["metadata"]["name"], each["metadata"]["namespace"]
        ends = "", f".{space}", f".{space}.svc", f".{space}.svc.cluster.local"
        yield f"manifests {name}", settings, [name + end for end in ends]


async def statuses(settings, names):
    """Ask a gateway with the allowed hosts of these settings by each name; return its answers."""
    alone = Settings(allowed_hosts=settings.allowed_hosts, port=0, admin_port=0)
    found = {}
    async with service.running(alone) as live, aiohttp.ClientSession() as session:
        for name in names:
            for url in (f"{live.url}/v1/models", f"{live.admin_url}/admin/status"):
                async with session.get(url, headers={"Host": f"{name}:8000"}) as answer:
                    found.setdefault(name, set()).add(answer.status)
    return found


@pytest.mark.parametrize("kind", ["compose", "manifests"])
async def test_each_service_is_called_by_its_names(kind, tmp_path):
    services = [*(composed() if kind == "compose" else manifests(tmp_path))]

    assert {name.split()[1] for name, _, _ in services} == {"gateway", "balancer", "orchestrator"}
    for which, settings, names in services:
        assert not settings.asks_for_keys
        found = await statuses(settings, [*names, *_OTHERS])
        expected = {name: {421 if name in _OTHERS else 200} for name in found}
        assert found == expected, which
