import { html } from "../lib/dom.js";
export default function Now() {
  return html`<p>…</p>`;
}
