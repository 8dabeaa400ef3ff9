"""The rows that a graph gives: one for each token, or one for each input, as they are."""

import numpy as np

from service.embedding.outputs.kind import ROW_OF_EACH, Job, OutputKind, Planning, cast
from service.embedding.requests import Output
from service.embedding.tokenize.packing import joined


class GraphRows(OutputKind):
    """What a graph of the model gives under the output's own name."""

    def __init__(self, planning: Planning, name: str) -> None:
        super().__init__(planning, name, name)
        self.pooled = name in ROW_OF_EACH
        self.token_bytes = 0 if self.pooled else 4 * self.width

    @classmethod
    def makes(cls, planning: Planning, name: str) -> bool:
        """Return whether a graph gives an output of that name."""
        return name in planning.card.outputs

    def finish(self, job: Job) -> Output:
        """Return the rows of all inputs, one below the other."""
        rows, arrays = joined(job.rows, self.name), [part[self.name] for part in job.rows]
        if self.pooled:
            lengths = (1,) * len(job.lengths)
        elif len(arrays) == len(job.lengths):
            lengths = tuple([len(array) for array in arrays])
        else:
            lengths = job.lengths
        return Output(self.name, np.ascontiguousarray(cast(rows, self.dtype)), lengths, self.pooled)
