"""Images among the tokens of a decoder against transformers: vectors of pages and of texts, live.

transformers 5.23 gives ColQwen2ForRetrieval's images positions like text; the models were trained, and 4.53 computed
them, with positions by row and column, which the judge is handed here.
"""

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from transformers import ColPaliProcessor, ColQwen2ForRetrieval, PreTrainedTokenizerFast
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from models.artifacts.export import export
from models.errors import BadCheckpoint
from service.embedding.requests import Picture, Text
from tests.embed_requests import embed_request
from tests.parity import image_models
from tests.parity.conftest import Ledger
from tests.service.registry.registry_service import Service

pytestmark = pytest.mark.parity

TOLERANCE = 1e-5
SIZES = ((150, 100), (60, 230), (56, 56), (310, 90))
PAGE = "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Describe the image.<|im_end|><|endoftext|>"
PAGES = [(family, layout) for family in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl") for layout in ("engine", "native")]
Vectors = NDArray[np.float64]


def pictures() -> list[Image.Image]:
    draw = np.random.default_rng(3)
    return [Image.fromarray(draw.integers(0, 255, (*size, 3), dtype=np.uint8)) for size in SIZES]


def png(picture: Image.Image) -> Picture:
    file = io.BytesIO()
    picture.save(file, "PNG")
    return Picture(file.getvalue())


class Judge:
    """Computes hidden states with the processor and the model of transformers."""

    def __init__(self, folder: Path, model: Any) -> None:
        self.model, self.tokenizer = model, image_models.Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.processor = Qwen2VLImageProcessorPil.from_pretrained(folder)

    def of_text(self, text: str) -> torch.Tensor:
        ids = torch.tensor(self.tokenizer.encode(text, add_special_tokens=False).ids)[None]
        self.model.rope_deltas = None
        hidden: torch.Tensor = self.model(input_ids=ids).last_hidden_state[0]
        return hidden

    def read(self, picture: Image.Image, prompt: str) -> tuple[torch.Tensor, Any]:
        """Return the ids of a prompt with an image, [1, n], and the image's pixels and grid."""
        prepared = self.processor(images=[picture], return_tensors="pt")
        tokens = int(prepared["image_grid_thw"].prod()) // 4
        text = prompt.replace("<|image_pad|>", "<|image_pad|>" * tokens)
        ids = torch.tensor(self.tokenizer.encode(text, add_special_tokens=False).ids)[None]
        return ids, prepared

    def of_picture(self, picture: Image.Image, prompt: str) -> torch.Tensor:
        ids, prepared = self.read(picture, prompt)
        types = (ids == self.model.config.image_token_id).int()
        hidden: torch.Tensor = self.model(
            input_ids=ids, mm_token_type_ids=types, attention_mask=torch.ones_like(ids), **prepared
        ).last_hidden_state[0]
        return hidden


class GemmaJudge:
    """Computes hidden states with ColPali's processor and model of transformers."""

    def __init__(self, folder: Path, model: Any) -> None:
        config = json.loads((folder / "preprocessor_config.json").read_text())
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_file=str(folder / "tokenizer.json"), bos_token="<bos>", pad_token="<pad>", image_token="<image>"
        )
        self.model, self.processor = model, ColPaliProcessor(SiglipImageProcessorPil(**config), tokenizer)

    def of_text(self, text: str) -> torch.Tensor:
        ids = self.processor.tokenizer(f"<bos>{text}", return_tensors="pt")["input_ids"]
        return self._hidden(input_ids=ids)

    def of_query(self, text: str) -> torch.Tensor:
        return self._hidden(**self.processor.process_queries([text]))

    def of_picture(self, picture: Image.Image) -> torch.Tensor:
        read = self.processor.process_images([picture])
        read.pop("labels")
        return self._hidden(**read)

    def _hidden(self, **read: Any) -> torch.Tensor:
        hidden: torch.Tensor = self.model(**read).last_hidden_state[0]
        return hidden


def unit(vectors: torch.Tensor) -> Vectors:
    lengths = vectors.norm(dim=-1, keepdim=True)
    return np.asarray((vectors / lengths).detach().numpy(), np.float64)


def difference(got: NDArray[Any], wanted: Vectors) -> float:
    assert got.shape == wanted.shape
    return float(np.abs(got - wanted).max())


@pytest.mark.parametrize(("family", "layout"), PAGES)
@pytest.mark.parametrize("seed", range(3))
def test_pages_and_queries_have_transformers_vectors(
    family: str, layout: str, seed: int, tmp_path: Path, ledger: Ledger
) -> None:
    model, projection = image_models.write(family, layout, tmp_path / "checkpoint", seed)
    card = export(tmp_path / "checkpoint", tmp_path / "store/pages")
    service, judge = Service(tmp_path / "store"), Judge(tmp_path / "checkpoint", model)
    assert card.default_output == "multi_vector_embedding"
    inputs = [Text("some text"), *map(png, pictures()), Text("x")]
    result = asyncio.run(service.pipeline.embed(embed_request(inputs)))
    wanted = [unit(projection(judge.of_text("some text")))]
    wanted += [unit(projection(judge.of_picture(picture, PAGE))) for picture in pictures()]
    wanted.append(unit(projection(judge.of_text("x"))))
    assert result.lengths == tuple(map(len, wanted))
    ledger.check(family, f"pages, {layout}", difference(result.outputs[0].rows, np.concatenate(wanted)), TOLERANCE)
    query = asyncio.run(service.pipeline.embed(embed_request([Text("what?")], input_type="query")))
    text = "Query: what?" + "<|endoftext|>" * 10 + ("\n" if layout == "native" else "")
    judged = unit(projection(judge.of_text(text)))
    ledger.check(family, f"queries, {layout}", difference(query.outputs[0].rows, judged), TOLERANCE)


@pytest.mark.parametrize("layout", ["engine", "native"])
@pytest.mark.parametrize("seed", range(3))
def test_colpali_has_transformers_vectors(layout: str, seed: int, tmp_path: Path, ledger: Ledger) -> None:
    model, projection = image_models.write_paligemma(layout, tmp_path / "checkpoint", seed)
    export(tmp_path / "checkpoint", tmp_path / "store/pages")
    service, judge = Service(tmp_path / "store"), GemmaJudge(tmp_path / "checkpoint", model)
    result = asyncio.run(service.pipeline.embed(embed_request([Text("some text"), *map(png, pictures())])))
    wanted = [unit(projection(judge.of_text("some text")))]
    wanted += [unit(projection(judge.of_picture(picture))) for picture in pictures()]
    assert result.lengths == tuple(map(len, wanted))
    ledger.check("paligemma", f"pages, {layout}", difference(result.outputs[0].rows, np.concatenate(wanted)), TOLERANCE)
    query = asyncio.run(service.pipeline.embed(embed_request([Text("what?")], input_type="query")))
    judged = unit(projection(judge.of_query("what?")))
    ledger.check("paligemma", f"queries, {layout}", difference(query.outputs[0].rows, judged), TOLERANCE)


@pytest.mark.parametrize("seed", range(2))
def test_colqwen2_has_positions_by_row_and_column(seed: int, tmp_path: Path, ledger: Ledger) -> None:
    """transformers 5.23 numbers an image's tokens in ColQwen2ForRetrieval like a text's; Inlay does as colpali-engine.

    Its inner class, told which tokens are an image's (mm_token_type_ids), computes what Inlay does.
    """
    model, projection = image_models.write("qwen2_vl", "native", tmp_path / "checkpoint", seed)
    export(tmp_path / "checkpoint", tmp_path / "store/pages")
    picture, judge = pictures()[0], Judge(tmp_path / "checkpoint", model)
    result = asyncio.run(Service(tmp_path / "store").pipeline.embed(embed_request([png(picture)])))
    by_grid = unit(projection(judge.of_picture(picture, PAGE)))
    whole = ColQwen2ForRetrieval.from_pretrained(tmp_path / "checkpoint").eval()
    ids, prepared = judge.read(picture, PAGE)
    pixels, grid = prepared["pixel_values"][None], prepared["image_grid_thw"]
    found = whole(input_ids=ids, attention_mask=torch.ones_like(ids), pixel_values=pixels, image_grid_thw=grid)
    like_text = found.embeddings[0].detach().numpy()
    ledger.check("qwen2_vl", "by row and column", difference(result.outputs[0].rows, by_grid), TOLERANCE)
    assert difference(result.outputs[0].rows, like_text) > 100 * TOLERANCE


@pytest.mark.parametrize(("task", "passage"), [("retrieval", "Passage"), ("text-matching", "Query")])
@pytest.mark.parametrize("seed", range(2))
def test_jina_v4_has_one_and_several_vectors(
    task: str, passage: str, seed: int, tmp_path: Path, ledger: Ledger
) -> None:
    model, projection, added = image_models.write_jina(tmp_path / "checkpoint", seed)
    with torch.no_grad():
        for module, change in added[task].items():
            module.weight += change
    with pytest.raises(BadCheckpoint, match="add --route code or retrieval or text-matching"):
        export(tmp_path / "checkpoint", tmp_path / "store/x")
    export(tmp_path / "checkpoint", tmp_path / "store/jina", route=task)
    service, judge = Service(tmp_path / "store"), Judge(tmp_path / "checkpoint", model)
    page = f"{PAGE.removesuffix('<|endoftext|>')}\n"
    images = [judge.of_picture(picture, page) for picture in pictures()]
    behind = len(judge.tokenizer.encode(page.partition("<|vision_end|>")[2]).ids)
    before = len(judge.tokenizer.encode(page.partition("<|vision_start|>")[0]).ids)
    inputs = [Text("some text"), *map(png, pictures())]
    for prompt, prefix in (("passage", f"{passage}: "), (None, "Query: ")):
        text = judge.of_text(f"{prefix}some text")
        wanted = [text.mean(dim=0, keepdim=True)]
        wanted += [hidden[before : len(hidden) - behind].mean(dim=0, keepdim=True) for hidden in images]
        result = asyncio.run(service.pipeline.embed(embed_request(inputs, prompt_name=prompt)))
        judged = np.concatenate([unit(each) for each in wanted])
        ledger.check("jina v4", f"mean, {task}", difference(result.outputs[0].rows, judged), TOLERANCE)
    several = embed_request(inputs, None, ("multi_vector_embedding",))
    result = asyncio.run(service.pipeline.embed(several))
    judged = np.concatenate([unit(projection(each)) for each in (judge.of_text(f"{passage}: some text"), *images)])
    ledger.check("jina v4", f"several, {task}", difference(result.outputs[0].rows, judged), TOLERANCE)


@pytest.mark.parametrize("seed", range(3))
def test_qwen3_vl_embedding_reads_a_conversation(seed: int, tmp_path: Path, ledger: Ledger) -> None:
    model, _ = image_models.write("qwen3_vl", "embedding", tmp_path / "checkpoint", seed)
    card = export(tmp_path / "checkpoint", tmp_path / "store/single", pooling="lasttoken")
    service, judge = Service(tmp_path / "store"), Judge(tmp_path / "checkpoint", model)
    assert card.default_output == "sentence_embedding"
    texts = ["some text", "x", "y" * 300]
    inputs = [*map(Text, texts), *map(png, pictures())]
    result = asyncio.run(service.pipeline.embed(embed_request(inputs, normalize=True)))
    wanted = [unit(judge.of_text(conversation(text))[-1:]) for text in texts]
    image = "<|vision_start|><|image_pad|><|vision_end|>"
    wanted += [unit(judge.of_picture(picture, conversation(image))[-1:]) for picture in pictures()]
    ledger.check("qwen3_vl", "embedding", difference(result.outputs[0].rows, np.concatenate(wanted)), TOLERANCE)
    asked = embed_request([Text("x")], normalize=True, instruction="Find the page.")
    rows = asyncio.run(service.pipeline.embed(asked)).outputs[0].rows
    judged = unit(judge.of_text(conversation("x", "Find the page."))[-1:])
    ledger.check("qwen3_vl", "instruction", difference(rows, judged), TOLERANCE)


def conversation(content: str, instruction: str = "Represent the user's input.") -> str:
    """What the chat template makes of the messages of Qwen3VLEmbedder, Qwen3-VL-Embedding's own code."""
    system, user = (f"<|im_start|>{role}\n" for role in ("system", "user"))
    return f"{system}{instruction}<|im_end|>\n{user}{content}<|im_end|>\n<|im_start|>assistant\n"
