// Where the texts come from: a file, what is pasted, or the sample; and how far they are embedded.
import { html, useState } from "../../lib/dom.js";
import { ErrorLine } from "../../components/result.js";
import { embedAll, forget, pause, resume } from "./collection.js";
import { MOST_TEXTS, likelyColumn, tableOf, textsOf } from "./files.js";
import { SAMPLE } from "./sample.js";
import { count } from "../models/units.js";

export function Source({ collection, model }) {
  const [table, setTable] = useState(null); // {name, columns, rows, column}: read, not yet embedded
  const [problem, setProblem] = useState("");
  const [pasted, setPasted] = useState("");
  const [over, setOver] = useState(false);
  const take = (text, name) => {
    setProblem("");
    setTable(null);
    try {
      const read = tableOf(text, name);
      const column = likelyColumn(read);
      if (!textsOf(read, column).texts.length) throw new Error("it holds no texts");
      if (read.columns.length === 1) embedAll({ name, ...textsOf(read, column) }, model);
      else setTable({ ...read, name, column });
    } catch (error) {
      setProblem(`${name} is not taken: ${error.message}.`);
    }
  };
  const takeFile = async (file) => file && take(await file.text(), file.name);
  const drop = (event) => {
    event.preventDefault();
    setOver(false);
    takeFile(event.dataTransfer.files[0]);
  };
  return html`<section class=${over ? "panel drop over" : "panel drop"} aria-labelledby="source-title" onDragOver=${(event) => (event.preventDefault(), setOver(true))} onDragLeave=${() => setOver(false)} onDrop=${drop}>
    <h2 id="source-title">Texts</h2>
    ${collection && html`<${State} collection=${collection} />`}
    <label class="field">
      <span>Your own: .txt, .csv, .tsv or .jsonl</span>
      <input type="file" accept=".txt,.md,.csv,.tsv,.jsonl,.ndjson,text/plain" onChange=${(event) => takeFile(event.target.files[0])} />
      <span class="note">Or drop a file here; up to ${count(MOST_TEXTS)} texts.</span>
    </label>
    ${problem && html`<p class="error" role="alert">${problem}</p>`}
    ${table &&
    html`<div class="row">
      <label>Column of the texts ${" "}<select value=${table.column} onChange=${(event) => setTable({ ...table, column: Number(event.target.value) })}>
        ${table.columns.map((name, index) => html`<option value=${index} selected=${index === table.column}>${name}</option>`)}
      </select></label>
      <button type="button" onClick=${() => (embedAll({ name: table.name, ...textsOf(table, table.column) }, model), setTable(null))}>Embed ${count(table.rows.length)} rows</button>
    </div>`}
    <details>
      <summary>Paste lines</summary>
      <label class="field"><span class="hidden">Texts, one a line</span>
        <textarea rows="5" spellcheck="false" value=${pasted} onInput=${(event) => setPasted(event.target.value)}></textarea>
      </label>
      <button type="button" disabled=${!pasted.trim()} onClick=${() => take(pasted, "Pasted lines")}>Embed these lines</button>
    </details>
    <div class="row">
      <button type="button" class="quiet" onClick=${() => embedAll(SAMPLE, model)}>Use the sample</button>
      ${collection && html`<button type="button" class="quiet" onClick=${forget}>Forget these texts</button>`}
    </div>
    <p class="note">Texts and vectors stay in this browser, and the server keeps none.</p>
  </section>`;
}

function State({ collection: { name, texts, model, done, running, error, milliseconds } }) {
  const whole = done === texts.length;
  const left = done ? ((texts.length - done) * milliseconds) / done / 1000 : null;
  return html`
    <p class="row between"><strong class="cut-name">${name}</strong> <span class="note">${count(done)} of ${count(texts.length)} by ${model}</span></p>
    ${!whole &&
    html`<div class="row">
      <progress max=${texts.length} value=${done} aria-label="Texts embedded"></progress>
      <button type="button" class="quiet" onClick=${running ? pause : resume}>${running ? "Pause" : "Go on"}</button>
      <span class="note">${running && left !== null ? `about ${Math.max(1, Math.round(left))} s left` : running ? "" : "paused"}</span>
    </div>`}
    ${error && html`<${ErrorLine} error=${error} />`}
  `;
}
