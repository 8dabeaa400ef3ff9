"""Broken and hostile checkpoints: each is refused in one line that says what is wrong, and leaves nothing behind.

One table: a row makes a file or a folder, and names the message. What the gguf package or safetensors would also refuse
is here as well, for the message is ours. Files of any bytes at all give BadCheckpoint or a header, and nothing else.
"""

import json
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import save_file

from models.artifacts.adoption import adopt
from models.artifacts.export import export
from models.checkpoints.checkpoint import read_tensors
from models.checkpoints.gguf import read_gguf
from models.errors import BadCheckpoint, ModelError
from models.families import opening
from tests.gguf_files import ARRAY, STRING, UINT32, entry, info, random_blocks, raw, text, write_gguf
from tests.golden_cases import case, write_checkpoint, write_json

WORDS = "bert.embeddings.word_embeddings.weight"
MODEL, INDEX = "model.safetensors", "model.safetensors.index.json"
Make = Callable[[Path], Path]  # makes the checkpoint in a folder, and says what to export


# ---- folders of safetensors


def altered(change: Callable[[Path], Any]) -> Make:
    """Return a maker of a valid BERT that is then changed."""

    def make(folder: Path) -> Path:
        change(write_checkpoint(case("input_bert"), folder))
        return folder

    return make


def header(change: Callable[[dict[str, Any]], Any]) -> Make:
    """Return a maker of a valid BERT with a changed safetensors header."""

    def rewrite(folder: Path) -> None:
        content = (folder / MODEL).read_bytes()
        length = int.from_bytes(content[:8], "little")
        entries = json.loads(content[8 : 8 + length])
        changed = change(entries)
        text = changed if isinstance(changed, bytes) else json.dumps(entries).encode()
        (folder / MODEL).write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])

    return altered(rewrite)


def words(**values: Any) -> Make:
    """Change the header entry of the word table."""
    return header(lambda entries: entries[WORDS].update(values))


def config(content: str | bytes) -> Make:
    return altered(
        lambda folder: (folder / "config.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    )


def configured(**values: Any) -> Make:
    return altered(lambda folder: write_json(folder / "config.json", case("input_bert").config | values))


def value(number: Any) -> Make:
    """Replace one value of the word table."""

    def poison(folder: Path) -> None:
        weights = case("input_bert").weights
        table = weights[WORDS].copy()
        table[7, 3] = number
        save_file({**weights, WORDS: table}, folder / MODEL)

    return altered(poison)


def index(weight_map: Any) -> Make:
    """Write the weights in one shard, and an index with this `weight_map`."""

    def shard(folder: Path) -> None:
        (folder / MODEL).rename(folder / "model-00001-of-00001.safetensors")
        names = case("input_bert").weights
        placed = weight_map(names) if callable(weight_map) else weight_map
        write_json(folder / INDEX, {"weight_map": placed})

    return altered(shard)


def placed(**more: str) -> Make:
    return index(lambda names: dict.fromkeys(names, "model-00001-of-00001.safetensors") | more)


def cut(folder: Path) -> None:
    content = (folder / MODEL).read_bytes()
    (folder / MODEL).write_bytes(content[: len(content) // 2])


def swapped(folder: Path) -> None:
    (folder / MODEL).unlink()
    (folder / MODEL).mkdir()


DEEP = "[" * 200_000
FOLDERS: dict[str, tuple[Make, str]] = {
    "weights cut in half": (altered(cut), "truncated or damaged"),
    "a folder in place of weights": (altered(swapped), "holds neither"),
    "a header length beyond the file": (
        altered(lambda folder: (folder / MODEL).write_bytes(struct.pack("<Q", 1 << 62) + b"{}")),
        "header claims 4611686018427387904",
    ),
    "a negative dimension": (words(shape=[-61, -32]), "the shape or data_offsets"),
    "dimensions without end": (words(shape=[2**31 - 1] * 100_000), "the shape or data_offsets"),
    "another rank": (words(shape=[61, 2, 16]), "has shape"),
    "rows and columns exchanged": (words(shape=[32, 61]), "has shape"),
    "an unknown dtype": (words(dtype="F4_E9M9"), "is F4_E9M9; weights are read as F32, F16, BF16"),
    "a NaN": (value(np.nan), "infinite or not a number in row 7"),
    "an infinity": (value(-np.inf), "infinite or not a number in row 7"),
    "a config that is a number": (config("7"), "holds a JSON int"),
    "a config nested without end": (config(DEEP), "config.json is not JSON"),
    "a config that is no text": (config(b"\xff\xfe\x00{"), "config.json is not JSON"),
    "a config with a number of 10000 digits": (
        config('{"vocab_size": ' + "9" * 10_000 + "}"),
        "config.json is not JSON",
    ),
    "a width of 2^70": (configured(hidden_size=1 << 70), "hidden_size"),
    "a width that is infinite": (
        config(json.dumps(case("input_bert").config | {"hidden_size": float("inf")})),
        "hidden_size inf",
    ),
    "a width that is negative": (configured(hidden_size=-32), "hidden_size -32"),
    "a vocabulary that is a list": (configured(vocab_size=[61]), r"vocab_size \[61\]"),
    "a model_type that is an object": (configured(model_type={"a": 1}), "names no model_type"),
    "an index without a map": (index(None), "has no weight_map"),
    "an index of lists": (index([["a", "b"]]), "has no weight_map"),
    "an index of numbers": (index({"a": 3}), "has no weight_map"),
    "an index up the tree": (placed(a="../../../../etc/passwd"), "not a file of this folder"),
    "an index to the root": (placed(a="/etc/passwd"), "not a file of this folder"),
    "an index to a folder below": (placed(a="sub/x.safetensors"), "not a file of this folder"),
    "an index with backslashes": (placed(a="..\\x.safetensors"), "not a file of this folder"),
    "an index with a zero byte": (placed(a="x\0.safetensors"), "not a file of this folder"),
    "an index to the folder itself": (placed(a="."), "not a file of this folder"),
    "an index to a shard that is missing": (placed(a="model-00002-of-00002.safetensors"), "not in this folder"),
    "an index that names a missing tensor": (
        placed(invented="model-00001-of-00001.safetensors"),
        "promises 'invented'",
    ),
    "an index that leaves the word table out": (
        index(lambda names: {name: "model-00001-of-00001.safetensors" for name in names if name != WORDS}),
        "word table",
    ),
    **{
        f"a pickle called {name}": (
            altered(lambda folder, name=name: (folder / MODEL).rename(folder / name)),
            message,
        )
        for name, message in {
            **dict.fromkeys(("pytorch_model.bin", "model.pt"), "a zip file that torch.save wrote is read"),
            **dict.fromkeys(("model.pth", "model.ckpt", "weights.pkl"), "which is not read; convert it once"),
        }.items()
    },
    "an HDF5 file": (altered(lambda folder: (folder / MODEL).rename(folder / "tf_model.h5")), "h5, which is not read"),
}


# ---- GGUF files


def gguf(content: bytes) -> Make:
    """Write a file of these bytes."""

    def make(folder: Path) -> Path:
        folder.mkdir()
        (folder / "x.gguf").write_bytes(content)
        return folder / "x.gguf"

    return make


def llama(tensors: dict[str, Any], **metadata: Any) -> Make:
    """Write a file with the gguf package."""
    said = {"embedding_length": 256, "block_count": 1, "attention.head_count": 4, "context_length": 64}

    def make(folder: Path) -> Path:
        merged = said | {key.replace("__", "."): value for key, value in metadata.items()}
        return write_gguf(folder / "x.gguf", "llama", {k: v for k, v in merged.items() if v is not None}, tensors)

    return make


def poisoned() -> NDArray[np.uint8]:
    blocks = random_blocks("Q8_0", 9, 256)
    blocks[5, 34:36] = np.array([np.nan], np.float16).view(np.uint8)
    return blocks


ARCH = entry("general.architecture", STRING, text("llama"))
TABLE = np.ones((9, 256), np.float32)
DATA = bytes(128)
ONE = info("token_embd.weight")


def array(kind: int, count: int, content: bytes = b"") -> bytes:
    return entry("a", ARRAY, struct.pack("<IQ", kind, count) + content)


GGUFS: dict[str, tuple[Make, str]] = {
    "GGUF of no bytes": (gguf(b""), "has 0 bytes; it is no GGUF file"),
    "GGUF of four bytes": (gguf(b"GGUF"), "the version takes 4 bytes, but 0 are left"),
    "another magic": (gguf(raw([ARCH], [ONE], DATA, magic=b"GGML")), "begins with b'GGML'"),
    "version 1": (gguf(raw([ARCH], [ONE], DATA, version=1)), "is GGUF version 1; versions 2 and 3"),
    "version 99": (gguf(raw([ARCH], [ONE], DATA, version=99)), "is GGUF version 99"),
    "big-endian": (gguf(raw([ARCH], [ONE], DATA, version=3 << 24)), "is big-endian"),
    "more tensors than bytes": (
        gguf(raw([ARCH], [ONE], DATA, counts=(1 << 60, 1))),
        "claims 1152921504606846976 tensors",
    ),
    "more metadata than bytes": (gguf(raw([ARCH], [ONE], DATA, counts=(1, 1 << 60))), "metadata entries, more than"),
    "one tensor more than there is": (gguf(raw([ARCH], [ONE], DATA, counts=(2, 1))), "'' has 0 dimensions"),
    "a key longer than the file": (gguf(raw([struct.pack("<Q", 1 << 50) + b"k"], [ONE], DATA)), "metadata key 0 takes"),
    "a key that is not UTF-8": (
        gguf(raw([entry(b"\xff\xfe", UINT32, bytes(4))], [ONE], DATA)),
        "metadata key 0 is not UTF-8",
    ),
    "a key with line ends": (gguf(raw([entry("a\nb", UINT32, bytes(4))], [ONE], DATA)), "metadata key 0 is no name"),
    "a key twice": (gguf(raw([ARCH, ARCH], [ONE], DATA)), "'general.architecture' appears twice"),
    "a text longer than the file": (
        gguf(raw([entry("a", STRING, struct.pack("<Q", 1 << 40))], [ONE], DATA)),
        "'a' takes",
    ),
    "an unknown value type": (gguf(raw([entry("a", 77, bytes(8))], [ONE], DATA)), "'a' has value type 77"),
    "arrays in an array": (gguf(raw([array(ARRAY, 1, bytes(12))], [ONE], DATA)), "an array of arrays in an array"),
    "an array of an unknown type": (
        gguf(raw([array(55, 1, bytes(8))], [ONE], DATA)),
        "an array of values of type 55",
    ),
    "an array longer than the file": (gguf(raw([array(UINT32, 1 << 61)], [ONE], DATA)), "elements of 'a', more than"),
    "an alignment of 0": (
        gguf(raw([ARCH, entry("general.alignment", UINT32, bytes(4))], [ONE], DATA)),
        "general.alignment is 0; it must be a power of two",
    ),
    "an alignment of 33": (
        gguf(raw([ARCH, entry("general.alignment", UINT32, struct.pack("<I", 33))], [ONE], DATA)),
        "general.alignment is 33",
    ),
    "an alignment that is a text": (
        gguf(raw([ARCH, entry("general.alignment", STRING, text("32"))], [ONE], DATA)),
        "general.alignment is 32; it must be a power of two",
    ),
    "no architecture": (gguf(raw([], [ONE], DATA)), "has general.architecture 'None'"),
    "a tensor twice": (gguf(raw([ARCH], [ONE, ONE], DATA)), "'token_embd.weight' appears twice"),
    "a tensor of no dimensions": (gguf(raw([ARCH], [info("a", ())], DATA)), "has 0 dimensions"),
    "a tensor of 9 dimensions": (gguf(raw([ARCH], [info("a", (1,) * 9)], DATA)), "has 9 dimensions"),
    "a tensor of 2^32 - 1 dimensions": (
        gguf(raw([ARCH], [text("a") + struct.pack("<I", (1 << 32) - 1)], DATA)),
        "has 4294967295 dimensions",
    ),
    "a shape whose product overflows": (
        gguf(raw([ARCH], [info("a", (1 << 32, 1 << 32, 1 << 32))], DATA)),
        "which no file holds",
    ),
    "an unknown tensor type": (
        gguf(raw([ARCH], [info("a", kind=99)], DATA)),
        "has tensor type 99, which is none of",
    ),
    "a tensor type that was taken away": (gguf(raw([ARCH], [info("a", kind=4)], DATA)), "has tensor type 4"),
    "rows that are no whole blocks": (
        gguf(raw([ARCH], [info("a", (100,), kind=12)], DATA)),
        "Q4_K packs 256 at a time",
    ),
    "an offset off the alignment": (gguf(raw([ARCH], [info("a", offset=7)], DATA)), "leaves a gap before it"),
    "an offset beyond the file": (gguf(raw([ARCH], [info("a", offset=1 << 62)], DATA)), "leaves a gap before it"),
    "two GGUF tensors on one place": (
        gguf(raw([ARCH], [info("a"), info("b")], DATA)),
        r"'b' overlaps the tensor before it \(offset 0, expected 128\)",
    ),
    "a GGUF tensor longer than the file": (
        gguf(raw([ARCH], [info("a", (1 << 20, 1 << 20))], DATA)),
        r"'a' ends at byte 43980\d+, but the file has",
    ),
    "GGUF cut short": (gguf(raw([ARCH], [ONE], DATA[:-1])), "ends at byte"),
    "a table of unreadable blocks": (
        llama({"token_embd.weight": ("IQ4_NL", np.zeros((9, 144), np.uint8))}),
        "is IQ4_NL; weights are read as F32, F16, BF16, Q4_0",
    ),
    "a table of integers": (llama({"token_embd.weight": TABLE.astype(np.int32)}), "is I32; weights are read as"),
    "a NaN in a table": (
        llama({"token_embd.weight": np.where(np.arange(9)[:, None] == 4, np.float32(np.nan), TABLE)}),
        "infinite or not a number in row 4",
    ),
    "a NaN in a scale": (llama({"token_embd.weight": ("Q8_0", poisoned())}), "infinite or not a number in row 5"),
    "no word table": (llama({"output.weight": TABLE}), "should hold the word table"),
    "a table of other width": (llama({"token_embd.weight": TABLE}, embedding_length=512), "has shape"),
    "a width that is a text": (llama({"token_embd.weight": TABLE}, embedding_length="256"), "hidden_size '256'"),
    "no width": (llama({"token_embd.weight": TABLE}, embedding_length=None), "has no llama.embedding_length"),
    "RoPE factors of zero": (
        llama({"token_embd.weight": TABLE, "rope_freqs.weight": np.zeros(32, np.float32)}),
        "holds a factor that is no positive number",
    ),
    "RoPE factors too many": (
        llama({"token_embd.weight": TABLE, "rope_freqs.weight": np.ones(9999, np.float32)}),
        "must be a short list of F32",
    ),
    "a part without the others": (llama({"token_embd.weight": TABLE}, split__count=3), "says it is one of 3 parts"),
    "parts beyond number": (
        llama({"token_embd.weight": TABLE}, split__count=4294967295),
        "says it is one of 4294967295",
    ),
}
CASES = FOLDERS | GGUFS


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where temporary folders are made, so that one left behind is found."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.mark.parametrize("name", CASES)
def test_rejects_hostile_checkpoint_and_leaves_nothing(name: str, tmp_path: Path, temporary: Path) -> None:
    make, message = CASES[name]
    path = make(tmp_path / "x")
    with pytest.raises(ModelError, match=message) as caught:
        export(path, tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 700
    assert str(temporary) not in str(caught.value)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["temporary", "x"]
    assert list(temporary.iterdir()) == []


TABLES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "heads of 0": (llama({"token_embd.weight": TABLE}, attention__head_count=0), "num_attention_heads"),
    "a theta that is no number": (llama({"token_embd.weight": TABLE}, rope__freq_base=float("nan")), "rope_theta"),
    "RoPE factors too few": (
        llama({"token_embd.weight": TABLE, "rope_freqs.weight": np.ones(3, np.float32)}),
        "has 3 numbers; rotary_dim/2 = 32",
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_hostile_rope_parameters_cost_the_table_alone(name: str, tmp_path: Path) -> None:
    make, reason = TABLES[name]
    card = export(make(tmp_path / "x"), tmp_path / "out")
    assert reason in card.encodings.refused["rope"]
    assert "input_embeddings" in card.outputs


def test_follows_symlinks_of_hub_cache(tmp_path: Path) -> None:
    """huggingface_hub keeps a snapshot as links to its blobs, outside of the snapshot's folder."""
    blobs = write_checkpoint(case("input_bert"), tmp_path / "blobs")
    snapshot = tmp_path / "snapshots/1"
    snapshot.mkdir(parents=True)
    for path in blobs.iterdir():
        (snapshot / path.name).symlink_to(Path("../../blobs") / path.name)
    assert export(snapshot, tmp_path / "out").family == "bert"
    (tmp_path / "current").symlink_to(snapshot)
    assert export(tmp_path / "current", tmp_path / "out").family == "bert"


@pytest.mark.parametrize("place", [MODEL, "config.json", "tokenizer.json", "onnx/weights.bin", "1_Pooling"])
@pytest.mark.parametrize("snapshot", [False, True])
def test_link_out_of_the_checkpoint_is_refused(snapshot: bool, place: str, tmp_path: Path) -> None:
    folder = write_checkpoint(case("input_bert"), tmp_path / ("cache/snapshots/1" if snapshot else "x"))
    path = folder / place
    path.parent.mkdir(exist_ok=True)
    outside = tmp_path / "of the operator"
    if path.exists():
        path.rename(outside)
    else:
        outside.mkdir()
    path.symlink_to(outside)
    for command in (export, adopt):
        with pytest.raises(BadCheckpoint, match=f"{place} is a link to {outside}, out of the checkpoint: put a copy"):
            command(folder, tmp_path / "out")


def test_blob_that_leads_on_is_refused(tmp_path: Path) -> None:
    folder = write_checkpoint(case("input_bert"), tmp_path / "snapshots/1")
    (folder / MODEL).rename(tmp_path / "outside")
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs/x").symlink_to(tmp_path / "outside")
    (folder / MODEL).symlink_to("../../blobs/x")
    with pytest.raises(BadCheckpoint, match=f"{MODEL} is a link to {tmp_path / 'outside'}, out of the checkpoint"):
        export(folder, tmp_path / "out")


def test_dangling_symlink_is_a_missing_file(tmp_path: Path) -> None:
    folder = write_checkpoint(case("input_bert"), tmp_path / "x")
    (folder / MODEL).unlink()
    (folder / MODEL).symlink_to("nowhere")
    with pytest.raises(BadCheckpoint, match="holds neither"):
        export(folder, tmp_path / "out")


@pytest.mark.parametrize("name", ["missing.gguf", "folder.gguf"])
def test_rejects_gguf_path_that_is_no_file(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder.gguf").mkdir()
    with pytest.raises(BadCheckpoint, match=r"is missing or no file|config\.json is missing"):
        export(tmp_path / name, tmp_path / "out")


# ---- any bytes at all


def reads_or_refuses(content: bytes) -> None:
    """Assert BadCheckpoint, or a header whose tensors lie in the file and can be read."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.gguf"
        path.write_bytes(content)
        try:
            header = read_gguf(path)
        except BadCheckpoint:
            return
        assert all(tensor.offset + tensor.bytes <= len(content) for tensor in header.tensors.values())
        try:
            with opening.opened(path) as checkpoint:
                read_tensors(checkpoint, checkpoint.tensors)
        except ModelError:
            return


GOOD = raw(
    [
        ARCH,
        entry("llama.embedding_length", UINT32, struct.pack("<I", 32)),
        entry("llama.attention.head_count", UINT32, struct.pack("<I", 2)),
        entry("llama.rope.freq_base", 6, struct.pack("<f", 1e4)),
        entry("llama.rope.scaling.type", STRING, text("yarn")),
        entry("llama.rope.scaling.factor", 6, struct.pack("<f", 2)),
        entry("tokenizer.ggml.tokens", ARRAY, struct.pack("<IQ", STRING, 2) + text("a") + text("b")),
        entry("general.alignment", UINT32, struct.pack("<I", 32)),
    ],
    [
        info("token_embd.weight", (32, 2), 8),
        info("rope_freqs.weight", (8,), 0, 96),
        info("output_norm.weight", (32,), 1, 128),
    ],
    bytes(96) + np.ones(8, np.float32).tobytes() + bytes(64),
)
FUZZ = settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])


@FUZZ
@given(st.binary(max_size=400))
@example(b"")
def test_any_bytes_are_read_or_rejected(content: bytes) -> None:
    reads_or_refuses(content)
    reads_or_refuses(b"GGUF" + struct.pack("<I", 3) + content)


@FUZZ
@given(st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), min_size=1, max_size=6))
def test_changed_bytes_are_read_or_rejected(changes: list[tuple[int, int]]) -> None:
    content = bytearray(GOOD)
    for at, byte in changes:
        content[at] = byte
    reads_or_refuses(bytes(content))


@FUZZ
@given(st.integers(0, len(GOOD)), st.integers(0, len(GOOD)), st.binary(max_size=24))
def test_replaced_piece_is_read_or_rejected(begin: int, end: int, piece: bytes) -> None:
    reads_or_refuses(GOOD[:begin] + piece + GOOD[end:])


def test_unchanged_file_is_valid(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(GOOD)
    with opening.opened(tmp_path / "x.gguf") as checkpoint:
        assert read_tensors(checkpoint, ["embed_tokens.weight"])["embed_tokens.weight"].shape == (2, 32)
