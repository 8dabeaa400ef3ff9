// Try: texts in; tokens, vectors, similarity, ranking, sparse weights, late interaction and labels out, by what the model can do.
import { html, useRef, useState } from "../lib/dom.js";
import { CopyButton } from "../components/copy_button.js";
import { ModelChoice, useModels, usualModel } from "../components/model_choice.js";
import { ErrorLine, useAnswer } from "../components/result.js";
import { EXAMPLES, MOST_CHARACTERS, MOST_TEXTS, linesOf } from "./try/examples.js";
import { Labels } from "./try/labels.js";
import { Options, SENTENCE, abilitiesOf, outputOf } from "./try/options.js";
import { useDraft } from "./try/panel.js";
import { Rank, rankersOf } from "./try/rank.js";
import { Several } from "./try/several.js";
import { Similarity } from "./try/similarity.js";
import { Sparse } from "./try/sparse.js";
import { Tokens, tokenizeRequest } from "./try/tokens.js";
import { Vectors, embedRequest } from "./try/vectors.js";

const USUAL = EXAMPLES.topics;
const EMPTY = "\n"; // in the link: a box that somebody emptied

function textsOf({ texts }) {
  if (texts === undefined || texts === EMPTY) return texts && "";
  return Array.isArray(texts) ? texts.join("\n") : String(texts);
}

export default function Try({ state, setState }) {
  const { models, error } = useModels();
  const [unfolded] = useState(matchMedia("(min-width: 60rem)").matches); // on a phone the answers come first
  const latest = useRef(state);
  latest.current = state;
  const change = (part) => {
    latest.current = { ...latest.current, ...part };
    setState(latest.current);
  };
  const usual = USUAL.texts.join("\n");
  const written = textsOf(state) ?? usual;
  const [draft, setDraft] = useDraft(written, (text) => change({ texts: text === usual ? undefined : text || EMPTY }));
  const all = linesOf(written);
  const texts = all.slice(0, MOST_TEXTS);
  const readers = models?.filter((model) => model.reads_text) ?? [];
  const model = readers.find((each) => each.name === String(state.model)) ?? (readers.length ? usualModel(readers) : undefined);
  const typed = linesOf(draft).length;
  const load = (name) => {
    const example = EXAMPLES[name];
    setDraft(example.texts.join("\n"));
    change({ texts: example === USUAL ? undefined : example.texts.join("\n"), query: example === USUAL ? undefined : example.query, text: undefined });
  };
  return html`<div class="columns try">
    <div>
      <section class="panel" aria-labelledby="texts-title">
        <h2 id="texts-title">Texts</h2>
        <label class="field">
          <span>One a line, up to ${MOST_TEXTS}</span>
          <textarea rows="9" maxlength=${MOST_CHARACTERS} spellcheck="false" value=${draft} onInput=${(event) => setDraft(event.target.value)} aria-describedby="texts-count"></textarea>
        </label>
        <p class="note" id="texts-count">
          ${typed} ${typed === 1 ? "text" : "texts"}${typed > MOST_TEXTS ? `: the first ${MOST_TEXTS} are sent` : ""}. The link of this page holds them, in the part behind # that browsers keep to themselves.
        </p>
        <div class="row">
          <label>Example <select onChange=${(event) => event.target.value && load(event.target.value)}>
            <option value="">choose…</option>
            ${Object.entries(EXAMPLES).map(([name, example]) => html`<option value=${name}>${example.title}</option>`)}
          </select></label>
          <button type="button" class="quiet" onClick=${() => setDraft("")}>Clear</button>
          <${CopyButton} text=${location.href} label="Copy link" />
        </div>
      </section>
      ${model &&
      html`<section class="panel" aria-labelledby="options-title">
        <h2 id="options-title">Model and options</h2>
        <${ModelChoice} models=${readers} chosen=${model.name} onChoose=${(name) => change({ model: name })} />
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
      ${models && !model && html`<p class="panel">No model of this server reads text. See <a href="#/models">Models</a> for what it holds.</p>`}
      ${model && state.model && String(state.model) !== model.name && html`<p class="error" role="alert">This server has no model ${String(state.model)} that reads text; ${model.name} is shown.</p>`}
      ${model && !texts.length && html`<p class="panel">Type a text, or choose an example.</p>`}
      ${model && texts.length > 0 && html`<${Results} key=${model.name} ...${{ model, models, texts, state, change }} />`}
    </div>
  </div>`;
}

function aboutModel(model) {
  const able = abilitiesOf(model);
  const can = [
    able.sentence && `sentence vectors of ${model.sentence_width} dimensions`,
    !able.sentence && able.outputs.length && "vectors of tokens",
    able.sparse && "sparse weights",
    able.several && "several vectors a text",
    able.labels && `${model.classifier.labels.length} labels`,
    able.ranks && "rankings",
  ];
  return `${model.family}: gives ${can.filter(Boolean).join(", ")}.`;
}

function Results({ model, models, texts, state, change }) {
  const able = abilitiesOf(model);
  const output = outputOf(model, state);
  const cutting = tokenizeRequest(model, texts, state);
  const tokens = useAnswer(cutting);
  const sentenceRequest = able.sentence ? embedRequest(model, texts, state, SENTENCE) : null;
  const sentence = useAnswer(sentenceRequest);
  const shared = { model, texts, state, change };
  return html`<div class="results">
    ${able.sentence && html`<${Similarity} ...${shared} sentence=${sentence} />`}
    ${able.labels && html`<${Labels} ...${shared} />`}
    ${rankersOf(models).length > 0 && html`<${Rank} ...${shared} models=${models} usual=${USUAL.query} />`}
    <${Tokens} model=${model} state=${state} change=${change} request=${cutting} result=${tokens} />
    ${able.sparse && html`<${Sparse} ...${shared} />`}
    ${output && html`<${Vectors} ...${shared} output=${output} sentence=${sentence} sentenceRequest=${sentenceRequest} tokens=${tokens.answer} />`}
    ${able.several && html`<${Several} ...${shared} usual=${USUAL.query} />`}
  </div>`;
}
