"""What a graph gave is numbers, or nobody is answered with it. Mends nothing."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.errors import EngineFailure


def check_finite(model: str, rows: Sequence[Mapping[str, NDArray[Any]]]) -> None:
    """Raise EngineFailure for the first of a request's inputs with a value that is NaN or infinite.

    rows   of every input, by the name of the output
    """
    for index, named in enumerate(rows):
        for name, array in named.items():
            if not np.isfinite(array).all():
                raise EngineFailure(
                    f"{model} gave {name} of inputs[{index}] that is not finite: leave this input out", index
                )
