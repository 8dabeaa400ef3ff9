// The tokens whose vectors are nearest to a token or an analogy: POST /models/{name}/similar. A model without a tokenizer takes ids.
import { html, useDelayed, useState } from "../../lib/dom.js";
import { ErrorLine, useAnswer } from "../../components/result.js";
import { Snippets } from "../../components/snippets.js";
import { exampleIds, idsAllowed } from "../try/inputs.js";

const MOST = 16; // tokens of a field
const typed = new Map(); // model -> [added, subtracted], kept while the page is open

const words = (text) => text.split(/[\s,]+/).filter(Boolean).slice(0, MOST);

function isId(word, model) {
  return /^\d{1,15}$/.test(word) && (!model.vocab_size || Number(word) < model.vocab_size);
}

// {items, wrong}: what a field holds as the request takes it, and the first word that is not an id where ids are needed.
function itemsOf(text, model) {
  const found = words(text);
  if (model.reads_text) return { items: found };
  return { items: found.filter((word) => isId(word, model)).map(Number), wrong: found.find((word) => !isId(word, model)) };
}

function grpcMessage(model, { positive, negative, top_k }) {
  const items = (list) => list.map((each) => (typeof each === "number" ? { id: each } : { text: each }));
  return { model: model.name, positive: items(positive), negative: items(negative), top_k };
}

export function Nearest({ model }) {
  const [first, second] = typed.get(model.name) ?? (model.reads_text ? ["king woman", "man"] : [String(exampleIds(model)[0][1]), ""]);
  const [plus, setPlus] = useState(first);
  const [minus, setMinus] = useState(second);
  typed.set(model.name, [plus, minus]);
  const delayed = useDelayed(`${plus}\n${minus}`, 300).split("\n");
  const [added, taken] = delayed.map((text) => itemsOf(text, model));
  const wrong = added.wrong ?? taken.wrong;
  const body = { positive: added.items, negative: taken.items, top_k: 8 };
  const request = body.positive.length && wrong === undefined ? { path: `/models/${encodeURIComponent(model.name)}/similar`, json: body } : null;
  const { answer, error } = useAnswer(request);
  return html`<section class="panel" aria-labelledby="nearest">
    <h3 id="nearest">Nearest tokens of its word table</h3>
    ${!model.reads_text && html`<p class="note">Token ids with spaces or commas between: ${model.name} has no tokenizer here. ${idsAllowed(model)}</p>`}
    <div class="row">
      <label>Add <input value=${plus} onInput=${(event) => setPlus(event.target.value)} /></label>
      <label>Subtract <input value=${minus} onInput=${(event) => setMinus(event.target.value)} /></label>
    </div>
    <div class="nearest">
      ${wrong !== undefined && html`<p class="error" role="alert">Not sent: “${wrong.slice(0, 30)}” is not a token id. ${idsAllowed(model)}</p>`}
      ${error && html`<${ErrorLine} error=${error} />`}
      ${answer &&
      html`<table>
        <tr>
          ${model.reads_text && html`<th>token</th>`}
          <th class="number">id</th>
          <th class="number">cosine</th>
        </tr>
        ${answer.body.results.map((result) => html`<tr>
          ${model.reads_text && html`<td><code>${result.token ?? "?"}</code></td>`}
          <td class="number">${result.id}</td>
          <td class="number">${result.score.toFixed(4)}</td>
        </tr>`)}
      </table>`}
    </div>
    ${request && html`<${Snippets} label="The nearest tokens" request=${request} grpc=${{ service: "inlay.v1.Embedder", method: "Similar", message: grpcMessage(model, body) }} />`}
  </section>`;
}
