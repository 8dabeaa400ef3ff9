"""Export and verify: complete folders or none, hashes, limits, the tokenizer."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from models.artifacts import card as cards
from models.artifacts import comparison as compare
from models.artifacts import hash_checks
from models.artifacts.export import export
from models.artifacts.verification import verify
from models.errors import BadCard, BadCheckpoint, ModelError, ReferenceMismatch
from tests.golden_cases import case, write_checkpoint, write_json, write_tiny_bert

FILES = {"card.json", "components.onnx", "embedding.onnx", "encoder.onnx", "tokenizer.json", "weights.safetensors"}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_tiny_bert(tmp_path / "checkpoint", pooling="mean")


def contents(place: Path) -> dict[str, bytes]:
    return {path.relative_to(place).as_posix(): path.read_bytes() for path in place.rglob("*") if path.is_file()}


def test_export_writes_expected_files_only(checkpoint: Path, tmp_path: Path) -> None:
    card = export(checkpoint, tmp_path / "store/tiny")
    assert set(contents(tmp_path / "store/tiny")) == FILES
    assert set(card.files) == FILES - {"card.json"}
    assert [path.name for path in (tmp_path / "store").iterdir()] == ["tiny"]
    assert all(path.stat().st_mode & 0o777 == 0o644 for path in (tmp_path / "store/tiny").iterdir())
    assert (tmp_path / "store/tiny").stat().st_mode & 0o777 == 0o755


def test_card_on_disk_equals_returned_card(checkpoint: Path, tmp_path: Path) -> None:
    card = export(checkpoint, tmp_path / "tiny")
    assert cards.read(tmp_path / "tiny") == card
    assert (card.name, card.source, card.default_output) == ("tiny", "checkpoint", "sentence_embedding")
    assert str(tmp_path) not in (tmp_path / "tiny/card.json").read_text()
    assert export(checkpoint, tmp_path / "other", name="called so").name == "called so"


def test_export_is_reproducible_byte_for_byte(checkpoint: Path, tmp_path: Path) -> None:
    export(checkpoint, tmp_path / "a", name="x")
    export(checkpoint, tmp_path / "b", name="x")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_export_replaces_older_export(checkpoint: Path, tmp_path: Path) -> None:
    export(write_checkpoint(case("input_llama"), tmp_path / "llama"), tmp_path / "out")
    card = export(checkpoint, tmp_path / "out")
    assert card.family == "bert"
    assert set(contents(tmp_path / "out")) == FILES
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint", "llama", "out"}


def test_cards_with_earlier_names_of_fields_are_read(checkpoint: Path, tmp_path: Path) -> None:
    card = export(checkpoint, tmp_path / "out")
    path = tmp_path / "out/card.json"
    names = {
        "no_head_reason": "headless",
        "no_blocks_reason": "blockless",
        "no_classifier_reason": "unclassified",
        "prompt_embeds_output": "handed_over",
    }
    earlier = {names.get(name, name): value for name, value in json.loads(path.read_text()).items()}
    path.write_text(json.dumps(earlier))
    assert cards.read(tmp_path / "out") == card


def test_export_accepts_empty_folder(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    export(checkpoint, tmp_path / "out")
    assert set(contents(tmp_path / "out")) == FILES


@pytest.mark.parametrize("out", ["checkpoint", "."])
def test_rejects_target_that_holds_checkpoint(out: str, checkpoint: Path, tmp_path: Path) -> None:
    before = contents(tmp_path)
    with pytest.raises(ModelError, match="which it would replace"):
        export(checkpoint, tmp_path / out)
    assert contents(tmp_path) == before


def test_rejects_target_that_is_a_file(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(ModelError, match="is a file"):
        export(checkpoint, tmp_path / "out")


def stop(*arguments: Any, **named: Any) -> Any:
    raise KeyboardInterrupt


FAILURES: dict[str, tuple[str, Any]] = {
    "a stop while hashing": ("models.artifacts.folder.hashes", stop),
    "a stop while comparing": ("models.artifacts.text_export.compare_graphs", stop),
    "a full disk": (
        "models.graphs.builder.Path.write_bytes",
        lambda *arguments: (_ for _ in ()).throw(OSError(28, "No space left")),
    ),
    "a stop at the last moment": ("models.artifacts.folder.put_in_place", stop),
}


@pytest.mark.parametrize("name", FAILURES)
def test_failed_export_leaves_old_export_unchanged(
    name: str, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export(checkpoint, tmp_path / "out")
    before = contents(tmp_path)
    monkeypatch.setattr(*FAILURES[name])
    for out in ("out", "new"):
        with pytest.raises((KeyboardInterrupt, OSError)):
            export(checkpoint, tmp_path / out)
    monkeypatch.undo()
    assert contents(tmp_path) == before
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint", "out"}


def test_stop_between_renames_restores_old_export(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("models.artifacts.folder.exchange", lambda *_: False)  # as on a filesystem that cannot
    export(checkpoint, tmp_path / "out")
    before = contents(tmp_path / "out")
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if ".partial-" in self.name:
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(OSError, match="Input/output"):
        export(checkpoint, tmp_path / "out")
    assert contents(tmp_path / "out") == before
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint", "out"}


def test_progress_reports_all_bytes(checkpoint: Path, tmp_path: Path) -> None:
    reports: list[tuple[str, int, int]] = []
    card = export(checkpoint, tmp_path / "out", progress=lambda *step: reports.append(step))
    assert max(done for what, done, _ in reports if what == "writing weights") == card.bytes
    assert {total for what, _, total in reports if what == "hashing"} == {
        sum(file.bytes for file in card.files.values())
    }


def test_card_counts_parameters_bytes_and_flops(checkpoint: Path, tmp_path: Path) -> None:
    """Expected values are computed by hand, for d 32, f 64, 2 layers, 27 words, 40 positions, 2 types."""
    card = export(checkpoint, tmp_path / "out")
    d, f = 32, 64
    block = 4 * (d * d + d) + 2 * d * f + f + d + 4 * d
    assert card.parameters == (27 + 40 + 2) * d + 2 * d + 2 * block
    assert card.bytes == 4 * card.parameters
    embedding = 2 * d + 8 * d
    one = 4 * (2 * d * d + d) + d + 8 * d + 2 * (2 * d * f) + f + d + 8 * f + d + 8 * d
    assert card.flops_per_token == {"embedding": embedding, "encoder": embedding + 2 * one}
    assert card.flops_per_token_and_key == 2 * 4 * d


LIMITS: dict[str, tuple[Callable[[Path], None], int]] = {
    "positions": (lambda place: None, 40),
    "max_seq_length": (lambda place: write_json(place / "sentence_bert_config.json", {"max_seq_length": 24}), 24),
    "max_seq_length under its old name": (
        lambda place: write_json(place / "sentence_roberta_config.json", {"max_seq_length": 23}),
        23,
    ),
    "max_seq_length beyond the positions": (
        lambda place: write_json(place / "sentence_bert_config.json", {"max_seq_length": 512}),
        40,
    ),
    "model_max_length": (lambda place: write_json(place / "tokenizer_config.json", {"model_max_length": 30}), 30),
    "model_max_length unknown": (
        lambda place: write_json(
            place / "tokenizer_config.json", {"model_max_length": 1000000000000000019884624838656}
        ),
        40,
    ),
}


@pytest.mark.parametrize("name", LIMITS)
def test_max_tokens_is_minimum_of_positions_and_files(name: str, tmp_path: Path) -> None:
    """tokenizer.json says 8 in every case, which must have no effect."""
    write, limit = LIMITS[name]
    place = write_tiny_bert(tmp_path / "checkpoint")
    write(place)
    assert export(place, tmp_path / "out").max_tokens == limit


def test_max_seq_length_overrides_model_max_length(tmp_path: Path) -> None:
    place = write_tiny_bert(tmp_path / "checkpoint", pooling="cls")
    write_json(place / "tokenizer_config.json", {"model_max_length": 10})
    assert export(place, tmp_path / "out").max_tokens == 24


def test_roberta_max_tokens_excludes_pad_positions(tmp_path: Path) -> None:
    """40 rows, pad 1: transformers counts from row 2, so 38."""
    assert export(write_checkpoint(case("input_roberta"), tmp_path / "x"), tmp_path / "out").max_tokens == 38


def test_tokenizer_is_copied_unchanged(checkpoint: Path, tmp_path: Path) -> None:
    export(checkpoint, tmp_path / "out")
    assert (tmp_path / "out/tokenizer.json").read_bytes() == (checkpoint / "tokenizer.json").read_bytes()


def test_export_without_tokenizer_takes_ids_only(tmp_path: Path) -> None:
    card = export(write_tiny_bert(tmp_path / "x", tokenizer=False), tmp_path / "out")
    assert card.tokenizer is None


def test_rejects_tokenizer_that_does_not_load(checkpoint: Path, tmp_path: Path) -> None:
    (checkpoint / "tokenizer.json").write_text('{"version": "1.0"}')
    with pytest.raises(BadCheckpoint, match=r"tokenizer\.json is not a tokenizer"):
        export(checkpoint, tmp_path / "out")


def test_do_lower_case_adds_lowercase_normalizer(tmp_path: Path) -> None:
    """As sentence-transformers 6.2 does, unless the tokenizer has one."""
    place = write_tiny_bert(tmp_path / "checkpoint", pooling="mean")
    tokenizer = json.loads((place / "tokenizer.json").read_text())
    tokenizer["normalizer"]["lowercase"] = False
    write_json(place / "tokenizer.json", tokenizer)
    export(place, tmp_path / "cased")
    write_json(place / "sentence_bert_config.json", {"max_seq_length": 24, "do_lower_case": True})
    export(place, tmp_path / "lowered")
    cased, lowered = (Tokenizer.from_file(str(tmp_path / name / "tokenizer.json")) for name in ("cased", "lowered"))
    assert "[UNK]" in cased.encode("HELLO").tokens
    assert lowered.encode("HELLO").tokens[:3] == ["[CLS]", "hello", "[SEP]"]
    write_json(place / "tokenizer.json", json.loads((tmp_path / "lowered/tokenizer.json").read_text()))
    export(place, tmp_path / "again")
    twice = json.loads((tmp_path / "again/tokenizer.json").read_text())["normalizer"]["normalizers"]
    assert [step["type"] for step in twice] == ["Lowercase", "BertNormalizer"]


def test_verify_repeats_comparison_of_export(checkpoint: Path, tmp_path: Path) -> None:
    card = export(checkpoint, tmp_path / "out")
    assert verify(tmp_path / "out") == card.largest_difference
    assert set(card.largest_difference) == set(card.outputs) - {"sentence_embedding"}
    assert max(card.largest_difference.values()) < 1e-5


def test_verify_needs_only_the_folder(checkpoint: Path, tmp_path: Path) -> None:
    export(checkpoint, tmp_path / "out")
    checkpoint.rename(tmp_path / "gone")
    (tmp_path / "out").rename(tmp_path / "elsewhere")
    verify(tmp_path / "elsewhere")


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x40
    path.write_bytes(data)


@pytest.mark.parametrize("file", sorted(FILES - {"card.json"}))
def test_verify_detects_one_changed_bit(file: str, checkpoint: Path, tmp_path: Path) -> None:
    export(checkpoint, tmp_path / "out")
    flip(tmp_path / "out" / file, -5)
    with pytest.raises(BadCard, match=f"{file} is not the file its card was written for"):
        verify(tmp_path / "out")


def test_verify_detects_wrong_numbers_with_right_hashes(checkpoint: Path, tmp_path: Path) -> None:
    card = export(checkpoint, tmp_path / "out")
    data = json.loads((tmp_path / "out/card.json").read_text())
    data["recipe"][-1]["eps"] = 0.5
    write_json(tmp_path / "out/card.json", data)
    with pytest.raises(ReferenceMismatch, match=r"embedding\.onnx: input_embeddings differs"):
        verify(tmp_path / "out")
    assert card.files == cards.read(tmp_path / "out").files


def test_verify_rejects_graph_of_another_shape(checkpoint: Path, tmp_path: Path) -> None:
    card = export(checkpoint, tmp_path / "out")
    (tmp_path / "out/embedding.onnx").write_bytes((tmp_path / "out/components.onnx").read_bytes())
    with pytest.raises(BadCard, match="does not run on the check inputs"):
        compare.largest_differences(tmp_path / "out", card)
    (tmp_path / "out/embedding.onnx").write_bytes(b"nonsense")
    with pytest.raises(BadCard, match="does not load in ONNX Runtime"):
        compare.largest_differences(tmp_path / "out", card)


def test_graphs_reference_external_weights(checkpoint: Path, tmp_path: Path) -> None:
    """Compares location, offset and length of every external tensor with the safetensors header."""
    import onnx

    export(checkpoint, tmp_path / "out")
    place = tmp_path / "out/weights.safetensors"
    content = place.read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:begin])
    for graph in (tmp_path / "out").glob("*.onnx"):
        stored = {tensor.name: tensor for tensor in onnx.load(graph, load_external_data=False).graph.initializer}
        external = {name for name, tensor in stored.items() if tensor.data_location == onnx.TensorProto.EXTERNAL}
        for name in external:
            where = {entry.key: entry.value for entry in stored[name].external_data}
            first, last = header[name]["data_offsets"]
            assert where == {"location": place.name, "offset": str(begin + first), "length": str(last - first)}
        assert all(np.prod(stored[name].dims) <= 64 for name in set(stored) - external)


def test_large_tensors_are_aligned_to_cache_lines(checkpoint: Path, tmp_path: Path) -> None:
    from models.checkpoints.safetensors import read_header

    export(checkpoint, tmp_path / "out")
    tensors = read_header(tmp_path / "out/weights.safetensors").values()
    assert all(tensor.offset % 64 == 0 for tensor in tensors if tensor.bytes % 64 == 0)


def test_hashes_cover_whole_file_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import hashlib

    monkeypatch.setattr(hash_checks, "CHUNK_BYTES", 7)
    content = os.urandom(100)
    (tmp_path / "x").write_bytes(content)
    assert hash_checks.hashes(tmp_path, ["x"])["x"].sha256 == hashlib.sha256(content).hexdigest()
