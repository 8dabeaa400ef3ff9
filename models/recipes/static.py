"""`StaticTable`: a static embedding (Model2Vec, sentence-transformers' StaticEmbedding or WordEmbeddings) as data.

    row(id)         table[mapping[id]] * weights[id], or table[id]
    sentence(ids)   the mean of row(id) over the counted ids; zeros where no id is counted
    counted         attended to, and not the `dropped` id

`models/reference/static.py` computes both in float64; `models/graphs/static.py` emits them as ONNX graphs.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WordRules:
    """How the texts of word vectors are read, in place of the rules of a tokenizer.json.

    Attributes:
        stop_words: words that are left out.
        lowercase: whether texts are lowercased first.
    """

    stop_words: tuple[str, ...] = ()
    lowercase: bool = False


@dataclass(frozen=True, slots=True)
class StaticTable:
    """One static embedding model, as its card says; the names are those of tensors of its weights file.

    Attributes:
        table: [rows, d], float or int8.
        mapping: int64 [V], the row of each id; None: an id is its row.
        weights: float32 [V], a factor for each id; None: all 1.
        dropped: the id that is not counted (Model2Vec: the unknown token); None: every token counts.
        max_characters: characters that a text is cut to before it is tokenized (Model2Vec); None: no limit.
        words: how texts are split into words; None: as tokenizer.json says.
    """

    table: str
    mapping: str | None = None
    weights: str | None = None
    dropped: int | None = None
    max_characters: int | None = None
    words: WordRules | None = None
