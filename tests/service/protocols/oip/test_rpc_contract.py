"""proto/open_inference.proto against what Triton's and KServe's own clients were compiled from."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor

from proto import open_inference_pb2 as pb

FACTS = [
    (name, int(number), kind, whose.split("+"))
    for name, number, kind, whose in (
        line.split() for line in (Path(__file__).parent / "open_inference.facts").read_text().splitlines()[2:]
    )
]
KINDS = {
    getattr(FieldDescriptor, f"TYPE_{name.upper()}"): name
    for name in ("double", "float", "int64", "uint64", "int32", "bool", "string", "bytes", "uint32")
}
# Triton's name for the same number, where KServe's client means another thing by it.
RENAMED = {
    "RepositoryModelLoadRequest.model_name": "RepositoryModelLoadRequest.repository_name",
    "RepositoryModelUnloadRequest.model_name": "RepositoryModelUnloadRequest.repository_name",
}
TRITON_ALONE = (
    ("ModelStreamInfer", "ModelInferRequest", "ModelStreamInferResponse"),
    ("ModelConfig", "ModelConfigRequest", "ModelConfigResponse"),
    ("ModelStatistics", "ModelStatisticsRequest", "ModelStatisticsResponse"),
    ("RepositoryIndex", "RepositoryIndexRequest", "RepositoryIndexResponse"),
    *[
        (f"{kind}SharedMemory{verb}", f"{kind}SharedMemory{verb}Request", f"{kind}SharedMemory{verb}Response")
        for kind in ("System", "Cuda")
        for verb in ("Status", "Register", "Unregister")
    ],
    ("TraceSetting", "TraceSettingRequest", "TraceSettingResponse"),
    ("LogSettings", "LogSettingsRequest", "LogSettingsResponse"),
)
BOTH = (
    *[
        (name, f"{name}Request", f"{name}Response")
        for name in ("ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelInfer")
    ],
    ("RepositoryModelLoad", "RepositoryModelLoadRequest", "RepositoryModelLoadResponse"),
    ("RepositoryModelUnload", "RepositoryModelUnloadRequest", "RepositoryModelUnloadResponse"),
)


def short(name: str) -> str:
    return name.removeprefix("inference.")


def kind(field: Any) -> str:
    kind_type = field.message_type or field.enum_type
    return (short(kind_type.full_name) if kind_type else KINDS[field.type]) + ("[]" if field.is_repeated else "")


def fields_of(message: Any) -> Iterator[tuple[str, tuple[int, str]]]:
    for field in message.fields:
        yield f"{short(message.full_name)}.{field.name}", (field.number, kind(field))
    for nested in message.nested_types:
        yield from fields_of(nested)
    for enum in message.enum_types:
        yield from values_of(enum)


def values_of(enum: Any) -> Iterator[tuple[str, tuple[int, str]]]:
    for value in enum.values:
        yield f"{short(enum.full_name)}.{value.name}", (value.number, "value")


OURS = dict(
    [
        *[each for message in pb.DESCRIPTOR.message_types_by_name.values() for each in fields_of(message)],
        *[each for enum in pb.DESCRIPTOR.enum_types_by_name.values() for each in values_of(enum)],
    ]
)


def test_every_field_is_that_of_a_published_client() -> None:
    published = {(name, number, kind) for name, number, kind, _ in FACTS}
    assert len(OURS) > 150
    assert {(name, *what) for name, what in OURS.items()} - published == set()


@pytest.mark.parametrize("whose", ["triton", "kserve"])
def test_fields_have_the_types_of_published_clients(whose: str) -> None:
    for name, number, kind, owners in FACTS:
        if whose in owners:
            own = RENAMED.get(name, name) if whose == "kserve" else name
            assert OURS[own] == (number, kind), name


def test_methods_match_triton_and_kserve() -> None:
    service = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    assert service.full_name == "inference.GRPCInferenceService"
    methods = {(each.name, each.input_type.name, each.output_type.name) for each in service.methods}
    assert methods == {*BOTH, *TRITON_ALONE}
