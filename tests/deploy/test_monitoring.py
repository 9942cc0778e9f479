"""Prometheus scrapes what runs, and the dashboard asks for what is there."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from kairos.cluster.orchestrate.service import OrchestratorMetrics
from kairos.core import KairosError, Orchestrator, ProfilesLearnt
from kairos.observe import Telemetry
from tests.deploy.files import DEPLOY, compose
from tests.support.exposed import exposed
from tests.support.simulate import build

SERVICES = compose()["services"]
PROMETHEUS = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
RULE_FILE = yaml.safe_load((DEPLOY / "prometheus-rules.yml").read_text())
DASHBOARD = json.loads((DEPLOY / "grafana" / "kairos.json").read_text())


RULES = [each for group in RULE_FILE["groups"] for each in group["rules"]]
ALERTS = [each for each in RULES if "alert" in each]
RUNBOOK = (DEPLOY.parent / "docs" / "operations" / "alerts.md").read_text()


def asked_for():
    """The names of all series in the dashboard, and in rules."""
    expressions = [each["expr"] for panel in DASHBOARD["panels"] for each in panel["targets"]]
    expressions += [each["expr"] for each in RULES]
    return {name for each in expressions for name in re.findall(r"\bkairos_\w+", each)}


def exported(text):
    """The names of the series that a service may show, from what it says of their types."""
    names = set()
    for name, kind in re.findall(r"^# TYPE (\S+) (\w+)$", text, re.M):
        names |= {f"{name}_{part}" for part in ("bucket", "count", "sum")}
        names |= {name} if kind != "histogram" else set()
    return names


def test_the_dashboard_and_the_rules_ask_for_what_services_export():
    balancer = build.balancer()
    balancer.handle(ProfilesLearnt(kendall_tau=1.0), at=0)
    gateway = Telemetry(lambda: balancer, None, lambda: 0)
    estimates = SimpleNamespace(kendall_tau=1.0)
    following = SimpleNamespace(records=0, orchestrator=Orchestrator(), estimates=estimates)
    member = SimpleNamespace(following=following, behind_us=0, published=0)
    orchestrator = OrchestratorMetrics(member, SimpleNamespace(told=0))
    families = [*gateway.families(), *orchestrator.collect()]
    text = exposed(families).decode()
    assert asked_for() <= exported(text)


def test_codes_of_errors_in_rules_are_those_that_there_are():
    codes = {each.code for each in every_error()}
    asked = re.findall(r'code=~?"([^"]+)"', "\n".join(each["expr"] for each in RULES))
    assert asked
    assert {code for each in asked for code in each.split("|")} <= codes


def every_error(base=KairosError):
    yield base
    for each in base.__subclasses__():
        yield from every_error(each)


def test_each_alert_has_a_section_that_says_what_to_do_and_no_section_is_left_over():
    sections = re.findall(r"^## (Kairos\w+)$", RUNBOOK, re.M)
    assert sections == [each["alert"] for each in ALERTS]
    for each in ALERTS:
        assert each["annotations"]["runbook"] == (
            f"docs/operations/alerts.md#{each['alert'].lower()}"
        )
        assert each["labels"]["severity"] in {"warning", "critical"}
    recorded = {each["record"] for each in RULES if "record" in each}
    assert recorded == set(re.findall(r"`(kairos:[\w:]+)`", RUNBOOK))


def test_rules_speak_as_prometheus_judges_them():
    """By promtool, with series that it makes up: an alert comes when it should, and not before."""
    promtool = shutil.which("promtool")
    if promtool is None:
        assert "CI" not in os.environ, "scripts/install-promtool.sh installs it"
        pytest.skip("there is no promtool; scripts/install-promtool.sh installs it")
    tests = Path(__file__).with_name("rules_test.yml")
    for command in (["check", "rules", DEPLOY / "prometheus-rules.yml"], ["test", "rules", tests]):
        done = subprocess.run([promtool, *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_scraped_is_a_service_that_listens_there():
    (kairos,) = (each for each in PROMETHEUS["scrape_configs"] if each["job_name"] == "kairos")
    scraped = {}
    for lookup in kairos["dns_sd_configs"]:
        (name,) = lookup["names"]
        scraped[name] = lookup["port"]
        assert f"--port={lookup['port']}" in SERVICES[name]["command"]
        assert "metrics" in SERVICES[name]["networks"]
    assert set(scraped) == {"gateway", "balancer", "orchestrator"}


def test_prometheus_and_grafana_find_their_files():
    mounted = {
        volume.split(":")[1]: DEPLOY / volume.split(":")[0]
        for name in ("prometheus", "grafana")
        for volume in SERVICES[name]["volumes"]
        if volume.startswith(".")
    }
    assert "--config.file=/etc/prometheus/prometheus.yml" in SERVICES["prometheus"]["command"]
    assert "/etc/prometheus/prometheus.yml" in mounted
    (rules,) = PROMETHEUS["rule_files"]
    assert f"/etc/prometheus/{rules}" in mounted
    (source,) = yaml.safe_load((DEPLOY / "grafana" / "datasources.yml").read_text())["datasources"]
    (provider,) = yaml.safe_load((DEPLOY / "grafana" / "dashboards.yml").read_text())["providers"]
    assert source["url"] == "http://prometheus:9090"
    assert f"{provider['options']['path']}/kairos.json" in mounted
    assert all(
        target["datasource"]["uid"] == source["uid"]
        for panel in DASHBOARD["panels"]
        for target in panel["targets"]
    )
    assert all(path.is_file() for path in mounted.values())


def test_grafana_can_be_looked_at_and_not_changed():
    settings = SERVICES["grafana"]["environment"]
    assert settings["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert settings["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
    assert settings["GF_AUTH_DISABLE_LOGIN_FORM"] == "true"


def test_panels_have_ids_of_their_own_and_do_not_overlap():
    cells = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert all(x < 24 for x, _ in cells)
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
