"""The rules for Prometheus: by its own tool, and in a server that reads real nodes and routers."""

import json
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from math import ceil
from pathlib import Path
from urllib.parse import quote
from urllib.request import urlopen

import pytest
import yaml

from tests.deploy.programs import DASHBOARD, PROMETHEUS, PROMTOOL, RULES, needs_prometheus, run
from tests.fleet.stand import Process, free_ports, get, until

ROOT = Path(__file__).parents[2]


def queries() -> list[str]:
    """What the dashboard's panels ask, for all jobs and models, over five minutes."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    asked = [target["expr"] for panel in panels for target in panel["targets"]]
    values = {"$job": ".*", "$model": ".*", "$__rate_interval": "5m"}
    for variable, value in values.items():
        asked = [one.replace(variable, value) for one in asked]
    return asked


@pytest.mark.parametrize("text", [RULES.read_text(), " ".join(queries())], ids=["rules", "board"])
def test_rules_and_dashboard_read_figures_that_servers_publish(text: str) -> None:
    asked = set(re.findall(r"\b(?:interlace|nv)_\w+", text))
    published = (ROOT / "docs" / "metrics.md").read_text()  # written from the code
    told = set(re.findall(r"`((?:interlace|nv)_\w+)`", published))
    histograms = {f"{name}_bucket" for name in told if "histogram" in name}
    assert asked and asked <= told | histograms


class Watched:
    """A node that is asked for more than it can serve, its router, and a Prometheus of both."""

    def __init__(self, folder: Path) -> None:
        model = folder / "models" / "tagger"
        shutil.copytree(ROOT / "examples" / "fleet" / "tagger", model)
        (model / "interlace.toml").write_text("slo_ms = 80\nrate_rps = 100000\n")
        self._port = free_ports(6)
        node, grpc, self._metrics, router, other, self._own = range(self._port, self._port + 6)
        self.node = Process(
            folder, "node", "serve", str(folder / "models"), "--device", "simulated", "--gpu",
            "h100", "--gpus", "1", "--http-port", str(node), "--grpc-port", str(grpc),
            "--metrics-port", str(self._metrics), "--profiles", str(folder / "profiles"),
        )  # fmt: skip
        self._router = Process(
            folder, "router", "router", f"a=127.0.0.1:{node}", "--http-port", str(router),
            "--grpc-port", str(other),
        )  # fmt: skip
        rules = re.sub("(for|interval): .*", r"\1: 1s", RULES.read_text())
        (folder / "rules.yaml").write_text(rules)
        targets = [f"127.0.0.1:{self._metrics}", f"127.0.0.1:{router}"]
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": ["rules.yaml"],
            "scrape_configs": [{"job_name": "fleet", "static_configs": [{"targets": targets}]}],
        }
        (folder / "prometheus.json").write_text(json.dumps(config))
        with (folder / "prometheus.log").open("wb") as out:
            self._prometheus = subprocess.Popen(
                [PROMETHEUS, f"--config.file={folder / 'prometheus.json'}",
                 f"--storage.tsdb.path={folder / 'tsdb'}",
                 f"--web.listen-address=127.0.0.1:{self._own}"], stdout=out, stderr=out,
            )  # fmt: skip

    def firing(self) -> set[str]:
        """Names of the alerts that fire."""
        found = get(f"http://127.0.0.1:{self._own}/api/v1/alerts")["data"]["alerts"]
        return {one["labels"]["alertname"] for one in found if one["state"] == "firing"}

    def values(self, query: str) -> list[float]:
        """What Prometheus answers now."""
        url = f"http://127.0.0.1:{self._own}/api/v1/query?query={quote(query)}"
        return [float(one["value"][1]) for one in get(url)["data"]["result"]]

    def page(self) -> str:
        """The metrics of the node itself."""
        with urlopen(f"http://127.0.0.1:{self._metrics}/metrics", timeout=30) as reply:
            return str(reply.read(), "utf-8")

    def close(self) -> None:
        self._prometheus.kill()
        self._prometheus.wait(30)
        for one in (self.node, self._router):
            if one.lives:
                one.end()


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    made = Watched(tmp_path)
    try:
        yield made
    finally:
        made.close()


class TestPrometheus:
    pytestmark = needs_prometheus

    def test_alerts_say_what_they_should(self, tmp_path: Path) -> None:
        shutil.copy(RULES, tmp_path)
        tests = yaml.safe_load((Path(__file__).parent / "rules_test.yaml").read_text())
        (tmp_path / "test.yaml").write_text(json.dumps({"rule_files": ["rules.yaml"], **tests}))
        found = run(PROMTOOL, "test", "rules", tmp_path / "test.yaml")
        assert found.returncode == 0, found.stdout + found.stderr

    def test_the_dashboards_queries_are_understood(self, tmp_path: Path) -> None:
        rules = [{"record": f"panel:{i}", "expr": one} for i, one in enumerate(queries())]
        file = tmp_path / "rules.yaml"
        file.write_text(json.dumps({"groups": [{"name": "board", "rules": rules}]}))
        found = run(PROMTOOL, "check", "rules", file)
        assert found.returncode == 0 and f"{len(rules)} rules found" in found.stdout, found

    @pytest.mark.process
    @pytest.mark.slow
    def test_a_server_sees_a_full_plan_and_a_node_that_is_lost(self, watched: Watched) -> None:
        until(lambda: watched.firing() == {"InterlaceHeadroomLow"})
        page = watched.page()
        (headroom,) = re.findall(r"^interlace_headroom_ratio (\S+)$", page, re.MULTILINE)
        (load,) = watched.values("interlace:load:ratio")
        assert load == pytest.approx(1 / float(headroom), rel=1e-3)
        assert ceil(1 * load / 0.8) > 1  # what a HorizontalPodAutoscaler makes of one node
        watched.node.end(signal.SIGKILL)
        until(lambda: "InterlaceNodeSilent" in watched.firing())
