"""Commands about models: what they print, their exit codes, and what a stop leaves behind."""

import json
import subprocess
import sys
from itertools import cycle
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from models.artifacts import description
from models.artifacts import random_checkpoint as creation
from models.families import FAMILIES
from service.cli.main import main
from tests.golden_cases import case, write_checkpoint, write_tiny_bert
from tests.models.artifacts.test_adoption import folder_of, model
from tests.reranker_models import write_reranker
from tests.sweeps import sampled
from tests.whole_models import write_whole

ROOT = Path(__file__).parents[3]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_tiny_bert(tmp_path / "checkpoint", pooling="mean")


def test_export_verify_list_and_describe_agree(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "store/tiny"
    assert main(["export", str(checkpoint), str(out)]) == 0
    output = capsys.readouterr().out
    assert "model tiny (model_type bert)" in output
    assert "largest difference between ONNX and the float64 reference" in output
    assert main(["verify", str(out)]) == 0
    assert "last_hidden_state" in capsys.readouterr().out
    assert main(["list", "--store", str(out.parent)]) == 0
    output = capsys.readouterr().out
    assert all(model_type in output for model_type in FAMILIES)
    assert "sentence_embedding" in output
    for what in (str(out), str(checkpoint), "gpt2"):
        assert main(["describe", what]) == 0
        assert "Embed" in capsys.readouterr().out


@pytest.mark.parametrize("lacks_vnni", [False, True])
def test_export_prints_the_precision_of_an_int8_encoder(
    checkpoint: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    lacks_vnni: bool,
) -> None:
    monkeypatch.setattr(description, "session_entries", lambda: {"entry": "1"} if lacks_vnni else {})
    (tmp_path / "texts.txt").write_text("a b c\n", encoding="utf-8")
    options = ["--encoder", "int8", "--calibration", str(tmp_path / "texts.txt"), "--min-cosine", "0.5"]
    assert main(["export", str(checkpoint), str(tmp_path / "out"), *options]) == 0
    printed = capsys.readouterr()
    assert "int8 encoder; cosine to the float32 one over 48 texts: min 0." in printed.out
    assert ("this processor lacks VNNI" in printed.err) is lacks_vnni


def test_encoder_option_decides_what_of_a_decoder_is_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = str(write_whole(tmp_path / "x", "llama"))
    for options, outputs in (
        ([], "outputs: input_embeddings"),
        (["--encoder", "none"], "outputs: input_embeddings"),
        (["--encoder", "float32"], "last_hidden_state"),
        (["--pooling", "lasttoken"], "sentence_embedding"),
    ):
        assert main(["export", checkpoint, str(tmp_path / "out"), *options]) == 0
        output = capsys.readouterr().out
        assert outputs in output
        may_be_whole = "input layer alone: --pooling lasttoken or --encoder float32 exports it whole" in output
        assert may_be_whole == (not options)


def test_list_says_which_families_run_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--store", str(tmp_path)]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line}
    assert rows["bert"].endswith("  whole")
    assert rows["llama"].endswith("  whole if it pools")
    assert rows["jamba"].endswith("  input layer alone: mixture of experts, state-space layers")


def test_adopt_prints_what_was_adopted_and_its_cosine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INLAY_STORE", str(tmp_path / "store"))
    place = folder_of(tmp_path / "x", model())
    folder_of(place, model(scale="dynamic"), at="onnx/model_quantized.onnx")
    chosen = ["adopt", str(place), "--file", "onnx/model_quantized.onnx"]
    assert main(chosen) == 0
    output = capsys.readouterr().out
    assert "one sequence a run" in output
    assert "cosine to onnx/model.onnx over 48 texts: min 0." in output
    assert main([*chosen, "--no-compare"]) == 0
    assert "not compared with float32: the caller did not want it (--no-compare)" in capsys.readouterr().out
    assert main(["adopt", str(place), "--compare"]) == 1
    assert "cannot be compared with float32 weights" in capsys.readouterr().err


@pytest.mark.parametrize("option", [["--calibration", "texts.txt"], ["--min-cosine", "0.9"]])
def test_rejects_options_of_int8_for_a_float32_encoder(
    option: list[str], checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(checkpoint), str(tmp_path / "out"), *option]) == 1
    assert "--calibration and --min-cosine are of --encoder int8" in capsys.readouterr().err


def test_list_says_why_an_export_is_broken(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("good", "bad"):
        main(["export", str(checkpoint), str(tmp_path / "store" / name)])
    (tmp_path / "store/bad/weights.safetensors").unlink()
    capsys.readouterr()
    assert main(["list", "--store", str(tmp_path / "store")]) == 0
    output = capsys.readouterr().out
    assert "good" in output
    assert "weights.safetensors is missing" in output


def test_list_of_an_empty_store_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--store", str(tmp_path)]) == 0
    assert "no exported models in" in capsys.readouterr().out


def test_commands_use_the_store_of_the_variable(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INLAY_STORE", str(tmp_path / "store"))
    assert main(["export", str(checkpoint)]) == 0
    assert main(["export", str(checkpoint), "--name", "other"]) == 0
    assert sorted(folder.name for folder in (tmp_path / "store").iterdir()) == ["checkpoint", "other"]
    assert main(["verify", "other"]) == 0
    capsys.readouterr()
    assert main(["describe", "other"]) == 0
    assert "other" in capsys.readouterr().out
    assert main(["list"]) == 0
    listed = capsys.readouterr().out
    assert "checkpoint" in listed
    assert "other" in listed


FAULTS = {
    "export nowhere": ["export", "{tmp}/nowhere", "{tmp}/out"],
    "export under a file": ["export", "{tmp}/checkpoint", "{tmp}/checkpoint/config.json/out"],
    "export with an unknown pooling": ["export", "{tmp}/checkpoint", "{tmp}/out", "--pooling", "median"],
    "verify nothing": ["verify", "{tmp}/nowhere"],
    "describe nothing": ["describe", "{tmp}/nowhere"],
    "adopt no ONNX": ["adopt", "{tmp}/checkpoint", "{tmp}/out"],
    "create an unknown family": ["create", "{tmp}/new", "--model-type", "t6"],
    "create over something": ["create", "{tmp}/checkpoint", "--model-type", "bert"],
    "create a size of nothing": ["create", "{tmp}/new", "--model-type", "bert", "--vocab-size", "0"],
    "create no labels": ["create", "{tmp}/new", "--model-type", "bert", "--labels", "0"],
    "create labels of what has none": ["create", "{tmp}/new", "--model-type", "siglip_text_model", "--labels", "2"],
    "create a head on nothing": ["create", "{tmp}/new", "--base", "{tmp}/nowhere", "--labels", "2"],
    "rank by tokens without a tokenizer": ["export", "{tmp}/checkpoint", "{tmp}/new", "--reranker", "yes,no"],
    "create from a config that is not there": ["create", "{tmp}/new", "--config", "{tmp}/nowhere.json"],
    "create another family than the config's": [
        *("create", "{tmp}/new", "--model-type", "llama", "--config", "{tmp}/checkpoint/config.json")
    ],
    "create an input layer whole": ["create", "{tmp}/new", "--model-type", "funnel", "--whole"],
    "create with an impossible spread": ["create", "{tmp}/new", "--model-type", "bert", "--std", "nan"],
}


@pytest.mark.parametrize("name", FAULTS)
def test_an_error_is_one_line_and_exit_code_1(
    name: str, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word.replace("{tmp}", str(tmp_path)) for word in FAULTS[name]]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("inlay: ")
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


NEAREST = {
    "a misspelt model_type": (
        ["describe", "lama"],
        "lama is no model_type; did you mean llama? `inlay list`",
    ),
    "a misspelt one that sees": (["describe", "vitt"], "vitt is no model_type; did you mean vit?"),
    "nothing like it": (["describe", "xyzzyx"], "xyzzyx is no model_type and no folder; `inlay list`"),
    "a path": (["describe", "/nowhere"], "/nowhere is no folder: name an export or"),
    "an empty folder": (["describe", "{tmp}"], "holds no card.json (an export) and no config.json (a checkpoint)"),
    "a file": (["describe", "{tmp}/checkpoint/config.json"], "is a file, and of files only .gguf is read"),
    "create": (["create", "{tmp}/new", "--model-type", "lama"], "the nearest is 'llama'; `inlay list`"),
}


@pytest.mark.parametrize("name", NEAREST)
def test_unknown_name_error_suggests_the_nearest(
    name: str, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, message = NEAREST[name]
    assert main([word.replace("{tmp}", str(tmp_path)) for word in words]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert len(error.replace(str(tmp_path), "")) < 200


def run(code: str, *words: str) -> "subprocess.CompletedProcess[str]":
    """The command line in a process of its own, after `code`."""
    program = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{code}\nfrom service.cli.main import main\nsys.exit(main())"
    )
    return subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("signal", ["SIGINT", "SIGTERM"])
def test_a_signal_leaves_no_half_export(signal: str, checkpoint: Path, tmp_path: Path) -> None:
    kill = (
        "import os, signal as s, models.artifacts.folder as f\n"
        "s.signal(s.SIGINT, s.default_int_handler)\n"  # a shell may have it ignored
        f"f.hashes = lambda *a: os.kill(os.getpid(), s.{signal})"
    )
    done = run(kill, "export", str(checkpoint), str(tmp_path / "out"))
    assert done.returncode == 130
    assert "stopped; nothing was left behind" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_a_full_disk_is_one_line_and_leaves_nothing(checkpoint: Path, tmp_path: Path) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))"
    done = run(limit, "export", str(checkpoint), str(tmp_path / "out"))
    assert done.returncode == 1
    assert "inlay: " in done.stderr
    assert "File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_importing_models_needs_numpy_alone() -> None:
    """onnx, onnxruntime, tokenizers, rich and matplotlib wait until something is exported or drawn."""
    paths = [path.relative_to(ROOT).with_suffix("") for path in sorted((ROOT / "models").rglob("*.py"))]
    names = [".".join(path.parts).removesuffix(".__init__") for path in paths if path.name != "__main__"]
    imports = "\n".join(f"import {name}" for name in names)
    dear = "{'onnx', 'onnxruntime', 'tokenizers', 'rich', 'torch', 'matplotlib'}"
    done = run(f"{imports}\nfound = {dear} & set(sys.modules)\nassert not found, found\nsys.exit(0)")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("family", "dtype"), sampled(zip(FAMILIES, cycle(["float32", "float16", "bfloat16"]), strict=False), 7, unpack=True)
)
def test_a_created_checkpoint_exports(family: str, dtype: str, tmp_path: Path) -> None:
    sizes = ["--vocab-size", "300", "--hidden-size", "48", "--dtype", dtype]
    assert main(["create", str(tmp_path / "x"), "--model-type", family, *sizes]) == 0
    assert main(["export", str(tmp_path / "x"), str(tmp_path / "out")]) == 0
    card = json.loads((tmp_path / "out/card.json").read_text())
    assert (card["family"], card["dtype"], card["vocab_size"], card["hidden_size"]) == (family, dtype, 300, 48)


def test_a_model_created_whole_exports_whole(tmp_path: Path) -> None:
    (tmp_path / "sizes.json").write_text('{"model_type": "qwen3", "num_hidden_layers": 2, "intermediate_size": 24}')
    words = ["--vocab-size", "61", "--hidden-size", "32", "--whole"]
    assert main(["create", str(tmp_path / "x"), "--config", str(tmp_path / "sizes.json"), *words]) == 0
    assert main(["export", str(tmp_path / "x"), str(tmp_path / "out"), "--pooling", "lasttoken"]) == 0
    card = json.loads((tmp_path / "out/card.json").read_text())
    assert (card["family"], card["hidden_size"], card["default_output"]) == ("qwen3", 32, "sentence_embedding")


def test_describe_counts_a_fused_tensor_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "sizes.json").write_text('{"model_type": "gpt2", "n_layer": 2}')  # q, k and v in one tensor
    words = ["--vocab-size", "50", "--hidden-size", "8", "--whole"]
    assert main(["create", str(tmp_path / "x"), "--config", str(tmp_path / "sizes.json"), *words]) == 0
    tensors = load_file(tmp_path / "x/model.safetensors")
    size = sum(each.nbytes for each in tensors.values())
    assert main(["describe", str(tmp_path / "x")]) == 0
    assert f"reads {size:,} of the {size:,} bytes of its {len(tensors)} tensors" in capsys.readouterr().out


def test_created_weights_have_the_given_std_and_seed(tmp_path: Path) -> None:
    def table(name: str, *words: str) -> np.ndarray:
        sizes = ["--vocab-size", "2000", "--hidden-size", "64"]
        assert main(["create", str(tmp_path / name), "--model-type", "llama", *sizes, *words]) == 0
        return load_file(tmp_path / name / "model.safetensors")["model.embed_tokens.weight"]

    first = table("a", "--std", "0.5")
    assert first.std() == pytest.approx(0.5, rel=0.01)
    assert abs(first.mean()) < 0.005
    np.testing.assert_array_equal(table("b", "--std", "0.5"), first)
    assert (table("c", "--std", "0.5", "--seed", "1") != first).any()


def test_a_head_on_a_checkpoint_is_exported_and_described(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = write_tiny_bert(tmp_path / "base")
    assert main(["create", str(tmp_path / "x"), "--base", str(base), "--labels", "2", "--init", "scaled"]) == 0
    assert main(["export", str(tmp_path / "x"), str(tmp_path / "out")]) == 0
    capsys.readouterr()
    main(["describe", str(tmp_path / "out")])
    assert "2 labels (LABEL_0, LABEL_1) of a text, cls pooling; scores are by identity" in capsys.readouterr().out


def test_a_reranker_is_exported_by_its_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_reranker(tmp_path / "x")
    assert main(["export", str(folder), str(tmp_path / "out"), "--reranker", "yes,no"]) == 0
    assert "class_logits" in capsys.readouterr().out


def test_create_writes_a_table_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(creation, "CHUNK_BYTES", 4000)
    creation.create(tmp_path / "x", model_type="bert", vocab_size=501, hidden_size=6, dtype="bfloat16")
    with safe_open(tmp_path / "x/model.safetensors", "np") as file:
        assert file.get_slice("bert.embeddings.word_embeddings.weight").get_shape() == [501, 6]
    tensors = load_file(tmp_path / "x/model.safetensors")
    np.testing.assert_array_equal(tensors["bert.embeddings.LayerNorm.weight"], np.ones(6, ml_dtypes.bfloat16))
    np.testing.assert_array_equal(tensors["bert.embeddings.LayerNorm.bias"], np.zeros(6, ml_dtypes.bfloat16))


def test_describe_names_the_rope_of_an_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["export", str(write_checkpoint(case("input_llama_tied"), tmp_path / "x")), str(tmp_path / "out")])
    capsys.readouterr()
    main(["describe", str(tmp_path / "out")])
    assert "llama3, theta 500000, 8 channels" in capsys.readouterr().out


BESIDES: dict[str, tuple[str, ...]] = {
    "bart": ("side encoder", "output head tied to model.shared.weight, 50 logits"),
    "ernie": ("output head none: the checkpoint holds no cls.predictions.transform.dense.weight",),
    "gemma3n_text": ("per layer model.embed_tokens_per_layer.weight", "causal in sliding_attention, window 512;"),
}


@pytest.mark.parametrize("family", BESIDES)
def test_describe_names_sides_heads_and_masks(family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    creation.create(tmp_path / "x", model_type=family, vocab_size=50, hidden_size=16)
    main(["export", str(tmp_path / "x"), str(tmp_path / "out")])
    for what in ("x", "out"):
        capsys.readouterr()
        main(["describe", str(tmp_path / what)])
        output = " ".join(capsys.readouterr().out.replace(": ", " ").split())
        assert [sentence for sentence in BESIDES[family] if sentence.replace(": ", " ") not in output] == []


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("input_llama", "output head: its own, lm_head.weight, 61 logits"), ("input_ernie", "extras: task_type_ids")],
)
def test_describe_names_heads_and_extra_inputs(
    name: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["describe", str(write_checkpoint(case(name), tmp_path / "x"))])
    assert sentence in capsys.readouterr().out


def test_create_of_an_image_tower_says_that_there_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["create", str(tmp_path / "x"), "--model-type", "clip_vision_model"]) == 1
    error = capsys.readouterr().err
    assert "'clip_vision_model' is an image tower, which are exported and not created" in error
    assert "not known" not in error
