"""What the plain manifests of KServe and Ray name exists in the code. tests/deploy/test_chart.py validates them."""

import re
from pathlib import Path
from typing import Any

import yaml

from service.cli.application import COMMANDS
from service.cli.options import flag
from service.settings import Settings

DEPLOY = Path(__file__).parents[2] / "deploy"
FILES = (*sorted((DEPLOY / "kserve").glob("*.yaml")), DEPLOY / "ray/kubernetes.yaml")
OBJECTS = [each for path in FILES for each in yaml.safe_load_all(path.read_text(encoding="utf-8"))]


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [each for each in OBJECTS if each["kind"] == kind]


def containers() -> list[dict[str, Any]]:
    """Return the containers of the runtime and of Ray's pods."""
    (runtime,), (service,) = of_kind("ClusterServingRuntime"), of_kind("RayService")
    cluster = service["spec"]["rayClusterConfig"]
    groups = (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])
    pods = [runtime["spec"], *(group["template"]["spec"] for group in groups)]
    return [each for pod in pods for each in (*pod.get("initContainers", ()), *pod["containers"])]


def test_every_flag_is_one_of_its_command() -> None:
    flags = {"serve": {*map(flag, Settings.model_fields), "--model", "--model-name"}, "export": {"--name"}}
    commands = [container["args"] for container in containers() if "args" in container]
    assert {command[0] for command in commands} == {"serve", "export"} <= set(COMMANDS)
    for name, *words in commands:
        assert {word.partition("=")[0] for word in words if word.startswith("--")} <= flags[name]


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


def test_ray_runs_the_application_of_deploy_ray() -> None:
    """Ports, services and the names of the application and its settings are those of deploy/ray/serve.yaml."""
    (service,) = of_kind("RayService")
    config = yaml.safe_load(service["spec"]["serveConfigV2"])
    (application,) = config["applications"]
    (deployment,) = application["deployments"]
    for container in (each for each in containers() if re.search(r"inlay:ray$", each["image"])):
        ports = {each["name"]: each["containerPort"] for each in container["ports"]}
        assert ports == {"serve": config["http_options"]["port"], "grpc": config["grpc_options"]["port"]}
    here = yaml.safe_load((DEPLOY / "ray/serve.yaml").read_text(encoding="utf-8"))
    (served,) = here["applications"]
    assert config["http_options"] == here["http_options"]
    assert config["grpc_options"] == here["grpc_options"]
    assert application["import_path"] == served["import_path"]
    assert set(deployment) <= set(served["deployments"][0])
    policies = [each["autoscaling_config"]["policy"] for each in (deployment, served["deployments"][0])]
    assert policies[0] == policies[1]
