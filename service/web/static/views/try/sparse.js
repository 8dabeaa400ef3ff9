// Sparse vectors: the words of the vocabulary that a text has weights for.
import { html } from "../../lib/dom.js";
import { Bars } from "../../components/bars.js";
import { barsSvg, pictureFiles } from "../../components/picture.js";
import { Downloads, csvBlob } from "../../components/downloads.js";
import { Snippets } from "../../components/snippets.js";
import { useAnswer } from "../../components/result.js";
import { Cost, Panel } from "./panel.js";
import { lineOf } from "./inputs.js";
import { NumberField, fieldsOf, grpcOf } from "./options.js";

const SPARSE = "sparse_embedding";
const SHOWN = 12; // weights of a text; CSV has all

export function Sparse({ model, texts, state, change }) {
  const { dtype, ...fields } = fieldsOf(model, state, SPARSE); // weights are drawn as float32
  if (Number.isInteger(state.weights) && state.weights > 0) fields.max_active_dims = state.weights;
  const request = { path: "/embed", json: { model: model.name, inputs: texts, outputs: [SPARSE], ...fields } };
  const result = useAnswer(request);
  const { answer } = result;
  const vectors = answer?.body.outputs?.[SPARSE]?.map(sorted) ?? [];
  const ids = [...new Set(vectors.flatMap((vector) => vector.slice(0, SHOWN).map(([id]) => id)))];
  const named = useAnswer(ids.length && model.reads_text ? { path: "/decode", json: { model: model.name, ids: ids.map((id) => [id]), skip_special_tokens: false } } : null);
  const words = new Map(named.answer?.request.json.ids.map(([id], index) => [id, named.answer.body[index]]));
  const groups = vectors.map((vector, index) => ({
    name: `${index + 1}. ${lineOf(answer.request.json.inputs[index])}`,
    bars: vector.slice(0, SHOWN).map(([id, value]) => ({ label: words.get(id) || `id ${id}`, title: `id ${id}`, value })),
    count: vector.length,
  }));
  const most = Math.max(1e-30, ...vectors.map((vector) => vector[0]?.[1] ?? 0));
  const foot = html`<${Cost} answer=${answer} />
    ${answer &&
    html`<${Downloads} name="sparse" files=${{
      ...pictureFiles(() => barsSvg({ groups, title: `Sparse weights by ${model.name}`, most })),
      csv: () => csvBlob([["text", "id", "token", "weight"], ...vectors.flatMap((vector, text) => vector.map(([id, value]) => [text + 1, id, words.get(id) ?? "", value]))]),
    }} />`}
    <${Snippets} label="Sparse vectors" request=${request} grpc=${grpcOf(model, texts, fields, SPARSE)} />`;
  return html`<${Panel} id="sparse" title="Sparse weights" result=${result} height=${30} wide foot=${foot}>
    <${NumberField} label="Weights kept of each text (max_active_dims)" value=${state.weights} most=${model.vocab_size} placeholder="all" onChoose=${(weights) => change({ weights })} />
    <p class="note">${vectors.length ? `Bars: weight from 0 to ${most.toPrecision(4)}, the largest of all texts.` : "\u00a0"}</p>
    <div class="scroll groups" tabindex="0" role="group" aria-label="Sparse weights of each text">
      ${groups.map(({ name, bars, count }) => html`<div>
        <h3>${name}</h3>
        <p class="note">${count} of ${model.vocab_size} weights are not 0${count > SHOWN ? `; the ${SHOWN} largest` : ""}</p>
        <${Bars} bars=${bars} most=${most} title=${`Largest weights of text ${name}`} />
      </div>`)}
    </div>
  <//>`;
}

// [[id, weight]], the largest first.
function sorted({ indices, values }) {
  return indices.map((id, index) => [id, values[index]]).sort((a, b) => b[1] - a[1]);
}
