"""SCALINGS: one row a RoPE scaling, its function, parameters, formula and traps. Reads no config and makes no table.

A function gives inverse frequencies and an attention factor. It is written once, in the order of transformers' steps,
and evaluated in either arithmetic (arithmetic.py).
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from models.errors import BadScaling
from models.positions.arithmetic import Numbers
from models.positions.rope.scaling import Call, Scaled, Scaling

TRAINED = "original_max_position_embeddings"


def default(call: Call) -> Scaled:
    """No scaling.

    source   Su et al. 2021, arXiv:2104.09864
    """
    return call.plain(), 1


def linear(call: Call, factor: Any) -> Scaled:
    """Positions squeezed by `factor`, 1 or more.

    source   Chen et al. 2023, arXiv:2306.15595; transformers 5.23 `linear`
    """
    return call.plain() / factor, 1


def dynamic(call: Call, factor: Any) -> Scaled:
    """NTK-aware for the sequence at hand: unscaled up to max_position_embeddings, then theta grows with seq_len.

    seq_len  None: max_position_embeddings. transformers remembers the longest it saw; here the caller says
    source   u/emozilla 2023; transformers 5.23 `dynamic`
    """
    if (trained := call.max_position_embeddings) is None:
        raise BadScaling("needs max_position_embeddings: up to there nothing is scaled")
    length = max(call.seq_len or trained, trained)
    if call.numbers.arithmetic == "parity" and length > trained and call.rotary_dim > 2:
        return call.plain(_theta_in_single_steps(call, factor, length, trained)), 1
    n = call.numbers.number
    return call.stretched(factor * n(length) / n(trained) - (factor - 1)), 1


def _theta_in_single_steps(call: Call, factor: float, length: int, trained: int) -> float:
    """theta grown as transformers 5.23 grows it once seq_len is a tensor: every step rounded to float32."""
    single = np.float32
    grown = single(factor) * single(length) / single(trained) - single(factor - 1)
    power = single(float(grown) ** (call.rotary_dim / (call.rotary_dim - 2)))
    return float(single(call.theta) * power)


def ntk(call: Call, factor: Any) -> Scaled:
    """theta' = theta * factor^(r/(r-2)): the slowest channel stretches by `factor`, the fastest stays.

    source   "NTK-aware", u/bloc97 2023; Peng et al. 2023, arXiv:2309.00071, section 3.1
    """
    return call.stretched(factor), 1


def ntk_alpha(call: Call, alpha: Any) -> Scaled:
    """theta' = theta * alpha^(r/(r-2)).

    source   transformers 5.23 hunyuan_v1_dense; vLLM 0.33 `dynamic` with `alpha`
    """
    return call.stretched(alpha), 1


def llama3(
    call: Call, factor: Any, low_freq_factor: Any, high_freq_factor: Any, original_max_position_embeddings: Any
) -> Scaled:
    """Slow channels divided by `factor`, fast ones left, a linear blend between.

    raises   BadScaling unless high_freq_factor > low_freq_factor
    source   transformers 5.23 `llama3` (Llama 3.1)
    """
    if high_freq_factor < low_freq_factor:
        raise BadScaling(f"needs high_freq_factor from low_freq_factor; got {high_freq_factor} and {low_freq_factor}")
    plain = call.plain()
    wavelength = call.numbers.over(2 * call.numbers.pi, plain)
    turns = call.numbers.over(original_max_position_embeddings, wavelength)  # within the trained context
    blend = (turns - low_freq_factor) / ((high_freq_factor - low_freq_factor) or 1)  # no band between: not read
    blended = (1 - blend) * plain / factor + blend * plain
    slow = wavelength > original_max_position_embeddings / low_freq_factor
    fast = wavelength < original_max_position_embeddings / high_freq_factor
    return np.where(slow, plain / factor, np.where(fast, plain, blended)), 1


def yarn(
    call: Call,
    original_max_position_embeddings: Any,
    factor: Any = None,
    beta_fast: Any = None,
    beta_slow: Any = None,
    attention_factor: Any = None,
    mscale: Any = None,
    mscale_all_dim: Any = None,
    truncate: bool = True,
) -> Scaled:
    """Channels that turn under beta_slow times in the trained context are divided by `factor`, above beta_fast left.

    factor            None: max_position_embeddings / the trained length
    beta_fast, beta_slow   None: 32 and 1
    attention_factor  None: m(mscale) / m(mscale_all_dim) where both are given, else m(1); m(k) = 0.1 k ln(factor) + 1
    truncate          round the blend's ends outwards to whole channels
    source            Peng et al. 2023, arXiv:2309.00071; transformers 5.23 `yarn`
    """
    numbers, dim = call.numbers, call.rotary_dim
    factor = call.ratio(original_max_position_embeddings) if factor is None else factor

    def channel(turns: Any) -> Any:
        trained = original_max_position_embeddings / (turns * 2 * numbers.pi)
        return numbers.number(dim) * numbers.log(trained) / (2 * numbers.log(numbers.number(call.theta)))

    low = channel(numbers.number(32) if beta_fast is None else beta_fast)
    high = channel(numbers.number(1) if beta_slow is None else beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += numbers.number(0.001)
    powers = call.powers()
    squeezed = np.clip((numbers.array(range(dim // 2)) - low) / (high - low), 0, 1)
    left = 1 - squeezed
    scaled = numbers.over(1, factor * powers) * (1 - left) + numbers.over(1, powers) * left
    if attention_factor is None:
        over, under = (mscale, mscale_all_dim) if mscale and mscale_all_dim else (numbers.number(1), None)
        attention_factor = _magnitude(numbers, factor, over)
        if under is not None:
            attention_factor /= _magnitude(numbers, factor, under)
    return scaled, attention_factor


def _magnitude(numbers: Numbers, factor: Any, scale: Any) -> Any:
    return numbers.number(0.1) * scale * numbers.log(factor) + 1 if factor > 1 else numbers.number(1)


def deepseek_yarn(
    call: Call,
    original_max_position_embeddings: Any,
    factor: Any,
    beta_fast: Any = None,
    beta_slow: Any = None,
    mscale: Any = None,
    mscale_all_dim: Any = None,
) -> Scaled:
    """yarn, but mscale (None: 1) and mscale_all_dim (None: 0) count each alone; always truncated.

    source   vLLM 0.33 DeepseekScalingRotaryEmbedding
    """
    one, zero = call.numbers.number(1), call.numbers.number(0)
    over = _magnitude(call.numbers, factor, one if mscale is None else mscale)
    under = _magnitude(call.numbers, factor, zero if mscale_all_dim is None else mscale_all_dim)
    return yarn(call, original_max_position_embeddings, factor, beta_fast, beta_slow)[0], over / under


def longrope(
    call: Call,
    short_factor: Any,
    long_factor: Any,
    original_max_position_embeddings: Any,
    factor: Any = None,
    attention_factor: Any = None,
    short_mscale: Any = None,
    long_mscale: Any = None,
) -> Scaled:
    """Each channel divided by a factor of its own: short_factor up to the trained length, long_factor beyond it.

    seq_len           None: short. transformers looks at the largest position of each call; here the caller says
    factor            None: max_position_embeddings / the trained length; decides the attention factor alone
    attention_factor  None: sqrt(1 + ln(factor) / ln(trained length)), 1 up to factor 1
    short_mscale, long_mscale   stand for the attention factor (phimoe)
    raises            BadScaling unless both lists have rotary_dim/2 numbers
    source            Ding et al. 2024, arXiv:2402.13753; transformers 5.23 `longrope`, phimoe
    """
    numbers, pairs = call.numbers, call.rotary_dim // 2
    for name, values in (("short_factor", short_factor), ("long_factor", long_factor)):
        if len(values) != pairs:
            raise BadScaling(f"{name} has {len(values)} numbers; rotary_dim/2 = {pairs} are needed")
    long = call.seq_len is not None and call.seq_len > original_max_position_embeddings
    mscale = long_mscale if long else short_mscale
    if mscale is not None:
        attention_factor = mscale
    if attention_factor is None:
        factor = call.ratio(original_max_position_embeddings) if factor is None else factor
        grown = 1 + numbers.log(factor) / numbers.log(original_max_position_embeddings) if factor > 1 else 1
        attention_factor = numbers.number(grown) ** numbers.number(0.5)
    return numbers.over(1, numbers.array(long_factor if long else short_factor) * call.powers()), attention_factor


def proportional(call: Call, partial_rotary_factor: Any = None, factor: Any = None) -> Scaled:
    """theta^(-2i/head_dim) for the first share of the head's pairs, 0 (no rotation) for the others; all / factor.

    rotary_dim   the whole head: pairs span head_dim/2, unlike partial rotary
    source       transformers 5.23 `proportional` (Gemma 4)
    """
    numbers, head_dim = call.numbers, call.head_dim
    if call.rotary_dim != head_dim:
        raise BadScaling(
            f"spans the whole head: rotary_dim is {call.rotary_dim}, head_dim {head_dim}; "
            "say the share as partial_rotary_factor"
        )
    share = 1.0 if partial_rotary_factor is None else float(partial_rotary_factor)
    turning = int(share * head_dim // 2)
    frequencies = np.concatenate(
        [numbers.over(1, call.powers(over=head_dim, count=turning)), numbers.array([0.0] * (head_dim // 2 - turning))]
    )
    return frequencies if factor is None else frequencies / factor, 1


def _dynamic_remarks(given: Mapping[str, Any]) -> list[str]:
    return [
        "the frequencies are those of one seq_len; transformers keeps the longest sequence it has seen until one is "
        "shorter than max_position_embeddings, vLLM fixes them when it starts, llama.cpp has no dynamic scaling"
    ]


def _yarn_remarks(given: Mapping[str, Any]) -> list[str]:
    notes = []
    if bool(given.get("mscale")) != bool(given.get("mscale_all_dim")):
        notes.append(
            "mscale and mscale_all_dim count only together: transformers and vLLM's yarn ignore one alone; vLLM's "
            "deepseek_yarn does not"
        )
    if given.get("attention_factor") and (given.get("mscale") or given.get("mscale_all_dim")):
        notes.append("attention_factor is given, so mscale and mscale_all_dim count for nothing here")
    if given.get("truncate") is False:
        notes.append("llama.cpp rounds the blend's ends all the same: its table differs where truncate is false")
    return notes


def _longrope_remarks(given: Mapping[str, Any]) -> list[str]:
    notes = [
        "short_factor up to the trained length, long_factor beyond it: transformers switches with every call, vLLM "
        "once by max_model_len, llama.cpp by its context size; seq_len says which is meant here"
    ]
    if ignored := [name for name in ("factor", "attention_factor") if given.get(name) is not None]:
        notes.append(f"vLLM ignores {' and '.join(ignored)} and takes max_position_embeddings / the trained length")
    return notes


def _proportional_remarks(given: Mapping[str, Any]) -> list[str]:
    factor = given.get("factor")
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
        remarks=_dynamic_remarks,
    ),
    "ntk": Scaling(ntk, "(theta s^(r/(r-2)))^(-2i/r)", ("factor",)),
    "ntk_alpha": Scaling(ntk_alpha, "(theta alpha^(r/(r-2)))^(-2i/r)", ("alpha",)),
    "yarn": Scaling(
        yarn,
        "g f/s + (1-g) f, g = clip((i - lo)/(hi - lo), 0, 1), lo and hi the channels that turn beta_fast and beta_slow "
        "times within o; A = m(s, mscale)/m(s, mscale_all_dim) or m(s, 1), m(s, k) = 0.1 k ln s + 1",
        (TRAINED,),
        _YARN_OPTIONS,
        _yarn_remarks,
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
        _longrope_remarks,
    ),
    "proportional": Scaling(
        proportional,
        "theta^(-2i/head_dim) / s for i < partial_rotary_factor head_dim/2, 0 for the other pairs of the head",
        (),
        ("partial_rotary_factor", "factor"),
        _proportional_remarks,
    ),
}
