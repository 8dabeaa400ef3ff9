"""The house rules: who may import whom, where a library lives, sizes, stubs, locks, names of settings.

Reads sources and imports none of the rooms but service.settings. A rule bends only by a row in a table here, with its
reason.
"""

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import grpc_tools
import pytest
from grpc_tools import protoc
from packaging.requirements import Requirement

from service.settings import Settings

ROOT = Path(__file__).parent.parent
ROOMS = ("models", "service", "proto", "loadtest", "deploy")
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))

# The floors of models/ and of service/, from the ground up: a package imports itself and what lies on lower floors.
MODEL_FLOORS: tuple[tuple[str, ...], ...] = (
    ("errors",),
    ("positions",),
    ("recipes",),
    ("tables",),
    ("checkpoints",),
    ("families",),
    ("vision",),
    ("graphs", "reference"),
    ("artifacts", "plots"),
)
FLOORS: tuple[tuple[str, ...], ...] = (
    ("errors", "machine", "request_context", "settings"),
    ("error_status", "heavy", "observability", "runtime", "scheduling", "security"),
    ("embedding",),
    ("grpc", "http", "registry"),
    ("context",),
    ("bulk", "process", "protocols", "web"),
    ("app",),
    ("cli",),
)
MOST_FLOORS = 8
FLOOR_OF = {package: floor for floor, packages in enumerate(FLOORS) for package in packages}

# What else may import what. A prefix stands for all modules under it; the longest prefix that fits decides.
ARROWS: dict[str, tuple[str, ...]] = {
    "models": ("models",),
    "models.positions": ("models.positions", "models.errors"),
    "proto": ("proto",),
    "deploy": ("deploy", "service", "proto"),
    "loadtest": ("loadtest", "proto"),
    "loadtest.bulk": ("loadtest", "service"),  # times the command's engine alone
    "loadtest.encoders.growth": ("loadtest", "service"),  # fills the pipeline's queues
    "loadtest.encoders.inlay_engine": ("loadtest", "service"),  # times the pipeline beside other libraries
    "loadtest.encoders.input_layer": ("loadtest", "models", "service"),  # times graphs and the engine
    "loadtest.fleet.replica": ("loadtest", "service"),  # simulates with the service's own queue
    "loadtest.table_generation": ("loadtest", "models"),  # times functions, not the service
    "service": ("service", "models"),
    "service.app": ("service", "models", "proto"),
    "service.errors": (),
    "service.grpc": ("service", "models", "proto"),
    "service.protocols": ("service", "models", "proto"),
    "service.protocols.inlay": (*(f"service.{name}" for name in FLOOR_OF), "models", "proto"),
    "service.runtime": ("service.runtime", "service.errors", "service.machine", "models"),
    "service.scheduling": ("service.scheduling", "service.errors", "service.request_context", "models"),
    "service.settings": (),
}
# Protocols on top of Inlay's own: they know it, and neither it nor one another.
PROTOCOLS = sorted({path.parent.name for path in (ROOT / "service/protocols").glob("*/*.py")} - {"inlay"})

# A library's name appears in one package; `models (in functions)`: never when models/ is imported.
IN_FUNCTIONS = " (in functions)"
LIBRARIES: dict[str, tuple[str, ...]] = {
    "onnxruntime": (*[f"service.runtime.{name}" for name in ("onnx", "prepacked", "gpu")], "models" + IN_FUNCTIONS),
    "onnx": ("models" + IN_FUNCTIONS,),
    "openvino": ("service.runtime.openvino", "service.runtime.openvino_graph"),
    "pyarrow": ("service.bulk", "loadtest.bulk"),
    "fsspec": ("service.bulk.remote" + IN_FUNCTIONS,),
    "ray": ("service.bulk.ray_data" + IN_FUNCTIONS,),
    "typer": ("service.cli",),
    "gguf": ("models.checkpoints.gguf_blocks" + IN_FUNCTIONS,),
    "huggingface_hub": ("models.checkpoints.hub" + IN_FUNCTIONS,),
    "jinja2": ("models.artifacts.chat_template_process" + IN_FUNCTIONS,),
    "httpx2": ("models.checkpoints.hub" + IN_FUNCTIONS,),
    "tokenizers": ("service.embedding.tokenize.tokenizer", "models" + IN_FUNCTIONS),
    "fastapi": ("service.http.docs_pages" + IN_FUNCTIONS,),
    "fastapi_offline": ("service.http.docs_pages" + IN_FUNCTIONS,),
    "starlette": ("service.http.application",),
    "uvicorn": ("service.http.listener",),
    "httptools": ("service.http.request_parser",),
    "grpc": ("service.grpc",),
    "grpc_health": ("service.grpc",),
    "grpc_reflection": ("service.grpc",),
    "google": ("service.grpc", "service.protocols"),
    "opentelemetry": (
        "service.observability.otlp" + IN_FUNCTIONS,
        "service.observability.tracing" + IN_FUNCTIONS,
    ),
    "pydantic": ("service.web", "service.settings", "service.http", "service.protocols", "service.cli"),
    "pydantic_core": ("service.http", "service.protocols"),
    "pydantic_settings": ("service.settings", "service.cli"),
    "orjson": ("service.http", "service.protocols"),
    "pybase64": ("service.http", "service.protocols"),
    "backports": ("service.http.content_coding", "service.bulk.text_files"),
    "compression": ("service.http.content_coding", "service.bulk.text_files"),  # the same from Python 3.14 on
    "matplotlib": ("models.plots" + IN_FUNCTIONS,),
    "PIL": ("service.embedding.image_decoding" + IN_FUNCTIONS, "models.vision" + IN_FUNCTIONS),
    "ml_dtypes": ("service", "models"),
    "numpy": ("service", "models"),
}
# (module, library): why it stands there all the same.
EXCEPTIONS: dict[tuple[str, str], str] = {}

# Modules that may pass MOST_LINES, with the reason.
LONG: dict[str, str] = {
    "service/settings.py": "a field and its description a setting",
    "models/recipes/steps.py": "a class a step",
    "models/positions/rope/scalings.py": "a function and a row a scaling",
    "service/protocols/inlay/positions/parameters.py": "a class a scheme",
}
MOST_LINES = 450
NO_SETTINGS = {"INLAY_MAX_INPUT", "INLAY_SERVICE_HOST"}  # pages show what is misspelt, and what Kubernetes sets

# Documented, whatever their names look like.
OTEL_LOGS = ("BatchLogRecordProcessor", "LoggerProvider", "OTLPLogExporter", "SeverityNumber")  # of packages _logs
PRIVATE = ("os._exit", *OTEL_LOGS)
NAMED_TUPLE = ("_asdict", "_fields", "_replace")
PATCHED = re.compile(r"([a-z_.]+\.)?_[A-Za-z]")

# Tests that look into other people's libraries.
LOOK_INTO_LIBRARIES = ("clients", "golden", "parity")

VAGUE = {"utils", "util", "helpers", "helper", "base", "manager", "common", "misc"}


@dataclass(frozen=True)
class Import:
    """One import statement's target, as seen from `module`."""

    module: str
    target: str
    line: int
    in_function: bool

    @property
    def library(self) -> str:
        return self.target.partition(".")[0]

    def __str__(self) -> str:
        return f"{self.module} imports {self.target} (line {self.line})"


def modules() -> dict[str, Path]:
    paths = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py")) if "_pb2" not in path.name]
    return {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}


MODULES = modules()
PRODUCT = [name for name in MODULES if name.startswith(("models", "service"))]


def within(module: str, prefix: str) -> bool:
    return module == prefix or module.startswith(prefix + ".")


def resolve(module: str, node: ast.ImportFrom) -> list[str]:
    """`from a import b` is an import of a.b where that is a module, else of a."""
    package = module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]
    parts = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
    source = ".".join([*parts, *([node.module] if node.module else [])])
    names = [f"{source}.{alias.name}" for alias in node.names]
    return [name if name in MODULES or name.endswith(("_pb2", "_pb2_grpc")) else source for name in names]


def visit(module: str, node: ast.AST, in_function: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            targets = resolve(module, child) if isinstance(child, ast.ImportFrom) else [a.name for a in child.names]
            yield from (Import(module, target, child.lineno, in_function) for target in dict.fromkeys(targets))
        inside = in_function or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield from visit(module, child, inside or is_for_types_only(child))


def is_for_types_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def tree(path: Path) -> ast.Module:  # not kept: the trees of all files are millions of objects
    return ast.parse(path.read_bytes())


@cache
def imports() -> list[Import]:
    return [imported for module, path in MODULES.items() for imported in visit(module, tree(path), False)]


def ours() -> list[Import]:
    return [imported for imported in imports() if imported.library in ROOMS]


def allowed_targets(module: str) -> tuple[str, ...]:
    return ARROWS[max((prefix for prefix in ARROWS if within(module, prefix)), key=len)]


def stands_in(imported: Import, place: str) -> bool:
    room = place.removesuffix(IN_FUNCTIONS)
    return within(imported.module, room) and (imported.in_function or room == place)


def test_import_checks_find_modules_and_imports() -> None:
    assert {module.partition(".")[0] for module in MODULES} == set(ROOMS)
    assert any(imported.target == "numpy" for imported in imports())
    assert any(imported.in_function and imported.library == "onnx" for imported in imports())


@pytest.mark.parametrize("room", ROOMS)
def test_imports_follow_the_arrows(room: str) -> None:
    wrong = [
        str(imported)
        for imported in ours()
        if within(imported.module, room)
        and not any(within(imported.target, place) for place in (imported.module, *allowed_targets(imported.module)))
    ]
    assert wrong == []


def package(module: str, room: str) -> str | None:
    """Return the package of a module of a room; None: of other modules."""
    first, _, rest = module.partition(".")
    return rest.partition(".")[0] or None if first == room else None


@pytest.mark.parametrize(("room", "floors"), [("models", MODEL_FLOORS), ("service", FLOORS)])
def test_packages_import_from_lower_floors_only(room: str, floors: tuple[tuple[str, ...], ...]) -> None:
    floor_of = {package: floor for floor, packages in enumerate(floors) for package in packages}
    assert {package(module, room) for module in MODULES} - {None} == set(floor_of)
    wrong = [
        str(imported)
        for imported in ours()
        if (here := package(imported.module, room)) and (there := package(imported.target, room)) and here != there
        if floor_of[there] >= floor_of[here]
    ]
    assert wrong == []


def test_the_service_has_few_floors() -> None:
    assert len(FLOORS) <= MOST_FLOORS


def test_protocols_import_no_protocol_but_inlays() -> None:
    wrong = [
        str(imported)
        for imported in ours()
        for place in [f"service.protocols.{name}" for name in PROTOCOLS]
        if within(imported.target, place)
        and within(imported.module, "service.protocols")
        and not within(imported.module, place)
    ]
    assert PROTOCOLS
    assert wrong == []


def private_names_of_libraries(module: ast.Module) -> list[str]:
    """Return the underscored names of other libraries that a module of ours reads or imports."""
    nodes = list(ast.walk(module))
    froms = [
        node
        for node in nodes
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] not in ROOMS
    ]
    plain = [
        alias
        for node in nodes
        if isinstance(node, ast.Import) and node.names[0].name.partition(".")[0] not in ROOMS
        for alias in node.names
    ]
    taken = [(node.module or "", alias) for node in froms for alias in node.names]
    names = {alias.asname or alias.name.partition(".")[0] for alias in [*plain, *(alias for _, alias in taken)]}
    used = [
        f"{node.value.id}.{node.attr}"
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in names
        if re.match("_[A-Za-z]", node.attr)
    ]
    return used + [alias.name for source, alias in taken if re.match("_[A-Za-z]", alias.name) or "._" in source]


def private_names_of_ours(module: ast.Module) -> list[str]:
    """Return the underscored names that a test reads or patches, except on self and cls."""
    nodes = list(ast.walk(module))
    used = [
        ast.unparse(node)
        for node in nodes
        if isinstance(node, ast.Attribute) and re.match("_[a-z]", node.attr) and node.attr not in NAMED_TUPLE
        if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
    ]
    return used + [
        ast.unparse(node)
        for node in nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "setattr"
        if any(isinstance(given, ast.Constant) and PATCHED.match(str(given.value)) for given in node.args[:2])
    ]


def test_private_names_are_found() -> None:
    module = ast.parse("import numpy as n\nfrom onnx._parts import a, _b\nn._core, n.core, self._mine, other._theirs")
    assert private_names_of_libraries(module) == ["n._core", "a", "_b"]
    patched = ast.parse(
        "monkeypatch.setattr(one, '_two', 3); other._theirs, self._mine, monkeypatch.setattr(one, 'two', 3)"
    )
    assert private_names_of_ours(patched) == ["other._theirs", "monkeypatch.setattr(one, '_two', 3)"]


def test_no_private_name_of_a_library_is_used() -> None:
    used = {module: set(private_names_of_libraries(tree(MODULES[module]))) - set(PRIVATE) for module in PRODUCT}
    assert {module: names for module, names in used.items() if names} == {}


def test_tests_depend_on_no_private_name_of_ours() -> None:
    paths = [path for path in ROOT.glob("tests/**/*.py") if path.relative_to(ROOT).parts[1] not in LOOK_INTO_LIBRARIES]
    used = {str(path.relative_to(ROOT)): set(private_names_of_ours(tree(path))) - set(PRIVATE) for path in paths}
    assert {path: names for path, names in used.items() if names} == {}


def test_tests_hold_on_every_processor() -> None:
    """Sessions take the service's options, and a value near 0 is compared by an absolute tolerance too."""
    wrong = []
    for path in sorted(ROOT.glob("tests/**/*.py")):
        if path.relative_to(ROOT).parts[1] in (*LOOK_INTO_LIBRARIES, "onnx_sessions.py"):
            continue
        for call in [node for node in ast.walk(tree(path)) if isinstance(node, ast.Call)]:
            name, passed = ast.unparse(call.func).rpartition(".")[2], {each.arg for each in call.keywords}
            relative_alone = name.endswith("allclose") and "rtol" in passed and not passed & {"atol", None}
            if relative_alone or name == "InferenceSession":
                wrong.append(f"{path.relative_to(ROOT)}:{call.lineno}: {name}")
    assert wrong == []


@pytest.mark.parametrize("library", LIBRARIES)
def test_library_is_imported_only_in_its_package(library: str) -> None:
    wrong = [
        str(imported)
        for imported in imports()
        if imported.library == library
        and imported.module.startswith(("models", "service"))
        and (imported.module, library) not in EXCEPTIONS
        and not any(stands_in(imported, place) for place in LIBRARIES[library])
    ]
    assert wrong == []


@pytest.mark.parametrize("room", ["models", "service"])
def test_packages_import_only_listed_libraries(room: str) -> None:
    known = {*LIBRARIES, *ROOMS, *sys.stdlib_module_names}
    assert sorted({str(f) for f in imports() if within(f.module, room) and f.library not in known}) == []


def test_every_exception_is_still_needed() -> None:
    seen = {(imported.module, imported.library) for imported in imports()}
    assert set(EXCEPTIONS) <= seen
    steps = (ROOT / "docs/design/extend.md").read_text(encoding="utf-8")
    assert {name for name in LONG if Path(name).name not in steps} == set()  # they grow as that page says


def test_imports_have_no_cycle() -> None:
    graph: dict[str, set[str]] = {module: set() for module in MODULES}
    for imported in ours():
        if imported.target in MODULES and imported.target != imported.module:
            graph[imported.module].add(imported.target)
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def line_count(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def test_no_module_is_too_long() -> None:
    lengths = {path.relative_to(ROOT).as_posix(): line_count(path) for path in MODULES.values()}
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES and name not in LONG} == {}


def test_no_module_has_a_vague_name() -> None:
    assert [module for module in MODULES if VAGUE & set(module.split("."))] == []


# what ONNX Runtime and matplotlib read when they are imported, what glibc read of its own, a process's thread pools,
# the folder of the user's data
STEERS_LIBRARIES = ("models", "models.plots.canvas", "service.heavy.lane", "service.machine", "service.settings")


def test_only_main_reads_the_environment() -> None:
    read = {
        f"{module} (line {node.lineno})"
        for module in PRODUCT
        if not within(module, "service.cli") and module not in STEERS_LIBRARIES
        for node in ast.walk(tree(MODULES[module]))
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
    }
    assert read == set()


@pytest.mark.parametrize("module", ["service.runtime.onnx", "models.artifacts.export"])
def test_onnx_runtime_sends_no_telemetry(module: str, tmp_path: Path) -> None:
    # on import it writes a device id and its reports to the cache; where CI is set it never does
    environment = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    subprocess.run([sys.executable, "-c", f"import {module}, onnxruntime"], cwd=ROOT, env=environment, check=True)
    assert list(tmp_path.rglob("*")) == []


def test_the_stubs_are_what_protoc_makes_of_the_contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    contracts = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "proto").glob("*.proto"))]
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    assert protoc.main(["protoc", "-I.", f"-I{well_known}", *outputs, *contracts]) == 0
    fresh = {path.name: path.read_text() for path in (tmp_path / "proto").iterdir()}
    kept = {path.name: path.read_text() for path in (ROOT / "proto").glob("*_pb2*.py*")}
    assert fresh == kept, "run `make proto`"


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_a_lock_holds_names_versions_and_hashes_but_no_address(lock: Path) -> None:
    text = lock.read_text()
    assert "://" not in text
    for line in text.replace("\\\n", "").splitlines():
        assert not line or line.lstrip().startswith("#") or re.search(r"==\S+.* --hash=sha256:[0-9a-f]{64}", line), line


def test_javascripts_lock_holds_hashes_but_no_address() -> None:
    packages = json.loads((ROOT / "tests/clients/js/package-lock.json").read_text())["packages"]
    locked = [package for name, package in packages.items() if name]
    assert locked
    assert [each for each in locked if "resolved" in each or not each["integrity"].startswith("sha512-")] == []


# Which extras of pyproject.toml each lock answers for; None: the service's own requirements.
LOCKED: dict[str, tuple[str | None, ...]] = {
    "cpu": (None, "cpu", "export", "otel"),
    "gpu": (None, "gpu", "export", "otel"),
    "demo": ("demo",),
    "dev": ("dev",),
    "load": ("load",),
    "openai-ids": ("openai-ids",),
    "parity": ("parity",),
    "fuzz": ("fuzz",),
    "browser": ("browser",),
    "clients": ("clients",),
    "peers": ("peers",),
    "encoders": ("encoders",),
    "bulk": ("bulk",),
    "docs": ("docs",),
    "ray": ("ray",),
    "openvino": ("openvino",),
    "charts": ("charts",),
    "tools": ("tools",),
}
# Locks that answer for no extra, with the reason.
UNLISTED = {
    "build": "the build backend: test_the_build_backend_is_locked compares it",
    "uv": "the installer itself, which pyproject.toml does not ask for",
}
# An environment of its own: what the clients ask for is older than what the service has.
APART = ("clients", "tools")


def test_every_lock_is_compared_or_exempt() -> None:
    assert sorted([*LOCKED, *UNLISTED]) == [lock.stem for lock in LOCKS]


@pytest.mark.parametrize("lock", LOCKED)
def test_lock_meets_the_requirements_of_pyproject(lock: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = dict(re.findall(r"^([\w.-]+)==([^\s;]+)", (ROOT / f"requirements/{lock}.txt").read_text(), re.MULTILINE))
    extras = project["optional-dependencies"]
    for line in [line for extra in LOCKED[lock] for line in (extras[extra] if extra else project["dependencies"])]:
        requirement = Requirement(line)
        assert requirement.specifier.contains(pins.get(requirement.name, "0")), (
            f"{line}: {lock}.txt has {pins.get(requirement.name)}: make lock"
        )


def test_the_build_backend_is_locked() -> None:
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    pins = dict(re.findall(r"^([\w.-]+)==([^\s;]+)", (ROOT / "requirements/build.txt").read_text(), re.MULTILINE))
    assert all(Requirement(line).specifier.contains(pins[Requirement(line).name]) for line in requires)


def test_a_wheel_holds_every_file_beside_the_code() -> None:
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    patterns = ["*.py", "*.pyi", *setuptools["package-data"]["*"]]
    store = ROOT / "models/store"
    beside = [
        file
        for room in ("models", "service", "proto")
        for file in (ROOT / room).rglob("*")
        if file.is_file() and store not in file.parents
    ]
    held = [file for file in beside if "__pycache__" not in file.parts and file.name != "README.md"]
    assert len(held) > 300
    assert [file for file in held if not any(file.match(pattern) for pattern in patterns)] == []


def test_a_package_has_one_version_per_environment() -> None:
    versions: dict[str, set[str]] = {}
    for lock in [lock for lock in LOCKS if lock.stem not in APART]:
        for name, version in re.findall(r"^([\w.-]+)==([^\s;]+)", lock.read_text(), re.MULTILINE):
            versions.setdefault(name, set()).add(version)
    assert {name: pinned for name, pinned in versions.items() if len(pinned) > 1} == {}


def settings() -> set[str]:
    return {f"INLAY_{name.upper()}" for name in Settings.model_fields}


@pytest.mark.parametrize("name", ["README.md", "SECURITY.md", "Dockerfile", "docker-compose.yml", "Makefile"])
def test_no_file_names_a_setting_that_does_not_exist(name: str) -> None:
    named = set(re.findall(r"\bINLAY_[A-Z_]*[A-Z]\b", (ROOT / name).read_text(encoding="utf-8")))
    assert named - settings() == set()


def test_no_page_names_a_setting_that_does_not_exist() -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        named = set(re.findall(r"\bINLAY_[A-Z_]*[A-Z]\b", page.read_text(encoding="utf-8")))
        assert named - settings() <= NO_SETTINGS, page


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/design/index.md", "docs/design/extend.md"])
def test_every_path_in_the_map_exists(page: str) -> None:
    """A file without a folder lies in one that the same item names."""
    wrong = []
    text = (ROOT / page).read_text(encoding="utf-8")
    for item in re.split(r"\n(?=\s*(?:[-|#]|\d\. )|\n)", text):
        named = re.findall(r"`([\w./-]+(?:/|\.(?:py|md|json|toml|yml)))(?:::(?:\w+\.)?(\w+))?`", item)
        folders = {path if path.endswith("/") else str(Path(path).parent) for path, _ in named}
        for path, name in named:
            files = [file for folder in ("", *sorted(folders)) if (file := ROOT / folder / path).exists()]
            if not files or (name and not re.search(rf"(def|class) {name}\b", files[0].read_text(encoding="utf-8"))):
                wrong.append(f"{path} {name}")
    assert wrong == []
