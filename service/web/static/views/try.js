// Try: texts in; tokens, vectors, similarity, ranking, sparse weights, late interaction and labels out, by what the model can do.
import { html, useRef, useState } from "../lib/dom.js";
import { ModelChoice, useModels } from "../components/model_choice.js";
import { ErrorLine, useAnswer } from "../components/result.js";
import { IdsBox, TextBox, USUAL, inputsOf } from "./try/box.js";
import { canRun, chosenModel } from "./try/inputs.js";
import { Labels } from "./try/labels.js";
import { Options, SENTENCE, abilitiesOf, outputOf } from "./try/options.js";
import { Rank, rankersOf } from "./try/rank.js";
import { Several } from "./try/several.js";
import { Similarity } from "./try/similarity.js";
import { Sparse } from "./try/sparse.js";
import { Tokens, tokenizeRequest } from "./try/tokens.js";
import { Vectors, embedRequest } from "./try/vectors.js";

export default function Try({ state, setState }) {
  const { models, error } = useModels();
  const [unfolded] = useState(matchMedia("(min-width: 60rem)").matches); // on a phone the answers come first
  const latest = useRef(state);
  latest.current = state;
  const change = (part) => {
    latest.current = { ...latest.current, ...part };
    setState(latest.current);
  };
  const runnable = models?.filter(canRun) ?? [];
  const model = chosenModel(runnable, state.model);
  const { inputs, problems } = inputsOf(model, state);
  return html`<div class="columns try">
    <div>
      ${model && !model.reads_text ? html`<${IdsBox} key=${model.name} ...${{ model, state, change, problems }} />` : html`<${TextBox} key="texts" ...${{ state, change }} />`}
      ${model &&
      html`<section class="panel" aria-labelledby="options-title">
        <h2 id="options-title">Model and options</h2>
        <${ModelChoice} models=${runnable} chosen=${model.name} onChoose=${(name) => change({ model: name })} />
        <p class="note">${aboutModel(model)}</p>
        <details open=${unfolded}>
          <summary>Options</summary>
          <${Options} model=${model} state=${state} change=${change} />
        </details>
      </section>`}
    </div>
    <div>
      ${error && html`<${ErrorLine} error=${error} />`}
      ${models === null && !error && html`<p class="note">Asking the server for its models…</p>`}
      ${models && !model && html`<p class="panel">No model of this server reads texts or token ids. See <a href="#/models">Models</a> for what it holds.</p>`}
      ${model && state.model && String(state.model) !== model.name && html`<p class="error" role="alert">This server has no model ${String(state.model)} that reads texts or token ids; ${model.name} is shown.</p>`}
      ${model && !inputs.length && html`<p class="panel">${model.reads_text ? "Type a text, or choose an example." : "Type token ids, or choose the example."}</p>`}
      ${model && inputs.length > 0 && html`<${Results} key=${model.name} ...${{ model, models, texts: inputs, state, change }} />`}
    </div>
  </div>`;
}

function aboutModel(model) {
  const able = abilitiesOf(model);
  const can = [
    able.sentence && `sentence vectors of ${model.sentence_width} dimensions`,
    !able.sentence && able.outputs.length && (model.reads_text ? "vectors of tokens" : `a vector of each token (${able.outputs.join(", ")})`),
    able.sparse && "sparse weights",
    able.several && "several vectors a text",
    able.text && able.labels && `${model.classifier.labels.length} labels`,
    able.text && able.ranks && "rankings",
  ];
  return `${model.family}: ${model.reads_text ? "" : "takes token ids; "}gives ${can.filter(Boolean).join(", ")}.`;
}

// texts: what is sent: texts, or lists of ids to a model without a tokenizer, which has no tokens to show, ranking and labels.
function Results({ model, models, texts, state, change }) {
  const able = abilitiesOf(model);
  const output = outputOf(model, state);
  const cutting = able.text ? tokenizeRequest(model, texts, state) : null;
  const tokens = useAnswer(cutting);
  const sentenceRequest = able.sentence ? embedRequest(model, texts, state, SENTENCE) : null;
  const sentence = useAnswer(sentenceRequest);
  const shared = { model, texts, state, change };
  return html`<div class="results">
    ${able.sentence && html`<${Similarity} ...${shared} sentence=${sentence} />`}
    ${able.text && able.labels && html`<${Labels} ...${shared} />`}
    ${able.text && rankersOf(models).length > 0 && html`<${Rank} ...${shared} models=${models} usual=${USUAL.query} />`}
    ${able.text && html`<${Tokens} model=${model} state=${state} change=${change} request=${cutting} result=${tokens} />`}
    ${able.sparse && html`<${Sparse} ...${shared} />`}
    ${output && html`<${Vectors} ...${shared} output=${output} sentence=${sentence} sentenceRequest=${sentenceRequest} tokens=${tokens.answer} />`}
    ${able.text && able.several && html`<${Several} ...${shared} usual=${USUAL.query} />`}
  </div>`;
}
