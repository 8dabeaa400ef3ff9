"""Files of every format give the same rows, and a window is the same wherever reading began."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from service.bulk.inputs import Columns, Reader, columns, count_rows, find, notes
from service.errors import StartError

TEXTS = ["one", 'two, with a comma and a "quote"', "three\nover lines", "", "fünf", "six " * 50] * 7
LINES = [text.replace("\n", " ") for text in TEXTS]


def table() -> pa.Table:
    return pa.table({"id": range(len(TEXTS)), "text": TEXTS, "note": [f"n{number}" for number in range(len(TEXTS))]})


def stream(path: Path) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table().schema) as writer:
        writer.write_table(table(), max_chunksize=5)


def json_lines(path: Path) -> None:
    rows = [json.dumps({"text": text, "id": number}) for number, text in enumerate(TEXTS)]
    content = "\n".join(rows).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


WRITERS: dict[str, Callable[[Path], None]] = {
    "a.parquet": lambda path: pq.write_table(table(), path, row_group_size=9),
    "a.feather": lambda path: pyarrow.feather.write_feather(table(), path, chunksize=4),
    "a.arrow": stream,
    "a.csv": lambda path: pyarrow.csv.write_csv(table(), path),
    "a.tsv": lambda path: pyarrow.csv.write_csv(table(), path, pyarrow.csv.WriteOptions(delimiter="\t")),
    "a.jsonl": json_lines,
    "a.jsonl.gz": json_lines,
}


def read(path: Path, start: int, rows: int, reader: Reader | None = None) -> list[list[str | None]]:
    reader = reader or Reader(Columns("text"), 8, 120)
    return [[text for piece in window for text in piece.texts[0]] for window in reader.windows(path, start, rows)]


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_gives_the_same_texts_from_any_row_on(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    WRITERS[name](path)
    assert columns([path], Columns("")).text == "text"
    assert count_rows(path, Columns("text")) == len(TEXTS)
    for start in (0, 1, 8, 9, 17, len(TEXTS) - 1):
        assert [text for window in read(path, start, len(TEXTS) - start) for text in window] == TEXTS[start:]


@pytest.mark.parametrize(
    ("content", "delimiter"),
    [
        ("id;text\n1;one, two\n", ";"),
        ("id\ttext\n1\tone; two\n", "\t"),
        ("id|text\n1|one\n", "|"),
        ("id,text\n1,one; two; three\n", ","),
        ("text\none; two\n", ","),
        ("text; note\none\n", ","),
    ],
)
def test_the_delimiter_of_a_csv_is_found_and_shown(content: str, delimiter: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(content)
    shown = f"{tmp_path}/a.csv: values are separated by {delimiter!r}"
    assert notes([tmp_path / "a.csv"]) == ([] if delimiter == "," else [shown])
    column = content.split("\n")[0].split(delimiter)[-1]
    assert read(tmp_path / "a.csv", 0, 1, Reader(Columns(column), 8, 120)) == [
        [content.split("\n")[1].split(delimiter)[-1]]
    ]


def test_lines_of_a_text_file_are_its_rows(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\r\n".join(LINES) + "\n", encoding="utf-8", newline="")
    assert [text for window in read(tmp_path / "a.txt", 0, len(LINES)) for text in window] == LINES
    assert count_rows(tmp_path / "a.txt", Columns("text")) == len(LINES)


def test_windows_are_bounded_and_do_not_depend_on_batches(tmp_path: Path) -> None:
    windows = []
    for group in (1, 4, 5, 1000):
        path = tmp_path / f"{group}.parquet"
        pq.write_table(table(), path, row_group_size=group)
        windows.append(read(path, 3, 30))
    assert windows[0] == windows[1] == windows[2] == windows[3]
    assert all(len(window) <= 8 for window in windows[0])
    assert all(sum(map(len, window)) <= 120 or len(window) == 1 for window in windows[0])
    assert max(len(window) for window in windows[0]) > 1


def test_a_reader_goes_on_and_goes_back(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(table(), path)
    reader = Reader(Columns("text"), 8, 1000)
    for start in (0, 10, 20, 5, 30):
        assert [text for window in read(path, start, 10, reader) for text in window] == TEXTS[start : start + 10]


def test_the_column_of_texts_is_found_or_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(table().rename_columns(["id", "body", "note"]), path)
    with pytest.raises(StartError, match=r"texts in 'body', 'note': name the column with --column"):
        columns([path], Columns(""))
    assert columns([path], Columns("body", ("*",))) == Columns("body", ("id", "body", "note"))
    with pytest.raises(StartError, match=r"no column 'nope'; it has 'id', 'body', 'note'"):
        columns([path], Columns("body", ("nope",)))
    with pytest.raises(StartError, match=r"column 'id' holds int64, not texts"):
        columns([path], Columns("id"))
    pq.write_table(table().select(["id", "note"]), path)
    assert columns([path], Columns("")).text == "note"


def test_files_are_found_by_folder_and_glob(tmp_path: Path) -> None:
    for name in ("b.csv", "a.jsonl", "deep/c.parquet", "_plan.json", ".hidden/d.csv", "notes.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [path.name for path in find(str(tmp_path))] == ["a.jsonl", "b.csv", "c.parquet"]
    assert [path.name for path in find(str(tmp_path / "*.csv"))] == ["b.csv"]
    with pytest.raises(StartError, match="no file to read"):
        find(str(tmp_path / "nothing"))
    with pytest.raises(StartError, match=r"notes.md: the format is known by the name"):
        find(str(tmp_path / "notes.md"))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.parquet", b"nonsense", "a.parquet cannot be read"),
        ("a.arrow", b"nonsense", "a.arrow cannot be read"),
        ("a.csv", b"text,id\na,1\nb\n", "a.csv cannot be read: line 3 has 1 of 2 values"),
        ("a.csv", b'text,id\na,1\n"b\nc",2\n"d,3\ne,4\n', "a.csv: the quote that opens in line 5 is not closed"),
        ("a.csv", b'text,id\n"a,1\n"b",2\n', "a.csv: the quote that opens in line 2 is not closed"),
        ("a.jsonl", b'{"text": "a"}\n{"text": ', "a.jsonl cannot be read: line 2"),
        ("a.jsonl", b'{"text": "a"}\n\n["b"]', "a.jsonl cannot be read: line 3 is not an object"),
        ("a.txt", b"good\n\xff\xfe\n", "a.txt cannot be read: 'utf-8' codec"),
        ("a.jsonl.gz", b"nonsense", "a.jsonl.gz cannot be read"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(StartError, match=message):
        count_rows(tmp_path / name, columns([tmp_path / name], Columns("")))


def test_a_later_file_without_the_column_is_named(tmp_path: Path) -> None:
    for name in ("a.csv", "a.parquet", "a.jsonl"):
        if name == "a.csv":
            (tmp_path / name).write_text("other\nx\n")
        elif name == "a.parquet":
            pq.write_table(pa.table({"other": ["x"]}), tmp_path / name)
        else:
            (tmp_path / name).write_text('{"other": "x"}\n')
        with pytest.raises(StartError, match=r"a\.\w+"):
            read(tmp_path / name, 0, 1)
