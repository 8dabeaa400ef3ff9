"""card.json: everything the service needs to know about an exported model, apart from its weights and graphs."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from models.artifacts.closeness import AdoptedFile, QuantizedEncoder
from models.checkpoints.provenance import RANDOM, WEIGHTS, Setting
from models.checkpoints.sentence_transformers import Pooling
from models.errors import BadCard
from models.positions.learned import PositionRule
from models.recipes.extra_inputs import IMAGE_ROWS, Extra
from models.recipes.heads import Classifier, MultiVector, OutputHead, Sparse
from models.recipes.positional_encodings import Encodings
from models.recipes.sentence_modules import SentenceModules
from models.recipes.static import StaticTable
from models.recipes.steps import Recipe
from models.recipes.typed_json import from_json, to_json
from models.tables.quantization import StoredTable
from models.vision.image_spec import AxialRope, Image, ImageTokens
from models.vision.similarity import Similarity

FORMAT = 2
FILE_NAME = "card.json"
PREPACKED = ".prepacked"  # a folder beside the files of a model: copies of its graphs, made when it is loaded
CHECKED_FILES = ".checked.json"  # which files were compared with the card, see hash_checks.py
HEAD = "head"
MODULES = "modules"
CLASSIFIER = "classifier"
CLASS_LOGITS = "class_logits"
MULTI_VECTORS = "multi_vector"
MULTI_VECTOR = "multi_vector_embedding"
TOKEN_CLASS_LOGITS = "token_class_logits"
SPARSE = "sparse_embedding"
SPARSE_LINEAR = "sparse_linear"
IMAGE_VECTOR = "image_embedding"
GraphLayout = Literal["packed", "padded", "image"]
_UNBOUND = PositionRule("arange", 0, None)


@dataclass(frozen=True, slots=True)
class Graph:
    """One ONNX file.

    Attributes:
        file: name of the file in the folder.
        inputs: packed: some of ids, positions, types, mask, segments [N] and lengths [B]; padded: input_ids,
            attention_mask, token_type_ids, position_ids [B, T]. int64, but mask bool. Where the dimension of types is
            named ONE_TYPE, one value may stand for all rows.
        outputs: the names it gives; packed [N, d], padded [B, T, d] (`sentence_embedding`: [B, d]).
        layout: packed: rows of all sequences one after the other; padded: a rectangle (adopted models); image: pixels,
            patches or features of one size, see models/graphs/vision.py.
        rename: our name -> the file's own, for the outputs where they differ (adopted models).
        one_by_one: a run takes one sequence, because another one beside it would move it (adopted models that quantize
            activations by the largest value of a batch).
    """

    file: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    layout: GraphLayout = "packed"
    rename: dict[str, str] = field(default_factory=dict)
    one_by_one: bool = False

    @property
    def attends(self) -> bool:
        """Whether a row depends on other rows of its sequence: the graph contains attention."""
        return (self.layout != "packed" or "lengths" in self.inputs) and not self.pools

    @property
    def pools(self) -> bool:
        """Whether the graph returns one vector per sequence in one pass over its rows, as cheap as a row-wise one."""
        return self.layout == "packed" and self.outputs == ("sentence_embedding",)


@dataclass(frozen=True, slots=True)
class RowGraphs:
    """The graphs of an encoder that, after the last attention, compute only the row of each sequence that is pooled.

    Attributes:
        row: the pooled token among those attended to: the first or the last; on GPUs the pooling of their one form.
        files: files by the graph's name.
    """

    row: str
    files: dict[str, str]


@dataclass(frozen=True, slots=True)
class File:
    """Size and hash of one file of the folder."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Calibration:
    """The ranges that int8 and uint8 sentence vectors are quantized with; `inlay calibrate` finds them.

    Attributes:
        least, largest: value of each dimension of the sentence vectors of some texts, as the model gives them to a
            request without options; float32.
        texts: how many.
    """

    least: tuple[float, ...]
    largest: tuple[float, ...]
    texts: int


@dataclass(frozen=True, slots=True)
class TextFilling:
    """How texts, but not token ids, are filled up at their end; all tokens are attended to (SigLIP).

    Attributes:
        tokens: number of tokens of each filled text.
        token_id: id that it is filled with.
    """

    tokens: int
    token_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """An exported model. Sizes are in elements unless named bytes.

    Attributes:
        name: name of the model.
        family: model_type of the model.
        hidden_size: width of its token vectors, but for `encoder_width`.
        vocab_size: token ids are 0 to vocab_size - 1.
        max_tokens: longest text, special tokens included, before it is cut; None: any. `position` bounds token ids.
        cut_side: the end of a text that is cut if it is too long, unless the request says.
        pad_id: None: it has none.
        type_rows: rows of the segment table; 0: the family has none.
        types: zeros: segment 0 where the caller sends none; optional: added only when sent (GPT-2); none.
        position: how tokens are numbered.
        graphs: graphs by name.
        default_output: output of a response if the caller names none.
        recipe, encoder: the steps of the input layer and of all blocks.
        weights: file of its tensors; None: adopted.
        tokenizer: file of its tokenizer; None: it takes token ids only.
        pooling: how token rows become one vector; None: not at all.
        prompts, default_prompt: texts put before the caller's, and the name of the usual one.
        encodings: positional encodings of the attention.
        dtype: dtype of the word table.
        parameters, bytes: number of parameters, and bytes, of the weights.
        flops_per_token: by graph; one multiply and one add count as two. Attention scores are flops_per_token_and_key
            times the tokens of the sequence, on top.
        largest_difference: by output, ONNX Runtime against the reference, over the export's check inputs; of an int8
            encoder's rows relative to their length; of an adopted graph, a sequence alone against the same in a batch.
        tolerance: the largest difference allowed; a graph that is run one_by_one may differ more, as it meets no batch.
        files: size and hash of every file.
        source, tool: what the export was made from, and by.
        format: version of the card's format.
        tables: how each table lies on disk; None: exported before cards said so.
        static: table and rules of a static embedding model; None: a transformer.
        image: steps and inputs of a model that reads images or spectrograms; None: it reads text.
        image_tokens: how images lie among the tokens of a model that reads text; None: it reads none.
        similarity: how one side of a dual encoder compares its vectors with the other's; None: the model is not one.
        extras: inputs of the graphs for each token besides id, position and segment.
        mask_from: if the caller sends no mask: sent: all tokens count; pad_count: as many as are no padding (XLM).
        per_layer: steps to the embeddings each layer has of its own (Gemma 3n); empty: it has none.
        side: encoder or decoder, of a model that has both.
        assumed: assumptions about an unknown model_type, or taken from --attention, in sentences.
        head: how hidden states become logits, by head.onnx; None: it has none, for the reason in `no_head_reason`.
        no_blocks_reason: why there is no `encoder`, in a phrase; None: there is one, or the card is older.
        prompt_embeds_output: the output that the same model elsewhere takes as inputs_embeds (prompt_embeds); None: it
            gives none, or was exported before cards said so.
        quantized: how an encoder that is not float32 is stored; None: it is float32.
        adopted: origin of an adopted model; None: it was exported, or adopted before cards said so.
        modules: modules of modules.onnx between pooled and sentence vectors; None: they are the same.
        graph_width: width of the sentence vectors that an adopted graph returns; None: hidden_size.
        similarity_function: that sentence-transformers compares the model's vectors by: cosine, dot, euclidean or
            manhattan; None: its files do not say.
        filling: how texts are filled up; None: they are not.
        tasks, default_task: names of the tasks that it has adapters of, in the order of their numbers, and the one of
            requests that name none; None: no adapter.
        classifier: how hidden states become logits of labels, by classifier.onnx; None: it does not classify.
        row_graphs: graphs of an encoder whose one row is pooled; None: there are none.
        calibration: ranges of its sentence vectors; None: none were found.
        multi_vector: how hidden states become several vectors of a text, by multi_vector.onnx; None: they do not.
        reads_segments: whether the segment ids that its tokenizer gives the texts of a pair are read.
        no_classifier_reason: why it has no classifier though its config names a class that has one; None: it does not.
        sparse: how sparse vectors are made; None: it gives none.
        encoder_width: width of last_hidden_state if the blocks end in a projection; None: hidden_size.
        aliases: further names that it answers to where it is served, such as the hub id that it is known by.
        text_ending: ids behind every text; those of several vectors a text are in `multi_vector`.
        provenance: what was read from which file; empty: exported before cards said so, or adopted.
    """

    name: str = ""
    family: str
    hidden_size: int
    vocab_size: int
    max_tokens: int | None = None
    cut_side: Literal["right", "left"] = "right"
    pad_id: int | None = None
    type_rows: int = 0
    types: Literal["zeros", "optional", "none"] = "none"
    position: PositionRule = _UNBOUND
    graphs: dict[str, Graph] = field(default_factory=dict)
    default_output: str
    recipe: Recipe = ()
    encoder: Recipe = ()
    weights: str | None = None
    tokenizer: str | None = None
    pooling: Pooling | None = None
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    encodings: Encodings = field(default_factory=Encodings)
    dtype: str
    parameters: int
    bytes: int
    flops_per_token: dict[str, int] = field(default_factory=dict)
    flops_per_token_and_key: int = 0
    largest_difference: dict[str, float] = field(default_factory=dict)
    tolerance: float
    files: dict[str, File] = field(default_factory=dict)
    source: str = ""
    tool: str = ""
    format: int = field(default=FORMAT)
    tables: dict[str, StoredTable] | None = None
    static: StaticTable | None = None
    image: Image | None = None
    image_tokens: ImageTokens | None = None
    similarity: Similarity | None = None
    extras: tuple[Extra, ...] = ()
    mask_from: Literal["sent", "pad_count"] = "sent"
    per_layer: Recipe = ()
    side: str | None = None
    assumed: tuple[str, ...] = ()
    head: OutputHead | None = None
    no_head_reason: str | None = None
    no_blocks_reason: str | None = None
    prompt_embeds_output: str | None = None
    quantized: QuantizedEncoder | None = None
    adopted: AdoptedFile | None = None
    modules: SentenceModules | None = None
    graph_width: int | None = None
    similarity_function: str | None = None
    filling: TextFilling | None = None
    tasks: tuple[str, ...] = ()
    default_task: str | None = None
    encoder_width: int | None = None
    classifier: Classifier | None = None
    row_graphs: RowGraphs | None = None
    calibration: Calibration | None = None
    multi_vector: MultiVector | None = None
    no_classifier_reason: str | None = None
    reads_segments: bool = True
    sparse: Sparse | None = None
    aliases: tuple[str, ...] = ()
    text_ending: tuple[int, ...] = ()
    provenance: tuple[Setting, ...] = ()

    @property
    def token_width(self) -> int:
        """The width of last_hidden_state."""
        return self.encoder_width or self.hidden_size

    @property
    def sentence_width(self) -> int:
        """The width of whole sentence vectors, or of images' vectors; `hidden_size` if the model returns none."""
        if self.image:
            return self.image.vector_width or self.hidden_size
        if self.modules:
            return self.modules.width
        if self.pooling and not self.pooling.in_graph:
            return self.token_width * len(self.pooling.modes)
        return self.graph_width or self.hidden_size

    @property
    def default_width(self) -> int:
        """The width of sentence vectors if the caller states no dimensions."""
        kept = self.pooling.dimensions if self.pooling else None
        return min(self.sentence_width, kept or self.sentence_width)

    @property
    def empty_texts(self) -> tuple[bool, bool]:
        """Whether a text may give no token: without the tokenizer's special tokens, and with them."""
        always = self.static is not None or not self.graphs
        return always or (self.sparse is not None and self.sparse.table is not None), always

    @property
    def answer_width(self) -> int:
        """The width of the vectors that answer a request without options."""
        return self.known_width(self.default_output) or self.hidden_size

    def known_width(self, output: str) -> int | None:
        """Return the width of an output without options; None if only its graph knows it."""
        if output in ("sentence_embedding", IMAGE_VECTOR):
            return self.default_width
        if self.classifier and output == self.classifier_output:
            return len(self.classifier.labels)
        if self.multi_vector and output == MULTI_VECTOR:
            return self.multi_vector.modules.width
        if self.sparse and output == SPARSE:
            return self.sparse.width
        return self.token_width if output == "last_hidden_state" else None

    @property
    def outputs(self) -> tuple[str, ...]:
        """Every output the model can give, `sentence_embedding` included where it can be pooled."""
        graphs = [graph for name, graph in self.graphs.items() if name != IMAGE_ROWS]
        names = dict.fromkeys(name for graph in graphs for name in graph.outputs)
        if self.pooling and "last_hidden_state" in names:
            names["sentence_embedding"] = None
        if self.classifier:
            names[self.classifier_output] = None
        if self.multi_vector:
            names[MULTI_VECTOR] = None
        if self.sparse:
            names[SPARSE] = None
        return tuple(names)

    @property
    def random(self) -> bool:
        """Whether `create` drew its weights, or those of its head: what it answers means nothing."""
        return any(each.name == WEIGHTS and each.value.startswith(RANDOM) for each in self.provenance)

    @property
    def axial(self) -> AxialRope | None:
        """How the patches of an image rotate; None: the model reads none, or they do not."""
        return self.image.axial if self.image else None

    @property
    def mask_pooling(self) -> str | None:
        """The pooling that makes the one row of each text, if its mask alone says of which rows; else None."""
        if self.pooling:
            return self.pooling.mode if self.pooling.include_prompt else None
        return self.classifier.pooling if self.classifier and self.classifier.pad_id is None else None

    @property
    def classifier_output(self) -> str:
        """The output of the classifier: logits of texts, or of tokens."""
        return CLASS_LOGITS if self.classifier and self.classifier.pooling else TOKEN_CLASS_LOGITS

    @property
    def module_graphs(self) -> dict[str, tuple[SentenceModules, str]]:
        """The modules of single rows that have their own graph, with its output, by name."""
        lexical = self.sparse.lexical if self.sparse else None
        modules = {
            MODULES: (self.modules, "vectors"),
            CLASSIFIER: (self.classifier.modules if self.classifier else None, self.classifier_output),
            MULTI_VECTORS: (self.multi_vector.modules if self.multi_vector else None, MULTI_VECTOR),
            SPARSE_LINEAR: (lexical.modules if lexical else None, SPARSE),
        }
        return {name: (held, output) for name, (held, output) in modules.items() if held}

    @property
    def every_graph(self) -> dict[str, Graph]:
        """The graphs, and those whose rows are not tokens: heads of hidden states, `modules` of pooled vectors."""
        head = {HEAD: Graph(f"{HEAD}.onnx", ("hidden",), ("logits",))} if self.head else {}
        modules = {
            name: Graph(f"{name}.onnx", ("pooled",), (output,)) for name, (_, output) in self.module_graphs.items()
        }
        return self.graphs | head | modules

    def graph_for(self, output: str, typed: bool) -> str | None:
        """Return the name of the graph that returns `output`; of two, the one that reads types if `typed`.

        A sparse vector is made of hidden states where they come: behind the graph that gives them.
        """
        output = "last_hidden_state" if output == SPARSE else output
        names = [name for name, graph in self.graphs.items() if output in graph.outputs]
        matching = [name for name in names if ("types" in self.graphs[name].inputs) == typed]
        return next(iter(matching or names), None)


def write(card: Card, folder: Path) -> None:
    """Write card.json; equal cards give equal bytes."""
    text = json.dumps(to_json(Card, card), indent=1, ensure_ascii=False)
    (folder / FILE_NAME).write_text(text + "\n", encoding="utf-8")


def read(folder: Path) -> Card:
    """Return the card of an exported folder, after checking that its files exist in the recorded sizes.

    Raises:
        BadCard: there is no card, it has another format, or a file is missing or of another size
            (hash_checks.py checks hashes).
    """
    path = folder / FILE_NAME
    if not path.is_file():
        raise BadCard(f"{folder} holds no {FILE_NAME}: export a checkpoint to it, `inlay export CHECKPOINT {folder}`")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        card = _from_json(data)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadCard(
            f"{path} is not a card this version reads ({type(error).__name__}: {error}); export the model again, or "
            "take its folder out of the store"
        ) from error
    for name, promised in card.files.items():
        _check_size(folder / name, promised)
    return card


def _check_size(path: Path, promised: File) -> None:
    if not path.is_file():
        raise BadCard(f"{path} is missing, though its card lists it; export the model again")
    if (size := path.stat().st_size) != promised.bytes:
        raise BadCard(f"{path} has {size} bytes where its card promises {promised.bytes}; export the model again")


# What earlier cards call some fields.
_RENAMED = {
    "headless": "no_head_reason",
    "blockless": "no_blocks_reason",
    "unclassified": "no_classifier_reason",
    "handed_over": "prompt_embeds_output",
}


def _from_json(data: dict[str, Any]) -> Card:
    data = {_RENAMED.get(name, name): value for name, value in data.items()}
    if data["format"] != FORMAT:
        raise ValueError(f"card format {data['format']}, this version reads {FORMAT}")
    dtypes = [table["dtype"] for table in (data.get("tables") or {}).values()]
    if data.pop("linked", None) or "int4" in dtypes:
        raise ValueError("its tables are int4 or lie in the checkpoint's file (--link): earlier versions read these")
    card: Card = from_json(Card, data)
    return card
