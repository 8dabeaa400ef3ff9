"""KNOWN: causal rerankers whose prompt is in their model card, and in no file that every program reads.

Source: the model cards of the rows' repositories; FlagEmbedding 1.3, inference.reranker.decoder_only.base (BGE);
    mxbai_rerank 0.1, mxbai_rerank_v2, whose default has no instruction; zeroentropy/zerank-1-small, modeling_zeranker.
"""

from dataclasses import dataclass

from models.checkpoints.checkpoint import Checkpoint
from models.recipes.heads import PairTemplate


@dataclass(frozen=True, slots=True)
class KnownReranker:
    """One reranker.

    Attributes:
        card: the repository whose card has the prompt.
        tokens: the entries of the vocabulary whose logits make the score, the first's less the second's; or an id.
        template: how it reads a pair.
        named: part of the names of its checkpoints, in lower case.
        divisor: divides the logits.
    """

    card: str
    tokens: str | int
    template: PairTemplate
    named: str
    divisor: float = 1.0


_TURNS = "<|im_end|>\n<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"
QWEN3 = PairTemplate(
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    f'provided. Note that the answer can only be "yes" or "no".{_TURNS[0]}<Instruct>: ',
    "\n<Query>: ",
    "\n<Document>: ",
    f"{_TURNS[1]}<think>\n\n</think>\n\n",
    "Given a web search query, retrieve relevant passages that answer the query",
)
_GEMMA = PairTemplate(
    "",
    "<bos>A: ",
    "\nB: ",
    "\nGiven a query A and a passage B, determine whether the passage contains an answer to the query by providing a "
    "prediction of either 'Yes' or 'No'.",
)
# FlagEmbedding tokenizes the parts of a pair apart, and its SentencePiece begins each with a blank
_MINICPM = PairTemplate("", "<s>A: ", " \n B: ", f" \n {_GEMMA.ending[1:]}")
_MXBAI = PairTemplate(
    "",
    f"<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.{_TURNS[0]}query: ",
    "\ndocument: ",
    "\nYou are a search relevance expert who evaluates how well documents match search queries. For each "
    "query-document pair, carefully analyze the semantic relationship between them, then provide your binary relevance "
    f"judgment (0 for not relevant, 1 for relevant).\nRelevance:{_TURNS[1]}",
)
_CONTEXTUAL = PairTemplate(
    " ",
    "\n<Query> ",
    "Check whether a given document contains information helpful to answer the query.\n<Document> ",
    " ??",
    "",
    document_first=True,
)
KNOWN: dict[str, KnownReranker] = {
    "qwen3-reranker": KnownReranker("Qwen/Qwen3-Reranker-0.6B", "yes,no", QWEN3, "qwen3-reranker"),
    "bge-reranker-v2-gemma": KnownReranker("BAAI/bge-reranker-v2-gemma", "Yes", _GEMMA, "bge-reranker-v2-gemma"),
    "bge-reranker-v2-minicpm-layerwise": KnownReranker(
        "BAAI/bge-reranker-v2-minicpm-layerwise", 0, _MINICPM, "minicpm-layerwise"
    ),
    "mxbai-rerank-v2": KnownReranker("mixedbread-ai/mxbai-rerank-base-v2", "1,0", _MXBAI, "mxbai-rerank-"),
    "zerank": KnownReranker(
        "zeroentropy/zerank-1-small",
        "Yes",
        PairTemplate("", "<|im_start|>system\n", *_TURNS),
        "zerank-",
        divisor=5.0,
    ),
    "ctxl-rerank": KnownReranker(
        "ContextualAI/ctxl-rerank-v2-instruct-multilingual-1b", 0, _CONTEXTUAL, "ctxl-rerank-"
    ),
}


def known_by_name(source: Checkpoint) -> KnownReranker | None:
    """Return the row of a causal language model by its name: the repository's, the folder's, or config.json's."""
    classes = source.config.get("architectures") or ()
    if not any(str(name).endswith("ForCausalLM") for name in classes):
        return None
    names = [source.name.partition("@")[0], str(source.config.get("_name_or_path", ""))]
    last = [name.rstrip("/").rpartition("/")[2].lower() for name in names]
    return next((row for row in KNOWN.values() if any(row.named in name for name in last)), None)
