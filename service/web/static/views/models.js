// The models of this server: cards, a comparison, and one model in detail.
import { html, useState } from "../lib/dom.js";
import { writeLink } from "../lib/link.js";
import { isRandom, useModels, usualModel } from "../components/model_choice.js";
import { ErrorLine } from "../components/result.js";
import { Snippets } from "../components/snippets.js";
import { Detail } from "./models/detail.js";
import { canRun } from "./try/inputs.js";
import { bytes, count, flops, flopsOfText, held } from "./models/units.js";

const LENGTHS = [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192];

export default function Models({ state, setState }) {
  const { models, error } = useModels();
  const tokens = LENGTHS.includes(state.tokens) ? state.tokens : 128;
  if (error && !models) return html`<${ErrorLine} error=${error} />`;
  if (!models) return html`<p class="note" role="status">Asking for the models.</p>`;
  if (!models.length)
    return html`<p role="status">This server holds no model. Export one into its store: <code>inlay export CHECKPOINT</code>.</p>`;
  const chosen = models.find((model) => model.name === String(state.model)) ?? usualModel(models);
  const choose = (name) => setState({ ...state, model: name });
  return html`
    ${error && html`<${ErrorLine} error=${error} />`}
    ${state.model && chosen.name !== String(state.model) && html`<p class="error" role="alert">There is no model ${String(state.model)} here; ${chosen.name} is shown.</p>`}
    <${Length} tokens=${tokens} onChange=${(each) => setState({ ...state, tokens: each })} />
    <div class="cards">
      ${models.map((model) => html`<${Card} key=${model.name} model=${model} tokens=${tokens} chosen=${model === chosen} onChoose=${() => choose(model.name)} />`)}
    </div>
    ${models.length > 1 && html`<${Comparison} models=${models} tokens=${tokens} />`}
    <${Detail} key=${chosen.name} model=${chosen} tokens=${tokens} />
    <${Snippets}
      label="GET /models"
      request=${{ path: "/models" }}
      openai=${"for model in client.models.list():\n    print(model.id)"}
      grpc=${{ service: "inlay.v1.Embedder", method: "ListModels", message: {} }}
    />
  `;
}

function Length({ tokens, onChange }) {
  return html`<label class="field">
    <span>Tokens of a text, for the estimates: ${count(tokens)}</span>
    <input
      type="range"
      min="0"
      max=${LENGTHS.length - 1}
      step="1"
      value=${LENGTHS.indexOf(tokens)}
      aria-valuetext=${`${tokens} tokens`}
      onInput=${(event) => onChange(LENGTHS[Number(event.target.value)])}
    />
  </label>`;
}

function Card({ model, tokens, chosen, onChoose }) {
  const facts = [
    ["family", `${model.family}${model.adopted ? ", adopted ONNX" : ""}`],
    ["gives", model.default_output.replaceAll("_", " ")],
    ["width", `${count(model.default_width)}${model.hidden_size !== model.default_width ? ` (hidden ${count(model.hidden_size)})` : ""}`],
    ["longest input", `${count(model.max_tokens)} tokens`],
    ["parameters", `${count(model.parameters)}, ${model.dtype}${model.quantized ? `, ${model.quantized} table` : ""}`],
    ["runs in", `${model.engine}, ${model.precision}, on ${model.device}`],
    ["files", held(model.memory)],
    ["reads", model.reads_text ? "texts and token ids" : canRun(model) ? "token ids: it has no tokenizer here" : "images"],
    [`computation for a text of ${count(tokens)} ${tokens === 1 ? "token" : "tokens"}`, flops(flopsOfText(model, tokens))],
  ];
  return html`<section class="panel" aria-label=${model.name}>
    <h2>${model.name} ${model.default && html`<small class="note">default</small>`}</h2>
    ${isRandom(model) && html`<p class="note warn">Its weights are random, made by <code>inlay create</code>: what it answers means nothing.</p>`}
    <dl class="facts">${facts.map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl>
    <p class="row">
      <button type="button" class=${chosen ? "" : "quiet"} aria-pressed=${chosen} onClick=${onChoose}>${chosen ? "Shown below" : "Show details"}</button>
      ${canRun(model) && html`<a href=${writeLink({ view: "try", state: { model: model.name } })}>Try it</a>`}
    </p>
  </section>`;
}

const COMPARED = [
  ["family", (model) => model.family],
  ["width", (model) => count(model.default_width), true],
  ["tokens", (model) => count(model.max_tokens), true],
  ["vocabulary", (model) => count(model.vocab_size), true],
  ["parameters", (model) => count(model.parameters), true],
  ["weights", (model) => bytes(model.bytes), true],
  ["in RAM", (model) => bytes(model.memory?.resident), true],
  ["computation a text", (model, tokens) => flops(flopsOfText(model, tokens)), true],
  ["pooling", (model) => model.pooling?.mode ?? "none"],
  ["engine", (model) => `${model.engine}, ${model.precision}`],
];

function Comparison({ models, tokens }) {
  const [opened, setOpened] = useState(false);
  return html`<details open=${opened} onToggle=${(event) => setOpened(event.target.open)}>
    <summary>All models in one table</summary>
    <div class="scroll" tabindex="0" role="region" aria-label="Comparison of the models">
      <table>
        <tr>
          <th>model</th>
          ${COMPARED.map(([name, , numeric]) => html`<th class=${numeric ? "number" : ""}>${name}</th>`)}
        </tr>
        ${models.map((model) => html`<tr>
          <th>${model.name}</th>
          ${COMPARED.map(([, value, numeric]) => html`<td class=${numeric ? "number" : ""}>${value(model, tokens)}</td>`)}
        </tr>`)}
      </table>
    </div>
  </details>`;
}
