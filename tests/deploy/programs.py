"""Programs of Kubernetes and Prometheus, and where they lie if they do."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.peers.programs import HOME, HOW

DEPLOY = Path(__file__).parents[2] / "deploy"
CHART = DEPLOY / "helm" / "interlace"
RULES = CHART / "files" / "rules.yaml"
DASHBOARD = DEPLOY / "grafana" / "interlace.json"
HELM = HOME / "helm" / "helm"
PROMETHEUS = HOME / "prometheus" / "usr" / "bin" / "prometheus"
PROMTOOL = PROMETHEUS.with_name("promtool")
_PYTHON = HOME / "kubernetes" / "bin" / "python"
_KUBERNETES = "1.34.0"
_CHECK = """
import json, jsonschema, sys
schema, instance = json.load(sys.stdin)
jsonschema.validate(instance, schema)
"""

needs_kubernetes = [
    pytest.mark.peer,
    pytest.mark.skipif(not HELM.exists(), reason=f"no helm: {HOW}"),
    pytest.mark.skipif(not _PYTHON.exists(), reason=f"no kubernetes-validate: {HOW}"),
]
needs_prometheus = [
    pytest.mark.peer,
    pytest.mark.skipif(not PROMETHEUS.exists(), reason=f"no Prometheus: {HOW}"),
]


def run(*command: str | Path, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """A program to its end; what it says is kept."""
    return subprocess.run(
        list(map(str, command)), input=stdin, capture_output=True, text=True, check=False
    )


def rendered(values: Mapping[str, object]) -> list[dict[str, Any]]:
    """What the chart makes of these values."""
    made = run(HELM, "template", "fleet", CHART, "--values", "-", stdin=json.dumps(values))
    assert made.returncode == 0, made.stderr
    return [one for one in yaml.safe_load_all(made.stdout) if one]


def problems(one: Mapping[str, Any], folder: Path) -> str:
    """What is wrong with one object by its schema; "" if nothing is."""
    custom = json.loads((Path(__file__).parent / "crds.json").read_text()).get(one["kind"])
    if custom is not None:
        checked = run(_PYTHON, "-c", _CHECK, stdin=json.dumps([custom, one["spec"]]))
    else:
        path = folder / "object.yaml"
        path.write_text(yaml.safe_dump(dict(one)))
        checked = run(_PYTHON, "-m", "kubernetes_validate", "-k", _KUBERNETES, "--strict", path)
        if "find schema" in checked.stdout + checked.stderr:
            return f"no schema of {one['kind']}"
    return checked.stdout + checked.stderr if checked.returncode else ""
