"""Causal rerankers and cross-encoders through the service against sentence-transformers' CrossEncoder."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from sentence_transformers import CrossEncoder
from sentence_transformers.base.modules import Transformer
from sentence_transformers.cross_encoder.modules.logit_score import LogitScore
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from models.artifacts.export import export
from models.artifacts.known_rerankers import KNOWN, QWEN3
from tests.parity.block_configs import CONFIGS
from tests.parity.conftest import Ledger
from tests.parity.test_blocks_live import randomise, relative
from tests.service.registry.registry_service import Service

pytestmark = pytest.mark.parity
SEEDS = range(12)
TOLERANCE = 1e-5
LONGEST = 150
LONGEST_PUBLISHED = 700  # Qwen3-Reranker's own prompt has more than LONGEST tokens of this vocabulary
WORDS = ("yes", "no", "the", "query", "document", "of", "a", "answer", "web", "search", "passages", "tree", "stone")
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "[CLS]", "[SEP]", "[PAD]", "<bos>", "Yes"]
TEMPLATE = """
{%- set ns = namespace(told="Find what answers the query") %}
{%- for message in messages if message.role == "system" %}{%- set ns.told = message.content %}{%- endfor -%}
<|im_start|>system
Judge.<|im_end|>
<|im_start|>user
<Instruct>: {{ ns.told }}
<Query>: {{ messages | selectattr("role", "eq", "query") | map(attribute="content") | first }}
<Document>: {{ messages | selectattr("role", "eq", "document") | map(attribute="content") | first }}<|im_end|>
<|im_start|>assistant
<think>

</think>


"""
ENDED = TEMPLATE.replace("<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n", " relevant:")
SILENT = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}answer"  # with a system message in front


def tokenizer(chat_template: str | None = None, pairs: bool = False, typed: bool = False) -> Any:
    """A small byte-level tokenizer; `pairs`: with BERT's special tokens; `typed`: models are given segment ids."""
    own = Tokenizer(models.BPE())
    own.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    own.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=SPECIAL, initial_alphabet=alphabet)
    own.train_from_iterator([" ".join(WORDS), " ".join(reversed(WORDS)), "yes", "no"] * 20, trainer)
    if pairs:
        ends = [(name, own.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
        own.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", ends)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=own,
        pad_token="[PAD]",
        eos_token="<|im_end|>",
        model_max_length=LONGEST,
        chat_template=chat_template,
        model_input_names=["input_ids", "attention_mask", *["token_type_ids"] * typed],
    )


def pairs_of(draw: random.Random, count: int, longest: int = 60) -> tuple[str, list[str]]:
    """A query, and documents of which some are cut."""
    documents = [" ".join(draw.choices(WORDS, k=draw.randint(1, longest))) for _ in range(count - 2)]
    return " ".join(draw.choices(WORDS, k=5)), ["", " ".join(draw.choices(WORDS, k=300)), *documents]


def scores(folder: Path, query: str, documents: list[str], **fields: Any) -> Any:
    return asyncio.run(Service(folder).rank(query, documents, truncate=True, **fields)).scores


def qwen3(seed: int, folder: Path, chat_template: str | None, one: bool = False) -> CrossEncoder:
    draw = random.Random(f"reranker {seed}")
    torch.manual_seed(seed)
    fast = tokenizer(chat_template)
    config = CONFIGS["qwen3"](draw) | {"vocab_size": len(fast), "pad_token_id": fast.pad_token_id}
    model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**config))
    randomise(model, "qwen3")
    model.save_pretrained(folder / "bare")
    fast.save_pretrained(folder / "bare")
    yes, no = fast.convert_tokens_to_ids(["yes", "no"])
    first = Transformer(str(folder / "bare"), transformer_task="text-generation")
    return CrossEncoder(modules=[first, LogitScore(yes, None if one else no)])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("chat_template", [TEMPLATE, ENDED, SILENT], ids=["instructed", "ended", "without"])
def test_causal_rerankers_score_as_cross_encoders(
    chat_template: str, seed: int, tmp_path: Path, ledger: Ledger
) -> None:
    theirs = qwen3(seed, tmp_path, chat_template, one=seed % 3 == 0)
    theirs.save_pretrained(str(tmp_path / "own"))
    card = export(tmp_path / "own", tmp_path / "store/own")
    assert card.classifier is not None, card.no_classifier_reason
    query, documents = pairs_of(random.Random(seed), 20)
    wanted = theirs.predict([(query, document) for document in documents], batch_size=1)
    got = scores(tmp_path / "store", query, documents)
    ledger.check("qwen3", "reranker score", relative(got, wanted), TOLERANCE)
    if chat_template != SILENT:
        told = "Find stones"
        wanted = theirs.predict([(query, document) for document in documents], prompt=told, batch_size=1)
        got = scores(tmp_path / "store", query, documents, instruction=told)
        ledger.check("qwen3", "reranker score, instructed", relative(got, wanted), TOLERANCE)


def published(folder: Path, query: str, documents: list[str]) -> Any:
    """What the published files of Qwen3-Reranker compute: their code's steps, one pair at a time."""
    fast = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.Qwen3ForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    prefix = fast.encode(QWEN3.before_instruction.removesuffix("<Instruct>: "), add_special_tokens=False)
    suffix = fast.encode(QWEN3.ending, add_special_tokens=False)
    yes, no = fast.convert_tokens_to_ids(["yes", "no"])
    made = []
    for document in documents:
        text = f"<Instruct>: {QWEN3.instruction}\n<Query>: {query}\n<Document>: {document}"
        inner = fast(text, truncation=True, max_length=LONGEST_PUBLISHED - len(prefix) - len(suffix)).input_ids
        with torch.no_grad():
            logits = model(torch.tensor([prefix + inner + suffix])).logits[0, -1]
        made.append(float(torch.softmax(logits[[no, yes]].double(), dim=0)[1]))
    return np.array(made)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_bare_qwen3_reranker_scores_as_published(seed: int, tmp_path: Path, ledger: Ledger) -> None:
    qwen3(seed, tmp_path, None)
    set_longest(tmp_path / "bare", LONGEST_PUBLISHED)
    card = export(tmp_path / "bare", tmp_path / "store/own", reranker="yes,no")
    assert card.classifier is not None
    query, documents = pairs_of(random.Random(seed), 12, 20)
    got = scores(tmp_path / "store", query, documents)
    assert len(np.unique(np.round(got, 6))) > len(got) // 2
    ledger.check(
        "qwen3", "reranker score, published", relative(got, published(tmp_path / "bare", query, documents)), 1e-5
    )


BGE = "Given a query A and a passage B, determine whether the passage contains an answer to the query by providing a "
BGE += "prediction of either 'Yes' or 'No'."
MXBAI = (
    "You are a search relevance expert who evaluates how well documents match search queries. For each query-document "
)
MXBAI += "pair, carefully analyze the semantic relationship between them, then provide your binary relevance judgment "
MXBAI += "(0 for not relevant, 1 for relevant).\nRelevance:"
CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
CHATML += "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"


def of_bge(fast: Any, query: str, document: str) -> list[int]:
    """As FlagEmbedding joins the ids of its parts."""
    parts = (f"A: {query}", "\n", f"B: {document}", "\n", BGE)
    return [fast.convert_tokens_to_ids("<bos>"), *(each for part in parts for each in fast.encode(part))]


def of_mxbai(fast: Any, query: str, document: str) -> list[int]:
    """As the package mxbai_rerank joins the ids of its parts."""
    system = "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
    parts = (f"{system}<|im_start|>user\n", f"query: {query}", "\n", f"document: {document}", "\n", MXBAI)
    return [each for part in (*parts, "<|im_end|>\n<|im_start|>assistant\n") for each in fast.encode(part)]


def of_zerank(fast: Any, query: str, document: str) -> list[int]:
    """As modeling_zeranker renders its chat template."""
    messages = [{"role": "system", "content": query}, {"role": "user", "content": document}]
    return fast.encode(
        fast.apply_chat_template(messages, chat_template=CHATML, tokenize=False, add_generation_prompt=True)
    )


def of_contextual(fast: Any, query: str, document: str, instruction: str = "") -> list[int]:
    """As the card formats a prompt."""
    told = f" {instruction}" if instruction else ""
    start = "Check whether a given document contains information helpful to answer the query.\n"
    return fast.encode(f"{start}<Document> {document}\n<Query> {query}{told} ??")


CARDS: dict[str, tuple[str, Any, Any]] = {  # model_type, ids of a pair, the score of the last logits
    "bge-reranker-v2-gemma": ("gemma", of_bge, lambda logits, ids: logits[ids["Yes"]]),
    "mxbai-rerank-v2": ("qwen2", of_mxbai, lambda logits, ids: logits[ids["1"]] - logits[ids["0"]]),
    "zerank": ("qwen3", of_zerank, lambda logits, ids: logits[ids["Yes"]] / 5),
    "ctxl-rerank": ("qwen3", of_contextual, lambda logits, ids: logits[0]),
}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("card", CARDS)
def test_known_rerankers_score_as_their_cards_say(card: str, seed: int, tmp_path: Path, ledger: Ledger) -> None:
    model_type, ids_of, score = CARDS[card]
    torch.manual_seed(seed)
    fast = tokenizer()
    sizes = CONFIGS[model_type](random.Random(f"{card} {seed}")) | {"vocab_size": len(fast), "pad_token_id": 5}
    model = transformers.AutoModelForCausalLM.from_config(transformers.CONFIG_MAPPING[model_type](**sizes)).eval()
    randomise(model, model_type)
    folder = tmp_path / KNOWN[card].card.rpartition("/")[2]
    model.save_pretrained(folder)
    fast.save_pretrained(folder)
    set_longest(folder, 2000)
    export(folder, tmp_path / "store/own")
    query, documents = pairs_of(random.Random(seed), 8, 20)
    for told in (None, "Find stones")[: 1 + (card == "ctxl-rerank")]:
        wanted = []
        for document in documents:
            read = ids_of(fast, query, document, *([told] if told else []))
            with torch.no_grad():
                logits = model(torch.tensor([read])).logits[0, -1].double()
            wanted.append(float(torch.sigmoid(score(logits, fast.get_vocab()))))
        got = scores(tmp_path / "store", query, documents, **({"instruction": told} if told else {}))
        ledger.check(model_type, f"{card}, score", relative(got, np.array(wanted)), TOLERANCE)


def test_a_long_document_before_its_query_is_cut_alone(tmp_path: Path) -> None:
    qwen3(1, tmp_path, None)
    export(tmp_path / "bare", tmp_path / "store/own", reranker="ctxl-rerank")
    long = " ".join(["tree"] * 400)
    one, other = (scores(tmp_path / "store", query, [long])[0] for query in ("stone", "answer of a stone"))
    assert one != other  # the query is read behind the cut


def set_longest(folder: Path, tokens: int) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_max_length": tokens}))


FAMILIES = ("bert", "roberta", "modernbert", "deberta-v2", "distilbert", "electra", "qwen2")


def cross_encoder(family: str, seed: int, folder: Path, labels: int) -> CrossEncoder:
    draw = random.Random(f"cross {family} {seed}")
    torch.manual_seed(seed)
    sizes = CONFIGS[family](draw)
    fast = tokenizer(pairs=True, typed=sizes.get("type_vocab_size") == 2 and seed % 2 == 0)
    sizes |= {"vocab_size": len(fast), "pad_token_id": fast.pad_token_id}
    config = transformers.CONFIG_MAPPING[family](**sizes, num_labels=labels)
    model = transformers.AutoModelForSequenceClassification.from_config(config).eval()
    randomise(model, family)
    model.save_pretrained(folder)
    fast.save_pretrained(folder)
    return CrossEncoder(str(folder), activation_fn=draw.choice((None, torch.nn.Identity(), torch.nn.Tanh())))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("family", FAMILIES)
def test_pairs_score_as_by_a_cross_encoder(family: str, seed: int, tmp_path: Path, ledger: Ledger) -> None:
    theirs = cross_encoder(family, seed, tmp_path / "made", 1)
    theirs.save_pretrained(str(tmp_path / "own"))
    export(tmp_path / "own", tmp_path / "store/own")
    query, documents = pairs_of(random.Random(seed), 20)
    wanted = theirs.predict([(query, document) for document in documents], batch_size=1)
    ledger.check(family, "score of a pair", relative(scores(tmp_path / "store", query, documents), wanted), TOLERANCE)


def test_a_thousand_pairs_come_in_the_order_of_a_cross_encoder(tmp_path: Path) -> None:
    theirs = cross_encoder("bert", 2, tmp_path / "made", 1)
    export(tmp_path / "made", tmp_path / "store/own")
    query, documents = pairs_of(random.Random(5), 1000, 40)
    documents = list(dict.fromkeys(documents))
    wanted = theirs.predict([(query, document) for document in documents])
    got = scores(tmp_path / "store", query, documents)
    order = [entry["corpus_id"] for entry in theirs.rank(query, documents)]
    mine = np.argsort(-got, kind="stable")
    assert len(np.unique(wanted)) > 900
    swapped = [(ours, other) for ours, other in zip(mine.tolist(), order, strict=True) if ours != other]
    assert len(swapped) <= 4  # none where this was written; float32's last bits decide between equal scores
    assert all(abs(wanted[ours] - wanted[other]) < 1e-6 for ours, other in swapped)
