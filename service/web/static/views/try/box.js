// The box that texts are typed into, or token ids for a model without a tokenizer; what it holds is in the link.
import { html } from "../../lib/dom.js";
import { CopyButton } from "../../components/copy_button.js";
import { EXAMPLES, MOST_CHARACTERS, MOST_TEXTS, linesOf } from "./examples.js";
import { exampleIds, idsAllowed, lineOf, readIds } from "./inputs.js";
import { useDraft } from "./panel.js";
import { EMPTY_QUERY } from "./rank.js";

export const USUAL = EXAMPLES.topics;
const EMPTY = "\n"; // in the link: a box that somebody emptied

// What the box holds by the link: `usual` where the link says nothing.
function writtenOf(value, usual) {
  if (value === undefined) return usual;
  if (value === EMPTY) return "";
  return Array.isArray(value) ? value.map(lineOf).join("\n") : String(value);
}

const usualTexts = USUAL.texts.join("\n");
const usualIds = (model) => exampleIds(model).map(lineOf).join("\n");

// {inputs, problems}: what is sent, at most MOST_TEXTS texts or lists of ids, and why lines are not.
export function inputsOf(model, state) {
  if (!model || model.reads_text) return { inputs: linesOf(writtenOf(state.texts, usualTexts)).slice(0, MOST_TEXTS), problems: [] };
  const { inputs, problems } = readIds(writtenOf(state.token_ids, usualIds(model)), model);
  return { inputs: inputs.slice(0, MOST_TEXTS), problems };
}

const NOTE = "The link of this page holds them, in its part after #, which browsers do not send to the server.";

export function TextBox({ state, change }) {
  const written = writtenOf(state.texts, usualTexts);
  const [draft, setDraft] = useDraft(written, (text) => change({ texts: text === usualTexts ? undefined : text || EMPTY }));
  const load = (event) => {
    const example = EXAMPLES[event.target.value];
    event.target.value = ""; // so that the same one can be chosen again
    if (!example) return;
    setDraft(example.texts.join("\n"));
    change({ texts: example === USUAL ? undefined : example.texts.join("\n"), query: example === USUAL ? undefined : example.query, text: undefined });
  };
  const clear = () => {
    setDraft("");
    change({ texts: EMPTY, query: EMPTY_QUERY, text: undefined });
  };
  const typed = linesOf(draft).length;
  return html`<section class="panel" aria-labelledby="texts-title">
    <h2 id="texts-title">Texts</h2>
    <label class="field">
      <span>One a line, up to ${MOST_TEXTS}</span>
      <textarea rows="9" maxlength=${MOST_CHARACTERS} spellcheck="false" value=${draft} onInput=${(event) => setDraft(event.target.value)} aria-describedby="texts-count"></textarea>
    </label>
    <p class="note" id="texts-count">${typed} ${typed === 1 ? "text" : "texts"}${typed > MOST_TEXTS ? `: the first ${MOST_TEXTS} are sent` : ""}. ${NOTE}</p>
    <label class="field"><span>Example</span>
      <select onChange=${load}>
        <option value="">choose…</option>
        ${Object.entries(EXAMPLES).map(([name, example]) => html`<option value=${name}>${example.title}</option>`)}
      </select>
    </label>
    <div class="row">
      <button type="button" class="quiet" onClick=${clear}>Clear</button>
      <${CopyButton} text=${() => location.href} label="Copy link" />
    </div>
  </section>`;
}

export function IdsBox({ model, state, change, problems }) {
  const usual = usualIds(model);
  const [draft, setDraft] = useDraft(writtenOf(state.token_ids, usual), (text) => change({ token_ids: text === usual ? undefined : text || EMPTY }));
  const set = (text, value) => {
    setDraft(text);
    change({ token_ids: value, text: undefined });
  };
  const typed = linesOf(draft).length;
  return html`<section class="panel" aria-labelledby="texts-title">
    <h2 id="texts-title">Token ids</h2>
    <p class="note">${model.name} has no tokenizer here, so it takes token ids in place of texts.</p>
    <label class="field">
      <span>Ids with spaces or commas between, one sequence a line, up to ${MOST_TEXTS}</span>
      <textarea class="code" rows="9" maxlength=${MOST_CHARACTERS} spellcheck="false" inputmode="numeric" value=${draft} aria-invalid=${problems.length > 0}
        onInput=${(event) => setDraft(event.target.value)} aria-describedby="texts-count"></textarea>
    </label>
    ${problems.slice(0, 3).map((problem) => html`<p class="error" role="alert">${problem}</p>`)}
    <p class="note" id="texts-count">
      ${typed} ${typed === 1 ? "sequence" : "sequences"}${typed > MOST_TEXTS ? `: the first ${MOST_TEXTS} are sent` : ""}. ${problems.length ? "" : idsAllowed(model)} ${NOTE}
    </p>
    <div class="row">
      <button type="button" class="quiet" onClick=${() => set(usual, undefined)}>Example</button>
      <button type="button" class="quiet" onClick=${() => set("", EMPTY)}>Clear</button>
      <${CopyButton} text=${() => location.href} label="Copy link" />
    </div>
  </section>`;
}
