"""The Helm chart: what it renders is valid for Kubernetes, names what exists in the code, and keeps its promises."""

import json
import re
import tomllib
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

pytest.importorskip("helm_python", reason="requirements/charts.txt is not installed: make deploy-test-chart")

import helm_python

from service.cli.options import variable
from service.cli.startup import LAST_SECONDS
from service.observability.metric_families import BY_NAME
from service.process.supervisor import STOP_SECONDS
from service.protocols.inlay import health
from service.settings import Settings
from tests.deploy.charts import CHART, EXAMPLES, ROOT, example, faults, of_kind, rendered, within

SETS = {"defaults": {}, **{name: example(name) for name in EXAMPLES}}
OBJECTS = {name: rendered(values) for name, values in SETS.items()}
PLAIN = [
    each
    for path in (*sorted((ROOT / "deploy/kserve").glob("*.yaml")), ROOT / "deploy/ray/kubernetes.yaml")
    for each in yaml.safe_load_all(path.read_text(encoding="utf-8"))
]
ALL = [each for objects in (*OBJECTS.values(), PLAIN) for each in objects]
LISTENED = {
    "http": Settings.model_fields["port"].default,
    "grpc": Settings.model_fields["grpc_port"].default,
    "management": 8081,
}


def pod(objects: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the pod of the Deployment."""
    return cast("dict[str, Any]", of_kind(objects, "Deployment")["spec"]["template"]["spec"])


def server(objects: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the container that serves."""
    return cast("dict[str, Any]", next(each for each in pod(objects)["containers"] if each["name"] == "inlay"))


def environment(objects: list[dict[str, Any]]) -> dict[str, str]:
    """Return the server's variables that have a value."""
    return {each["name"]: each["value"] for each in server(objects)["env"] if "value" in each}


@pytest.mark.parametrize("name", SETS)
def test_objects_are_valid_for_kubernetes(name: str) -> None:
    assert len(OBJECTS[name]) > 5
    assert {f"{each['kind']} {each['metadata']['name']}": faults(each) for each in OBJECTS[name] if faults(each)} == {}
    names = [(each["kind"], each["metadata"]["name"]) for each in OBJECTS[name]]
    assert len(set(names)) == len(names)


def test_manifests_of_kserve_and_ray_are_valid() -> None:
    assert {each["kind"]: faults(each) for each in PLAIN if faults(each)} == {}


def misspelt(document: Any) -> Iterator[None]:
    """Add an unknown field to each mapping within `document`, one at a time, and take it away again."""
    for each in list(within(document)):
        each["misspelt"] = {}
        yield
        del each["misspelt"]


def test_validator_finds_an_unknown_field_in_every_kind() -> None:
    kinds = {each["kind"]: each for each in ALL}
    assert len(kinds) == 18
    for document in map(deepcopy, kinds.values()):
        if "spec" in document:
            assert any(faults(document) for _ in misspelt(document["spec"])), document["kind"]


def test_helm_lints_the_chart() -> None:
    findings = helm_python.lint(str(CHART))
    assert not [each for each in json.loads(json.dumps(findings))["messages"] if each["severity"] not in ("info", 1)]


def test_twelve_value_sets_use_every_value() -> None:
    """A value that no example sets would be rendered by no test."""
    assert len(EXAMPLES) >= 12
    known = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    used = {name for values in SETS.values() for name in values}
    assert set(known) - used - {"gpus", "scratch", "startupSeconds", "drainSeconds", "shutdownSeconds"} == set()


def test_page_of_the_chart_lists_every_example() -> None:
    page = (ROOT / "docs/deploy/helm/index.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`([\w-]+)\.yaml`", page)) == set(EXAMPLES)


def test_walk_from_an_empty_cluster_is_thirty_lines() -> None:
    """A model of BGE-M3's shape behind an Ingress, with keys, dashboards and autoscaling."""
    assert len(EXAMPLES["bge-m3"].read_text(encoding="utf-8").splitlines()) <= 30
    kinds = {each["kind"] for each in OBJECTS["bge-m3"]}
    assert kinds >= {"Ingress", "ScaledObject", "ServiceMonitor", "PrometheusRule", "Job", "PersistentVolumeClaim"}
    assert of_kind(OBJECTS["bge-m3"], "ConfigMap", "-dashboard")["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert environment(OBJECTS["bge-m3"])["INLAY_API_KEYS_FILE"] == "/etc/inlay/keys/keys"
    assert environment(OBJECTS["bge-m3"])["INLAY_MODELS"] == "bge-m3"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"modells": []}, "modells"),
        ({"settings": {"port": 1}}, "port"),
        ({"settings": {"api_keys": "secret"}}, "api_keys"),
        ({"models": [{"name": "a", "source": "b c"}]}, "source"),
        ({"models": [{"name": "a", "source": "b", "options": ["--encoder int8"]}]}, "options"),
        ({"models": [{"name": "a/b"}]}, "name"),
        ({"models": [{"name": "a", "source": "b"}], "storage": {"kind": "image"}}, "image volume is read-only"),
        ({"models": [{"name": "a"}], "storage": {"kind": "image"}}, "storage.image.reference"),
        ({"autoscaling": {"min": 0}}, "needs autoscaling.kind keda"),
        ({"autoscaling": {"kind": "keda", "min": 0}}, "autoscaling.keda.triggers"),
        ({"resources": {"limits": {"memory": None}}}, "memory"),
        ({"image": {"digest": "latest"}}, "digest"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_wrong_values_are_refused_by_name(values: dict[str, Any], said: str) -> None:
    with pytest.raises(helm_python.HelmError, match=re.escape(said)):
        rendered(values)


def test_every_variable_is_a_setting_that_takes_its_value() -> None:
    known = {variable(name): name for name in Settings.model_fields}
    named = [each for each in within(ALL) if str(each.get("name", "")).startswith("INLAY_")]
    assert len(named) > 10
    assert {each["name"] for each in named} <= set(known)
    for each in named:
        if "value" in each:
            Settings(**{known[each["name"]]: each["value"]})
    whole = environment(rendered({"settings": {"max_queue_tokens": 1000000, "aliases": ["a=b", "c=d"]}}))
    assert (whole["INLAY_MAX_QUEUE_TOKENS"], whole["INLAY_ALIASES"]) == ("1000000", "a=b,c=d")


def test_ports_are_those_that_the_server_listens_on() -> None:
    for objects in OBJECTS.values():
        assert {each["name"]: each["containerPort"] for each in server(objects)["ports"]} == LISTENED
        assert environment(objects)["INLAY_MANAGEMENT_PORT"] == str(LISTENED["management"])
        for service in (each for each in objects if each["kind"] == "Service" and "selector" in each["spec"]):
            assert all(LISTENED[port["targetPort"]] == port["port"] for port in service["spec"]["ports"])
        named = [each["port"] for each in within(objects) if isinstance(each.get("port"), str)]
        assert set(named) <= set(LISTENED)


def test_probes_and_scrapes_ask_routes_of_the_management_port() -> None:
    paths = {route.path for route in health.routes(cast("Any", None)) if route.management}
    for name, objects in OBJECTS.items():
        probes = [each["httpGet"] for each in within(objects) if "httpGet" in each]
        assert {each["path"] for each in probes} == {"/health/live", "/health/ready"} < paths
        assert {each["port"] for each in probes} == {"management"}
        assert {each["scheme"] for each in probes} == {"HTTPS" if name == "gateway" else "HTTP"}
    (endpoint,) = of_kind(OBJECTS["gateway"], "ServiceMonitor")["spec"]["endpoints"]
    assert (endpoint["port"], endpoint["path"], endpoint["scheme"]) == ("management", "/metrics", "https")


def test_selectors_match_the_pods_they_mean() -> None:
    for objects in OBJECTS.values():
        labels = of_kind(objects, "Deployment")["spec"]["template"]["metadata"]["labels"].items()
        selectors = [each["spec"].get("selector", {}) for each in objects if each["kind"] == "Service"]
        selectors += [each["matchLabels"] for each in within(pod(objects)) if "matchLabels" in each]
        selectors += [of_kind(objects, "Deployment")["spec"]["selector"]["matchLabels"]]
        assert len(selectors) > 3
        for selector in selectors:
            assert selector.items() <= labels
    other = of_kind(rendered({}, name="staging"), "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert not of_kind(OBJECTS["defaults"], "Deployment")["spec"]["selector"]["matchLabels"].items() <= other.items()


def test_pods_have_time_to_drain_and_stop() -> None:
    for values in ({}, {"drainSeconds": 60, "shutdownSeconds": 300}):
        objects = rendered(values)
        seconds = sum(float(environment(objects)[name]) for name in ("INLAY_DRAIN_DELAY", "INLAY_SHUTDOWN_SECONDS"))
        assert pod(objects)["terminationGracePeriodSeconds"] > seconds + max(LAST_SECONDS, STOP_SECONDS) + 2


def test_containers_are_confined_as_security_md_says() -> None:
    containers = [each for each in within(ALL) if isinstance(each.get("image"), str) and "name" in each]
    assert len(containers) > 30
    for container in containers:
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context.get("readOnlyRootFilesystem", False) is (container["image"] != "inlay:ray")
        assert "memory" in container["resources"]["limits"]
    for name, objects in OBJECTS.items():
        for each in within(objects):
            if "containers" in each:
                context = each["securityContext"]
                assert context.get("runAsUser") == (None if name == "closed" else 10001)
                assert (context["runAsNonRoot"], each["automountServiceAccountToken"]) == (True, False)
                assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert "USER 10001:10001" in (ROOT / "Dockerfile").read_text(encoding="utf-8")


def test_images_are_versions_of_targets_of_the_dockerfile() -> None:
    """A tag that moves would roll nothing out, and leave nothing to go back to."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    targets = re.findall(r"^FROM \S+ AS (\w+)$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    images = {each["image"] for each in within(ALL) if isinstance(each.get("image"), str)}
    tags = {tag for image in images if (tag := re.fullmatch(r"(?:\S+/)?inlay:(\S+)", image))}
    assert {tag[1] for tag in tags} - {"ray"} == {f"{version}-{name}" for name in ("cpu", "cuda", "openvino")}
    assert {"cpu", "cuda", "openvino"} <= set(targets)
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["version"] == chart["appVersion"] == version


def test_mounts_have_volumes_and_secrets_lie_where_settings_look() -> None:
    for each in within(ALL):
        for container in (*each.get("containers", ()), *each.get("initContainers", ())):
            mounts = {mount["mountPath"]: mount["name"] for mount in container.get("volumeMounts", ())}
            assert set(mounts.values()) <= {volume["name"] for volume in each.get("volumes", ())}
            for variable_ in container.get("env", ()):
                if str(variable_.get("value", "")).startswith("/etc/inlay"):
                    assert str(Path(variable_["value"]).parent) in mounts
    volumes = {each["name"]: each for each in pod(OBJECTS["gateway"])["volumes"]}
    assert volumes["keys"]["secret"]["items"] == [{"key": "production", "path": "keys"}]
    assert environment(OBJECTS["gateway"])["INLAY_TLS_CERT"] == "/etc/inlay/tls/tls.crt"  # as kubernetes.io/tls has it


def test_models_are_served_from_where_they_lie() -> None:
    assert environment(OBJECTS["defaults"])["INLAY_STORE"] == "/opt/inlay/models"
    assert "INLAY_MODELS" not in environment(OBJECTS["defaults"])
    assert environment(OBJECTS["existing-claim"])["INLAY_MODELS"] == "intent-classifier,legal-bert"
    for name in ("existing-claim", "image-volume"):
        (mount,) = [each for each in server(OBJECTS[name])["volumeMounts"] if each["name"] == "models"]
        assert (mount["mountPath"], mount["readOnly"]) == (environment(OBJECTS[name])["INLAY_STORE"], True)
    (volume,) = [each for each in pod(OBJECTS["image-volume"])["volumes"] if each["name"] == "models"]
    assert "image" in volume
    assert "initContainers" not in pod(OBJECTS["image-volume"])


def test_exports_are_staged_on_the_volume_of_models() -> None:
    """An emptyDir of /tmp would have to hold the checkpoint beside the export."""
    (export,) = pod(OBJECTS["hub"])["initContainers"]
    assert {each["name"]: each.get("value") for each in export["env"]}["INLAY_STORE"] == "/models"
    script = of_kind(OBJECTS["hub"], "ConfigMap", "-export")["data"]
    assert script["models"].splitlines() == [
        "embeddinggemma google/embeddinggemma-300m",
        "bge-reranker BAAI/bge-reranker-base --encoder=int8",
    ]
    assert script["export.sh"] == (CHART / "files/export.sh").read_text(encoding="utf-8")


def test_pods_wait_where_a_job_exports() -> None:
    objects = OBJECTS["bge-m3"]
    (waits,) = pod(objects)["initContainers"]
    (exports,) = of_kind(objects, "Job")["spec"]["template"]["spec"]["containers"]
    assert (waits["args"], "args" in exports, waits["command"]) == (["wait"], False, exports["command"])
    changed = [{"models": [{"name": "bge-m3", "source": "BAAI/bge-m3@v2"}]}, {"image": {"tag": "next"}}]
    names = [of_kind(rendered(SETS["bge-m3"] | values), "Job")["metadata"]["name"] for values in ({}, *changed)]
    assert len(set(names)) == 3  # a Job cannot be changed


def test_token_of_the_hub_is_given_to_exports_alone() -> None:
    holders = [each["name"] for each in within(OBJECTS["hub"]) if "HF_TOKEN" in str(each.get("env"))]
    assert holders == ["export"]
    waiting = rendered(SETS["hub"] | {"export": {"by": "job"}})
    assert "HF_TOKEN" not in str(pod(waiting))
    assert "HF_TOKEN" in str(of_kind(waiting, "Job"))


def test_cuda_needs_no_spare_gpu_for_an_upgrade() -> None:
    strategy = of_kind(OBJECTS["cuda"], "Deployment")["spec"]["strategy"]["rollingUpdate"]
    assert strategy == {"maxSurge": 0, "maxUnavailable": 1}
    assert of_kind(OBJECTS["hub"], "Deployment")["spec"]["strategy"]["rollingUpdate"] == {
        "maxSurge": 1,
        "maxUnavailable": 0,
    }
    assert server(OBJECTS["cuda"])["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert {each["key"] for each in pod(OBJECTS["cuda"])["tolerations"]} == {"nvidia.com/gpu"}
    assert pod(OBJECTS["cuda"])["nodeSelector"] == {"nvidia.com/gpu.present": "true"}
    (trigger,) = of_kind(OBJECTS["cuda"], "ScaledObject")["spec"]["triggers"]
    assert "inlay_engine_run_seconds_sum" in trigger["metadata"]["query"]


def test_replicas_are_the_autoscalers_where_there_is_one() -> None:
    for objects in OBJECTS.values():
        kinds = {each["kind"] for each in objects}
        scaled = kinds & {"HorizontalPodAutoscaler", "ScaledObject", "HTTPScaledObject"}
        assert bool(scaled) is ("replicas" not in of_kind(objects, "Deployment")["spec"])


PROD = {
    "autoscaling": {"kind": "keda", "queueTokens": 1, "busyShare": 0.5},
    "monitoring": {"serviceMonitor": True, "rules": True},
}


def test_scaling_and_alerts_ask_for_their_release_alone() -> None:
    """With prod down and staging up, prod's alerts fire; neither release scales by the other's queue."""
    objects = rendered(PROD, name="embed", namespace="prod")
    scope = 'namespace="prod",job="embed"'
    queries = [
        each["metadata"]["query"]
        for each in of_kind(objects, "ScaledObject")["spec"]["triggers"]
        if each["type"] == "prometheus"
    ]
    rules = [each for group in of_kind(objects, "PrometheusRule")["spec"]["groups"] for each in group["rules"]]
    assert len(queries) == 2
    assert len(rules) > 15
    for expression in (*queries, *(rule["expr"] for rule in rules)):
        selectors = re.findall(r"\b(?:inlay[_:][\w:]+|up|process_\w+)(?:\{([^}]*)\})?", expression)
        assert selectors
        assert all(scope in selector for selector in selectors), expression
        assert set(re.findall(r"\binlay_[a-z_]+?(?=_bucket|_count|_sum|_total|\{)", expression)) <= set(BY_NAME)
    (endpoint,) = of_kind(objects, "ServiceMonitor")["spec"]["endpoints"]
    (relabeling,) = endpoint["relabelings"]
    assert (relabeling["targetLabel"], relabeling["replacement"]) == ("job", "embed")


def test_every_alert_has_a_runbook() -> None:
    page = (ROOT / "docs/operate/runbooks.md").read_text(encoding="utf-8")
    groups = of_kind(OBJECTS["scale-to-zero"], "PrometheusRule")["spec"]["groups"]
    alerts = {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}
    for name, rule in alerts.items():
        base, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert (base, anchor) == ("https://docs.example.com/operate/runbooks/", name.lower())
        assert f"\n## {name}\n" in page
    assert "InlayNoneReady" not in alerts  # at zero it would fire without a fault
    assert "\n## InlayNoneReady\n" in page


def test_network_lets_out_what_the_values_say() -> None:
    def ports(objects: list[dict[str, Any]], name: str) -> list[Any]:
        egress = of_kind(objects, "NetworkPolicy", name)["spec"]["egress"]
        return [port["port"] for rule in egress for port in rule["ports"]]

    assert ports(OBJECTS["defaults"], "inlay") == [53, 53]
    assert ports(OBJECTS["hub"], "inlay") == [53, 53, 443]
    assert ports(OBJECTS["existing-claim"], "inlay") == [53, 53]
    assert ports(OBJECTS["cuda"], "inlay") == [53, 53]
    assert ports(OBJECTS["cuda"], "-export") == [53, 53, 443]
    assert ports(OBJECTS["closed"], "inlay") == [53, 53, 4318, 3128]
    assert ports(OBJECTS["closed"], "-export") == [53, 53, 3128]
    egress = of_kind(OBJECTS["closed"], "NetworkPolicy", "inlay")["spec"]["egress"]
    assert all("to" in rule for rule in egress)
    policy = of_kind(OBJECTS["closed"], "NetworkPolicy", "-export")["spec"]
    job = of_kind(OBJECTS["closed"], "Job")["spec"]["template"]
    assert policy["podSelector"]["matchLabels"].items() <= job["metadata"]["labels"].items()
    assert "HTTPS_PROXY" in {each["name"] for each in job["spec"]["containers"][0]["env"]}


def test_outside_leads_to_the_http_port_of_the_service() -> None:
    (rule,) = of_kind(OBJECTS["bge-m3"], "Ingress")["spec"]["rules"]
    (path,) = rule["http"]["paths"]
    assert path["backend"]["service"] == {"name": "inlay", "port": {"name": "http"}}
    (route,) = of_kind(OBJECTS["gateway"], "HTTPRoute")["spec"]["rules"]
    assert route["backendRefs"] == [{"name": "inlay", "port": LISTENED["http"]}]
