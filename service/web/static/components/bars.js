// Numbers as bars beside their names: a list that reads well without the bars.
import { html } from "../lib/dom.js";

// Args: bars: [{label, value, title}], best first; most: the value of a whole bar, else the largest; digits behind the point;
// title: what the list is.
export function Bars({ bars, most, digits = 4, title, ordered = false }) {
  const whole = most ?? Math.max(...bars.map((bar) => Math.abs(bar.value)), 1e-30);
  const items = bars.map(
    (bar) => html`<li>
      <span class="bar-name" title=${bar.title ?? bar.label}>${bar.label}</span>
      <span class="bar-track" aria-hidden="true"><span class="bar" style=${{ width: `${Math.min(100, (100 * Math.abs(bar.value)) / whole)}%` }}></span></span>
      <span class="bar-value">${bar.value.toFixed(digits)}</span>
    </li>`,
  );
  return ordered ? html`<ol class="bars ranked" aria-label=${title}>${items}</ol>` : html`<ul class="bars" aria-label=${title}>${items}</ul>`;
}
