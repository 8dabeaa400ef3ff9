"""The Ray Serve configurations: what they name exists, and Serve's own schema takes them."""

import ast
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.ray.arguments import check_names
from service.settings import Settings

ROOT = Path(__file__).parents[3]
FILES = sorted(set((ROOT / "deploy/ray").glob("*.yaml")) - {ROOT / "deploy/ray/kubernetes.yaml"})  # a RayService


def defined_in(module: str) -> set[str]:
    """The functions of a module, which is not imported: Ray may be missing."""
    tree = ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.fixture(params=FILES, ids=lambda file: file.name)
def config(request: pytest.FixtureRequest) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(request.param.read_text())
    return loaded


def test_there_are_configurations() -> None:
    assert [file.name for file in FILES] == ["models.yaml", "serve.yaml"]


def test_what_is_imported_exists(config: dict[str, Any]) -> None:
    named = [*config["grpc_options"]["grpc_servicer_functions"]]
    for application in config["applications"]:
        named.append(application["import_path"])
        for deployment in application["deployments"]:
            policy = deployment.get("autoscaling_config", {}).get("policy")
            named += [policy["policy_function"]] if policy else []
    assert len(named) >= 3
    assert [name for name in named if name.partition(":")[2] not in defined_in(name.partition(":")[0])] == []


def test_applications_set_settings_that_exist(config: dict[str, Any]) -> None:
    for application in config["applications"]:
        check_names(application["args"])
        Settings(**application["args"])


def test_deployments_have_the_name_in_the_code(config: dict[str, Any]) -> None:
    [name] = re.findall(r'name="(\w+)"', (ROOT / "deploy/ray/application.py").read_text())
    assert {each["name"] for application in config["applications"] for each in application["deployments"]} == {name}


def test_a_replica_gets_as_many_requests_as_it_admits() -> None:
    admitted = Settings.model_fields["max_concurrent_requests"].default
    config = yaml.safe_load((ROOT / "deploy/ray/serve.yaml").read_text())
    [deployment] = config["applications"][0]["deployments"]
    assert deployment["max_ongoing_requests"] == admitted
    assert f"MAX_ONGOING = {admitted}" in (ROOT / "deploy/ray/application.py").read_text()


def test_examples_in_comments_are_settings() -> None:
    commented = re.findall(r"^    #  (\w+): ", (ROOT / "deploy/ray/serve.yaml").read_text(), re.MULTILINE)
    assert len(commented) >= 2
    check_names(commented)


@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_ray_serve_takes_the_configuration(config: dict[str, Any]) -> None:
    pytest.importorskip("ray", reason="needs requirements/ray.txt")
    schema = import_module("ray.serve.schema").ServeDeploySchema
    assert schema.model_validate(config).applications[0].name == config["applications"][0]["name"]
