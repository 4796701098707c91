"""The chart and the runtime for KServe, by the schemas of what they name and by our own program."""

import hashlib
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
ALL: Mapping[str, Any] = {
    **NEEDED,
    "keys": {"admin": "secret", "api": "open", "askCallers": True},
    "nodes": {
        "autoscaling": {"enabled": True},
        "nodeSelector": {"gpu": "h100"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
    },
    "controller": {"prices": {"h100": 4, "l4": 0.8}},
    "routers": {"autoscaling": {"enabled": True}, "service": {"annotations": {"a": "b"}}},
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
            secrets = [one["secret"] for one in volumes if "secret" in one]
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
        self, values: Mapping[str, Any], why: str, tmp_path: Path
    ) -> None:
        file = tmp_path / "values.yaml"
        file.write_text(yaml.safe_dump(dict(values)))
        made = run(HELM, "template", "fleet", CHART, "--values", file)
        assert made.returncode != 0 and why in made.stderr

    def test_helm_has_nothing_to_complain_of(self, tmp_path: Path) -> None:
        file = tmp_path / "values.yaml"
        file.write_text(yaml.safe_dump(dict(ALL)))
        made = run(HELM, "lint", CHART, "--strict", "--values", file)
        assert made.returncode == 0, made.stdout + made.stderr

    @pytest.mark.parametrize("one", kserve(), ids=lambda one: one["kind"])
    def test_kserve_objects_follow_their_schemas(self, one: dict[str, Any], tmp_path: Path) -> None:
        assert problems(one, tmp_path) == ""
