"""The output side of a tied table: the softmax cross-entropy of its logits, and the gradients, in float64.

The vocabulary passes a block at a time: neither the logits [M, V] nor the gradient [V, d] is ever held.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from models.artifacts.quantization import RowSource
from models.errors import BadQuery
from models.tables.row_blocks import Check, blocks, floats, go_on

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]
Reduction = Literal["mean", "sum"]
IGNORED = -100  # a target that has no loss, as in torch and transformers
_VALUES = 2**22  # of a block of the table, and of its logits: 32 MB each


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """logits = cap * tanh(after * (hidden * before @ table.T + bias) / cap); cap None: no tanh. bias float [V]."""

    before: float = 1.0
    after: float = 1.0
    cap: float | None = None
    bias: RowSource | None = None

    def logits(self, hidden: Floats, rows: Floats, index: Ids | slice) -> Floats:
        """[M, n], of the table's rows with that index; `hidden` is already multiplied by `before`."""
        found = hidden @ rows.T
        if self.bias is not None:
            found += np.asarray(self.bias[index]).astype(np.float64)
        found *= self.after
        return found if self.cap is None else np.multiply(np.tanh(found / self.cap), self.cap, out=found)

    def slope(self, logits: Floats) -> Floats | float:
        """d logit / d (hidden @ row)."""
        return self.after if self.cap is None else self.after * (1.0 - (logits / self.cap) ** 2)


@dataclass(frozen=True, slots=True, eq=False)
class OutputSide:
    """A loss and what its gradients are made of.

    Attributes:
        hidden_gradient: [M, d], the loss's gradient of `hidden`.
    """

    loss: float
    hidden_gradient: Floats
    _rule: Rule
    _table: RowSource
    _scaled: Floats
    _targets: Ids
    _share: Floats
    _log_sums: Floats

    def rows(self, ids: Ids) -> Floats:
        """Rows of the table's gradient, [n, d]: (dL/dlogits).T @ hidden. Dense: every row of the table has one."""
        logits = self._rule.logits(self._scaled, floats(self._table[ids], np.float64), ids)  # [M, n]
        surprise = np.exp(logits - self._log_sums[:, None]) - (self._targets[:, None] == ids)
        surprise *= self._rule.slope(logits)
        surprise *= self._share[:, None]
        return np.asarray(surprise.T @ self._scaled)


def output_side(
    table: RowSource,
    hidden: Floats,
    targets: Ids,
    reduction: Reduction = "mean",
    rule: Rule | None = None,
    check: Check = go_on,
) -> OutputSide:
    """The cross-entropy of targets under the softmax of the logits.

    Args:
        table: [V, d].
        hidden: [M, d], finite: what the rule is applied to, behind any dense layer and norm of the head.
        targets: int64 [M], ids, or -100 where there is no loss.
        reduction: mean: over the targets that are not -100. sum.

    Raises:
        BadQuery: there is no target at all.

    Source: dL/dlogit_j = p_j - [j = target]; torch.nn.functional.cross_entropy.
    """
    rule = rule or Rule()
    counted = targets != IGNORED
    if not counted.any():
        raise BadQuery(f"every target is {IGNORED}, so there is no loss: send one id at least")
    share = counted / (counted.sum() if reduction == "mean" else 1.0)
    scaled = hidden * rule.before
    log_sums, mean_row = _softmax(table, scaled, rule, check)
    safe = np.where(counted, targets, 0)
    chosen, own = _chosen(table, scaled, safe, rule)
    gradient = (mean_row - own) * (share * rule.before)[:, None]
    loss = float(((log_sums - chosen) * share).sum())
    return OutputSide(loss, gradient, rule, table, scaled, targets, share, log_sums)


def _softmax(table: RowSource, scaled: Floats, rule: Rule, check: Check) -> tuple[Floats, Floats]:
    """ln sum_j exp(logit_j), [M], and sum_j p_j slope_j row_j, [M, d], in one pass: sums are shrunk as a peak rises."""
    peak, total, mean_row = np.full(len(scaled), -np.inf), np.zeros(len(scaled)), np.zeros_like(scaled)
    values = max(1, min(_VALUES, _VALUES * table.shape[1] // len(scaled)))
    for start, rows in blocks(table, np.float64, check, values=values):
        logits = rule.logits(scaled, rows, slice(start, start + len(rows)))  # [M, n]
        slope = rule.slope(logits)
        higher = np.maximum(peak, logits.max(axis=1))
        np.exp(np.subtract(logits, higher[:, None], out=logits), out=logits)
        shrunk = np.exp(peak - higher)
        total = total * shrunk + logits.sum(axis=1)
        logits *= slope
        mean_row *= shrunk[:, None]
        mean_row += logits @ rows
        peak = higher
    return peak + np.log(total), mean_row / total[:, None]


def _chosen(table: RowSource, scaled: Floats, targets: Ids, rule: Rule) -> tuple[Floats, Floats]:
    """The logit of each target, [M], and its row times its slope, [M, d]."""
    rows = floats(table[targets], np.float64)
    bare = Rule(1.0, rule.after, rule.cap)
    found = np.einsum("ij,ij->i", scaled, rows)
    if rule.bias is not None:
        found += np.asarray(rule.bias[targets]).astype(np.float64)
    logits = bare.logits(found[:, None], np.ones((1, 1)), slice(0, 1))
    return logits[:, 0], rows * bare.slope(logits)
