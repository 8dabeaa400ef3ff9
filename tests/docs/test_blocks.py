"""Blocks of the documentation are classified and can be parsed; the runner notices each that fails."""

from pathlib import Path

import pytest
import yaml

from tests.docs.blocks import BadBlock, Block, blocks, check_syntax, read
from tests.docs.pages import BlockFailed, Page, Server, pages

PAGES = pages()


@pytest.mark.parametrize("name", PAGES)
def test_blocks_of_a_page_are_classified_and_parse(name: str) -> None:
    for block in read(PAGES[name], name):
        check_syntax(block)


def one(text: str) -> Block:
    (block,) = blocks(text, "page.md")
    return block


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("```\nls\n```", "no language"),
        ("```shell\nls\n```", "a block of shell"),
        ("```console\n$ ls\n```", "a block of console"),
        ("<!-- run: later -->\n```bash\nls\n```", "`run: later` is not known"),
        ("<!-- run: syntax -->\n```bash\nls\n```", "states a reason"),
        ("<!-- run: hub, syntax -->\n```bash\nls\n```", "`run: syntax` is not known here"),
        ("<!-- run: clients -->\n\n```bash\nls\n```", "on the line before a block"),
        ("text\n<!-- run: clients -->", "on the line before a block"),
        ("<!-- run: hub -->\n```json\n{}\n```", "only blocks of bash, python, javascript are run"),
        ("```javascript\n1\n```", "runs with clients"),
        ("<!-- run: server -->\n```python\n1\n```", "a server is started by bash"),
        ("```bash\nls", "does not end"),
    ],
)
def test_block_that_cannot_be_classified_is_refused(text: str, said: str) -> None:
    with pytest.raises(BadBlock, match=said):
        list(blocks(text, "page.md"))


@pytest.mark.parametrize(
    "text",
    ["```bash\nif\n```", "```python\nif\n```", "```json\n{,}\n```", "```yaml\na: [\n```", "```toml\na\n```"],
)
def test_block_that_does_not_parse_is_refused(text: str) -> None:
    with pytest.raises((ValueError, SyntaxError, yaml.YAMLError)):
        check_syntax(one(text))


def test_block_in_a_list_loses_its_indent() -> None:
    block = one(
        "- a point:\n\n    <!-- run: syntax, needs time -->\n    ```bash\n    if true; then\n      ls\n    fi\n    ```"
    )
    assert (block.text, block.line) == ("if true; then\n  ls\nfi\n", 4)
    assert not block.runs


def test_longer_fence_holds_a_shorter_one() -> None:
    assert one("````text\n```bash\nls\n```\n````").text == "```bash\nls\n```\n"


def run(folder: Path, server: Server, text: str) -> None:
    Page(folder, server).run(list(blocks(text, "page.md")))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("```bash\nfalse\ntrue\n```", "line 1 .bash.: ended with 1"),
        ("```bash\nfalse | true\n```", "ended with 1"),
        ("```bash\necho $unset\n```", "unset"),
        ("```bash\nmissing-command\n```", "ended with 127"),
        ("```python\nx = 1\n```\n\n```python\nassert x == 2\n```", "line 5 .python.: Traceback"),
        ("```python\nraise SystemExit(0)\n```", "SystemExit"),
        ("```bash\ncurl -s localhost:8080/embed -d '{}' -H 'content-type: application/json'\n```", "missing_field"),
        ("<!-- run: error -->\n```bash\ntrue\n```", "should have failed"),
        ("<!-- run: server -->\n```bash\ninlay serve --max-input 3\n```", "the server ended with 2"),
        ("```bash\ninlay export org/name place\n```", "ended with 1"),
    ],
)
def test_failing_block_fails_its_page(text: str, said: str, tmp_path: Path, shared_server: Server) -> None:
    with pytest.raises(BlockFailed, match=said):
        run(tmp_path, shared_server, text)


def test_blocks_share_folder_namespace_and_server(tmp_path: Path, shared_server: Server) -> None:
    run(
        tmp_path,
        shared_server,
        """
```bash
curl -s localhost:8080/embed -H 'content-type: application/json' -d '{"inputs": "hello"}' -o vectors.json
```
```python
import json
(vector,) = json.load(open("vectors.json"))
```
<!-- run: error -->
```bash
curl -s localhost:8080/embed -H 'content-type: application/json' -d '{"inptus": "hello"}'
```
```python
import grpc
from proto import embed_pb2, embed_pb2_grpc

stub = embed_pb2_grpc.EmbedderStub(grpc.insecure_channel("localhost:50051"))
assert len(stub.ListModels(embed_pb2.ListModelsRequest()).models) == 2
assert len(vector) == 384
```
""",
    )


def test_page_talks_to_the_server_that_it_starts(tmp_path: Path, shared_server: Server) -> None:
    run(
        tmp_path,
        shared_server,
        """
<!-- run: hub -->
```bash
inlay export openai-community/gpt2
```
<!-- run: server -->
```bash
INLAY_MANAGEMENT_PORT=9090 inlay serve --models gpt2 --port 8080
```
```bash
curl -s localhost:8080/models | grep gpt2
curl -s 127.0.0.1:9090/health/ready
```
<!-- run: error -->
```bash
curl -s localhost:8080/models/all-MiniLM-L6-v2
```
""",
    )
