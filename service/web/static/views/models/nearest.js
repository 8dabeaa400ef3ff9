// The tokens whose vectors are nearest to a token or an analogy: POST /models/{name}/similar.
import { html, useDelayed, useState } from "../../lib/dom.js";
import { ErrorLine, useAnswer } from "../../components/result.js";
import { Snippets } from "../../components/snippets.js";

const words = (text) => text.split(/[\s,]+/).filter(Boolean).slice(0, 16);

const items = (tokens) => tokens.map((token) => ({ text: token }));

function grpcMessage(model, { positive, negative, top_k }) {
  return { model: model.name, positive: items(positive), negative: items(negative), top_k };
}

export function Nearest({ model }) {
  const [plus, setPlus] = useState("king woman");
  const [minus, setMinus] = useState("man");
  const delayed = useDelayed(`${plus}\n${minus}`, 300).split("\n");
  const body = { positive: words(delayed[0]), negative: words(delayed[1]), top_k: 8 };
  const request = body.positive.length ? { path: `/models/${encodeURIComponent(model.name)}/similar`, json: body } : null;
  const { answer, error } = useAnswer(request);
  return html`<section class="panel" aria-labelledby="nearest">
    <h3 id="nearest">Nearest tokens of its word table</h3>
    <div class="row">
      <label>Add <input value=${plus} onInput=${(event) => setPlus(event.target.value)} /></label>
      <label>Subtract <input value=${minus} onInput=${(event) => setMinus(event.target.value)} /></label>
    </div>
    <div class="nearest">
      ${error && html`<${ErrorLine} error=${error} />`}
      ${answer &&
      html`<table>
        <tr>
          <th>token</th>
          <th class="number">id</th>
          <th class="number">cosine</th>
        </tr>
        ${answer.body.results.map((result) => html`<tr>
          <td><code>${result.token ?? "?"}</code></td>
          <td class="number">${result.id}</td>
          <td class="number">${result.score.toFixed(4)}</td>
        </tr>`)}
      </table>`}
    </div>
    ${request && html`<${Snippets} label="The nearest tokens" request=${request} grpc=${{ service: "inlay.v1.Embedder", method: "Similar", message: grpcMessage(model, body) }} />`}
  </section>`;
}
