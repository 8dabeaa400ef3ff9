"""What the manifests of deploy/ name exists in the code: settings, flags, ports, paths, metrics; and what they promise.

`make deploy-test-manifests` builds them with kubectl and validates them; this reads their YAML alone.
"""

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from service.cli.application import COMMANDS
from service.cli.options import flag, variable
from service.cli.startup import LAST_SECONDS
from service.observability.metric_families import BY_NAME
from service.process.supervisor import STOP_SECONDS
from service.protocols.inlay import health
from service.settings import Settings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
FILES = sorted(
    path for folder in ("kubernetes", "kserve", "observe/kubernetes") for path in (DEPLOY / folder).rglob("*.yaml")
)
OWN_IMAGE = re.compile(r"inlay:(cpu|cuda)")
RAY = "inlay:ray"


def documents(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file; of a kustomization its strategic patches."""
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
        if document["kind"] in ("Component", "Kustomization"):
            patches = [yaml.safe_load(each["patch"]) for each in document.get("patches", ())]
            yield from (patch for patch in patches if isinstance(patch, dict))
        else:
            yield document


def within(document: Any) -> Iterator[dict[str, Any]]:
    """Every mapping within a document."""
    if isinstance(document, dict):
        yield document
    for each in document.values() if isinstance(document, dict) else document if isinstance(document, list) else ():
        yield from within(each)


OBJECTS = [(path, document) for path in FILES for document in documents(path)]
MAPPINGS = [(path, each) for path, document in OBJECTS for each in within(document)]
CONTAINERS = [each for _, each in MAPPINGS if "image" in each and "name" in each]
PODS = [each for _, each in MAPPINGS if "containers" in each]


def of_kind(kind: str, path: str = "") -> list[dict[str, Any]]:
    return [each for place, each in OBJECTS if each["kind"] == kind and path in str(place)]


(BASE,) = of_kind("Deployment", "base/")
POD = BASE["spec"]["template"]["spec"]
(SERVER,) = POD["containers"]
ENVIRONMENT = {each["name"]: each.get("value") for each in SERVER["env"]}


def test_every_variable_is_a_setting_that_takes_its_value() -> None:
    known = {variable(name): name for name in Settings.model_fields}
    named = [each for _, each in MAPPINGS if str(each.get("name", "")).startswith("INLAY_")]
    assert len(named) > 10
    assert {each["name"] for each in named} <= set(known)
    for each in named:
        if "value" in each:
            assert isinstance(each["value"], str)  # the API server takes nothing else
            Settings(**{known[each["name"]]: each["value"]})


def test_every_flag_is_one_of_its_command() -> None:
    flags = {"serve": {*map(flag, Settings.model_fields), "--model", "--model-name"}, "export": {"--name"}}
    commands = [container["args"] for container in CONTAINERS if "args" in container]
    assert {command[0] for command in commands} == {"serve", "export"} <= set(COMMANDS)
    for name, *words in commands:
        assert {word.partition("=")[0] for word in words if word.startswith("--")} <= flags[name]


def test_ports_are_those_that_the_server_listens_on() -> None:
    ports = {each["name"]: each["containerPort"] for each in SERVER["ports"]}
    defaults = {name: Settings.model_fields[name].default for name in ("port", "grpc_port")}
    assert ports == {
        "http": defaults["port"],
        "grpc": defaults["grpc_port"],
        "management": int(ENVIRONMENT["INLAY_MANAGEMENT_PORT"]),
    }
    for _, each in MAPPINGS:
        for name in ("targetPort", "port"):
            if isinstance(each.get(name), str):
                assert each[name] in ports
    for service in of_kind("Service", "base/"):
        assert [ports[port["targetPort"]] for port in service["spec"]["ports"]] == [
            port["port"] for port in service["spec"]["ports"]
        ]


def test_the_runtime_of_kserve_listens_where_its_services_look() -> None:
    (runtime,) = of_kind("ClusterServingRuntime")
    (container,) = runtime["spec"]["containers"]
    words = dict(word.split("=", 1) for word in container["args"] if "=" in word)
    assert (words["--port"], words["--model-name"], words["--model"]) == ("8080", "{{.Name}}", "/mnt/models")
    assert runtime["spec"]["annotations"]["prometheus.kserve.io/port"] == words["--port"]
    protocols = {each["spec"]["predictor"]["model"]["protocolVersion"]: each for each in of_kind("InferenceService")}
    assert list(protocols) == runtime["spec"]["protocolVersions"]
    (port,) = protocols["grpc-v2"]["spec"]["predictor"]["model"]["ports"]
    assert (port["name"], str(port["containerPort"])) == ("h2c", words["--grpc-port"])
    formats = {each["name"] for each in runtime["spec"]["supportedModelFormats"]}
    assert {each["spec"]["predictor"]["model"]["modelFormat"]["name"] for each in protocols.values()} <= formats


def test_probes_and_scrapes_ask_routes_of_the_management_port() -> None:
    paths = {route.path for route in health.routes(cast("Any", None)) if route.management}
    probed = [each for _, each in MAPPINGS if "httpGet" in each]
    assert {each["httpGet"].get("path") for each in probed} - {None} == {"/health/live", "/health/ready"} < paths
    assert {each["httpGet"].get("port") for each in probed} - {None} == {"management"}
    (monitor,) = of_kind("PodMonitor")
    assert [(each["port"], each["path"]) for each in monitor["spec"]["podMetricsEndpoints"]] == [
        ("management", "/metrics")
    ]


def test_every_metric_that_scales_exists() -> None:
    (scaled,) = of_kind("ScaledObject")
    (trigger,) = [each for each in scaled["spec"]["triggers"] if each["type"] == "prometheus"]
    metrics = set(re.findall(r"\binlay_\w+", trigger["metadata"]["query"]))
    pods = {
        metric["pods"]["metric"]["name"]
        for each in of_kind("HorizontalPodAutoscaler")
        for metric in each["spec"]["metrics"]
        if metric["type"] == "Pods"
    }
    assert metrics == pods == {"inlay_queue_tokens"} < set(BY_NAME)
    (monitor,) = of_kind("PodMonitor")
    (relabeling,) = monitor["spec"]["podMetricsEndpoints"][0]["relabelings"]
    assert f'job="{relabeling["replacement"]}"' in trigger["metadata"]["query"]


def test_the_rules_are_those_of_the_alerts() -> None:
    alerts = (DEPLOY / "observe/alerts.yml").read_text(encoding="utf-8")
    rules = (DEPLOY / "observe/kubernetes/rules.yaml").read_text(encoding="utf-8")
    assert rules.endswith("spec:\n  " + textwrap.indent(alerts[alerts.index("groups:") :], "  ").lstrip())


def test_pods_have_time_to_drain_and_stop() -> None:
    seconds = float(ENVIRONMENT["INLAY_DRAIN_DELAY"]) + float(ENVIRONMENT["INLAY_SHUTDOWN_SECONDS"])
    assert POD["terminationGracePeriodSeconds"] > seconds + max(LAST_SECONDS, STOP_SECONDS) + 2


def test_containers_are_confined_as_security_md_says() -> None:
    complete = [each for each in CONTAINERS if "securityContext" in each]
    assert len(complete) == 6
    for container in complete:
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context.get("readOnlyRootFilesystem", False) is (container["image"] != RAY)
        assert {"requests", "limits"} <= set(container["resources"])
        assert "memory" in container["resources"]["limits"]
    for pod in PODS:
        own = pod.get("securityContext") or pod["containers"][0].get("securityContext")
        if own is not None:  # a patch has none
            assert (own["runAsNonRoot"], own["runAsUser"]) == (True, 10001)
            assert own["seccompProfile"] == {"type": "RuntimeDefault"}
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert "USER 10001:10001" in dockerfile


def test_images_are_targets_of_the_dockerfile() -> None:
    targets = re.findall(r"^FROM \S+ AS (\w+)$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    images = {container["image"] for container in CONTAINERS} - {RAY}
    assert {match[1] for image in images if (match := OWN_IMAGE.fullmatch(image))} <= set(targets)
    assert all(map(OWN_IMAGE.fullmatch, images))


def test_secrets_are_mounted_where_the_settings_look() -> None:
    for pod in PODS:
        for container in pod["containers"]:
            mounts = {each["mountPath"] for each in container.get("volumeMounts", ())}
            for each in container.get("env", ()):
                if str(each.get("value", "")).startswith("/etc/inlay"):
                    assert str(Path(each["value"]).parent) in mounts
    keys = {path for path in FILES if "INLAY_TLS_CERT" in path.read_text(encoding="utf-8")}
    assert ["tls.crt" in path.read_text(encoding="utf-8") for path in keys] == [True]  # as kubernetes.io/tls names it


def test_files_of_kustomizations_exist() -> None:
    for path in (*FILES, DEPLOY / "observe/kustomization.yaml"):
        if path.name == "kustomization.yaml":
            document = yaml.safe_load(path.read_text(encoding="utf-8"))
            for name in (*document.get("resources", ()), *document.get("components", ())):
                assert (path.parent / name).exists()


def test_ray_runs_the_application_of_deploy_ray() -> None:
    """Ports, services and the names of the application and its settings are those of deploy/ray/serve.yaml."""
    (service,) = of_kind("RayService")
    config = yaml.safe_load(service["spec"]["serveConfigV2"])
    (application,) = config["applications"]
    (deployment,) = application["deployments"]
    for container in (each for each in CONTAINERS if each["image"] == RAY):
        ports = {each["name"]: each["containerPort"] for each in container["ports"]}
        assert ports == {"serve": config["http_options"]["port"], "grpc": config["grpc_options"]["port"]}
    if not (DEPLOY / "ray/serve.yaml").exists():
        pytest.skip("deploy/ray is not here")
    own = yaml.safe_load((DEPLOY / "ray/serve.yaml").read_text(encoding="utf-8"))
    (served,) = own["applications"]
    assert config["http_options"] == own["http_options"]
    assert config["grpc_options"] == own["grpc_options"]
    assert application["import_path"] == served["import_path"]
    assert set(deployment) <= set(served["deployments"][0])
    policies = [each["autoscaling_config"]["policy"] for each in (deployment, served["deployments"][0])]
    assert policies[0] == policies[1]
