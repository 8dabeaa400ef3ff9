// A select. Args: value: of the chosen option; options: [[value, text, whether it is disabled]]; onChoose(value): called with a string.
import { html } from "../lib/dom.js";

export function Choice({ value, options, onChoose }) {
  return html`<select value=${value} onChange=${(event) => onChoose(event.target.value)}>
    ${options.map(([each, text, disabled]) => html`<option value=${each} selected=${String(each) === String(value)} disabled=${disabled}>${text}</option>`)}
  </select>`;
}

// Options that are called what they are worth.
export const named = (names) => names.map((name) => [name, name]);
