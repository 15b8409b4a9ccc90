"""deploy/compose.yaml, and what it mounts, fit the program, the alerts, and their page."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from ledger import config
from tests import tools
from tests.tokens import write_private

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
PAGE = (ROOT / "docs/containers.md").read_text()
PROMTOOL = tools.found("promtool")


def mounts() -> dict[str, Path]:
    """Files of ours, by where they are in a container."""
    found = {}
    for service in SERVICES.values():
        for volume in service.get("volumes", ()):
            source, target = volume.split(":")[:2]
            if source.startswith("."):
                found[target] = DEPLOY / source
            else:
                assert source in COMPOSE["volumes"]
    return found


def read(target: str) -> Any:
    return yaml.safe_load(mounts()[target].read_text())


def test_what_is_mounted_is_there() -> None:
    theirs = {DEPLOY / "./compose/ledger.toml"}  # the operator's copy of the sample
    assert {path for path in mounts().values() if not path.is_file()} <= theirs
    # The program takes no settings that everybody may read, and is in the group 8790.
    copied = "install -m 640 -g 8790 deploy/compose/ledger.toml.sample deploy/compose/ledger.toml"
    assert copied in PAGE


def test_each_variable_is_told_and_none_has_a_default() -> None:
    used = re.findall(r"\$\{(\w+)(:\?[^}]+)?}", (DEPLOY / "compose.yaml").read_text())
    assert {name for name, _ in used} == set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE))
    assert {name for name, refused in used if refused} == {name for name, _ in used}


def test_the_settings_are_ones_that_the_program_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("LEDGER_")]:
        monkeypatch.delenv(name)
    for name, value in SERVICES["ledger"]["environment"].items():
        monkeypatch.setenv(name, value.replace("${POSTGRES_PASSWORD}", "secret"))
    file = write_private(
        tmp_path / "ledger.toml", (DEPLOY / "compose/ledger.toml.sample").read_text()
    )
    settings = config.load(file, flags={})
    assert settings.database_url == "postgresql://ledger:secret@postgresql/ledger"
    assert SERVICES["postgresql"]["environment"]["POSTGRES_USER"] == "ledger"
    assert settings.listen.host == "0.0.0.0"
    assert SERVICES["ledger"]["ports"] == [f"127.0.0.1:{settings.listen.port}:8790"]


def test_nothing_is_reached_from_other_machines_and_the_database_only_by_the_service() -> None:
    ports = [port for each in SERVICES.values() for port in each.get("ports", ())]
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []
    assert COMPOSE["networks"]["database"]["internal"]
    assert "podman-compose netavark aardvark-dns" in PAGE  # Podman's other one has no names there
    there = {name for name, each in SERVICES.items() if "database" in each.get("networks", ())}
    assert there == {"postgresql", "upgrade", "ledger"}
    confined = [each for each in SERVICES.values() if each["image"].startswith("localhost/")]
    assert [each["cap_drop"] for each in confined] == [["ALL"]] * 2


def test_prometheus_has_the_alerts_and_asks_the_jobs_that_they_know() -> None:
    prometheus = read("/etc/prometheus/prometheus.yml")
    (rules,) = prometheus["rule_files"]
    assert f"/etc/prometheus/{rules}" in mounts()
    jobs = {job["job_name"]: job["static_configs"] for job in prometheus["scrape_configs"]}
    alerts = (ROOT / "docs/alerts/README.md").read_text()
    assert set(jobs) == set(re.findall(r"job_name: (\S+)", alerts))
    assert jobs["attachment-ledger"] == [{"targets": ["ledger:8790"]}]


def test_grafana_finds_prometheus_and_the_dashboard() -> None:
    where = "/etc/grafana/provisioning/{}/attachment-ledger.yaml"
    (source,) = read(where.format("datasources"))["datasources"]
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")
    (provider,) = read(where.format("dashboards"))["providers"]
    assert f"{provider['options']['path']}/attachment-ledger.json" in mounts()


def test_the_images_are_those_that_are_built() -> None:
    built = re.findall(
        r"^FROM \$\{BASE} AS (\w+)", (DEPLOY / "Containerfile").read_text(), re.MULTILINE
    )
    recipe = (ROOT / "Makefile").read_text()
    targets = dict(re.findall(r"--target (\w+) -t (\S+) dist", recipe))
    assert list(targets) == built == ["service", "agent"]
    ours = {each["image"] for each in SERVICES.values() if each["image"].startswith("localhost/")}
    assert ours == {f"localhost/{targets['service']}"}


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")
def test_promtool_takes_the_prometheus_of_it(tmp_path: Path) -> None:
    assert PROMTOOL
    for target in mounts():
        if target.startswith("/etc/prometheus/"):
            shutil.copy(mounts()[target], tmp_path / Path(target).name)
    command = [PROMTOOL, "check", "config", str(tmp_path / "prometheus.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
