// Numbers as bars beside their names: a list that reads well without the bars.
import { html } from "../lib/dom.js";

// The scale of scores: 0 to 1 where none is larger, as of cosines and probabilities, else 0 to the largest. {most, says}
export function scaleOf(values, what = "score") {
  const largest = Math.max(0, ...values);
  const most = largest <= 1 ? 1 : largest;
  const negative = values.some((value) => value < 0) ? `; a negative ${what} has no bar` : "";
  return { most, says: `Bars: ${what} from 0 to ${most === 1 ? "1" : `${most.toPrecision(4)}, the largest`}${negative}.` };
}

// Args: bars: [{label, value, title}], best first; most: the value of a whole bar; a bar begins at 0, and a negative value has none;
// digits behind the point; title: what the list is.
export function Bars({ bars, most, digits = 4, title, ordered = false }) {
  const items = bars.map(
    (bar) => html`<li>
      <span class="bar-name" title=${bar.title ?? bar.label}>${bar.label}</span>
      <span class="bar-track" aria-hidden="true"><span class="bar" style=${{ width: `${100 * shareOf(bar.value, most)}%` }}></span></span>
      <span class="bar-value">${bar.value.toFixed(digits)}</span>
    </li>`,
  );
  return ordered ? html`<ol class="bars ranked" aria-label=${title}>${items}</ol>` : html`<ul class="bars" aria-label=${title}>${items}</ul>`;
}

// The part of a whole bar that a value fills, 0 to 1.
export function shareOf(value, most) {
  return Math.min(1, Math.max(0, value / most)) || 0;
}
