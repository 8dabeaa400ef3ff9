// Search: texts of one's own or a sample, embedded into this page; what is nearest to a query while it is typed, and a map of all.
import { html, useEffect, useMemo, useRef, useState } from "../lib/dom.js";
import { ModelChoice, isRandom, useModels, usualModel } from "../components/model_choice.js";
import { ErrorLine, useAnswer } from "../components/result.js";
import { Snippets } from "../components/snippets.js";
import { embedAll, nearest, restore, useCollection } from "./search/collection.js";
import { TextMap, usePlane } from "./search/map.js";
import { Results, orderOf } from "./search/results.js";
import { SAMPLE } from "./search/sample.js";
import { Source } from "./search/source.js";
import { abilitiesOf } from "./try/options.js";
import { useDraft } from "./try/panel.js";

const HITS = 20;
const LINES = 5; // from the star on the map to hits
const GROUPS = 8;
const USUAL = "I can't log in any more";
const EMPTY_QUERY = " "; // in the link: a query that somebody emptied
const NONE = "none"; // in the link: no reranker

// Its styles come with the view, which waits for them: other views start without them.
const style = document.createElement("link");
style.rel = "stylesheet";
style.href = new URL("search/search.css", import.meta.url).href;
await new Promise((resolve) => {
  style.onload = style.onerror = resolve;
  document.head.append(style);
});

export default function Search({ state, setState }) {
  const { models, error } = useModels();
  const collection = useCollection();
  const able = models?.filter((model) => model.reads_text && abilitiesOf(model).sentence) ?? [];
  const trained = able.filter((model) => !isRandom(model));
  const chosen = able.find((model) => model.name === (state.model ?? collection?.model));
  const model = chosen ?? usualModel(trained.length ? trained : able);
  const latest = useRef(state);
  latest.current = state;
  const change = (part) => {
    latest.current = { ...latest.current, ...part };
    setState(latest.current);
  };
  const [begun, setBegun] = useState(collection !== null);
  useEffect(() => {
    if (begun || !model) return;
    setBegun(true);
    restore().then((kept) => kept ?? embedAll(SAMPLE, model));
  }, [begun, model?.name]);
  useEffect(() => {
    const current = models?.find((each) => each.name === collection?.model);
    const stale = collection && model && (collection.model !== model.name || (current && current.version !== collection.version));
    if (stale) embedAll(collection, model); // vectors of another model say nothing about this one's queries
  }, [model?.name, model?.version, collection?.name]);
  return html`<div class="columns search">
    <div>
      ${model &&
      html`<section class="panel" aria-label="Model">
        <${ModelChoice} models=${able} chosen=${model.name} onChoose=${(name) => change({ model: name })} />
        ${isRandom(model) && html`<p class="note warn">The weights of ${model.name} are random: what it finds means nothing.</p>`}
      </section>`}
      ${model && html`<${Source} collection=${collection} model=${model} />`}
    </div>
    <div>
      ${error && html`<${ErrorLine} error=${error} />`}
      ${models === null && !error && html`<p class="note">Asking the server for its models…</p>`}
      ${models && !model && html`<p class="panel">No model of this server makes sentence vectors of texts. See <a href="#/models">Models</a> for what it holds.</p>`}
      ${model && collection === null && begun && html`<p class="panel">Drop a file of texts, paste some, or use the sample.</p>`}
      ${model && collection && html`<${Found} ...${{ model, models, collection, state, change }} />`}
    </div>
  </div>`;
}

// Rerankers first trained, then random; a model of random weights is used only where somebody chooses it.
function rerankersOf(models) {
  return models.filter((model) => model.reads_text && abilitiesOf(model).ranks).sort((a, b) => isRandom(a) - isRandom(b));
}

function Found({ model, models, collection, state, change }) {
  const written = state.query === undefined ? (collection.name === SAMPLE.name ? USUAL : "") : state.query === EMPTY_QUERY ? "" : String(state.query);
  const [draft, setDraft] = useDraft(written, (query) => change({ query: query || EMPTY_QUERY }), 120);
  const query = written.trim();
  const topic = collection.topics?.includes(state.topic) ? state.topic : "";
  const rerankers = rerankersOf(models);
  const reranker = rerankers.find((each) => each.name === state.reranker) ?? (state.reranker === NONE ? null : rerankers.find((each) => !isRandom(each))) ?? null;
  const request = query ? { path: "/embed", json: { model: model.name, inputs: [query], input_type: "query", truncate: true, normalize: true } } : null;
  const result = useAnswer(request);
  const vector = request && result.answer?.request.json.model === collection.model && result.answer.body[0].length === collection.width ? result.answer.body[0] : null;
  const hits = useMemo(() => (vector ? nearest(collection, vector, HITS, (index) => !topic || collection.topics[index] === topic) : []), [vector, topic, collection.done, collection.vectors]);
  const asked = query && result.answer?.request.json.inputs[0];
  const texts = hits.map(({ index }) => collection.texts[index]);
  const reranking = useAnswer(reranker && texts.length ? { path: "/rerank", json: { model: reranker.name, query: asked, texts, truncate: true } } : null);
  const ranked = reranking.answer && String(reranking.answer.request.json.texts) === String(texts) && reranking.answer.request.json.query === asked;
  const rows = orderOf(hits, reranker && ranked ? reranking.answer.body : null);
  const groups = Number.isInteger(state.groups) ? Math.min(12, Math.max(2, state.groups)) : GROUPS;
  const plane = usePlane(collection, groups);
  const drawn = useMemo(() => rows.slice(0, LINES).map(({ index }) => index), [rows.map(({ index }) => index).join()]);
  const choose = (text) => change({ query: text });
  return html`
    <section class="panel" aria-label="Query">
      <label class="field"><span>Search</span>
        <input type="search" maxlength="2000" value=${draft} onInput=${(event) => setDraft(event.target.value)} placeholder="What do you look for?" />
      </label>
      <div class="row">
        ${collection.topics &&
        html`<label>Topic ${" "}<select value=${topic} onChange=${(event) => change({ topic: event.target.value || undefined })}>
          <option value="">all</option>
          ${[...new Set(collection.topics)].sort().map((each) => html`<option value=${each} selected=${each === topic}>${each}</option>`)}
        </select></label>`}
        ${rerankers.length > 0 &&
        html`<label>Rerank by ${" "}<select value=${reranker?.name ?? NONE} onChange=${(event) => change({ reranker: event.target.value })}>
          <option value=${NONE} selected=${!reranker}>no reranker</option>
          ${rerankers.map((each) => html`<option value=${each.name} selected=${each === reranker}>${each.name}${isRandom(each) ? " (random weights)" : ""}</option>`)}
        </select></label>`}
      </div>
      ${reranker && isRandom(reranker) && html`<p class="note warn">The weights of ${reranker.name} are random: its order means nothing.</p>`}
    </section>
    <div class="found-and-map">
      <${Results} ...${{ collection, rows, query, reranker, error: result.error ?? reranking.error, waiting: result.waiting || reranking.waiting, onChoose: choose }} />
      <${TextMap} ...${{ collection, plane, query: vector, hits: drawn, groups, setGroups: (value) => change({ groups: value }), onChoose: choose }} />
    </div>
    ${request && html`<${Snippets} label="The query's vector" request=${request} />`}
  `;
}
