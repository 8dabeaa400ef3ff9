"""The heads that read a model's hidden states, as data of its card.

    OutputHead    logits of the vocabulary
    Classifier    logits of labels, of texts or of tokens
    MultiVector   several vectors of a text (late interaction)
    Sparse        a sparse vector of a text, whose columns are the ids of the vocabulary:
        splade      v[j] = the max, or the sum, over the tokens of log1p(relu(logit[j])), to which log1p may be applied
                    again
        lexical     v[id] = the max over the tokens of that id of relu(linear(hidden)); 0 for the `unused` ids
        table       v[id] = table[id] for each id of the text, however often it occurs

Source: transformers 5.23 (heads of language models and classifiers); sentence-transformers 6.2 (CrossEncoder,
    MultiVectorEncoder, SpladePooling, SparseStaticEmbedding); FlagEmbedding 1.3, BGEM3FlagModel (lexical, several).
"""

from dataclasses import dataclass
from typing import Literal

from models.recipes.listwise import Listwise
from models.recipes.sentence_modules import SentenceModules
from models.recipes.steps import Activation, LayerNorm, Linear

ScoreActivation = Literal["identity", "sigmoid", "softmax", "tanh", "relu"]
ProblemType = Literal["regression", "single_label_classification", "multi_label_classification"]
SpladePooling = Literal["max", "sum"]
SpladeActivation = Literal["relu", "log1p_relu"]
InputType = Literal["query", "document"]
_NORM_COST, _ACTIVATION_COST = 8, 8  # operations a value, as in cost.py


@dataclass(frozen=True, slots=True)
class Transform:
    """norm(activation(dense(h))), applied to the hidden states before the output matrix."""

    dense: Linear
    activation: Activation
    norm: LayerNorm


@dataclass(frozen=True, slots=True)
class OutputHead:
    """An output head: logits = cap * tanh(after * (transform(h) * before @ matrix.T + bias) / cap).

    Attributes:
        width, inner: columns of the hidden states, and of the matrix.
        vocab_size: rows of the matrix.
        matrix, bias: tensors of the weights file.
        tied: whether the matrix is the table of an input layer.
        transform: None: there is none.
        before, after: factors of the hidden states and of the logits.
        cap: None: the logits are not capped.
    """

    width: int
    inner: int
    vocab_size: int
    matrix: str
    tied: bool
    bias: str | None
    transform: Transform | None
    before: float
    after: float
    cap: float | None

    @property
    def tensors(self) -> tuple[str, ...]:
        """Every tensor the head reads, each once, the matrix first."""
        names = [self.matrix, self.bias]
        if self.transform:
            dense, norm = self.transform.dense, self.transform.norm
            names += [dense.weight, dense.bias, norm.weight, norm.bias]
        return tuple(dict.fromkeys(name for name in names if name))

    @property
    def flops_per_row(self) -> int:
        """Operations for the logits of one row; a multiply and an add count as two."""
        total = self.vocab_size * (2 * self.inner + (self.bias is not None))
        if self.transform:
            total += self.inner * (2 * self.width + 1 + _ACTIVATION_COST + _NORM_COST)
        return total


@dataclass(frozen=True, slots=True)
class PairTemplate:
    """The one text that a causal reranker reads of an instruction, a query and a document.

    Attributes:
        before_instruction, before_query, before_document, ending: the texts around them; the ending is kept where the
            document is cut.
        instruction: the usual one; None: the model reads none, and before_instruction is empty.
        document_first: before_document, the document, before_query, the query, and if there is an instruction
            before_instruction and it.
    """

    before_instruction: str
    before_query: str
    before_document: str
    ending: str
    instruction: str | None = None
    document_first: bool = False

    def behind_document(self, query: str, instruction: str | None) -> str:
        """Return the text behind the document; instruction: None: the usual one."""
        if not self.document_first:
            return self.ending
        told = self.instruction if instruction is None else instruction
        return f"{self.before_query}{query}{self.before_instruction if told else ''}{told or ''}{self.ending}"

    def text(self, query: str, document: str, instruction: str | None = None) -> str:
        """Return the text of a pair; instruction: None: the usual one."""
        told = self.instruction or "" if instruction is None else instruction
        before = "" if self.document_first else f"{self.before_instruction}{told}{self.before_query}{query}"
        return f"{before}{self.before_document}{document}{self.behind_document(query, instruction)}"


@dataclass(frozen=True, slots=True)
class Classifier:
    """The classification head of a model: logits = modules(pooled); of each token where nothing is pooled.

    Attributes:
        pooling: one of the service's poolings, or "graph"; None: every token has logits.
        modules: the layers of the head; its width is the number of labels. None: an adopted graph gives the logits.
        labels: names of the labels, in the order of the logits.
        activation: activation that sentence-transformers applies to the logits.
        problem_type: problem_type of config.json; None: it has none.
        late: the logits of all tokens are pooled, instead of their hidden states.
        pad_id: of the pooling lasttoken: the last token that has another id counts, attended to or not; None: the last
            that is attended to.
        template: template of a causal reranker; None: pairs are read as the tokenizer joins them.
    """

    pooling: str | None
    modules: SentenceModules | None
    labels: tuple[str, ...]
    activation: ScoreActivation
    problem_type: ProblemType | None = None
    late: bool = False
    pad_id: int | None = None
    template: PairTemplate | None = None

    @property
    def ranks(self) -> bool:
        """Whether a text or pair gets a single score."""
        return self.pooling is not None and len(self.labels) == 1


@dataclass(frozen=True, slots=True)
class Side:
    """How texts of one kind, queries or documents, are read.

    Attributes:
        prompt: the name of the prompt before them, which holds the kind's marker token; None: the model's default.
        max_tokens: the longest text, special tokens included; None: the model's own limit.
        skipped: ids of tokens that get no vector.
        ending: ids behind a text.
    """

    prompt: str | None = None
    max_tokens: int | None = None
    skipped: tuple[int, ...] = ()
    ending: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Expansion:
    """The tokens that short queries are filled up with; each gets a vector.

    Attributes:
        tokens: least number of tokens of a query.
        token_id: id of the added tokens.
        attended: whether the other tokens attend to them.
    """

    tokens: int
    token_id: int
    attended: bool


@dataclass(frozen=True, slots=True)
class MultiVector:
    """How hidden states become the vectors of a text.

    Attributes:
        modules: modules that every row with a vector goes through.
        query, document: how texts are read.
        expansion: how queries are filled up; None: they are not.
        first: the first token that gets a vector: 1 where the first is left out.
        mean: whether a score is divided by the number of the query's vectors.
        listwise: tokens of one text of a query and all documents get vectors, whose cosines are the scores; None: all
            tokens of each text do, and are compared by MaxSim.
    """

    modules: SentenceModules
    query: Side = Side()
    document: Side = Side()
    expansion: Expansion | None = None
    first: int = 0
    mean: bool = False
    listwise: Listwise | None = None


@dataclass(frozen=True, slots=True)
class Splade:
    """Sparse vectors of the logits of a masked language model, whose head is the card's.

    Attributes:
        pooling: over the tokens.
        activation: relu: log1p(relu(logit)); log1p_relu: log1p of that.
    """

    pooling: SpladePooling = "max"
    activation: SpladeActivation = "relu"


@dataclass(frozen=True, slots=True)
class Lexical:
    """A weight for each token, from its hidden state (BGE-M3).

    Attributes:
        modules: one linear layer with relu.
        unused: ids that have no weight: special and unknown tokens.
    """

    modules: SentenceModules
    unused: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sparse:
    """How a model makes sparse vectors: by one of `splade` and `lexical`, by a table, or documents and queries apart.

    Attributes:
        width: columns of the vectors.
        splade, lexical: None: it is not made so.
        table: name of a tensor float32 [width]; None: there is none.
        default_input_type: kind of texts whose requests do not say, if only queries are looked up.
        max_active_dims: largest values that are kept unless the request says otherwise; None: all.
    """

    width: int
    splade: Splade | None = None
    lexical: Lexical | None = None
    table: str | None = None
    default_input_type: InputType = "document"
    max_active_dims: int | None = None

    def looks_up(self, input_type: str | None) -> bool:
        """Return whether vectors of such texts are looked up in the table."""
        if self.table is None:
            return False
        return self.splade is None or (input_type or self.default_input_type) == "query"
