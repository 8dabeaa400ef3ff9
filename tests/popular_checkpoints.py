"""The hundred most used checkpoints: the files that each publishes, and whether Inlay serves them.

`python -m tests.popular_checkpoints` writes the table of docs/models/families.md anew. tests/parity makes a random tiny
checkpoint of each row and checks its verdict.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

PAGE = Path(__file__).parents[1] / "docs/models/families.md"
START, END = "<!-- popular checkpoints -->\n", "<!-- end of popular checkpoints -->\n"


class Row(NamedTuple):
    """A checkpoint as it is published.

    Args:
        name: its hub id.
        kind: what it is used for; of "sentence", the files of sentence-transformers lie beside it.
        family: the model type of the class in transformers.
        tokenizer: a case of tests/tokenizer_files.py, or "bytes": a tokenizer.json of byte pairs alone.
        weights: safetensors, bin (pytorch_model.bin), both, or shards of either.
        tokenizer_json: whether there is one beside the vocabulary.
        pooling: what 1_Pooling says.
        behind: modules behind the pooling.
        config: keys of config.json that matter.
        prompts: those of config_sentence_transformers.json.
        eos: whether add_eos_token of tokenizer_config.json alone says that texts end with EOS.
        heads: sparse_linear.pt and colbert_linear.pt lie beside the weights.
        published: keys of config.json that the library's own class does not have.
        route: the value of --route.
        refused: what the message of the refusal says; empty: it is served.
    """

    name: str
    kind: str
    family: str
    tokenizer: str
    weights: str = "safetensors"
    tokenizer_json: bool = True
    pooling: str = "mean"
    behind: tuple[str, ...] = ()
    config: Mapping[str, Any] = {}
    prompts: Mapping[str, str] = {}
    eos: bool = False
    heads: bool = False
    published: Mapping[str, Any] = {}
    route: str = ""
    refused: str = ""


KINDS = {
    "pair": "scores of pairs",
    "causal": "scores of pairs, by the prompt of its card",
    "classes": "classes of texts",
    "tokens": "classes of tokens",
    "sparse": "sparse vectors, by `--pooling splade`",
    "sparse modules": "sparse vectors",
    "sparse router": "sparse vectors; of queries looked up",
    "pylate": "vectors of tokens, in PyLate's layout",
    "siglip": "vectors of texts, by `--side text`",
    "stanford": "vectors of tokens, in ColBERT's layout",
    "clip": "vectors of texts, by `--side text`",
    "clip folder": "vectors of texts, of a folder 0_CLIPModel",
    "pages": "vectors of tokens, of texts and of pages as pictures",
    "jina v4": "the same, or their mean, by `--route retrieval`",
    "conversation": "the last row of a conversation, of texts and images, by `--pooling lasttoken`",
    "jina clip": "vectors of texts, by `--side text`; mean",
    "experts": "mean, Normalize; prompts: query, passage",
    "static": "vectors looked up",
    "jina": "mean; ALiBi",
    "dpr": "the first row",
    "instructor": "mean without the instruction, Dense Identity, Normalize",
    "words": "mean of the vectors of words",
    "latents": "mean without the instruction, behind attention to latents; EOS behind each text",
}
_SCALED = ("Normalize",)
_MINICPM = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 3}
_MINICPM |= {"attention_multiplier": 8**-0.5, "logits_scaling": 0.5, "max_position_embeddings": 4000}
_E5 = {"query": "query: ", "passage": "passage: "}
_ARCTIC = {"query": "Represent this sentence for searching relevant passages: "}
_INSTRUCT = {"query": "Instruct: Given a web search query, retrieve relevant passages\nQuery: "}


def _bert(name: str, pooling: str = "mean", weights: str = "both", **more: Any) -> Row:
    return Row(name, "sentence", "bert", "bert", weights, pooling=pooling, **{"behind": _SCALED} | more)


def _of(kind: str, family: str, tokenizer: str, name: str, weights: str = "safetensors", **more: Any) -> Row:
    return Row(name, kind, family, tokenizer, weights, **more)


def _sentence(family: str, tokenizer: str, name: str, pooling: str = "mean", **more: Any) -> Row:
    return Row(name, "sentence", family, tokenizer, pooling=pooling, **{"behind": _SCALED} | more)


ROWS: Sequence[Row] = (
    _bert("sentence-transformers/all-MiniLM-L6-v2"),
    _bert("sentence-transformers/all-MiniLM-L12-v2"),
    _bert("sentence-transformers/multi-qa-MiniLM-L6-cos-v1"),
    _bert("sentence-transformers/paraphrase-MiniLM-L6-v2", behind=()),
    _sentence("mpnet", "mpnet", "sentence-transformers/all-mpnet-base-v2", weights="both"),
    _sentence("mpnet", "mpnet", "sentence-transformers/multi-qa-mpnet-base-dot-v1", "cls", weights="both", behind=()),
    _sentence(
        "bert",
        "xlm-roberta",
        "sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2",
        weights="both",
        behind=(),
    ),
    _sentence(
        "xlm-roberta",
        "xlm-roberta",
        "sentence-transformers/paraphrase-multilingual-mpnet-base-v2",
        weights="both",
        behind=(),
    ),
    _sentence(
        "distilbert",
        "distilbert",
        "sentence-transformers/distiluse-base-multilingual-cased-v2",
        weights="both",
        behind=("Dense Tanh",),
    ),
    _bert("sentence-transformers/LaBSE", "cls", behind=("Dense Tanh", "Normalize")),
    _sentence(
        "distilbert",
        "distilbert",
        "sentence-transformers/msmarco-distilbert-base-tas-b",
        "cls",
        weights="both",
        behind=(),
    ),
    _sentence("roberta", "roberta", "sentence-transformers/all-distilroberta-v1", weights="both"),
    _sentence("t5", "t5", "sentence-transformers/gtr-t5-base", weights="both", behind=("Dense Identity", "Normalize")),
    _of(
        "instructor",
        "t5",
        "t5",
        "hkunlp/instructor-large",
        "bin",
        behind=("Dense Identity", "Normalize"),
        prompts={"title": "Represent the market title: "},
    ),
    _bert("BAAI/bge-small-en-v1.5", "cls"),
    _bert("BAAI/bge-base-en-v1.5", "cls"),
    _bert("BAAI/bge-large-en-v1.5", "cls"),
    _bert("BAAI/bge-large-zh-v1.5", "cls", "bin"),
    _sentence("xlm-roberta", "xlm-roberta", "BAAI/bge-m3", "cls", weights="bin", heads=True),
    _bert("intfloat/e5-small-v2", prompts=_E5),
    _bert("intfloat/e5-base-v2", prompts=_E5),
    _bert("intfloat/e5-large-v2", prompts=_E5),
    _sentence("bert", "xlm-roberta", "intfloat/multilingual-e5-small", weights="both"),
    _sentence("xlm-roberta", "xlm-roberta", "intfloat/multilingual-e5-base", weights="both"),
    _sentence("xlm-roberta", "xlm-roberta", "intfloat/multilingual-e5-large", weights="both"),
    _sentence("xlm-roberta", "xlm-roberta", "intfloat/multilingual-e5-large-instruct"),
    _sentence(
        "mistral",
        "mistral",
        "intfloat/e5-mistral-7b-instruct",
        "lasttoken",
        eos=True,
        weights="shards",
        prompts=_INSTRUCT,
    ),
    _bert("thenlper/gte-small"),
    _of("words", "word_embeddings", "words", "sentence-transformers/average_word_embeddings_glove.6B.300d", "bin"),
    _sentence("gte", "bert", "Alibaba-NLP/gte-base-en-v1.5", "cls", behind=()),
    _sentence("gte", "xlm-roberta", "Alibaba-NLP/gte-multilingual-base", "cls"),
    _sentence("modernbert", "bytes", "Alibaba-NLP/gte-modernbert-base", "cls", behind=()),
    _sentence(
        "qwen2",
        "qwen2",
        "Alibaba-NLP/gte-Qwen2-1.5B-instruct",
        "lasttoken",
        eos=True,
        weights="shards",
        prompts=_INSTRUCT,
        config={"is_causal": False},
    ),
    _bert("Snowflake/snowflake-arctic-embed-m", "cls", "safetensors", prompts=_ARCTIC),
    _sentence(
        "xlm-roberta", "xlm-roberta", "Snowflake/snowflake-arctic-embed-l-v2.0", "cls", prompts={"query": "query: "}
    ),
    _sentence("gte", "xlm-roberta", "Snowflake/snowflake-arctic-embed-m-v2.0", "cls", prompts={"query": "query: "}),
    _sentence("nomic_bert", "bert", "nomic-ai/nomic-embed-text-v1.5"),
    _sentence(
        "modernbert",
        "bytes",
        "nomic-ai/modernbert-embed-base",
        behind=(),
        prompts={"query": "search_query: ", "document": "search_document: "},
    ),
    _bert("mixedbread-ai/mxbai-embed-large-v1", "cls", "safetensors", behind=(), prompts=_ARCTIC),
    _sentence("jina_embeddings_v3", "xlm-roberta", "jinaai/jina-embeddings-v3"),
    _sentence("modernbert", "bytes", "ibm-granite/granite-embedding-english-r2", "cls"),
    _sentence("qwen3", "bytes", "Qwen/Qwen3-Embedding-0.6B", "lasttoken", prompts=_INSTRUCT),
    _sentence(
        "gemma3_text",
        "bytes",
        "google/embeddinggemma-300m",
        behind=("Dense Identity", "Dense Identity", "Normalize"),
        config={"use_bidirectional_attention": True},
        prompts={"query": "task: search result | query: ", "document": "title: none | text: "},
    ),
    _sentence("mistral", "mistral", "Salesforce/SFR-Embedding-Mistral", "lasttoken", eos=True, weights="shards"),
    _sentence("gemma2", "bytes", "BAAI/bge-multilingual-gemma2", "lasttoken", weights="shards"),
    _of("bare", "bert", "bert", "facebook/contriever", "bin"),
    _of("bare", "bert", "bert", "google-bert/bert-base-uncased", "both"),
    _of("bare", "roberta", "roberta", "FacebookAI/roberta-base", "both"),
    _of("bare", "distilbert", "distilbert", "distilbert/distilbert-base-uncased", "both"),
    _of("bare", "xlm-roberta", "xlm-roberta", "FacebookAI/xlm-roberta-base", "both"),
    _of("bare", "deberta-v2", "deberta-v3", "microsoft/deberta-v3-base", "bin", tokenizer_json=False),
    _of("bare", "modernbert", "bytes", "answerdotai/ModernBERT-base", "both"),
    _of("pair", "bert", "bert", "cross-encoder/ms-marco-MiniLM-L6-v2", "both"),
    _of("pair", "bert", "bert", "cross-encoder/ms-marco-MiniLM-L12-v2", "both"),
    _of("pair", "electra", "electra", "cross-encoder/ms-marco-electra-base", "both"),
    _of("pair", "xlm-roberta", "xlm-roberta", "cross-encoder/mmarco-mMiniLMv2-L12-H384-v1", "both"),
    _of("pair", "xlm-roberta", "xlm-roberta", "BAAI/bge-reranker-base", "both"),
    _of("pair", "xlm-roberta", "xlm-roberta", "BAAI/bge-reranker-v2-m3"),
    _of("pair", "deberta-v2", "deberta-v3", "mixedbread-ai/mxbai-rerank-xsmall-v1"),
    _of("pair", "modernbert", "bytes", "Alibaba-NLP/gte-reranker-modernbert-base"),
    _of("pair", "gte", "xlm-roberta", "Alibaba-NLP/gte-multilingual-reranker-base"),
    _of("classes", "deberta-v2", "deberta-v3", "cross-encoder/nli-deberta-v3-base", "both", tokenizer_json=False),
    _of(
        "classes",
        "distilbert",
        "distilbert",
        "distilbert/distilbert-base-uncased-finetuned-sst-2-english",
        "both",
        tokenizer_json=False,
    ),
    _of(
        "classes", "roberta", "roberta", "cardiffnlp/twitter-roberta-base-sentiment-latest", "bin", tokenizer_json=False
    ),
    _of("classes", "bert", "bert", "nlptown/bert-base-multilingual-uncased-sentiment", "both", tokenizer_json=False),
    _of("classes", "bert", "bert", "ProsusAI/finbert", "bin", tokenizer_json=False),
    _of("classes", "bart", "roberta", "facebook/bart-large-mnli", "both"),
    _of("classes", "roberta", "roberta", "SamLowe/roberta-base-go_emotions"),
    _of("tokens", "bert", "bert-cased", "dslim/bert-base-NER", "both", tokenizer_json=False),
    _of("tokens", "xlm-roberta", "xlm-roberta", "Davlan/xlm-roberta-base-ner-hrl", "bin"),
    _of("sparse", "bert", "bert", "naver/splade-cocondenser-ensembledistil", "bin"),
    _of(
        "sparse", "distilbert", "distilbert", "opensearch-project/opensearch-neural-sparse-encoding-v2-distill", "both"
    ),
    _of("stanford", "bert", "bert", "colbert-ir/colbertv2.0", "both"),
    _of("stanford", "bert", "bert", "answerdotai/answerai-colbert-small-v1"),
    _of("clip", "clip", "clip", "openai/clip-vit-base-patch32", "bin"),
    _of("clip", "clip", "clip", "openai/clip-vit-large-patch14", "both"),
    _of("siglip", "siglip", "t5", "google/siglip-base-patch16-224"),
    _of("sparse modules", "bert", "bert", "naver/splade-v3"),
    _of(
        "sparse router",
        "distilbert",
        "distilbert",
        "opensearch-project/opensearch-neural-sparse-encoding-doc-v2-distill",
    ),
    _of("pylate", "modernbert", "bert", "lightonai/GTE-ModernColBERT-v1", config={"local_attention": 128}),
    _of("dpr", "dpr", "bert", "facebook/dpr-question_encoder-single-nq-base", "bin", pooling="cls"),
    _of("bare", "longformer", "roberta", "allenai/longformer-base-4096", "bin", config={"attention_window": 4}),
    _of("causal", "minicpm", "mistral", "BAAI/bge-reranker-v2-minicpm-layerwise", "shards", config=_MINICPM),
    _of("clip folder", "clip", "clip", "sentence-transformers/clip-ViT-B-32", "bin"),
    _of("causal", "qwen3", "bytes", "Qwen/Qwen3-Reranker-0.6B"),
    _of("causal", "gemma", "bytes", "BAAI/bge-reranker-v2-gemma", "shards"),
    _of("causal", "qwen2", "bytes", "mixedbread-ai/mxbai-rerank-base-v2"),
    _of("pages", "qwen2_vl", "bytes", "vidore/colqwen2-v1.0"),
    _of("pages", "qwen2_5_vl", "bytes", "vidore/colqwen2.5-v0.2"),
    _of("pages", "paligemma", "bytes", "vidore/colpali-v1.3-hf"),
    _of("jina v4", "qwen2_5_vl", "bytes", "jinaai/jina-embeddings-v4", route="retrieval"),
    _of("conversation", "qwen3_vl", "bytes", "Qwen/Qwen3-VL-Embedding-2B"),
    _of("jina clip", "bert", "bert", "jinaai/jina-clip-v1"),
    _of("jina clip", "jina_embeddings_v3", "xlm-roberta", "jinaai/jina-clip-v2"),
    _of(
        "experts",
        "nomic_bert",
        "xlm-roberta",
        "nomic-ai/nomic-embed-text-v2-moe",
        prompts={"query": "search_query: ", "passage": "search_document: "},
    ),
    _of("static", "model2vec", "bert", "minishlab/potion-base-8M"),
    _of("static", "static", "bert", "sentence-transformers/static-retrieval-mrl-en-v1"),
    _of("jina", "bert", "bert", "jinaai/jina-embeddings-v2-base-en"),
    _sentence("gte", "bert", "dunzhang/stella_en_400M_v5", behind=("Dense Identity",)),
    _of("latents", "nvembed", "mistral", "nvidia/NV-Embed-v2", "shards", eos=True, behind=_SCALED, prompts=_INSTRUCT),
)

SEEN = (  # file names read in public code that downloads them; those of all other rows are recalled from model cards
    "sentence-transformers/all-MiniLM-L6-v2",
    "sentence-transformers/multi-qa-MiniLM-L6-cos-v1",
    "sentence-transformers/distiluse-base-multilingual-cased-v2",
    "BAAI/bge-m3",
    "jinaai/jina-embeddings-v2-base-en",
    "microsoft/deberta-v3-base",
    "ProsusAI/finbert",
    "dslim/bert-base-NER",
)


def files(row: Row) -> str:
    """Return the files of weights and of the tokenizer."""
    weights = {"bin": "pytorch_model.bin", "both": "safetensors, pytorch_model.bin", "shards": "safetensors in shards"}
    return weights.get(row.weights, "safetensors") + ("" if row.tokenizer_json else "; no tokenizer.json")


def meaning(row: Row) -> str:
    """Return how the vectors or scores come about."""
    if row.kind not in ("sentence", "bare"):
        return KINDS[row.kind]
    prompts = f"; prompts: {', '.join(row.prompts)}" if row.prompts else ""
    flag = " by `--pooling`" if row.kind == "bare" else ""
    return ", ".join((f"{row.pooling}{flag}", *row.behind)) + prompts


def table() -> str:
    """Return the table of the page."""
    served = sum(not row.refused for row in ROWS)
    head = f"**{served} of {len(ROWS)}** are served with texts as outside judges compute them.\n\n"
    head += "| checkpoint | model type | weights, tokenizer | what it gives | known from | verdict |\n"
    head += "|---|---|---|---|---|---|\n"
    lines = []
    for row in ROWS:
        verdict = f"refused: {row.refused}" if row.refused else "served"
        known = "code" if row.name in SEEN else "recalled"
        lines.append(f"| {row.name} | {row.family} | {files(row)} | {meaning(row)} | {known} | {verdict} |\n")
    return head + "".join(lines)


def main() -> None:
    """Write the table into the page."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(START)
    PAGE.write_text(f"{before}{START}{table()}{END}{rest.partition(END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main()
