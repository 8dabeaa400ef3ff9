// The encodings that are compared: choose, name, colour, copy, remove, add.
import { html } from "../../lib/dom.js";
import { Swatch } from "./curve_chart.js";
import { COLORS, MOST, freeColor, nameOf } from "./encodings.js";

export function EncodingList({ view, setView, errors }) {
  const { e: encodings, i: chosen } = view;
  const edit = (change) => setView({ ...view, e: encodings.map((each, index) => (index === chosen ? { ...each, ...change } : each)) });
  const copy = () => {
    const added = { ...encodings[chosen], n: `${nameOf(encodings[chosen])}, copy`.slice(0, 80), c: freeColor(encodings) };
    setView({ ...view, e: [...encodings, added], i: encodings.length });
  };
  const add = () => {
    const added = { s: "rope", n: "", c: freeColor(encodings), p: { head_dim: 64, theta: 10000, length: 512 } };
    setView({ ...view, e: [...encodings, added], i: encodings.length });
  };
  const remove = () => setView({ ...view, e: encodings.filter((_, index) => index !== chosen), i: Math.max(0, chosen - 1) });
  const full = encodings.length >= MOST;
  return html`<fieldset class="encodings">
      <legend>Encodings <small>${encodings.length} of up to ${MOST}</small></legend>
      ${encodings.map(
        (each, index) => html`<label class=${`encoding${index === chosen ? " chosen" : ""}`}>
          <input type="radio" name="encoding" checked=${index === chosen} onChange=${() => setView({ ...view, i: index })} />
          <${Swatch} tone=${each.c} />
          <span>${nameOf(each)}${errors[index] && index !== chosen ? html` <span class="error">${errors[index].message}</span>` : ""}</span>
        </label>`,
      )}
    </fieldset>
    <div class="row">
      <button type="button" class="quiet" onClick=${add} disabled=${full}>Add</button>
      <button type="button" class="quiet" onClick=${copy} disabled=${full}>Copy</button>
      <button type="button" class="quiet" onClick=${remove} disabled=${encodings.length < 2}>Remove</button>
    </div>
    <div class="name-and-color">
      <label class="field">
        <span>Name</span>
        <input type="text" maxlength="80" autocomplete="off" value=${encodings[chosen].n} placeholder=${nameOf(encodings[chosen])} onInput=${(event) => edit({ n: event.target.value })} />
      </label>
      <label class="field">
        <span>Colour</span>
        <select value=${encodings[chosen].c} onChange=${(event) => edit({ c: Number(event.target.value) })}>
          ${COLORS.map((name, index) => html`<option value=${index + 1}>${name}</option>`)}
        </select>
      </label>
    </div>`;
}
