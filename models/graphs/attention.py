"""Emits attention over packed rows: the rows of a sequence attend to one another, without padding where possible.

Forms, chosen in the graph by what the batch holds. All give the same bits: tests/models/graphs/test_attention.py.

    one length    no mask is sent and all sequences have one length: the rows are a rectangle already
    one by one    a loop over the sequences; of a long one over blocks of its queries
    padded        where many sequences are short: rows are gathered into a rectangle and its padding masked

A sequence longer than LONG takes ONNX Runtime's flash attention, whose bits are others, or blocks of BLOCK queries
where it is masked or its scores have terms: neither holds all its scores at a time. So a batch that holds one is not
padded, whatever its masks, unless it has more than MOST_ONE_BY_ONE sequences: its rectangle then takes more than 8192
tokens, and a server on CPU makes two of it.

Measured with MiniLM on one thread (ONNX Runtime 1.31), as shares of the padded form's time, float32 and int8: a text of
24 tokens 1 and 1, 16 texts of 17 to 30 tokens 0.93 and 0.77, 32 texts of 7 to 182 tokens 0.93 and 0.80, a text of 512
tokens 0.92 and 0.85.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from models.graphs.builder import CONTRIB, SEQUENCE, GraphBuilder
from models.graphs.row_layout import RowLayout
from models.graphs.score_terms import Terms
from models.recipes.score_terms import LONG, MASKED
from models.recipes.steps import Attention

BLOCK = 128  # queries of a long sequence: of 12 heads and 8192 keys, 50 MB of scores

Emit = Callable[[GraphBuilder], str]
EmitOne = Callable[[GraphBuilder, list[str], list[str]], str]  # of one sequence: its rows, and its bounds


def attend(
    builder: GraphBuilder,
    projected: tuple[str, str, str],
    rows: RowLayout,
    step: Attention,
    width: int,
    terms: Terms,
    relative: tuple[str | None, str | None] = (None, None),
    element: str = "FLOAT",
) -> str:
    """Emit the attention of each sequence by head, softmax(scale * query @ key.T + terms) @ value.

    Args:
        builder: builder of the graph.
        projected: query, key and value, float32 [N, heads * width].
        rows: where the sequences lie.
        step: the attention.
        width: width of a head.
        terms: terms of the scores.
        relative: what a Disentangled multiplies with queries and keys, from `relative_matrices`.
        element: the element type of query, key and value; only in a rectangle whose indices are sent not float32.

    Returns:
        [N, heads * width], of the element type.
    """
    forms = _Attention(projected, rows, step, width, terms, relative, element)
    if rows.slots:
        return forms.sent(builder)
    if rows.images:
        return forms.of_one_length(builder)
    if terms.relative:
        return forms.one_by_one_of_terms(builder)
    if terms.added or step.cap:
        short = builder.op("And", rows.uniform, builder.op("Not", rows.long))
        return forms.choose(builder, short, forms.of_each, forms.of_terms)
    return forms.choose(builder, rows.uniform, forms.of_one_length, forms.of_several_lengths)


def attend_of_one(
    builder: GraphBuilder,
    projected: tuple[str, str, str],
    rows: RowLayout,
    step: Attention,
    width: int,
    terms: Terms,
    relative: tuple[str | None, str | None],
    index: str,
) -> str:
    """Emit attention for only one query of each sequence, [B, heads * width].

    Args:
        index: int64 [B], the packed row of each sequence's query.
    """
    return _Attention(projected, rows, step, width, terms, relative).of_one(builder, index)


@dataclass(frozen=True, slots=True)
class _Attention:
    """The forms of one attention step; each method emits into the builder it is given and returns rows [N, heads * w].

    Attributes:
        head_width: w.
    """

    projected: tuple[str, str, str]
    rows: RowLayout
    step: Attention
    head_width: int
    terms: Terms
    relative: tuple[str | None, str | None]
    element: str = "FLOAT"

    @property
    def heads(self) -> int:
        return self.step.heads

    @property
    def width(self) -> int:
        return self.heads * self.head_width

    @property
    def by_head(self) -> list[int]:
        return [-1, self.heads, self.head_width]

    @property
    def scale(self) -> float:
        return float(self.head_width**-0.5 if self.step.scale is None else self.step.scale)

    def choose(self, builder: GraphBuilder, condition: str, then: Emit, otherwise: Emit) -> str:
        """Emit the rows of one of two branches."""
        branches = []
        for emit in (then, otherwise):
            inside = builder.inner()
            value = emit(inside)
            branches.append(inside.graph("branch", {}, {value: (value, self.element, ("tokens", self.width))}))
        return builder.op("If", condition, then_branch=branches[0], else_branch=branches[1])

    def sent(self, builder: GraphBuilder) -> str:
        """Emit the forms of rectangle.py."""
        if self.step.cap:
            return self.padded_of_terms(builder)
        if self.step.bias or self.step.left is not None or self.step.right:
            return self.biased(builder)
        if self.step.right == 0:
            return self.choose(builder, "plain", self.causal, self.biased)
        return self.choose(builder, self.rows.uniform, self.flash_of_each, self.counted)

    def counted(self, builder: GraphBuilder) -> str:
        """Emit a rectangle of queries, with the keys and values that are attended to."""
        places = self.rows.take, self.rows.keys, self.rows.keys
        gathered = [builder.op("Gather", *each) for each in zip(self.projected, places, strict=True)]
        return builder.op("Gather", self._multi_head(builder, gathered, "", "counts"), self.rows.back)

    def causal(self, builder: GraphBuilder) -> str:
        """Emit a rectangle whose rows see those before them."""
        gathered = [builder.op("Gather", value, self.rows.take) for value in self.projected]
        return builder.op("Gather", self._multi_head(builder, gathered, unidirectional=1), self.rows.back)

    def biased(self, builder: GraphBuilder) -> str:
        """Emit a rectangle with a term of the scores that hides what is not seen."""
        gathered = [builder.op("Gather", value, self.rows.take) for value in self.projected]
        bias = builder.shared((self.terms, self.element), lambda: self._bias(builder))
        for query, matrix, turned in zip(gathered[:2], self.relative, (False, True), strict=True):
            if matrix is not None:
                bias = builder.op("Add", bias, self._relative(builder, query, matrix, turned))
        return builder.op("Gather", self._multi_head(builder, gathered, "", "", bias), self.rows.back)

    def _bias(self, builder: GraphBuilder) -> str:
        """Emit the terms that all heads or layers share, [B, 1 or heads, S, S]."""
        hidden = builder.op("Unsqueeze", self.rows.hidden, builder.ints(1, 2))  # (B, 1, 1, S)
        if self.terms.added:
            bias = builder.op("Add", hidden, self.terms.added)
        else:
            slots = builder.op("Reshape", self.rows.slots, builder.ints(1))
            bias = builder.op("Expand", hidden, builder.op("Concat", slots, builder.ints(1), axis=0))
        return bias if self.element == "FLOAT" else builder.cast(bias, self.element)

    def _relative(self, builder: GraphBuilder, gathered: str, matrix: str, turned: bool) -> str:
        """Emit the term of a Disentangled by queries or, `turned`, by keys [B, S, heads * w]: [B, heads, S, S]."""
        by_head = builder.op("Reshape", gathered, builder.ints(0, 0, self.heads, self.head_width))
        rows = builder.op("Transpose", by_head, perm=[0, 2, 1, 3])
        factors = builder.op("Transpose", matrix, perm=[1, 2, 0])  # (heads, w, 2 span)
        factors = factors if self.element == "FLOAT" else builder.cast(factors, self.element)
        factors = builder.op("Mul", factors, builder.cast(builder.scalar(self.scale), self.element))
        products = builder.op("MatMul", rows, factors)  # (B, heads, S, 2 span)
        index = str(self.terms.relative)
        index = builder.op("Transpose", index, perm=[1, 0]) if turned else index
        shape = builder.op("Concat", builder.cut(builder.op("Shape", products), 0, 3), builder.ints(1), axis=0)
        term = builder.op("GatherElements", products, builder.op("Expand", index, shape), axis=3)
        return builder.op("Transpose", term, perm=[0, 1, 3, 2]) if turned else term

    def of_one_length(self, builder: GraphBuilder) -> str:
        """Emit sequences of one length, long ones by flash attention."""
        return self.choose(builder, self.rows.long, self.flash_of_each, self.of_each)

    def of_several_lengths(self, builder: GraphBuilder) -> str:
        """Emit sequences of several lengths, or masked ones."""
        return self.choose(
            builder,
            self.rows.looped,
            lambda loops: self.choose(loops, self.rows.long, self.long_one_by_one, self.one_by_one),
            self.padded,
        )

    def of_terms(self, builder: GraphBuilder) -> str:
        """Emit sequences whose scores have terms, of several lengths, masked or long."""
        return self.choose(builder, self.rows.padded, self.padded_of_terms, self.one_by_one_of_terms)

    def of_each(self, builder: GraphBuilder) -> str:
        """Emit sequences of one length."""
        count = builder.op("Shape", self.rows.lengths)
        shape = builder.op("Concat", count, builder.ints(*self.by_head), axis=0)
        return self._rectangle(builder, [builder.op("Reshape", rows, shape) for rows in self.projected])

    def flash_of_each(self, builder: GraphBuilder) -> str:
        """Emit long sequences of one length."""
        width = builder.ints(-1, self.width)
        shape = builder.op("Concat", builder.op("Shape", self.rows.lengths), width, axis=0)  # B, -1, width
        return self._multi_head(builder, [builder.op("Reshape", rows, shape) for rows in self.projected])

    def one_by_one(self, builder: GraphBuilder) -> str:
        """Emit a loop over sequences, of which none is long or masked."""
        return self._loop(builder, lambda body, sequence, bounds: self._one(body, sequence))

    def long_one_by_one(self, builder: GraphBuilder) -> str:
        """Emit a loop over sequences of any kind."""
        return self._loop(builder, self._any_one)

    def padded(self, builder: GraphBuilder) -> str:
        """Emit sequences that are gathered into a rectangle, in which padding and masked rows are masked."""
        gathered = [builder.op("Gather", value, self.rows.take) for value in self.projected]  # (B, S, width)
        return builder.op("Gather", self._multi_head(builder, gathered, "", self.rows.keys), self.rows.back)

    def padded_of_terms(self, builder: GraphBuilder) -> str:
        """Emit the same for scores with terms."""
        split = builder.ints(0, 0, self.heads, self.head_width)
        gathered = [builder.op("Gather", rows, self.rows.take) for rows in self.projected]
        by_head = [builder.op("Reshape", rows, split) for rows in gathered]
        hidden = builder.op("Unsqueeze", self.rows.hidden, builder.ints(1, 2))  # (B, 1, 1, S)
        return builder.op("Gather", self._rectangle(builder, by_head, hidden), self.rows.back)

    def _rectangle(self, builder: GraphBuilder, values: list[str], hidden: str | None = None) -> str:
        """Emit sequences of query, key and value [B, S, heads, w]; `hidden` is added to the scores with the terms."""
        query, value = (builder.op("Transpose", rows, perm=[0, 2, 1, 3]) for rows in (values[0], values[2]))
        key = builder.op("Transpose", values[1], perm=[0, 2, 3, 1])
        scores = builder.op("FusedMatMul", query, key, domain=CONTRIB, alpha=self.scale)  # (B, heads, S, S)
        scores, added = self._capped(builder, scores), hidden
        if self.terms.added:
            terms = self._whole_terms(builder)
            added = builder.op("Add", hidden, terms) if hidden else terms
        scores = builder.op("Add", scores, added) if added else scores
        mixed = builder.op("MatMul", builder.op("Softmax", scores, axis=-1), value)  # (B, heads, S, w)
        return self._joined(builder, builder.op("Transpose", mixed, perm=[0, 2, 1, 3]))

    def of_one(self, builder: GraphBuilder, index: str) -> str:
        """Emit one query of each sequence: a loop over sequences of any kind."""
        body, axis = builder.inner(), builder.ints(0)
        number = body.op("Unsqueeze", "number", axis)
        start, end = bounds = [body.op("Gather", value, number) for value in (self.rows.starts, self.rows.ends)]
        row = body.op("Gather", index, number)
        key, value = (body.op("Slice", rows, start, end, axis) for rows in self.projected[1:])
        sequence = [body.op("Gather", self.projected[0], row), key, value]
        place = body.op("Sub", row, start)
        query = place, body.op("Add", place, body.ints(1))
        keys = body.ints(0), body.op("Sub", end, start)
        value = self._one(body, sequence, *self._terms(body, sequence, self._hidden(body, bounds), query, keys))
        return self._collected(builder, body, "number", builder.op("Size", self.rows.lengths), value)

    def one_by_one_of_terms(self, builder: GraphBuilder) -> str:
        """Emit a loop over sequences of any kind, for scores with terms."""
        return self._loop(builder, self._one_of_terms)

    def _loop(self, builder: GraphBuilder, emit: EmitOne) -> str:
        body = builder.inner()
        number = body.op("Unsqueeze", "number", body.ints(0))
        bounds = [body.op("Gather", value, number) for value in (self.rows.starts, self.rows.ends)]
        sequence = [body.op("Slice", value, *bounds, body.ints(0)) for value in self.projected]
        return self._collected(
            builder, body, "number", builder.op("Size", self.rows.lengths), emit(body, sequence, bounds)
        )

    def _collected(self, builder: GraphBuilder, body: GraphBuilder, number: str, count: str, value: str) -> str:
        """Emit a loop whose body gives rows in each of `count` iterations; return all rows."""
        several = (SEQUENCE + "FLOAT", ("tokens", self.width))
        before = f"before_{number}"
        mixed, further = body.op("SequenceInsert", before, value), body.op("Identity", f"go_on_{number}")
        graph = body.graph(
            f"{number}_of_several",
            {number: ("INT64", ()), f"go_on_{number}": ("BOOL", ()), before: several},
            {further: (further, "BOOL", ()), mixed: (mixed, *several)},
        )
        sequences = builder.op("Loop", count, "", builder.op("SequenceEmpty"), body=graph)
        return builder.op("ConcatFromSequence", sequences, axis=0)

    def _one(self, builder: GraphBuilder, sequence: list[str], *terms: str) -> str:
        """Emit queries of one sequence, with keys and values that they may attend to.

        The products read the rows of all heads as they lie, without a transposition.

        Args:
            builder: builder of the graph.
            sequence: rows of query, key and value.
            terms: terms added to the scores, broadcast to [heads, queries, keys]; may be empty.
        """
        shape = builder.ints(*self.by_head)
        query, key, value = (builder.op("Reshape", rows, shape) for rows in sequence)  # (S, heads, head_dim)
        scores = self._capped(builder, self._products(builder, query, key))
        for term in terms:
            scores = builder.op("Add", scores, term)
        shares = builder.op("Softmax", scores, axis=-1)
        mixed = builder.op("FusedMatMul", shares, value, domain=CONTRIB, transBatchB=1)
        return self._joined(builder, builder.op("Transpose", mixed, perm=[1, 0, 2]))  # of (heads, S, head_dim)

    def _products(self, builder: GraphBuilder, query: str, key: str) -> str:
        """Emit scale * query @ key.T by head, [heads, n, m] of [n, heads, w] and [m, heads, w]."""
        across: dict[str, Any] = {"domain": CONTRIB, "transBatchA": 1, "transBatchB": 1, "transB": 1}
        return builder.op("FusedMatMul", query, key, alpha=self.scale, **across)

    def _capped(self, builder: GraphBuilder, scores: str) -> str:
        if self.step.cap is None:
            return scores
        share = builder.op("Tanh", builder.op("Mul", scores, builder.scalar(1 / self.step.cap)))
        return builder.op("Mul", share, builder.scalar(self.step.cap))

    def _whole_terms(self, builder: GraphBuilder) -> str:
        """Emit the terms of a rectangle of sequences as long as the longest, [1 or heads, S, S]."""
        if self.rows.slots:
            return str(self.terms.added)
        zero = builder.ints(0)
        end = builder.op("Reshape", self.terms.longest, builder.ints(1))
        return self.terms.slice(builder, str(self.terms.added), (zero, end), (zero, end))

    def _one_of_terms(self, builder: GraphBuilder, sequence: list[str], bounds: list[str]) -> str:
        """Emit one sequence, whole or in blocks."""
        hidden = self._hidden(builder, bounds)
        length = builder.op("Sub", *reversed(bounds))
        long = builder.op("Greater", length, builder.ints(LONG))
        zero = builder.ints(0)

        def whole(inside: GraphBuilder) -> str:
            return self._one(inside, sequence, *self._terms(inside, sequence, hidden, (zero, length), (zero, length)))

        return self.choose(builder, long, lambda inside: self._blocks(inside, sequence, hidden, length), whole)

    def _hidden(self, builder: GraphBuilder, bounds: list[str]) -> str:
        """Emit the term added to the scores of one sequence's keys, float32 [S]: MASKED for a masked one."""
        axis = builder.ints(0)
        attended = builder.cast(builder.op("Slice", "mask", *bounds, axis), "FLOAT")
        none = builder.op("Sub", builder.scalar(1.0), builder.op("ReduceMax", attended, keepdims=0))
        missing = builder.op("Sub", builder.scalar(1.0), builder.op("Max", attended, none))
        return builder.op("Mul", missing, builder.scalar(MASKED))

    def _blocks(self, builder: GraphBuilder, sequence: list[str], hidden: str, length: str) -> str:
        """Emit one long sequence: a loop over blocks of its queries, each with the keys that it sees."""
        size, zero = builder.ints(BLOCK), builder.ints(0)
        rounded = builder.op("Add", length, builder.ints(BLOCK - 1))
        count = builder.op("Squeeze", builder.op("Div", rounded, size))
        body = builder.inner()
        start = body.op("Mul", "block", size)
        end = body.op("Min", body.op("Add", start, size), length)
        first, last = zero, length
        if self.step.left is not None:
            first = body.op("Max", body.op("Sub", start, body.ints(self.step.left)), zero)
        if self.step.right is not None:
            last = body.op("Min", body.op("Add", end, body.ints(self.step.right)), length)
        parts = [
            body.op("Slice", sequence[0], start, end, zero),
            *(body.op("Slice", rows, first, last, zero) for rows in sequence[1:]),
        ]
        seen = body.op("Slice", hidden, first, last, zero)
        terms = self._terms(body, parts, seen, (start, end), (first, last))
        return self._collected(builder, body, "block", count, self._one(body, parts, *terms))

    def _terms(
        self, builder: GraphBuilder, sequence: list[str], hidden: str, rows: tuple[str, str], columns: tuple[str, str]
    ) -> list[str]:
        """Emit the terms added to the scores of queries `rows` and keys `columns`."""
        if self.terms.added is None:
            found = [hidden]
        else:
            found = [builder.op("Add", self.terms.slice(builder, self.terms.added, rows, columns), hidden)]
        if self.terms.relative is None:
            return found
        index = self.terms.slice(builder, self.terms.relative, rows, columns)  # (n, m)
        shape = builder.ints(*self.by_head)
        for rows_of, matrix, turned in ((sequence[0], self.relative[0], False), (sequence[1], self.relative[1], True)):
            if matrix is None:
                continue
            products = self._products(builder, builder.op("Reshape", rows_of, shape), matrix)  # (heads, n, 2 span)
            own_index = builder.op("Transpose", index, perm=[1, 0]) if turned else index
            heads = builder.op("Expand", own_index, builder.ints(self.heads, 1, 1))
            term = builder.op("GatherElements", products, heads, axis=2)
            found.append(builder.op("Transpose", term, perm=[0, 2, 1]) if turned else term)
        return found

    def _any_one(self, builder: GraphBuilder, sequence: list[str], bounds: list[str]) -> str:
        """Emit one sequence, in the form that it has alone."""
        first = builder.ints(0)
        keys = builder.cast(builder.op("Slice", "mask", *bounds, first), "INT32")  # (S,)
        most, least = (builder.op(kind, keys, keepdims=0) for kind in ("ReduceMax", "ReduceMin"))
        masked = builder.op("Greater", most, least)  # all rows masked counts as none
        length = builder.op("Sub", *reversed(bounds))
        long = builder.op("Greater", length, builder.ints(LONG))
        single = [builder.op("Unsqueeze", rows, first) for rows in sequence]  # (1, S, width)
        keys = builder.op("Unsqueeze", keys, first)

        def with_mask(inside: GraphBuilder) -> str:
            return self.choose(
                inside,
                long,
                lambda blocks: self._blocks(blocks, sequence, self._hidden(blocks, bounds), length),
                lambda short: self._multi_head(short, single, "", keys),
            )

        return self.choose(
            builder,
            masked,
            with_mask,
            lambda inside: self.choose(
                inside, long, lambda flash: self._multi_head(flash, single), lambda short: self._one(short, sequence)
            ),
        )

    def _multi_head(self, builder: GraphBuilder, values: list[str], *masks: str, **options: Any) -> str:
        options |= {} if self.step.scale is None else {"scale": self.step.scale}
        mixed = builder.op("MultiHeadAttention", *values, *masks, domain=CONTRIB, num_heads=self.heads, **options)
        return self._joined(builder, mixed)

    def _joined(self, builder: GraphBuilder, mixed: str) -> str:
        return builder.op("Reshape", mixed, builder.ints(-1, self.width))
