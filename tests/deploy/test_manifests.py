"""The chart and the runtime for KServe, by the schemas of what they name and by our own program."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.core import TyperGroup
from typer.main import get_command

from interlace.cli.main import build
from tests.deploy.programs import CHART, DEPLOY, HELM, needs_kubernetes, problems, rendered, run

NEEDED: Mapping[str, Any] = {
    "models": {"volume": {"persistentVolumeClaim": {"claimName": "models"}}},
    "keys": {"admin": "secret"},
}
#: What every part takes.
PART: Mapping[str, Any] = {
    "extraArgs": ["--exit-timeout-s=40"],
    "env": [{"name": "TZ", "value": "UTC"}],
    "podAnnotations": {"team": "vision"},
    "nodeSelector": {"gpu": "h100"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "affinity": {"podAntiAffinity": {}},
    "priorityClassName": "high",
}
ALL: Mapping[str, Any] = {
    **NEEDED,
    "tls": {"existingSecret": "certificates"},
    "serviceAccount": {"annotations": {"role": "reader"}},
    "keys": {"admin": "secret", "api": "open", "askCallers": True},
    "nodes": {
        **PART,
        "autoscaling": {"enabled": True},
        "cache": {"persistent": True, "storageClassName": "fast"},
    },
    "controller": {**PART, "prices": {"h100": 4, "l4": 0.8}},
    "routers": {
        **PART,
        "autoscaling": {"enabled": True},
        "service": {"annotations": {"a": "b"}},
        "ingress": {
            "enabled": True,
            "className": "nginx",
            "host": "models.example",
            "tlsSecret": "web",
            "annotations": {"a": "b"},
        },
    },
    "monitoring": {"serviceMonitor": True, "alerts": True, "labels": {"release": "prometheus"}},
    "networkPolicy": {
        "operators": [{"podSelector": {"matchLabels": {"team": "platform"}}}],
        "clients": [{"namespaceSelector": {}}],
        "prometheus": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}],
    },
    "imagePullSecrets": [{"name": "registry"}],
}
BY_PLUGIN: Mapping[str, Any] = {**NEEDED, "gpu": {"mode": "resource", "count": 2}}
SIMULATED: Mapping[str, Any] = {**NEEDED, "gpu": {"mode": "simulated"}}


def pods(values: Mapping[str, Any]) -> dict[str, Any]:
    """Pod templates by part."""
    return {
        one["metadata"]["name"]: one["spec"]["template"]
        for one in rendered(values)
        if one["kind"] in ("StatefulSet", "Deployment")
    }


def refused(values: Mapping[str, Any], *options: str) -> str:
    """What helm says of values, or a cluster, that the chart does not take."""
    made = run(HELM, "template", "fleet", CHART, "-f", "-", *options, stdin=json.dumps(values))
    assert made.returncode != 0
    return made.stderr


def leaves(schema: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Paths of objects whose keys are listed."""
    if "properties" in schema:
        yield path
        for key, inner in schema["properties"].items():
            yield from leaves(inner, (*path, key))


SCHEMA = json.loads((CHART / "values.schema.json").read_text())


def kserve() -> list[dict[str, Any]]:
    files = sorted((DEPLOY / "kserve").glob("*.yaml"))
    return [one for file in files for one in yaml.safe_load_all(file.read_text())]


def commands(objects: list[dict[str, Any]]) -> Iterator[list[str]]:
    """The arguments that each container gives to our program."""
    for one in objects:
        spec = one.get("spec", {})
        pod = spec.get("template", {}).get("spec", spec)
        for container in pod.get("containers", ()):
            yield [re.sub(r"\$\(\w+\)", "value", word) for word in container["args"]]


def accepts(words: list[str]) -> None:
    """Raises if our program does not take these arguments."""
    command: Any = get_command(build(words))
    context = command.make_context("interlace", list(words))
    while isinstance(command, TyperGroup):
        rest = [*context._protected_args, *context.args]
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)


def test_arguments_that_our_program_does_not_take_are_found() -> None:
    for words in (["router"], ["router", "a:1", "--hots=b"], ["fleet", "serve"]):
        with pytest.raises(typer.BadParameter.__mro__[1]):
            accepts(words)


@pytest.mark.parametrize("words", list(commands(kserve())), ids=" ".join)
def test_kserve_starts_our_program_with_options_that_it_has(words: list[str]) -> None:
    accepts(words)


def test_kserve_mounts_a_digest_of_the_admin_key() -> None:
    (runtime,) = [one for one in kserve() if one["kind"] == "ClusterServingRuntime"]
    (keys,) = [one for one in runtime["spec"]["volumes"] if one["name"] == "keys"]
    assert [item["key"] for item in keys["secret"]["items"]] == ["admin-sha256"]
    (words,) = commands([runtime])
    assert "--admin-key-file=/run/keys/admin" in words


def test_kserve_takes_the_runtime_as_released() -> None:
    """Claims in runtimes are of no release of KServe yet: the GPU comes by a device plugin."""
    (runtime,) = [one for one in kserve() if one["kind"] == "ClusterServingRuntime"]
    (container,) = runtime["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert "resourceClaims" not in runtime["spec"]


class TestChart:
    pytestmark = needs_kubernetes

    @pytest.mark.parametrize("values", [NEEDED, ALL, BY_PLUGIN, SIMULATED])
    def test_objects_follow_their_schemas(self, values: Mapping[str, Any], tmp_path: Path) -> None:
        objects = rendered(values)
        assert [problems(one, tmp_path) for one in objects] == [""] * len(objects)
        named = [(one["kind"], one["metadata"]["name"]) for one in objects]
        assert len(set(named)) == len(named)

    def test_a_field_that_no_schema_knows_is_found(self, tmp_path: Path) -> None:
        found = {one["kind"]: one for one in rendered(ALL)}
        for kind in ("StatefulSet", "ServiceMonitor"):
            found[kind]["spec"]["replikas"] = 3
            assert "replikas" in problems(found[kind], tmp_path)

    @pytest.mark.parametrize("values", [ALL, SIMULATED])
    def test_containers_start_our_program_with_options_that_it_has(
        self, values: Mapping[str, Any]
    ) -> None:
        found = list(commands(rendered(values)))
        assert [words[0] for words in found] == ["fleet", "router", "serve"]
        for words in found:
            accepts(words)

    @pytest.mark.parametrize("values", [NEEDED, ALL])
    def test_pods_that_run_models_hold_no_admin_key(self, values: Mapping[str, Any]) -> None:
        objects = {(one["kind"], one["metadata"]["name"]): one for one in rendered(values)}
        secret = objects["Secret", "fleet-keys"]["stringData"]
        digest = hashlib.sha256(b"secret").hexdigest()
        assert (secret["admin"], secret["admin-sha256"]) == ("secret", f"sha256:{digest}")
        asks = "api" in secret
        for kind, name, mounted in (
            ("StatefulSet", "fleet-node", {"admin-sha256"}),
            ("Deployment", "fleet-router", set()),
        ):
            volumes = objects[kind, name]["spec"]["template"]["spec"]["volumes"]
            secrets = [one["secret"] for one in volumes if one["name"] == "keys"]
            keys = {item["key"] for one in secrets for item in one["items"]}
            assert keys == mounted | ({"api"} if asks else set())

    def test_each_part_has_a_network_policy_unless_it_is_turned_off(self) -> None:
        def found(values: Mapping[str, Any]) -> dict[str, Any]:
            objects = rendered(values)
            return {
                one["metadata"]["name"]: one["spec"]
                for one in objects
                if one["kind"] == "NetworkPolicy"
            }

        policies = found(NEEDED)
        assert set(policies) == {"fleet-node", "fleet-router", "fleet-controller"}
        assert policies["fleet-controller"]["ingress"] == []
        assert policies["fleet-node"]["egress"] == []
        (rule,) = found(ALL)["fleet-controller"]["ingress"]
        assert rule["from"] == ALL["networkPolicy"]["operators"]
        assert found({**NEEDED, "networkPolicy": {"enabled": False}}) == {}

    def test_a_node_has_the_gpu_that_was_asked_for(self) -> None:
        def of(values: Mapping[str, Any]) -> tuple[Any, Any, set[str]]:
            objects = rendered(values)
            (node,) = [one for one in objects if one["kind"] == "StatefulSet"]
            pod = node["spec"]["template"]["spec"]
            kinds = {one["kind"] for one in objects}
            return pod.get("resourceClaims"), pod["containers"][0]["resources"], kinds

        claims, resources, kinds = of(NEEDED)
        assert claims == [{"name": "gpu", "resourceClaimTemplateName": "fleet-gpu"}]
        assert resources["claims"] == [{"name": "gpu"}] and "ResourceClaimTemplate" in kinds
        claims, resources, kinds = of(BY_PLUGIN)
        assert claims is None and "ResourceClaimTemplate" not in kinds
        assert resources["limits"] == {"memory": "32Gi", "nvidia.com/gpu": 2}
        claims, resources, kinds = of(SIMULATED)
        assert claims is None and resources["limits"] == {"memory": "32Gi"}

    @pytest.mark.parametrize(
        ("values", "why"),
        [
            ({"keys": {"admin": "x"}}, "models.volume: say where the models lie"),
            ({**NEEDED, "keys": {}}, "keys.admin (or keys.existingSecret)"),
            ({**NEEDED, "keys": {"admin": "x", "askCallers": True}}, "keys.api (or keys.existing"),
            ({**NEEDED, "gpu": {"mode": "mps"}}, "mode"),
            ({**NEEDED, "keys": {"admni": "x"}}, "admni"),
        ],
    )
    def test_values_that_cannot_be_are_refused_in_words(
        self, values: Mapping[str, Any], why: str
    ) -> None:
        assert why in refused(values)

    @pytest.mark.parametrize("path", list(leaves(SCHEMA)), ids=".".join)
    def test_a_key_that_is_not_listed_is_refused(self, path: tuple[str, ...]) -> None:
        values: Any = {"unknown": 1}
        for key in reversed(path):
            values = {key: values}
        assert "unknown" in refused({**NEEDED, **values})

    def test_a_claim_needs_its_api_and_nothing_else_does(self) -> None:
        assert "claim needs Kubernetes 1.34" in refused(NEEDED, "--kube-version=1.31")
        for values in (BY_PLUGIN, SIMULATED):
            options = ("--kube-version=1.30", "--values", "-")
            made = run(HELM, "template", "fleet", CHART, *options, stdin=json.dumps(values))
            assert made.returncode == 0, made.stderr

    def test_every_part_takes_what_operators_set(self) -> None:
        for name, pod in pods(ALL).items():
            spec, (container,) = pod["spec"], pod["spec"]["containers"]
            assert container["args"][-1] == "--exit-timeout-s=40", name
            assert {"name": "TZ", "value": "UTC"} in container["env"]
            assert pod["metadata"]["annotations"]["team"] == "vision"
            for key in ("nodeSelector", "tolerations", "affinity", "priorityClassName"):
                assert spec[key] == PART[key]
            assert spec["serviceAccountName"] == "fleet" and "--ca=/run/tls/ca.crt" in str(pod)
        named = {"serviceAccount": {"create": False, "name": "ours"}}
        for extra, account in ((named, "ours"), ({"serviceAccount": {"create": False}}, "default")):
            objects = rendered({**NEEDED, **extra})
            assert not [one for one in objects if one["kind"] == "ServiceAccount"]
            found = {
                pod["spec"]["serviceAccountName"] for pod in pods({**NEEDED, **extra}).values()
            }
            assert found == {account}

    def test_every_part_is_spread_probed_bounded_and_may_be_drained(self) -> None:
        budgets = [one for one in rendered(NEEDED) if one["kind"] == "PodDisruptionBudget"]
        assert {one["metadata"]["name"] for one in budgets} == set(pods(NEEDED))
        for pod in pods(NEEDED).values():
            (spread,) = pod["spec"]["topologySpreadConstraints"]
            assert (
                spread["labelSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
            )
            (container,) = pod["spec"]["containers"]
            assert container["readinessProbe"]["httpGet"]["path"] == "/v2/health/ready"
            folders = [one["emptyDir"] for one in pod["spec"]["volumes"] if "emptyDir" in one]
            assert folders and all("sizeLimit" in one for one in folders)
        for pod in pods(ALL).values():
            assert pod["spec"]["containers"][0]["livenessProbe"]["httpGet"]["scheme"] == "HTTPS"

    def test_another_key_restarts_pods(self) -> None:
        def sums(values: Mapping[str, Any]) -> set[str]:
            return {
                pod["metadata"]["annotations"]["checksum/keys"] for pod in pods(values).values()
            }

        assert len(sums(NEEDED)) == 1
        assert sums(NEEDED) != sums({**NEEDED, "keys": {"admin": "other"}})

    def test_profiles_are_kept_in_a_claim_where_asked_for(self) -> None:
        (node,) = [one for one in rendered(ALL) if one["kind"] == "StatefulSet"]
        (claim,) = node["spec"]["volumeClaimTemplates"]
        assert claim["metadata"]["name"] == "cache"
        assert claim["spec"]["storageClassName"] == "fast"
        assert claim["spec"]["resources"]["requests"] == {"storage": "50Gi"}
        names = [one["name"] for one in node["spec"]["template"]["spec"]["volumes"]]
        assert "cache" not in names

    @pytest.mark.parametrize("values", [NEEDED, ALL, SIMULATED])
    def test_notes_say_what_to_do_next(self, values: Mapping[str, Any]) -> None:
        command = (HELM, "install", "fleet", CHART, "--dry-run=client", "--values", "-")
        made = run(*command, stdin=json.dumps(values))
        assert made.returncode == 0, made.stderr
        notes = made.stdout.partition("NOTES:")[2]
        assert "interlace fleet status" in notes and "fleet.default.svc:8000" in notes
        assert ("clear text" in notes) == (values is not ALL)
        assert ("simulated" in notes) == (values is SIMULATED)

    def test_helm_has_nothing_to_complain_of(self, tmp_path: Path) -> None:
        file = tmp_path / "values.yaml"
        file.write_text(yaml.safe_dump(dict(ALL)))
        made = run(HELM, "lint", CHART, "--strict", "--values", file)
        assert made.returncode == 0, made.stdout + made.stderr

    @pytest.mark.parametrize("one", kserve(), ids=lambda one: one["kind"])
    def test_kserve_objects_follow_their_schemas(self, one: dict[str, Any], tmp_path: Path) -> None:
        assert problems(one, tmp_path) == ""
