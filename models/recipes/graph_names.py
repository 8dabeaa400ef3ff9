"""Names inside exported graphs that both their emitters and their callers use."""

HIDDEN = "last_hidden_state"
"""The output of an encoder: one row a token."""

POOLED = "sentence_embedding"
"""The vector of a text; an output of static embeddings and of some adopted graphs, elsewhere made of rows."""

ONE_ROW = "pooled_hidden_state"
"""The output of graphs that compute one row of each sequence behind the last attention."""

ONE_TYPE = "types"
"""The name of the dimension of `types` in graphs that take one type for all rows; elsewhere it is "tokens"."""
