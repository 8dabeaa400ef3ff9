"""The output side of a tied embedding table: softmax cross-entropy of its logits, and gradients, in float64.

The vocabulary is read block by block: neither the logits [M, V] nor the gradient [V, d] is held in memory.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from models.errors import BadQuery
from models.tables.quantization import RowSource
from models.tables.row_blocks import Check, blocks, floats, never_cancel

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]
Reduction = Literal["mean", "sum"]
IGNORED = -100  # a target without loss, as in torch and transformers
BLOCK_VALUES = 2**22  # values of a block of the table, and of its logits: 32 MB each


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """How logits are computed: cap * tanh(after * (hidden * before @ table.T + bias) / cap).

    Attributes:
        before: factor of the hidden states.
        after: factor of the products.
        cap: soft cap; None: no tanh.
        bias: float [V]; None: none.
    """

    before: float = 1.0
    after: float = 1.0
    cap: float | None = None
    bias: RowSource | None = None

    def logits(self, hidden: Floats, rows: Floats, index: Ids | slice) -> Floats:
        """Return the logits [M, n] of the table's rows with that index; `hidden` already includes `before`."""
        logits = hidden @ rows.T
        if self.bias is not None:
            logits += np.asarray(self.bias[index]).astype(np.float64)
        logits *= self.after
        return logits if self.cap is None else np.multiply(np.tanh(logits / self.cap), self.cap, out=logits)

    def slope(self, logits: Floats) -> Floats | float:
        """Return d logit / d (hidden @ row)."""
        return self.after if self.cap is None else self.after * (1.0 - (logits / self.cap) ** 2)


@dataclass(frozen=True, slots=True, eq=False)
class OutputSide:
    """A loss and its gradients.

    Attributes:
        loss: the cross-entropy.
        hidden_gradient: [M, d], the gradient of the loss with respect to `hidden`.
    """

    loss: float
    hidden_gradient: Floats
    _rule: Rule
    _table: RowSource
    _scaled: Floats
    _targets: Ids
    _target_weights: Floats
    _log_sums: Floats

    def rows(self, ids: Ids) -> Floats:
        """Return rows of the table's gradient, [n, d]: (dL/dlogits).T @ hidden. Every row of the table has one."""
        logits = self._rule.logits(self._scaled, floats(self._table[ids], np.float64), ids)  # [M, n]
        logit_gradient = np.exp(logits - self._log_sums[:, None]) - (self._targets[:, None] == ids)
        logit_gradient *= self._rule.slope(logits)
        logit_gradient *= self._target_weights[:, None]
        return np.asarray(logit_gradient.T @ self._scaled)


def output_side(
    table: RowSource,
    hidden: Floats,
    targets: Ids,
    reduction: Reduction = "mean",
    rule: Rule | None = None,
    check: Check = never_cancel,
) -> OutputSide:
    """Return the cross-entropy of targets under the softmax of the logits.

    Args:
        table: [V, d].
        hidden: [M, d], finite: the input of the rule, after any dense layer and norm of the head.
        targets: int64 [M], ids, or -100 where there is no loss.
        reduction: mean: over the targets that are not -100. sum.
        rule: how logits are computed; None: the plain product.
        check: called between blocks; it raises to cancel.

    Raises:
        BadQuery: every target is -100.

    Source: dL/dlogit_j = p_j - [j = target]; torch.nn.functional.cross_entropy.
    """
    rule = rule or Rule()
    counted = targets != IGNORED
    if not counted.any():
        raise BadQuery(f"every target is {IGNORED}, so there is no loss: send one id at least")
    target_weights = counted / (counted.sum() if reduction == "mean" else 1.0)
    scaled = hidden * rule.before
    log_sums, mean_row = _softmax(table, scaled, rule, check)
    safe_targets = np.where(counted, targets, 0)
    target_logits, target_rows = _target_logits(table, scaled, safe_targets, rule)
    gradient = (mean_row - target_rows) * (target_weights * rule.before)[:, None]
    loss = float(((log_sums - target_logits) * target_weights).sum())
    return OutputSide(loss, gradient, rule, table, scaled, targets, target_weights, log_sums)


def _softmax(table: RowSource, scaled: Floats, rule: Rule, check: Check) -> tuple[Floats, Floats]:
    """Return ln sum_j exp(logit_j), [M], and sum_j p_j slope_j row_j, [M, d], in one pass.

    Sums are rescaled to each new peak.
    """
    peak, total, mean_row = np.full(len(scaled), -np.inf), np.zeros(len(scaled)), np.zeros_like(scaled)
    values = max(1, min(BLOCK_VALUES, BLOCK_VALUES * table.shape[1] // len(scaled)))
    for start, rows in blocks(table, np.float64, check, values=values):
        logits = rule.logits(scaled, rows, slice(start, start + len(rows)))  # [M, n]
        slope = rule.slope(logits)
        new_peak = np.maximum(peak, logits.max(axis=1))
        np.exp(np.subtract(logits, new_peak[:, None], out=logits), out=logits)
        rescale = np.exp(peak - new_peak)
        total = total * rescale + logits.sum(axis=1)
        logits *= slope
        mean_row *= rescale[:, None]
        mean_row += logits @ rows
        peak = new_peak
    return peak + np.log(total), mean_row / total[:, None]


def _target_logits(table: RowSource, scaled: Floats, targets: Ids, rule: Rule) -> tuple[Floats, Floats]:
    """Return the logit of each target, [M], and its row times its slope, [M, d]."""
    rows = floats(table[targets], np.float64)
    without_bias = Rule(1.0, rule.after, rule.cap)
    logits = np.einsum("ij,ij->i", scaled, rows)
    if rule.bias is not None:
        logits += np.asarray(rule.bias[targets]).astype(np.float64)
    logits = without_bias.logits(logits[:, None], np.ones((1, 1)), slice(0, 1))
    return logits[:, 0], rows * without_bias.slope(logits)
