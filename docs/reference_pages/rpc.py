"""The pages of the gRPC services, made from `proto/*.proto` and their comments."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc_tools
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    MethodDescriptorProto,
)
from grpc_tools import protoc

from reference_pages.markdown import described, heading, page, table

ROOT = Path(__file__).parents[2]
WELL_KNOWN = Path(grpc_tools.__file__).parent / "_proto"
ERRORS = """\
A failed call has the status of its error, the message, and the stable code in the trailing metadata `inlay-code`
([Errors](../errors.md)). Reflection and the standard health service `grpc.health.v1.Health` are served beside
these. Deadlines of calls are observed: work that would come too late is not begun."""
# Numbers of fields in descriptor.proto, which paths of comments are made of.
MESSAGES, ENUMS, SERVICES = 4, 5, 6
IN_MESSAGE = {"fields": 2, "messages": 3, "enums": 4}
IN_SERVICE, IN_ENUM = 2, 2
Path_ = tuple[int, ...]


@dataclass(frozen=True)
class Contract:
    """A .proto file and its comments."""

    name: str
    file: FileDescriptorProto
    comments: Mapping[Path_, str] = field(default_factory=dict)

    @property
    def package(self) -> str:
        """The package, e.g. inlay.v1."""
        return self.file.package

    def about(self, path: Path_) -> str:
        """Return the comment at a path of descriptor.proto."""
        return described(self.comments.get(path, ""))


def contracts() -> list[Contract]:
    """Return the contracts of proto/, parsed by protoc."""
    files = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "proto").glob("*.proto"))
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "set"
        words = ["protoc", f"-I{ROOT}", f"-I{WELL_KNOWN}", "--include_source_info", f"--descriptor_set_out={out}"]
        if protoc.main([*words, *files]):
            raise RuntimeError(f"protoc cannot read {files}")
        parsed = FileDescriptorSet.FromString(out.read_bytes())
    return [Contract(Path(file.name).stem, file, _comments(file)) for file in parsed.file]


def rpc_pages() -> dict[str, tuple[str, str]]:
    """Return title and text of each page by its path: an index, and a page for each contract."""
    found = contracts()
    rows = [
        [
            f"[`{_full(contract, service.name)}`]({contract.name}.md#{service.name})",
            str(len(service.method)),
            f"`{contract.file.name}`",
        ]
        for contract in found
        for service in contract.file.service
    ]
    index = page("gRPC", ERRORS, table(["service", "methods", "contract"], rows))
    pages = {"reference/grpc/index.md": ("gRPC", index)}
    for contract in found:
        pages[f"reference/grpc/{contract.name}.md"] = (contract.package or contract.name, _contract_page(contract))
    return pages


def _comments(file: FileDescriptorProto) -> dict[Path_, str]:
    comments = {}
    for location in file.source_code_info.location:
        text = location.leading_comments or location.trailing_comments
        if text:
            comments[tuple(location.path)] = " ".join(line.strip() for line in text.strip().splitlines())
        elif location.leading_detached_comments and tuple(location.path) == (12,):  # above `syntax`
            comments[()] = " ".join(location.leading_detached_comments[-1].split())
    return comments


def _contract_page(contract: Contract) -> str:
    file = contract.file
    parts = [contract.about(()) or contract.about((12,)), f"Contract: `{file.name}`."]
    for number, service in enumerate(file.service):
        at = (SERVICES, number)
        parts += [heading(2, f"Service {_full(contract, service.name)}", service.name), contract.about(at)]
        parts += [_method(contract, method, (*at, IN_SERVICE, place)) for place, method in enumerate(service.method)]
    parts += _messages(contract, file.message_type, (MESSAGES,), "")
    parts += [_enum(contract, each, (ENUMS, number), "") for number, each in enumerate(file.enum_type)]
    return page(contract.package or contract.name, *parts)


def _method(contract: Contract, method: MethodDescriptorProto, at: Path_) -> str:
    takes = ("stream of " if method.client_streaming else "") + _reference(contract, method.input_type)
    gives = ("stream of " if method.server_streaming else "") + _reference(contract, method.output_type)
    return f"{heading(3, method.name)}\n\n{takes} → {gives}\n\n{contract.about(at)}"


def _messages(contract: Contract, messages: Sequence[DescriptorProto], at: Path_, outer: str) -> Iterator[str]:
    for number, message in enumerate(messages):
        if message.options.map_entry:
            continue
        here, name = (*at, number), outer + message.name
        entries = {
            f".{_full(contract, name)}.{each.name}": each for each in message.nested_type if each.options.map_entry
        }
        rows = [
            [
                f"`{each.name}`",
                _type(contract, each, entries),
                _oneof(message, each),
                contract.about((*here, IN_MESSAGE["fields"], place)),
            ]
            for place, each in enumerate(message.field)
        ]
        parts = [heading(2, name, name), contract.about(here)]
        parts += [table(["field", "type", "", "meaning"], rows) or "It has no fields."]
        yield "\n\n".join(part for part in parts if part)
        yield from _messages(contract, message.nested_type, (*here, IN_MESSAGE["messages"]), f"{name}.")
        for place, each in enumerate(message.enum_type):
            yield _enum(contract, each, (*here, IN_MESSAGE["enums"], place), f"{name}.")


def _enum(contract: Contract, enum: EnumDescriptorProto, at: Path_, outer: str) -> str:
    rows = [
        [f"`{value.name}`", str(value.number), contract.about((*at, IN_ENUM, place))]
        for place, value in enumerate(enum.value)
    ]
    name = outer + enum.name
    parts = [heading(2, name, name), contract.about(at), table(["value", "number", "meaning"], rows)]
    return "\n\n".join(part for part in parts if part)


def _oneof(message: DescriptorProto, each: FieldDescriptorProto) -> str:
    if each.proto3_optional:
        return "optional"
    return f"one of `{message.oneof_decl[each.oneof_index].name}`" if each.HasField("oneof_index") else ""


def _type(contract: Contract, each: FieldDescriptorProto, entries: Mapping[str, DescriptorProto]) -> str:
    if entry := entries.get(each.type_name):
        key, value = (_type(contract, part, {}) for part in entry.field)
        return f"map of {key} → {value}"
    name = _reference(contract, each.type_name) if each.type_name else f"`{_scalar(each)}`"
    return f"list of {name}" if each.label == FieldDescriptorProto.LABEL_REPEATED else name


def _scalar(each: FieldDescriptorProto) -> str:
    return FieldDescriptorProto.Type.Name(each.type).removeprefix("TYPE_").lower()


def _reference(contract: Contract, type_name: str) -> str:
    """Return a link to a type of this contract, or the name of another's."""
    name = type_name.removeprefix(".")
    own = name.removeprefix(f"{contract.package}.") if contract.package else name
    is_own = own != name or not contract.package
    return f"[`{own}`](#{own})" if is_own else f"`{name}`"


def _full(contract: Contract, name: str) -> str:
    return f"{contract.package}.{name}" if contract.package else name
