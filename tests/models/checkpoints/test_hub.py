"""A checkpoint on the hub: which bytes are fetched, what is made of them, and every way a server can fail.

The server is tests/hub_server.py on loopback; what it counts is what was sent.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from models.artifacts import export as exporting
from models.checkpoints import safetensors
from models.checkpoints.checkpoint import read_tensors
from models.errors import BadCheckpoint
from models.families import opening
from tests.golden_cases import case, tiny_bert, tiny_config, write_checkpoint, write_json, write_tiny_bert
from tests.hub_server import COMMIT, Hub, serving
from tests.sentence_chains import dense, write_chain
from tests.sparse_models import write_lexical, write_router, write_splade, write_static
from tests.torch_files import pickle_weights
from tests.whole_models import write_whole

ROOT = Path(__file__).parents[3]
WORDS = "embeddings.word_embeddings.weight"


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where temporary folders are made, so that one left behind is found."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def words(hub: Hub, what: str = "org/name") -> Any:
    with opening.opened(what, endpoint=hub.endpoint) as checkpoint:
        name = next(name for name in checkpoint.tensors if name.endswith(WORDS))
        return np.array(read_tensors(checkpoint, [name])[name])


def shards(folder: Path) -> dict[str, Any]:
    """Write a tiny BERT in two shards and an index."""
    weights = tiny_bert(1)
    write_json(folder / "config.json", tiny_config(weights))
    names = sorted(weights)
    parts = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, held in parts.items():
        save_file({name: weights[name] for name in held}, folder / file)
    write_json(
        folder / "model.safetensors.index.json",
        {"weight_map": {name: file for file, held in parts.items() for name in held}},
    )
    return weights


def test_hub_tensors_equal_folder_tensors(tmp_path: Path) -> None:
    folder = tmp_path / "x"
    weights = shards(folder)
    with serving(folder) as hub, opening.opened("org/name", endpoint=hub.endpoint) as checkpoint:
        fetched = read_tensors(checkpoint, weights)
        for name, value in weights.items():
            np.testing.assert_array_equal(fetched[name], value)


def test_fetches_only_headers_and_needed_tensors(tmp_path: Path) -> None:
    folder = tmp_path / "x"
    weights = shards(folder)
    header_bytes = sum(8 + int.from_bytes(path.read_bytes()[:8], "little") for path in folder.glob("*.safetensors"))
    small = sum(path.stat().st_size for path in folder.glob("*.json"))
    with serving(folder) as hub:
        words(hub)
        assert hub.sent == small + header_bytes + weights[WORDS].nbytes


def test_fetches_adjacent_tensors_once_in_one_request(tmp_path: Path) -> None:
    folder = write_tiny_bert(tmp_path / "x")
    with serving(folder) as hub, opening.opened("org/name", endpoint=hub.endpoint) as checkpoint:
        before = len(hub.requests)
        read_tensors(checkpoint, checkpoint.tensors)
        assert len(hub.requests) == before + 1
        read_tensors(checkpoint, [WORDS])
        assert len(hub.requests) == before + 1


def sparse_checkpoint(folder: Path, shard_count: int, shard_bytes: int) -> int:
    """Write a Llama of sparse shards whose word table is in the first; return the table's bytes."""
    rows, width = 2048, 1024
    table, block = rows * width * 2, 200_000_000
    folder.mkdir()
    placed = {}
    for number in range(1, shard_count + 1):
        file = f"model-{number:05}-of-{shard_count:05}.safetensors"
        sizes = {"model.embed_tokens.weight": (rows, width)} if number == 1 else {}
        count = (shard_bytes - table) // block
        sizes |= {f"model.layers.{number}.{part}.weight": (10_000, 10_000) for part in range(count)}
        header, at = {}, 0
        for name, shape in sizes.items():
            end = at + shape[0] * shape[1] * 2
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, end]}
            placed[name], at = file, end
        text = json.dumps(header).encode()
        with (folder / file).open("wb") as out:
            out.write(len(text).to_bytes(8, "little") + text)
            out.truncate(8 + len(text) + at)
    write_json(folder / "model.safetensors.index.json", {"weight_map": placed})
    write_json(folder / "config.json", {"model_type": "llama", "vocab_size": rows, "hidden_size": width})
    return table


def test_checkpoint_of_100_gb_costs_table_and_headers(tmp_path: Path, temporary: Path) -> None:
    folder = tmp_path / "x"
    table = sparse_checkpoint(folder, 20, 5_010_000_000)
    assert sum(path.stat().st_size for path in folder.iterdir()) > 99e9
    with serving(folder) as hub, opening.opened("org/name", endpoint=hub.endpoint) as checkpoint:
        fetched = read_tensors(checkpoint, ["model.embed_tokens.weight"])
        assert fetched["model.embed_tokens.weight"].nbytes == table
        assert table < hub.sent < table + 200_000
        on_disk = sum(path.stat().st_blocks * 512 for path in temporary.rglob("*"))
        assert on_disk < table + 1_000_000


def test_all_requests_use_the_same_commit(tmp_path: Path) -> None:
    folder = write_tiny_bert(tmp_path / "x")
    with (
        serving(folder, revisions=("v1", COMMIT)) as hub,
        opening.located("org/name@v1", endpoint=hub.endpoint) as place,
    ):
        assert place.checkpoint().name == place.name == f"org/name@{COMMIT}"


def test_redirects_are_followed_without_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    folder = write_tiny_bert(tmp_path / "x")
    with serving(folder) as store, serving(folder, redirect_to=store.endpoint) as hub:
        np.testing.assert_array_equal(words(hub), tiny_bert()[WORDS])
    assert {headers.get("authorization") for headers in hub.headers} == {"Bearer hf_secret"}
    assert store.requests
    assert {headers.get("authorization") for headers in store.headers} == {None}


def test_requests_are_for_files_only(tmp_path: Path) -> None:
    with serving(write_tiny_bert(tmp_path / "x")) as hub:
        words(hub)
    assert hub.unknown_paths == []
    assert all(headers["user-agent"].startswith("inlay/") for headers in hub.headers)


def test_folder_wins_over_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tiny_bert(tmp_path / "org/name")
    monkeypatch.chdir(tmp_path)
    with opening.located("org/name") as place:
        assert place.folder.resolve() == tmp_path / "org/name"
        assert WORDS in place.checkpoint().tensors


def test_fetches_tokenizer_and_sentence_files(tmp_path: Path) -> None:
    folder = write_tiny_bert(tmp_path / "x", pooling="mean")
    with serving(folder) as hub, opening.located("org/name", endpoint=hub.endpoint) as place:
        names = {path.relative_to(place.folder).as_posix() for path in place.folder.rglob("*") if path.is_file()}
    assert names == {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} - {
        "model.safetensors"
    }


def test_finds_weights_in_first_module_folder(tmp_path: Path) -> None:
    folder = write_tiny_bert(tmp_path / "x", pooling="mean")
    (folder / "0_Transformer").mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json", "sentence_bert_config.json"):
        (folder / name).rename(folder / "0_Transformer" / name)
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    write_json(folder / "modules.json", modules)
    with serving(folder) as hub:
        np.testing.assert_array_equal(words(hub), tiny_bert()[WORDS])


@pytest.mark.parametrize("write", [write_splade, write_router, write_static, write_lexical])
def test_sparse_models_are_fetched_with_their_parts(
    write: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = write(tmp_path / "checkpoint")
    if write is write_lexical:  # a linear layer is looked for beside this model_type alone
        write_whole(place, "xlm-roberta", hidden_size=32, type_vocab_size=1, pad_token_id=1)
    local = exporting.export(place, tmp_path / "local")
    with serving(place) as hub:
        monkeypatch.setattr(exporting, "located", partial(opening.located, endpoint=hub.endpoint))
        fetched = exporting.export("org/name", tmp_path / "fetched")
    assert fetched.sparse == local.sparse is not None
    for name in ("weights.safetensors", "tokenizer.json"):
        assert fetched.files[name] == local.files[name]


def test_fetches_modules_behind_pooling_for_an_export_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = write_chain(tmp_path / "x", "mean", dense(32, 8))
    with serving(place) as hub:
        words(hub)
        assert "2_Dense/model.safetensors" not in [file for file, _ in hub.requests]
        monkeypatch.setattr(exporting, "located", partial(opening.located, endpoint=hub.endpoint))
        fetched = exporting.export("org/name", tmp_path / "fetched")
    assert fetched.modules == exporting.export(place, tmp_path / "local").modules
    names = ["fetched", "local"]
    held = [(tmp_path / name / "weights.safetensors").read_bytes() for name in names]
    assert held[0] == held[1]


@pytest.mark.parametrize("shards", [1, 3])
def test_fetches_pickled_weights_and_modules_whole(
    shards: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = write_chain(tmp_path / "x", "mean", dense(32, 8))
    local = exporting.export(place, tmp_path / "local")
    pickle_weights(place, shards)
    with serving(place) as hub:
        monkeypatch.setattr(exporting, "located", partial(opening.located, endpoint=hub.endpoint))
        fetched = exporting.export("org/name", tmp_path / "fetched")
    assert fetched.files["weights.safetensors"] == local.files["weights.safetensors"]


def test_safetensors_are_fetched_before_pickled_weights(tmp_path: Path) -> None:
    place = write_tiny_bert(tmp_path / "x")
    (place / "pytorch_model.bin").write_bytes(b"other")
    with serving(place) as hub:
        words(hub)
    assert "pytorch_model.bin" not in [file for file, _ in hub.requests]


def test_safetensors_of_a_pull_request_are_fetched(tmp_path: Path) -> None:
    place = write_tiny_bert(tmp_path / "x")
    with serving(place, revisions=("refs/pr/7", COMMIT)) as hub:
        np.testing.assert_array_equal(words(hub, "org/name@refs/pr/7"), load_file(place / "model.safetensors")[WORDS])


def test_partial_files_are_kept_apart(tmp_path: Path) -> None:
    with (
        serving(write_tiny_bert(tmp_path / "x")) as hub,
        opening.opened("org/name", endpoint=hub.endpoint) as checkpoint,
    ):
        assert not list(checkpoint.folder.glob("*.safetensors"))


def test_temporary_folder_is_always_deleted(tmp_path: Path, temporary: Path) -> None:
    with (
        serving(write_tiny_bert(tmp_path / "x")) as hub,
        pytest.raises(KeyboardInterrupt),
        opening.opened("org/name", endpoint=hub.endpoint),
    ):
        raise KeyboardInterrupt
    assert list(temporary.iterdir()) == []


def test_error_names_hub_id_not_temporary_folder(tmp_path: Path) -> None:
    with (
        serving(write_tiny_bert(tmp_path / "x")) as hub,
        pytest.raises(BadCheckpoint, match=f"^org/name@{COMMIT} holds no tensor 'nothing'"),
        opening.opened("org/name", endpoint=hub.endpoint) as checkpoint,
    ):
        read_tensors(checkpoint, ["nothing"])


def test_progress_ends_at_total(tmp_path: Path) -> None:
    seen: dict[str, tuple[int, int]] = {}
    with (
        serving(write_tiny_bert(tmp_path / "x")) as hub,
        opening.opened(
            "org/name", lambda what, done, total: seen.update({what: (done, total)}), hub.endpoint
        ) as checkpoint,
    ):
        read_tensors(checkpoint, [WORDS])
    assert set(seen) == {"fetching small files", "fetching headers", "fetching tensors"}
    assert all(done == total for done, total in seen.values())


FAULTS: dict[str, tuple[str, str, str]] = {  # what the server does -> to which files, the message
    "ignores Range": ("ignores Range", ".safetensors", "does not serve parts: download it with `hf download`"),
    "another range": ("another range", ".safetensors", r"bytes 0 to 7 of model\.safetensors with 'bytes 1-8/"),
    "no range said": ("no range said", ".safetensors", "answered a request for bytes 0 to 7"),
    "a changed ETag": ("changed", ".safetensors", "changed while it was read"),
    "a changed size": ("grows", ".safetensors", "changed while it was read"),
    "fewer bytes": ("too short", ".safetensors", r"of model\.safetensors 7 bytes came instead of 8"),
    "more bytes": ("too long", ".safetensors", "more than the 8 bytes that were due"),
    "a dropped connection": ("hangs up", ".safetensors", "RemoteProtocolError.*try again"),
    "an encoding": ("encoded", ".safetensors", "encoded as gzip"),
    "gated": ("gated", ".json", "is gated: accept its terms"),
    "forbidden": ("forbidden", ".json", "status 403.*HF_TOKEN"),
    "unauthorised": ("unauthorised", ".json", "status 401.*HF_TOKEN"),
    "gone": ("gone", ".json", "status 410"),
    "a listed file that is gone": ("no such file", "config.json", "status 404"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_server_failure_is_one_line(name: str, tmp_path: Path, temporary: Path) -> None:
    fault, fault_on, message = FAULTS[name]
    with (
        serving(write_tiny_bert(tmp_path / "x"), fault=fault, fault_on=fault_on) as hub,
        pytest.raises(BadCheckpoint, match=message) as caught,
    ):
        words(hub)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("org/name@")
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("config.json", f"^org/name@{COMMIT} has no config.json"),
        ("model.safetensors", f"^org/name@{COMMIT} holds neither model.safetensors nor"),
    ],
)
def test_repository_without_a_file_is_one_line(name: str, message: str, tmp_path: Path) -> None:
    folder = write_tiny_bert(tmp_path / "x")
    (folder / name).unlink()
    with serving(folder) as hub, pytest.raises(BadCheckpoint, match=message):
        words(hub)


def test_missing_shard_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "x"
    shards(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with (
        serving(folder) as hub,
        pytest.raises(BadCheckpoint, match=r"index\.json:1 names 'model-00002-of-00002\.safet.*', which is not in"),
    ):
        words(hub)


def test_only_files_that_exist_are_asked_for(tmp_path: Path) -> None:
    folder = write_tiny_bert(tmp_path / "x", pooling="mean")
    with serving(folder) as hub:
        words(hub)
    assert all((folder / name).is_file() for name, _ in hub.requests)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("org/other", "there is no such model, or it is private"),
        ("org/name@v9", "org/name has no revision 'v9'"),
    ],
)
def test_error_says_what_hub_does_not_have(what: str, message: str, tmp_path: Path) -> None:
    with serving(write_tiny_bert(tmp_path / "x")) as hub, pytest.raises(BadCheckpoint, match=message):
        words(hub, what)


def test_no_network_is_one_line(tmp_path: Path) -> None:
    with serving(tmp_path) as hub:
        pass
    with pytest.raises(BadCheckpoint, match=r"the list of its files did not come from http.*is no folder here either"):
        words(hub)


@pytest.mark.parametrize("place", ["onnx/model.onnx", "model.onnx"])
@pytest.mark.parametrize("pickled", [True, False])
def test_repository_of_onnx_names_adopt(place: str, pickled: bool, tmp_path: Path) -> None:
    folder = write_tiny_bert(tmp_path / "x")
    (folder / "model.safetensors").rename(folder / ("weights.pkl" if pickled else "other"))
    (folder / place).parent.mkdir(exist_ok=True)
    (folder / place).touch()
    message = f"; it holds {place}, which `inlay adopt` takes$"
    with serving(folder) as hub, pytest.raises(BadCheckpoint, match=message):
        words(hub)
    with pytest.raises(BadCheckpoint, match=message), opening.opened(folder):
        pass


@pytest.mark.parametrize("shard", ["../../evil.safetensors", "/evil.safetensors", "..", "a/../b.safetensors"])
def test_index_that_leads_out_of_folder_writes_nothing(shard: str, tmp_path: Path) -> None:
    folder = write_tiny_bert(tmp_path / "x")
    (folder / "model.safetensors").unlink()
    write_json(folder / "model.safetensors.index.json", {"weight_map": {WORDS: shard}})
    with serving(folder) as hub, pytest.raises(BadCheckpoint, match="not a file of this folder"):
        words(hub)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["temporary", "x"]


def test_module_that_leads_out_of_folder_writes_nothing(tmp_path: Path) -> None:
    folder = write_tiny_bert(tmp_path / "x", pooling="mean")
    write_json(folder / "modules.json", [{"type": "a.Transformer", "path": "../../evil"}])
    with serving(folder) as hub, pytest.raises(BadCheckpoint, match="evil"):
        words(hub)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["temporary", "x"]


def test_rejects_header_longer_than_file_before_fetch(tmp_path: Path) -> None:
    folder = write_tiny_bert(tmp_path / "x")
    (folder / "model.safetensors").write_bytes((1 << 40).to_bytes(8, "little") + bytes(100))
    with serving(folder) as hub, pytest.raises(BadCheckpoint, match=r"org/name@\w+: model\.safetensors is no safetens"):
        words(hub)


@pytest.mark.parametrize("what", ["name", "org/name/file", "org/name@", "org/na me", "../name", "org/..", "org/a..b"])
def test_invalid_hub_id_is_a_missing_folder(what: str) -> None:
    with pytest.raises(BadCheckpoint, match="is not a folder"), opening.opened(what):
        pass


def test_static_table_is_fetched_whole(tmp_path: Path) -> None:
    folder = tmp_path / "x"
    write_json(folder / "config.json", {"model_type": "model2vec"})
    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    save_file({"embeddings": table}, folder / "model.safetensors")
    with serving(folder) as hub, opening.located("org/name", endpoint=hub.endpoint) as place:
        np.testing.assert_array_equal(load_file(place.folder / "model.safetensors")["embeddings"], table)


def test_command_line_uses_hf_endpoint(tmp_path: Path) -> None:
    folder = write_checkpoint(case("input_bert"), tmp_path / "x")
    with serving(folder) as hub:
        environment = os.environ | {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / "home")}
        done = subprocess.run(
            [Path(sys.executable).with_name("inlay"), "export", "org/name", str(tmp_path / "out")],
            cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert hub.unknown_paths == []
    assert json.loads((tmp_path / "out/card.json").read_text())["source"] == f"org/name@{COMMIT}"
    written = safetensors.tensors_of(tmp_path / "out/weights.safetensors")
    np.testing.assert_array_equal(
        written["bert.embeddings.word_embeddings.weight"],
        case("input_bert").weights["bert.embeddings.word_embeddings.weight"],
    )
    shutil.rmtree(tmp_path / "home", ignore_errors=True)


def test_vocabulary_is_fetched_without_tokenizer_json(tmp_path: Path) -> None:
    folder = write_tiny_bert(tmp_path / "x", pooling="mean")
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nhello\n")
    for fetched in (False, True):
        with serving(folder) as hub, opening.located("org/name", endpoint=hub.endpoint) as place:
            assert (place.folder / "vocab.txt").is_file() == fetched
        (folder / "tokenizer.json").unlink(missing_ok=True)
