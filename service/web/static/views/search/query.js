// The query: a text, a picture, or one of the collection's own rows; and which of the texts may come.
import { html, useEffect, useRef, useState } from "../../lib/dom.js";
import { ask } from "../../lib/api.js";
import { Choice } from "../../components/choice.js";
import { isRandom, titleOf } from "../../components/model_choice.js";
import { useAnswer } from "../../components/result.js";
import { useDraft } from "../try/panel.js";
import { isWhole } from "./collection.js";
import { PICTURE } from "./files.js";
import { WORDS, addressOf, dataUrl, picturesRequest, queryRequest, queryVector, rowsOf } from "./roles.js";

export const NONE = "none"; // in the link: no reranker
export const EMPTY = " "; // in the link: a query that somebody emptied

// {request, vector, asked, error, waiting} of a query {text | like | picture} for a run; sides: of sidesOf its model.
export function useQuery(run, sides, { text, like, picture }) {
  const request = run && text && sides?.texts ? queryRequest(sides.texts, run.output, text) : null;
  const result = useAnswer(request);
  const seen = usePicture(run && sides?.pictures, picture);
  if (!run) return { vector: null };
  if (like !== null) return { vector: like < run.done ? (run.output === WORDS ? run.rows[like] : run.vectors.subarray(like * run.width, (like + 1) * run.width)) : null };
  if (picture) return { ...seen, vector: seen.vector?.length === run.width ? seen.vector : null };
  if (text && !sides?.texts) return { vector: null, error: new Error(`${run.model} reads no texts, and no model of this server shares its space: search by a picture.`) };
  const fits = result.answer && request && JSON.stringify(result.answer.request.json) === JSON.stringify({ ...request.json, inputs: result.answer.request.json.inputs });
  const vector = fits ? queryVector(result.answer, run.output) : null;
  const right = vector && (run.output === WORDS || vector.length === run.width);
  return { ...result, request, vector: right ? vector : null, asked: right ? result.answer.request.json.inputs[0] : "" };
}

function usePicture(model, picture) {
  const [seen, setSeen] = useState({});
  useEffect(() => {
    setSeen({});
    if (!model || !picture) return undefined;
    const controller = new AbortController();
    setSeen({ waiting: true });
    dataUrl(picture)
      .then((url) => ask(picturesRequest(model.name, model.reads_text, [url]), { signal: controller.signal }))
      .then((answer) => setSeen({ vector: rowsOf(answer).values, asked: picture.name }))
      .catch((error) => error.name === "AbortError" || setSeen({ error }));
    return () => controller.abort();
  }, [model?.name, picture]);
  return seen;
}

// Args: query: {text, like, picture}; sides: of sidesOf; rerankers, reranker; where, has: filters; change: writes the link; setPicture(file or null).
export function Query({ collection, query, sides, rerankers, reranker, where, has, change, setPicture }) {
  const [draft, setDraft] = useDraft(query.text, (text) => (setPicture(null), change({ query: text || EMPTY, like: undefined })), 120);
  const [filter, setFilter] = useDraft(has, (text) => change({ has: text || undefined }), 120);
  const box = useRef(null);
  useEffect(() => {
    const press = (event) => {
      if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) return;
      event.preventDefault();
      box.current.select();
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);
  const shown = query.picture ?? (query.like !== null ? collection.pictures?.[query.like] : null);
  const clear = () => (setPicture(null), change({ like: undefined }));
  const sorted = collection.columns.filter(({ few }) => few);
  return html`<section class="panel" aria-label="Query">
    <div class="query-row">
      <label class="field"><span>Search</span>
        <input ref=${box} type="search" aria-keyshortcuts="/" maxlength="2000" value=${draft} disabled=${!sides.texts} onInput=${(event) => setDraft(event.target.value)} placeholder=${sides.texts ? (collection.pictures ? "What is on the picture?" : "What do you look for? ( / )") : "This model reads no texts: search by a picture"} />
      </label>
      ${sides.pictures &&
      html`<label class="field"><span>or by a picture</span>
        <input type="file" accept="image/png,image/jpeg,image/webp" onChange=${({ target }) => PICTURE.test(target.files[0]?.type) && (setPicture(target.files[0]), change({ like: undefined }))} />
      </label>`}
    </div>
    ${(shown || query.like !== null) &&
    html`<p class="row like">
      ${shown && html`<img src=${addressOf(shown)} alt="" />`}
      <span>Like <strong>${query.picture?.name ?? collection.texts[query.like]}</strong></span>
      <button type="button" class="quiet" onClick=${clear}>Search by text again</button>
    </p>`}
    <div class="row filters">
      ${sorted.map(
        ({ name, values }) => html`<label>${name} ${" "}<${Choice} value=${where[name] ?? ""} options=${[["", "all"], ...[...new Set(values)].sort().map((each) => [each, each || "(empty)"])]} onChoose=${(each) => change({ where: { ...where, [name]: each || undefined } })} /></label>`,
      )}
      <label>with the word ${" "}<input type="search" class="short" value=${filter} onInput=${(event) => setFilter(event.target.value)} /></label>
      ${rerankers.length > 0 &&
      !collection.pictures &&
      html`<label>Rerank by ${" "}<${Choice} value=${reranker?.name ?? NONE} options=${[[NONE, "no reranker"], ...rerankers.map((each) => [each.name, titleOf(each)])]} onChoose=${(name) => change({ reranker: name })} /></label>`}
    </div>
    ${reranker && isRandom(reranker) && html`<p class="note warn">The weights of ${reranker.name} are random: its order means nothing.</p>`}
    ${!isWhole(collection.runs[0], collection) && html`<p class="note">Searched is what is embedded so far.</p>`}
  </section>`;
}
