"""The generated reference names everything that the service has."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from reference_pages.site import pages

from models.families import FAMILIES
from models.positions.rope.presets import PRESETS
from models.vision.families import FAMILIES as TOWERS
from proto import embed_pb2, open_inference_pb2, tei_pb2
from service.app import create_app
from service.cli.application import run
from service.error_status import STATUSES
from service.errors import InlayError
from service.http.openapi import operation_of
from service.observability.exposition import exposition
from service.protocols.inlay.positions.schemes import SCHEMES
from service.settings import Settings

CONTRACTS = (embed_pb2, open_inference_pb2, tei_pb2)
OPTION = re.compile(r"--[a-z][a-z-]*[a-z]")
CELL = re.compile(r"(?<!\\)\|")


@pytest.fixture(scope="module")
def made() -> Mapping[str, str]:
    return {path.removeprefix("reference/"): text for path, (_, text) in pages().items()}


def test_every_setting_is_described(made: Mapping[str, str]) -> None:
    rows = dict(re.findall(r'^\| <span id="(\w+)"></span>(.*)$', made["settings.md"], re.MULTILINE))
    assert set(rows) == {f"INLAY_{name.upper()}" for name in Settings.model_fields}
    for name, field in Settings.model_fields.items():
        row = rows[f"INLAY_{name.upper()}"]
        assert f"`--{name.replace('_', '-')}`" in row
        assert len(row.rpartition(" | ")[2]) > 20, f"{name} has no meaning"
        if isinstance(field.default, int) and not isinstance(field.default, bool):
            assert f"`{field.default}`" in row


def test_every_metric_that_is_scraped_is_described(made: Mapping[str, str]) -> None:
    scraped = re.findall(r"^# TYPE (\w+) (\w+)$", exposition([]).decode(), re.MULTILINE)
    assert len(scraped) > 20
    assert [name for name, kind in scraped if f"`{name}` | {kind} |" not in made["metrics.md"]] == []


def test_every_command_and_option_is_described(
    made: Mapping[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    run(["--help"])
    commands = re.findall(r"^│ ([a-z]+) ", capsys.readouterr().out, re.MULTILINE)
    assert {"serve", "export", "embed", "check"} <= set(commands)
    sections = dict(re.findall(r"^## inlay (\w+) .*?$(.*?)(?=^## |\Z)", made["cli.md"], re.MULTILINE | re.DOTALL))
    assert set(sections) == set(commands)
    for command in commands:
        run([command, "--help"])
        options = set(OPTION.findall(capsys.readouterr().out)) - {"--help"}
        assert {option for option in options if option not in sections[command]} == set(), command


def test_every_route_is_described(made: Mapping[str, str], tmp_path: Path) -> None:
    router = create_app(Settings(store=tmp_path), listens=False).pipeline.router
    index = made["rest/index.md"]
    routes = [route for group in router.groups for route in group.routes if operation_of(group, route)]
    assert len(routes) > 100
    for route in routes:
        path = route.path.replace(":path}", "}")
        link = re.search(rf"\[`{route.verb} {re.escape(path)}`\]\(([\w-]+\.md)#(\S+)\)", index)
        assert link, f"{route.verb} {path} is not in the index"
        assert f"## `{route.verb} {path}` {{ #{link[2]} }}" in made[f"rest/{link[1]}"]


def test_parameters_and_answers_of_routes_are_described(made: Mapping[str, str], tmp_path: Path) -> None:
    router = create_app(Settings(store=tmp_path), listens=False).pipeline.router
    text = "".join(made[path] for path in made if path.startswith("rest/"))
    for group, route in [(each, route) for each in router.groups for route in each.routes]:
        if (described := operation_of(group, route)) is None:
            continue
        path = route.path.replace(":path}", "}")
        section = text.partition(f"## `{route.verb} {path}` {{")[2].partition("\n## ")[0]
        schema = route.query.model_json_schema() if route.query else {}
        for name in (*route.parameters, *schema.get("properties", {})):
            assert f"| `{name}`" in section, f"{route.verb} {path} has no parameter {name}"
        for status, answer in described["responses"].items():
            (row,) = re.findall(rf"^\| {status} \| (.*) \|$", section, re.MULTILINE)
            if isinstance(answer, Mapping):
                assert answer.get("description", "").partition("`")[0][:20] in row.replace("\\", "")
                assert [form for form in answer.get("content", ()) if f"`{form}`" not in row] == []
        if route.bodies:
            assert section.count("```json") >= len(described["examples"])


def test_every_error_code_is_described(made: Mapping[str, str]) -> None:
    def codes(kind: type[InlayError]) -> Iterator[str]:
        yield kind.code
        for below in kind.__subclasses__():
            yield from codes(below)

    for code in {*codes(InlayError), *STATUSES}:
        status = STATUSES[code]
        (row,) = re.findall(rf"^\|.*`{code}` \| {status.http}\b.*$", made["errors.md"], re.MULTILINE)
        assert f"`{status.grpc}`" in row


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.DESCRIPTOR.package)
def test_every_method_and_field_is_described(contract: Any, made: Mapping[str, str]) -> None:
    descriptor = contract.DESCRIPTOR
    text = made[f"grpc/{Path(descriptor.name).stem}.md"]
    for service in descriptor.services_by_name.values():
        assert f"## Service {service.full_name} " in text
        for method in service.methods:
            assert re.search(rf"^### {method.name}$\n+.*`{method.input_type.name}`", text, re.MULTILINE)
    for message in descriptor.message_types_by_name.values():
        section = text.partition(f"## {message.name} {{ #{message.name} }}")[2].partition("\n## ")[0]
        assert [field.name for field in message.fields if f"| `{field.name}` |" not in section] == []


def test_comments_of_contracts_are_shown(made: Mapping[str, str]) -> None:
    contract = Path(__file__).parents[2] / "proto/embed.proto"
    (comment,) = re.findall(r"// (One request, one answer; .*)\n  rpc Embed\(", contract.read_text(encoding="utf-8"))
    assert comment in made["grpc/embed.md"]


def test_every_family_scheme_and_preset_is_described(made: Mapping[str, str]) -> None:
    assert [name for name in (*FAMILIES, *TOWERS) if f"| `{name}` |" not in made["families.md"]] == []
    assert [name for name in SCHEMES if f"## {name} {{ #{name} }}" not in made["positions.md"]] == []
    assert [name for name in PRESETS if f"| `{name}` |" not in made["positions.md"]] == []
    for name, scheme in SCHEMES.items():
        section = made["positions.md"].partition(f"## {name} {{")[2].partition("\n## ")[0]
        fields = scheme.parameters.model_json_schema()["properties"]
        assert [field for field in fields if f"| `{field}` |" not in section] == []


def test_rows_of_tables_have_the_cells_of_their_header(made: Mapping[str, str]) -> None:
    for path, text in made.items():
        cells = 0
        for number, line in enumerate(text.splitlines(), 1):
            row = line.strip()
            if not row.startswith("|"):
                cells = 0
                continue
            count = len(CELL.findall(row))
            cells = cells or count
            assert count == cells, f"{path}, line {number}"
