// A row of a collection: its picture, if it has one, and its text; pressed to be searched for, or pointed at.
import { html } from "../../lib/dom.js";
import { shortened } from "../../components/heatmap.js";
import { addressOf } from "./roles.js";

export function RowName({ collection: { texts, pictures }, index, most = Infinity }) {
  return html`${pictures && html`<img src=${addressOf(pictures[index])} alt="" loading="lazy" />`}${shortened(texts[index], most)}`;
}

export function RowLink({ collection, index, most, onPick, onOver = () => {}, ...given }) {
  return html`<button type="button" class="text-link" ...${given} onMouseEnter=${() => onOver(index)} onMouseLeave=${() => onOver(null)} onClick=${() => onPick(index)}><${RowName} ...${{ collection, index, most }} /></button>`;
}
