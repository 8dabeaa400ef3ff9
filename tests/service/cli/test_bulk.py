"""`inlay embed`: vectors as the judges give them, in every format; killed and started again; what it refuses."""

import asyncio
import gzip
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from models.artifacts.export import export
from service.bulk import job, outputs
from service.embedding.requests import Text
from tests.embed_requests import embed_request
from tests.golden_cases import write_tiny_bert
from tests.minilm_golden import cases
from tests.service.cli.conftest import Run
from tests.service.registry.registry_service import Service
from tests.sparse_models import write_splade, write_static
from tests.static_golden import static_case, texts
from tests.sweeps import sampled

WORDS = ["a", "b", "c", "d e", "f a b", "c c c d e f"]


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bulk")
    export(write_tiny_bert(folder / "tiny", pooling="mean"), folder / "store/tiny")
    export(str(static_case("model2vec").folder), folder / "store/static")
    for name, write in (("splade", write_splade), ("table", write_static)):
        export(write(folder / name), folder / "store" / name)
    return folder / "store"


@pytest.fixture(autouse=True)
def variables(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INLAY_STORE", str(store))
    monkeypatch.setenv("INLAY_THREADS", "2")


def corpus(path: Path, rows: int = 100) -> Path:
    pq.write_table(pa.table({"id": range(rows), "text": [WORDS[row % 6] * (1 + row % 5) for row in range(rows)]}), path)
    return path


def vectors(path: Path) -> NDArray[Any]:
    if path.suffix == ".npy":
        return np.load(path)
    if path.suffix == ".safetensors":
        return load_file(path)["embeddings"]
    column = pq.read_table(path).column("embedding").combine_chunks()
    return column.flatten().to_numpy().reshape(len(column), column.type.list_size)


@pytest.mark.parametrize("output", ["folder", "one.parquet", "one.npy", "one.safetensors"])
def test_vectors_are_those_of_model2vec_in_every_format(output: str, inlay: Run, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts()))
    code, out, err = inlay("embed", tmp_path / "in.jsonl", tmp_path / output, "--model", "static")
    assert (code, err) == (0, "")
    assert f"{len(texts())} vectors, 0 of them there already" in out
    assert np.abs(vectors(tmp_path / output) - static_case("model2vec").vectors).max() <= 1e-5
    assert not list(tmp_path.glob("*.parts"))


def test_vectors_are_those_of_sentence_transformers(minilm_store: Path, inlay: Run, tmp_path: Path) -> None:
    chosen = [case for case in cases() if isinstance(case.input, str) and case.direction == "right"]
    assert len(chosen) > 5
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": case.input}) + "\n" for case in chosen))
    folder = minilm_store / "minilm"  # of another store
    assert inlay("embed", tmp_path / "in.jsonl", tmp_path / "out.npy", "--model", folder)[0] == 0
    assert np.abs(vectors(tmp_path / "out.npy") - np.stack([case.unit for case in chosen])).max() <= 1e-5


def test_kept_columns_and_texts_that_are_missing(inlay: Run, tmp_path: Path) -> None:
    rows = {"id": [7, 8, 9], "text": ["a", None, "b"], "tags": [["x"], [], None]}
    pq.write_table(pa.table(rows), tmp_path / "in.parquet")
    assert inlay("embed", tmp_path / "in.parquet", tmp_path / "out", "--model", "tiny", "--keep", "id,tags")[0] == 0
    table = pq.read_table(tmp_path / "out")
    assert table.column_names == ["id", "tags", "embedding"]
    assert table.column("tags").to_pylist() == rows["tags"]
    assert [row is None for row in table.column("embedding").to_pylist()] == [False, True, False]
    assert json.loads(table.schema.metadata[b"inlay"])["model"] == "tiny"
    code, _, err = inlay("embed", tmp_path / "in.parquet", tmp_path / "out.npy", "--model", "tiny")
    assert code == 1
    assert "row 1 has no vector, and .npy cannot leave it out: write parquet" in err


def test_vectors_of_tokens_are_a_list_for_each_text(inlay: Run, tmp_path: Path) -> None:
    words = ["--model", "tiny", "--output", "last_hidden_state"]
    assert inlay("embed", corpus(tmp_path / "in.parquet"), tmp_path / "out", *words)[0] == 0
    table = pq.read_table(tmp_path / "out")
    rows = table.column("embedding").to_pylist()
    lengths = [len(tokens) for tokens in rows]
    assert lengths[0] == 3  # [CLS] a [SEP]
    assert lengths[:60] == lengths[30:90]
    assert rows[0] == rows[30]
    code, _, err = inlay("embed", tmp_path / "in.parquet", tmp_path / "out.npy", *words)
    assert code == 1
    assert "last_hidden_state has a vector for each token, which .npy does not hold: use parquet" in err


@pytest.mark.parametrize("dtype", ["float16", "binary", "ubinary"])
def test_narrow_vectors(dtype: str, inlay: Run, tmp_path: Path) -> None:
    source = corpus(tmp_path / "in.parquet")
    for output, words in (("wide.npy", []), ("narrow.npy", ["--dtype", dtype]), ("narrow", ["--dtype", dtype])):
        assert inlay("embed", source, tmp_path / output, "--model", "tiny", *words)[0] == 0
    wide, narrow = vectors(tmp_path / "wide.npy"), vectors(tmp_path / "narrow.npy")
    assert (narrow == vectors(tmp_path / "narrow")).all()
    if dtype == "float16":
        assert (narrow == wide.astype(np.float16)).all()
    else:
        bits = narrow.view(np.uint8) + (np.uint8(128) if dtype == "binary" else np.uint8(0))
        assert (np.unpackbits(bits, axis=1)[:, : wide.shape[1]] == (wide > 0)).all()


WITHOUT_PYARROW = """
import sys
from service.cli.main import main

sys.modules["pyarrow"] = None
sys.exit(main(sys.argv[1:]))
"""


def embed_without_pyarrow(*words: str | Path) -> "subprocess.CompletedProcess[str]":
    call = [sys.executable, "-c", WITHOUT_PYARROW, "embed", *map(str, words), "--model", "tiny"]
    return subprocess.run(call, check=False, capture_output=True, text=True)


@pytest.mark.parametrize("output", ["out.npy", "out.safetensors"])
def test_texts_and_arrays_need_no_pyarrow(output: str, inlay: Run, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("a\nb c\n")
    (tmp_path / "in.csv").write_text("id;text\n1;a\n2;b c\n")
    (tmp_path / "in.jsonl.gz").write_bytes(gzip.compress(b'{"text": "a"}\n{"text": "b c"}\n'))
    for source in ("in.txt", "in.csv", "in.jsonl.gz"):
        done = embed_without_pyarrow(tmp_path / source, tmp_path / output)
        assert (done.returncode, "2 vectors" in done.stdout) == (0, True), done.stderr
        assert ("separated by ';'" in done.stderr) == (source == "in.csv")
        (tmp_path / output).rename(tmp_path / f"{source}.{output}")
    first, *others = [vectors(tmp_path / f"{source}.{output}") for source in ("in.txt", "in.csv", "in.jsonl.gz")]
    assert all((first == other).all() for other in others)
    assert inlay("embed", tmp_path / "in.txt", tmp_path / "out.parquet", "--model", "tiny")[0] == 0
    assert (first == vectors(tmp_path / "out.parquet")).all()


@pytest.mark.parametrize(("source", "output"), [("in.parquet", "out.npy"), ("in.txt", "out"), ("in.txt", "a.parquet")])
def test_tables_of_arrow_ask_for_pyarrow(source: str, output: str, tmp_path: Path) -> None:
    (tmp_path / source).write_text("a\n")
    done = embed_without_pyarrow(tmp_path / source, tmp_path / output)
    assert done.returncode == 1
    assert done.stderr.endswith("needs pyarrow: pip install 'inlay[bulk]'\n")
    assert done.stderr.count("\n") == 1


def test_kept_columns_of_json_lines_have_types(inlay: Run, tmp_path: Path) -> None:
    rows = [{"text": "a", "id": 1, "tags": ["x"]}, {"text": None, "id": 2}, {"text": "b", "id": 3, "more": 1.5}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert inlay("embed", tmp_path / "in.jsonl", tmp_path / "out", "--model", "tiny", "--keep", "id,tags,more")[0] == 0
    kept = pq.read_table(tmp_path / "out").drop_columns(["embedding"]).to_pydict()
    assert kept == {"id": [1, 2, 3], "tags": [["x"], None, None], "more": [None, None, 1.5]}


def test_keeps_columns_that_appear_first_in_late_rows(inlay: Run, tmp_path: Path) -> None:
    first = [{"text": "a", "id": row} for row in range(1100)]  # more than are read at once
    late = [{"text": "b", "id": 0.5, "late": [1]}, {"text": "c", "late": [2.5]}]
    (tmp_path / "in").mkdir()
    for name, rows in (("1.jsonl", first), ("2.jsonl", late)):
        (tmp_path / "in" / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    for keep in ("*", "text,id,late"):
        out = tmp_path / f"out{len(keep)}"
        assert inlay("embed", tmp_path / "in", out, "--model", "tiny", "--keep", keep)[0] == 0
        kept = pq.read_table(out).drop_columns(["embedding"]).to_pydict()
        assert list(kept) == ["text", "id", "late"]
        assert kept["id"] == [*map(float, range(1100)), 0.5, None]
        assert kept["late"] == [None] * 1100 + [[1.0], [2.5]]


def test_a_kept_column_of_several_types_is_named(inlay: Run, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "a", "id": 1}\n{"text": "b", "id": "x"}\n')
    code, _, err = inlay("embed", tmp_path / "in.jsonl", tmp_path / "out", "--model", "tiny", "--keep", "id")
    assert code == 1
    assert "column 'id' to keep has values of several types" in err


KILLED = """
import os, signal, sys
from service.bulk import job
from service.cli.main import main

finish, left = job.PartComputer._finish, [int(sys.argv.pop(1))]
job.WINDOW_ROWS = 3

def counted(*values):
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    finish(*values)

job.PartComputer._finish = counted
sys.exit(main(sys.argv[1:]))
"""


def run_until(window: int, *words: str | Path) -> int:
    """Runs `inlay embed` in a process that is killed before it writes a window; 0: it is not."""
    call = [sys.executable, "-c", KILLED, str(window), "embed", *map(str, words)]
    return subprocess.run(call, check=False, capture_output=True).returncode


def contents(output: Path) -> dict[str, bytes]:
    paths = [output] if output.is_file() else sorted(output.glob("[!_]*"))
    return {path.name: path.read_bytes() for path in paths}


@pytest.mark.parametrize("output", sampled(("out.parquet", "out.npy"), 2))
def test_a_killed_run_goes_on_and_gives_the_same_bytes(output: str, tmp_path: Path) -> None:
    words = ["--model", "tiny", "--part-rows", "10"]  # 9 parts of 4 windows
    source = corpus(tmp_path / "in.parquet", 90)
    (tmp_path / "whole").mkdir()
    assert run_until(0, source, tmp_path / "whole" / output, *words) == 0
    for window in (14, 10):
        assert run_until(window, source, tmp_path / output, *words) == -signal.SIGKILL
        assert not outputs.is_file(tmp_path / output) or not (tmp_path / output).exists()
    assert run_until(0, source, tmp_path / output, *words) == 0
    assert contents(tmp_path / output) == contents(tmp_path / "whole" / output)
    assert len(vectors(tmp_path / output)) == 90


@pytest.mark.parametrize("output", ["out", "out.parquet", "out.npy", "out.safetensors"])
def test_parts_lie_in_the_order_of_the_rows(output: str, inlay: Run, tmp_path: Path) -> None:
    source = corpus(tmp_path / "in.parquet", 25)
    assert inlay("embed", source, tmp_path / "one.npy", "--model", "tiny")[0] == 0
    assert inlay("embed", source, tmp_path / output, "--model", "tiny", "--part-rows", "10")[0] == 0
    assert (vectors(tmp_path / output) == vectors(tmp_path / "one.npy")).all()


def sparse(path: Path) -> list[Any]:
    return pq.read_table(path).column("embedding").to_pylist()


@pytest.mark.parametrize("model", ["splade", "table"])
def test_sparse_vectors_are_those_of_the_service(model: str, store: Path, inlay: Run, tmp_path: Path) -> None:
    texts = [WORDS[row % 6] * (1 + row % 5) for row in range(25)]
    rows = [{"text": None if row == 4 else text} for row, text in enumerate(texts)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = [tmp_path / "in.jsonl", tmp_path / "out.parquet", "--model", model, "--output", "sparse_embedding"]
    assert inlay("embed", *words)[0] == 0
    kind = pq.read_schema(tmp_path / "out.parquet").field("embedding").type
    assert kind == pa.struct({"indices": pa.list_(pa.int32()), "values": pa.list_(pa.float32())})
    got = sparse(tmp_path / "out.parquet")
    assert got[4] is None
    (output,) = asyncio.run(Service(store).pipeline.embed(embed_request(list(map(Text, texts)), model))).outputs
    assert output.indices is not None
    ends = np.cumsum(output.lengths)[:-1]
    for row, indices, values in zip(got, np.split(output.indices, ends), np.split(output.rows, ends), strict=True):
        assert row is None or row == {"indices": indices.tolist(), "values": values[:, 0].tolist()}


def test_sparse_vectors_have_no_array_and_no_narrow_integers(inlay: Run, tmp_path: Path) -> None:
    source = corpus(tmp_path / "in.parquet", 3)
    for output, more, message in (
        ("out.npy", [], "is sparse"),
        ("out", ["--dtype", "binary"], "send float32, float16 or bfloat16"),
    ):
        code, _, err = inlay("embed", source, tmp_path / output, "--model", "splade", *more)
        assert (code, message in err) == (1, True)


def test_a_run_that_is_whole_is_not_repeated(inlay: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, words = corpus(tmp_path / "in.parquet"), ["--model", "tiny", "--part-rows", "30"]
    assert inlay("embed", source, tmp_path / "out", *words)[0] == 0
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("part-*")}
    assert len(before) == 4
    (tmp_path / "out/part-00002.parquet").unlink()
    code, out, _ = inlay("embed", source, tmp_path / "out", *words)
    assert code == 0
    assert "100 vectors, 70 of them there already" in out
    again = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("part-*")}
    assert [path.name for path in before if again[path] != before[path]] == ["part-00002.parquet"]


def test_another_run_does_not_mix_with_the_parts_of_one(inlay: Run, tmp_path: Path) -> None:
    source, words = corpus(tmp_path / "in.parquet"), ["--model", "tiny"]
    assert inlay("embed", source, tmp_path / "out", *words)[0] == 0
    code, _, err = inlay("embed", source, tmp_path / "out", *words, "--dtype", "float16", "--no-truncate")
    assert code == 1
    assert "parts of a run that differs in truncate, dtype: repeat that run's command" in err
    corpus(source, 50)
    code, _, err = inlay("embed", source, tmp_path / "out", *words)
    assert code == 1
    assert "differs in the input files" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["in.parquet", "out.npy", "--keep", "id"], ".npy holds vectors alone: leave out --keep, or write parquet"),
        (["in.parquet", "out.csv"], "vectors are written to a folder, .parquet, .npy or .safetensors"),
        (["in.parquet", "out.json"], "vectors are written to a folder, .parquet, .npy or .safetensors"),
        (["in.parquet", "out", "--keep", "nope"], "has no column 'nope'; it has 'id', 'text'"),
        (["in.parquet", "out", "--model", "./nope"], "--model ./nope cannot be exported"),
        (["in.parquet", "out", "--output", "nope"], "tiny has no output 'nope'; it has"),
        (["in.parquet", "out", "--prompt-name", "nope"], "prompt_name is 'nope'; tiny has the prompts none"),
        (["in.parquet", "out", "--dimensions", "0"], "dimensions is 0; send 1 to 32"),
        (["nothing.csv", "out"], "nothing.csv: no file to read"),
        (["in.parquet", "."], "holds other files: name a new folder, or an empty one"),
        (["in.parquet", "in.parquet"], "in.parquet is there already: remove it, or name another output"),
    ],
)
def test_what_cannot_be_done_is_told_in_one_line(
    words: list[str], message: str, inlay: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    corpus(tmp_path / "in.parquet")
    before = set(tmp_path.rglob("*"))
    model = [] if "--model" in words else ["--model", "tiny"]
    code, _, err = inlay("embed", *words, *model)
    assert code == 1
    assert message in err
    assert err.count("\n") == 1
    assert set(tmp_path.rglob("*")) == before


def test_a_text_that_is_too_long_is_named(inlay: Run, tmp_path: Path) -> None:
    table = pa.table({"text": ["a", None, "a " * 600, "b"]})
    pq.write_table(table, tmp_path / "in.parquet")
    code, _, err = inlay("embed", tmp_path / "in.parquet", tmp_path / "out", "--model", "tiny", "--no-truncate")
    assert code == 1
    assert "in.parquet: the text of row 2 has 602 tokens" in err


@pytest.mark.parametrize("output", ["v.parquet", "folder"])
def test_a_report_names_cut_missing_and_refused_rows(output: str, inlay: Run, tmp_path: Path) -> None:
    texts = ["a", "b " * 900, None, "d", "c"] * 3
    (tmp_path / "t.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))

    def embed(target: str, *options: str) -> tuple[str, dict[str, Any]]:
        arguments = (tmp_path / "t.jsonl", tmp_path / target, "--model", "tiny", "--part-rows", 4, *options)
        code, _, err = inlay("embed", *arguments)
        assert code == ("--fail-on-truncation" in options)
        path = tmp_path / (f"{target}/_report.json" if output == "folder" else f"{target}.report.json")
        return err, json.loads(path.read_text())

    for _ in range(2 if output == "folder" else 1):  # a folder that is complete is reported again
        err, report = embed(f"cut-{output}", "--fail-on-truncation")
        assert "of 15 texts 3 were cut to what the model reads, 3 are missing" in err
        assert "3 texts were cut, and --fail-on-truncation is set" in err
        assert (report["rows"], report["vectors"], report["failed"]["count"]) == (15, 12, 0)
        rows = {kind: [row["row"] for row in report[kind]["rows"]] for kind in ("cut", "empty")}
        assert rows == {"cut": [1, 6, 11], "empty": [2, 7, 12]}
    err, report = embed(f"left-{output}", "--no-truncate", "--skip-failed")
    assert "3 are missing, 3 were refused" in err
    assert [(row["row"], "tokens" in row["reason"]) for row in report["failed"]["rows"]] == [(1, 1), (6, 1), (11, 1)]
    left = pq.read_table(tmp_path / f"left-{output}").column("embedding").to_pylist()
    assert [row is None for row in left] == [False, True, True, False, False] * 3


def test_a_column_of_two_names_is_refused(inlay: Run, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("text,text\na,b\n")
    code, _, err = inlay("embed", f"{tmp_path}/t.csv", f"{tmp_path}/v.npy", "--model", "tiny")
    assert code == 1
    assert "names the column 'text' more than once" in err


def test_which_model_is_asked(inlay: Run, tmp_path: Path) -> None:
    code, _, err = inlay("embed", corpus(tmp_path / "in.parquet"), tmp_path / "out")
    assert code == 1
    assert "which model? name one with --model" in err


@pytest.mark.parametrize("output", ["out", "out.parquet", "out.npy"])
def test_no_rows_are_no_vectors(output: str, inlay: Run, tmp_path: Path) -> None:
    source = corpus(tmp_path / "in.parquet", 0)
    code, out, _ = inlay("embed", source, tmp_path / output, "--model", "tiny")
    assert code == 0
    assert "0 vectors" in out
    if output != "out":
        assert len(vectors(tmp_path / output)) == 0


def test_a_stopped_run_says_how_it_goes_on(inlay: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(job.PartComputer, "run", stopped)
    code, _, err = inlay("embed", corpus(tmp_path / "in.parquet"), tmp_path / "out", "--model", "tiny")
    assert code == 130
    assert err == "inlay: stopped; the same command goes on with what is missing\n"


def test_two_runs_do_not_write_to_one_folder(inlay: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, codes = corpus(tmp_path / "in.parquet"), []
    monkeypatch.setattr(
        job.PartComputer, "run", lambda *_: codes.append(inlay("embed", source, tmp_path / "out", "--model", "tiny"))
    )
    inlay("embed", source, tmp_path / "out", "--model", "tiny")
    assert codes[0][0] == 1
    assert "another run writes to" in codes[0][2]
