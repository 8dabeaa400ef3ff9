"""What a scaling is: what its function is given, what it gives, and its row in SCALINGS. Holds no formula."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from models.errors import BadScaling
from models.positions.arithmetic import Array, Numbers

Scaled = tuple[Array, Any]  # inverse frequencies and attention factor, both in the arithmetic's numbers


@dataclass(frozen=True, slots=True)
class Call:
    """What every scaling is given beside its own parameters; numbers are the arithmetic's."""

    numbers: Numbers
    theta: Any
    rotary_dim: int
    head_dim: int
    max_position_embeddings: int | None
    seq_len: int | None

    def powers(self, theta: Any = None, over: int | None = None, count: int | None = None) -> Array:
        """theta^(2i/over) for i < count; by default the rope's own theta, rotary_dim and every pair."""
        pairs = self.rotary_dim // 2 if count is None else count
        exponents = self.numbers.array(range(0, 2 * pairs, 2)) / self.numbers.number(over or self.rotary_dim)
        return self.numbers.power(self.theta if theta is None else theta, exponents)

    def plain(self, theta: Any = None) -> Array:
        """theta^(-2i/rotary_dim), by default of the rope's own theta."""
        return self.numbers.over(1, self.powers(theta))

    def stretched(self, stretch: Any) -> Array:
        """Frequencies of theta * stretch^(r/(r-2)): the slowest channel slows by `stretch`, the fastest not at all.

        raises   BadScaling for rotary_dim 2
        """
        if self.rotary_dim == 2:
            raise BadScaling("an NTK stretch needs rotary_dim above 2: its exponent is r/(r-2)")
        r = self.numbers.number(self.rotary_dim)
        return self.numbers.over(1, self.powers(self.theta * stretch ** (r / (r - 2))))

    def ratio(self, trained: Any) -> Any:
        """max_position_embeddings / the trained length, which stands for a missing factor; raises BadScaling."""
        if self.max_position_embeddings is None:
            raise BadScaling("needs factor, or max_position_embeddings to derive it from")
        return self.numbers.number(self.max_position_embeddings) / trained


@dataclass(frozen=True, slots=True)
class Scaling:
    """A row of SCALINGS.

    formula   f: theta^(-2i/r) for i = 0 .. r/2 - 1; s: factor; o: original_max_position_embeddings; A: attention_factor
    required, optional   parameters by the names of config.json
    remarks   given the parameters, what a reader of the table should know: forms in which libraries differ
    """

    frequencies: Callable[..., Scaled]
    formula: str
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    remarks: Callable[[Mapping[str, Any]], list[str]] = lambda given: []
