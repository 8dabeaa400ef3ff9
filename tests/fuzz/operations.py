"""Every operation of the OpenAPI document with schemathesis, on a service over tiny models of every kind.

No answer is an undocumented 5xx, and every one has a status, a content type, headers and a body as the document says.
Whether a request was refused that the document allows, or taken that it forbids, is not judged: the document has no
words for a vocabulary's size or a model's limits. The model repository is switched off, as it is by default.
"""

import json
import logging
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from models.artifacts.export import export
from tests.golden_cases import case, write_checkpoint, write_tiny_bert
from tests.score_models import CLASSIFIER, LABELS, RANKER, write_classifier
from tests.served import serving
from tests.vision_cases import export_seen

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
    "allow_header_conformance",
    "unsupported_method",
)
DOCUMENTED = (501, 503, 504)  # a part of a protocol that is not there, and what Retry-After goes with
CASES = {"llama": "input_llama", "t5": "input_t5_encoder", "bloom": "input_bloom", "marian": "input_marian_encoder"}
SEEN = {
    "vit": ("vision_vit", {"image_processor_type": "ViTImageProcessor", "size": {"height": 24, "width": 24}}),
    "dinov3": ("vision_dinov3", {"size": {"height": 24, "width": 24}}),
    "qwen": ("vision_qwen2_vl_patch", {"patch_size": 4, "min_pixels": 64, "max_pixels": 1 << 24}),
}
SCORING: dict[str, tuple[str, ...]] = {RANKER: ("relevance",), CLASSIFIER: LABELS}
MODELS = ("bert", *CASES, *SEEN, *SCORING)
SPARE_SECONDS = 3600
MOST_TABLE_BYTES = 2**20  # of a table that is asked for: schemathesis parses and keeps every answer
MOST_MEMORY_BYTES = 8 * 2**30  # of schemathesis: it fails there, and not the machine


def write_store(folder: Path) -> Path:
    """One tiny model for each positional scheme, one that reads texts, three that see, and two with labels."""
    export(write_tiny_bert(folder / "checkpoints/bert", pooling="mean"), folder / "store/bert")
    for name, golden in CASES.items():
        export(write_checkpoint(case(golden), folder / "checkpoints" / name), folder / "store" / name)
    for name, (golden, preprocessor) in SEEN.items():
        export_seen(case(golden), folder / "checkpoints" / name, folder / "store" / name, preprocessor)
    for name, labels in SCORING.items():
        export(write_classifier(folder / "checkpoints" / name, labels), folder / "store" / name)
    return folder / "store"


def configuration() -> str:
    """What schemathesis is told, in TOML: which 5xx are refusals, and what parts of paths there are."""
    parts = {"name": (*MODELS, "nobody"), "version": ("1", "2"), "region": ("r",)}
    lines = [
        "[checks.not_a_server_error]",
        f'expected-statuses = ["2xx", "3xx", "4xx", {json.dumps(DOCUMENTED)[1:-1]}]',
    ]
    for name, values in parts.items():
        lines += [f"[dictionaries.{name}]", f"values = {json.dumps(values)}"]
    lines += ["[parameters]", *[f'"path.{name}" = {{ dictionary = "{name}", probability = 1.0 }}' for name in parts]]
    return "\n".join(lines) + "\n"


def schemathesis(examples: int) -> dict[str, Any]:
    """Requests tried, and the failures as schemathesis words them.

    examples   random requests an operation, beside those that cover its schema one by one
    """
    with tempfile.TemporaryDirectory(prefix="inlay-fuzz-") as name:
        folder = Path(name)
        config, report = folder / "schemathesis.toml", folder / "report.json"
        config.write_text(configuration())
        logging.getLogger("service").setLevel(logging.CRITICAL)  # faults are answers of 500, which are found
        logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
        limits = {"max_body_bytes": 1_000_000, "max_table_bytes": MOST_TABLE_BYTES}
        with serving(write_store(folder), default_model="bert", **limits) as service:
            address = "http://{}:{}/openapi.json".format(*service.address)
            options = ["--phases", "examples,coverage,fuzzing", "--checks", ",".join(CHECKS), "--continue-on-failure"]
            options += ["--max-examples", str(examples), "--report-json-path", str(report), "--warnings", "off"]
            bound = f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({MOST_MEMORY_BYTES},) * 2); "
            program = f"{bound}import sys; from schemathesis.cli import schemathesis; sys.exit(schemathesis())"
            command = [
                sys.executable,
                "-c",
                program,
                "--config-file",
                str(config),
                "--no-color",
                "run",
                address,
                *options,
            ]
            ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SPARE_SECONDS)
        if not report.exists() or not report.stat().st_size:
            return {
                "engine": "schemathesis",
                "inputs": 0,
                "taken": 0,
                "seconds": 0,
                "fault": f"no report, exit status {ended.returncode}\n{ended.stdout}{ended.stderr}",
            }
        return _outcome(json.loads(report.read_text()), ended.stdout)


def _outcome(report: dict[str, Any], printed: str) -> dict[str, Any]:
    cases, operations = report["test_cases"], report["operations"]
    failed = cases["unique_failures"] or operations["errored"] or operations["tested"] < operations["total"]
    taken = sum(rate["accepted"] for phases in report["valid_rates"].values() for rate in phases.values())
    return {
        "engine": "schemathesis",
        "inputs": cases["generated"],
        "taken": taken,
        "seconds": report["running_time"],
        "operations": operations["tested"],
        "fault": printed[-8000:] if failed else None,
    }
