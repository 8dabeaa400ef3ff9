"""SCALINGS: one row per RoPE scaling, with its function, parameters, formula and remarks.

A function returns inverse frequencies and an attention factor. It is written once, in the order of transformers' steps,
and evaluated in either arithmetic (arithmetic.py).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from models.errors import BadScaling
from models.positions.arithmetic import Array, Numbers
from models.positions.rope.scaling_parameters import TRAINED

Scaled = tuple[Array, Any]  # inverse frequencies [r/2], radians per position, and attention factor, as Numbers


@dataclass(frozen=True, slots=True)
class Unscaled:
    """The encoding before scaling, in the numbers of one arithmetic; the first argument of every scaling.

    Attributes:
        numbers: the arithmetic.
        theta: base of the frequencies.
        rotary_dim: channels that rotate, r.
        head_dim: channels of a head.
        max_position_embeddings: max_position_embeddings of the model; None: not known.
        seq_len: length of the sequence in tokens; None: not known.
    """

    numbers: Numbers
    theta: Any
    rotary_dim: int
    head_dim: int
    max_position_embeddings: int | None
    seq_len: int | None

    def powers(self, theta: Any = None, denominator: int | None = None, count: int | None = None) -> Array:
        """Return theta^(2i/denominator) for i < count; by default with the rope's theta, rotary_dim and every pair."""
        pairs = self.rotary_dim // 2 if count is None else count
        exponents = self.numbers.array(range(0, 2 * pairs, 2)) / self.numbers.scalar(denominator or self.rotary_dim)
        return self.numbers.power(self.theta if theta is None else theta, exponents)

    def plain(self, theta: Any = None) -> Array:
        """Return theta^(-2i/rotary_dim), by default with the rope's theta."""
        return self.numbers.divide(1, self.powers(theta))

    def stretched(self, stretch: Any) -> Array:
        """Return the frequencies of theta * stretch^(r/(r-2)): the slowest slows by `stretch`, the fastest not at all.

        Raises:
            BadScaling: rotary_dim is 2.
        """
        if self.rotary_dim == 2:
            raise BadScaling("an NTK stretch needs rotary_dim above 2: its exponent is r/(r-2)")
        r = self.numbers.scalar(self.rotary_dim)
        return self.numbers.divide(1, self.powers(self.theta * stretch ** (r / (r - 2))))

    def ratio(self, trained: Any) -> Any:
        """Return max_position_embeddings / the trained length, the default of a missing factor.

        Raises:
            BadScaling: max_position_embeddings is missing.
        """
        if self.max_position_embeddings is None:
            raise BadScaling("needs factor, or max_position_embeddings to derive it from")
        return self.numbers.scalar(self.max_position_embeddings) / trained


@dataclass(frozen=True, slots=True)
class Scaling:
    """A row of SCALINGS.

    Attributes:
        frequencies: (Unscaled, parameters by name) -> inverse frequencies and attention factor.
        formula: text, in which f: theta^(-2i/r) for i = 0 .. r/2 - 1; s: factor; o: original_max_position_embeddings;
            A: attention_factor.
        required: parameters by the names of config.json.
        optional: likewise.
        sizes: what else of the model is required, besides theta and the channels, by the names of config.json.
        remarks: parameters -> notes for the reader of the table: forms in which libraries differ.
    """

    frequencies: Callable[..., Scaled]
    formula: str
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ()
    remarks: Callable[[Mapping[str, Any]], list[str]] = lambda parameters: []


def default(rope: Unscaled) -> Scaled:
    """Return unscaled frequencies, theta^(-2i/r).

    Source: Su et al. 2021, arXiv:2104.09864.
    """
    return rope.plain(), 1


def linear(rope: Unscaled, factor: Any) -> Scaled:
    """Return frequencies divided by `factor` (linear position interpolation).

    Args:
        rope: the unscaled encoding.
        factor: new context length / trained context length, 1 or more.

    Source: Chen et al. 2023, arXiv:2306.15595; transformers 5.23 `linear`.
    """
    return rope.plain() / factor, 1


def dynamic(rope: Unscaled, factor: Any) -> Scaled:
    """Return dynamic NTK frequencies: unscaled up to max_position_embeddings, then theta grows with seq_len.

    seq_len None means max_position_embeddings. transformers remembers the longest sequence it has seen; here the caller
    gives the length.

    Args:
        rope: the unscaled encoding, with max_position_embeddings.
        factor: 1 or more.

    Raises:
        BadScaling: max_position_embeddings is missing, or rotary_dim is 2.

    Source: u/emozilla 2023; transformers 5.23 `dynamic`.
    """
    if (trained := rope.max_position_embeddings) is None:
        raise BadScaling("needs max_position_embeddings, the length up to which nothing is scaled")
    length = max(rope.seq_len or trained, trained)
    if rope.numbers.arithmetic == "parity" and length > trained and rope.rotary_dim > 2:
        return rope.plain(_theta_in_single_steps(rope, factor, length, trained)), 1
    n = rope.numbers.scalar
    return rope.stretched(factor * n(length) / n(trained) - (factor - 1)), 1


def _theta_in_single_steps(rope: Unscaled, factor: float, length: int, trained: int) -> float:
    """Return theta grown as transformers 5.23 grows it once seq_len is a tensor: in float32 steps."""
    single = np.float32
    grown = single(factor) * single(length) / single(trained) - single(factor - 1)
    power = single(float(grown) ** (rope.rotary_dim / (rope.rotary_dim - 2)))
    return float(single(rope.theta) * power)


def ntk(rope: Unscaled, factor: Any) -> Scaled:
    """Return NTK-aware frequencies, theta' = theta * factor^(r/(r-2)): the slowest slows by `factor`, the fastest not.

    Args:
        rope: the unscaled encoding; rotary_dim above 2.
        factor: new context length / trained context length, 1 or more.

    Raises:
        BadScaling: rotary_dim is 2.

    Source: "NTK-aware", u/bloc97 2023; Peng et al. 2023, arXiv:2309.00071, section 3.1.
    """
    return rope.stretched(factor), 1


def ntk_fixed(rope: Unscaled, factor: Any) -> Scaled:
    """Return NTK frequencies with theta' = theta * factor, all of them divided by factor^(2/r); parameters as in `ntk`.

    The slowest slows by `factor`, as in `ntk`, the fastest by factor^(2/r).

    Source: the code published with gte-base-en-v1.5 (`ntk` without mixed_b); vLLM 0.33 NTKScalingRotaryEmbedding.
    """
    return rope.plain(rope.theta * factor) / factor ** (2 / rope.numbers.scalar(rope.rotary_dim)), 1


def ntk_alpha(rope: Unscaled, alpha: Any) -> Scaled:
    """Return NTK-aware frequencies with theta' = theta * alpha^(r/(r-2)); parameters as in `ntk`.

    Source: transformers 5.23 hunyuan_v1_dense; vLLM 0.33 `dynamic` with `alpha`.
    """
    return rope.stretched(alpha), 1


def llama3(
    rope: Unscaled, factor: Any, low_freq_factor: Any, high_freq_factor: Any, original_max_position_embeddings: Any
) -> Scaled:
    """Return Llama 3.1's frequencies: slow channels divided by `factor`, fast ones unchanged, a linear blend between.

    Args:
        rope: the unscaled encoding.
        factor: divisor of the slow channels, 1 or more.
        low_freq_factor: channels with fewer turns in the trained context are slow.
        high_freq_factor: channels with more turns are fast; at least low_freq_factor.
        original_max_position_embeddings: the trained context, in tokens.

    Raises:
        BadScaling: high_freq_factor is below low_freq_factor.

    Source: transformers 5.23 `llama3` (Llama 3.1).
    """
    if high_freq_factor < low_freq_factor:
        raise BadScaling(
            f"needs high_freq_factor at least low_freq_factor; got {high_freq_factor} and {low_freq_factor}"
        )
    plain = rope.plain()
    wavelength = rope.numbers.divide(2 * rope.numbers.pi, plain)
    turns = rope.numbers.divide(original_max_position_embeddings, wavelength)  # within the trained context
    blend = (turns - low_freq_factor) / ((high_freq_factor - low_freq_factor) or 1)  # no band between: not read
    blended = (1 - blend) * plain / factor + blend * plain
    slow = wavelength > original_max_position_embeddings / low_freq_factor
    fast = wavelength < original_max_position_embeddings / high_freq_factor
    return np.where(slow, plain / factor, np.where(fast, plain, blended)), 1


def yarn(
    rope: Unscaled,
    original_max_position_embeddings: Any,
    factor: Any = None,
    beta_fast: Any = None,
    beta_slow: Any = None,
    attention_factor: Any = None,
    mscale: Any = None,
    mscale_all_dim: Any = None,
    truncate: bool = True,
) -> Scaled:
    """Return YaRN's frequencies: channels that turn less than beta_slow times in training are divided by `factor`.

    Those that turn more than beta_fast times are unchanged; between the two is a linear blend.

    Args:
        rope: the unscaled encoding.
        original_max_position_embeddings: the trained length.
        factor: None: max_position_embeddings / the trained length.
        beta_fast: None: 32.
        beta_slow: None: 1.
        attention_factor: None: m(mscale) / m(mscale_all_dim) where both are given, else m(1), with
            m(k) = 0.1 k ln(factor) + 1.
        mscale: see attention_factor.
        mscale_all_dim: see attention_factor.
        truncate: whether the blend's ends are rounded outwards to whole channels.

    Source: Peng et al. 2023, arXiv:2309.00071; transformers 5.23 `yarn`.
    """
    numbers = rope.numbers
    factor = rope.ratio(original_max_position_embeddings) if factor is None else factor
    fast = numbers.scalar(32) if beta_fast is None else beta_fast
    slow = numbers.scalar(1) if beta_slow is None else beta_slow
    left = 1 - _squeezed(rope, original_max_position_embeddings, fast, slow, truncate)
    powers = rope.powers()
    scaled = numbers.divide(1, factor * powers) * (1 - left) + numbers.divide(1, powers) * left
    if attention_factor is None:
        upper, lower = (mscale, mscale_all_dim) if mscale and mscale_all_dim else (numbers.scalar(1), None)
        attention_factor = _magnitude(numbers, factor, upper)
        if lower is not None:
            attention_factor /= _magnitude(numbers, factor, lower)
    return scaled, attention_factor


def _squeezed(rope: Unscaled, trained: Any, beta_fast: Any, beta_slow: Any, truncate: bool) -> Any:
    """Return how much of `factor` each pair is divided by: 0 for the fast ones, 1 for the slow ones."""
    numbers, dim = rope.numbers, rope.rotary_dim

    def channel(turns: Any) -> Any:
        length = trained / (turns * 2 * numbers.pi)
        return numbers.scalar(dim) * numbers.log(length) / (2 * numbers.log(numbers.scalar(rope.theta)))

    low, high = channel(beta_fast), channel(beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += numbers.scalar(0.001)
    return np.clip((numbers.array(range(dim // 2)) - low) / (high - low), 0, 1)


def _magnitude(numbers: Numbers, factor: Any, scale: Any) -> Any:
    return numbers.scalar(0.1) * scale * numbers.log(factor) + 1 if factor > 1 else numbers.scalar(1)


def deepseek_yarn(
    rope: Unscaled,
    original_max_position_embeddings: Any,
    factor: Any,
    beta_fast: Any = None,
    beta_slow: Any = None,
    mscale: Any = None,
    mscale_all_dim: Any = None,
) -> Scaled:
    """Return `yarn` with an attention factor in which mscale (None: 1) and mscale_all_dim (None: 0) also count alone.

    The blend's ends are always whole channels. The parameters are those of `yarn`.

    Source: vLLM 0.33 DeepseekScalingRotaryEmbedding.
    """
    one, zero = rope.numbers.scalar(1), rope.numbers.scalar(0)
    upper = _magnitude(rope.numbers, factor, one if mscale is None else mscale)
    lower = _magnitude(rope.numbers, factor, zero if mscale_all_dim is None else mscale_all_dim)
    return yarn(rope, original_max_position_embeddings, factor, beta_fast, beta_slow)[0], upper / lower


def longrope(
    rope: Unscaled,
    short_factor: Any,
    long_factor: Any,
    original_max_position_embeddings: Any,
    factor: Any = None,
    attention_factor: Any = None,
    short_mscale: Any = None,
    long_mscale: Any = None,
) -> Scaled:
    """Return LongRoPE's frequencies: each channel divided by its short_factor, beyond the trained length long_factor.

    seq_len None means short. transformers uses the largest position of each call; here the caller gives the length.

    Args:
        rope: the unscaled encoding.
        short_factor: rotary_dim/2 numbers.
        long_factor: rotary_dim/2 numbers.
        original_max_position_embeddings: the trained length.
        factor: None: max_position_embeddings / the trained length; it determines only the attention factor.
        attention_factor: None: sqrt(1 + ln(factor) / ln(trained length)), 1 up to factor 1.
        short_mscale: replaces the attention factor up to the trained length (phimoe).
        long_mscale: replaces it beyond.

    Raises:
        BadScaling: a list does not have rotary_dim/2 numbers.

    Source: Ding et al. 2024, arXiv:2402.13753; transformers 5.23 `longrope`, phimoe.
    """
    numbers, pairs = rope.numbers, rope.rotary_dim // 2
    for name, values in (("short_factor", short_factor), ("long_factor", long_factor)):
        if len(values) != pairs:
            raise BadScaling(f"{name} has {len(values)} numbers; rotary_dim/2 = {pairs} are needed")
    long = rope.seq_len is not None and rope.seq_len > original_max_position_embeddings
    mscale = long_mscale if long else short_mscale
    if mscale is not None:
        attention_factor = mscale
    if attention_factor is None:
        factor = rope.ratio(original_max_position_embeddings) if factor is None else factor
        grown = 1 + numbers.log(factor) / numbers.log(original_max_position_embeddings) if factor > 1 else 1
        attention_factor = numbers.scalar(grown) ** numbers.scalar(0.5)
    return numbers.divide(1, numbers.array(long_factor if long else short_factor) * rope.powers()), attention_factor


def proportional(rope: Unscaled, partial_rotary_factor: Any = None, factor: Any = None) -> Scaled:
    """Return theta^(-2i/head_dim) / factor for the first pairs of the head, 0 (no rotation) for the others.

    Args:
        rope: the unscaled encoding; rotary_dim is the whole head, because pairs span head_dim/2, unlike partial rotary.
        partial_rotary_factor: fraction of the pairs that rotate; None: 1.
        factor: divisor of all frequencies; None: 1.

    Raises:
        BadScaling: rotary_dim is not head_dim.

    Source: transformers 5.23 `proportional` (Gemma 4).
    """
    numbers, head_dim = rope.numbers, rope.head_dim
    if rope.rotary_dim != head_dim:
        raise BadScaling(
            f"spans the whole head: rotary_dim is {rope.rotary_dim}, head_dim {head_dim}; "
            "give the fraction as partial_rotary_factor"
        )
    share = 1.0 if partial_rotary_factor is None else float(partial_rotary_factor)
    turning = int(share * head_dim // 2)
    frequencies = np.concatenate(
        [
            numbers.divide(1, rope.powers(denominator=head_dim, count=turning)),
            numbers.array([0.0] * (head_dim // 2 - turning)),
        ]
    )
    return frequencies if factor is None else frequencies / factor, 1


def _dynamic_remarks(parameters: Mapping[str, Any]) -> list[str]:
    return [
        "the frequencies are those of one seq_len; transformers keeps the longest sequence it has seen until one is "
        "shorter than max_position_embeddings, vLLM fixes them when it starts, llama.cpp has no dynamic scaling"
    ]


def _yarn_remarks(parameters: Mapping[str, Any]) -> list[str]:
    notes = []
    if bool(parameters.get("mscale")) != bool(parameters.get("mscale_all_dim")):
        notes.append(
            "mscale and mscale_all_dim count only together: transformers and vLLM's yarn ignore one alone; vLLM's "
            "deepseek_yarn does not"
        )
    if parameters.get("attention_factor") and (parameters.get("mscale") or parameters.get("mscale_all_dim")):
        notes.append("attention_factor is given, so mscale and mscale_all_dim count for nothing here")
    if parameters.get("truncate") is False:
        notes.append("llama.cpp rounds the blend's ends all the same: its table differs where truncate is false")
    return notes


def _longrope_remarks(parameters: Mapping[str, Any]) -> list[str]:
    notes = [
        "short_factor up to the trained length, long_factor beyond it: transformers switches with every call, vLLM "
        "once by max_model_len, llama.cpp by its context size; seq_len says which is meant here"
    ]
    if ignored := [name for name in ("factor", "attention_factor") if parameters.get(name) is not None]:
        notes.append(f"vLLM ignores {' and '.join(ignored)} and takes max_position_embeddings / the trained length")
    return notes


def _proportional_remarks(parameters: Mapping[str, Any]) -> list[str]:
    factor = parameters.get("factor")
    return (
        [f"vLLM ignores factor; here, as in transformers, it divides by {factor:g}"] if factor not in (None, 1) else []
    )


_YARN_OPTIONS = ("factor", "beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate")
_DEEPSEEK_OPTIONS = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim")
_LONGROPE_OPTIONS = ("factor", "attention_factor", "short_mscale", "long_mscale")
SCALINGS: dict[str, Scaling] = {
    "default": Scaling(default, "f"),
    "linear": Scaling(linear, "f / s", ("factor",)),
    "dynamic": Scaling(
        dynamic,
        "(theta (s n/L - s + 1)^(r/(r-2)))^(-2i/r), n = max(seq_len, L), L = max_position_embeddings",
        ("factor",),
        sizes=("max_position_embeddings",),
        remarks=_dynamic_remarks,
    ),
    "ntk": Scaling(ntk, "(theta s^(r/(r-2)))^(-2i/r)", ("factor",)),
    "ntk_fixed": Scaling(ntk_fixed, "(theta s)^(-2i/r) s^(-2/r)", ("factor",)),
    "ntk_alpha": Scaling(ntk_alpha, "(theta alpha^(r/(r-2)))^(-2i/r)", ("alpha",)),
    "yarn": Scaling(
        yarn,
        "g f/s + (1-g) f, g = clip((i - lo)/(hi - lo), 0, 1), lo and hi the channels that turn beta_fast and beta_slow "
        "times within o; A = m(s, mscale)/m(s, mscale_all_dim) or m(s, 1), m(s, k) = 0.1 k ln s + 1",
        (TRAINED,),
        _YARN_OPTIONS,
        remarks=_yarn_remarks,
    ),
    "deepseek_yarn": Scaling(
        deepseek_yarn, "f as yarn; A = m(s, mscale)/m(s, mscale_all_dim)", ("factor", TRAINED), _DEEPSEEK_OPTIONS
    ),
    "llama3": Scaling(
        llama3,
        "wavelength below o/high_freq_factor: f; above o/low_freq_factor: f/s; between: (1-t) f/s + t f, "
        "t = (o/wavelength - low)/(high - low)",
        ("factor", "low_freq_factor", "high_freq_factor", TRAINED),
    ),
    "longrope": Scaling(
        longrope,
        "f / short_factor_i where seq_len <= o, else f / long_factor_i; A = sqrt(1 + ln s / ln o)",
        ("short_factor", "long_factor", TRAINED),
        _LONGROPE_OPTIONS,
        remarks=_longrope_remarks,
    ),
    "proportional": Scaling(
        proportional,
        "theta^(-2i/head_dim) / s for i < partial_rotary_factor head_dim/2, 0 for the other pairs of the head",
        (),
        ("partial_rotary_factor", "factor"),
        remarks=_proportional_remarks,
    ),
}
