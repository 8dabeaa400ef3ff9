// Search: texts or pictures of one's own or a sample, embedded into this page; what is nearest to a query while it is typed, and a map of all.
import { html, useEffect, useMemo, useRef, useState } from "../lib/dom.js";
import { isRandom, useModels, usualModel } from "../components/model_choice.js";
import { ErrorLine, useAnswer } from "../components/result.js";
import { Snippets } from "../components/snippets.js";
import { embedAll, forget, isRunOf, restore, specOf, useCollection } from "./search/collection.js";
import { Compare, K } from "./search/compare.js";
import { Duplicates } from "./search/duplicates.js";
import { hitsOf, orderOf, wantedBy } from "./search/hits.js";
import { Maps } from "./search/maps.js";
import { EMPTY, NONE, Query, useQuery } from "./search/query.js";
import { Results } from "./search/results.js";
import { MEANING, WORDS, outputsOf, readsPictures, sidesOf } from "./search/roles.js";
import { SAMPLE } from "./search/sample.js";
import { Setup } from "./search/setup.js";
import { ZeroShot } from "./search/zero_shot.js";
import { abilitiesOf } from "./try/options.js";

const HITS = 20;
const LINES = 5; // from the star on the map to hits
const USUAL = "I can't log in any more";

// Its styles come with the view, which waits for them: other views start without them.
const style = document.createElement("link");
style.rel = "stylesheet";
style.href = new URL("search/search.css", import.meta.url).href;
await new Promise((resolve) => {
  style.onload = style.onerror = resolve;
  document.head.append(style);
});

// Which of these a link or an earlier visit names, else the server's usual one, of random weights only where there is no other.
function chosenOf(able, ...names) {
  const named = names.map((name) => able.find((each) => each.name === name)).find(Boolean);
  const trained = able.filter((each) => !isRandom(each));
  return named ?? usualModel(trained.length ? trained : able);
}

export default function Search({ state, setState }) {
  const { models, error } = useModels();
  const collection = useCollection();
  const [begun, setBegun] = useState(collection !== null);
  const latest = useRef(state);
  latest.current = state;
  const change = (part) => {
    latest.current = { ...latest.current, ...part };
    setState(latest.current);
  };
  const usable = (pictures) => (models ?? []).filter((each) => (pictures ? readsPictures(each) : outputsOf(each).length));
  const able = usable(collection?.pictures);
  const model = chosenOf(able, state.model, collection?.runs[0].model);
  const output = model && !collection?.pictures && (state.by === "words" || !outputsOf(model).includes(MEANING)) && outputsOf(model).includes(WORDS) ? WORDS : MEANING;
  const other = output === MEANING ? able.find((each) => each.name === state.other && each !== model && (collection?.pictures || outputsOf(each).includes(MEANING))) : null;
  const specs = model ? [specOf(model, output), ...(other ? [specOf(other, MEANING)] : [])] : [];
  const begin = (given) => {
    const own = chosenOf(usable(given.pictures), state.model);
    change({ where: undefined, has: undefined, color: undefined, like: undefined, query: given.name === SAMPLE.name ? undefined : state.query });
    embedAll(given, !given.pictures === !collection?.pictures ? specs : [specOf(own, given.pictures ? MEANING : outputsOf(own)[0])]);
  };
  useEffect(() => {
    if (begun || !model) return;
    setBegun(true);
    restore().then((kept) => kept ?? embedAll(SAMPLE, specs));
  }, [begun, model?.name]);
  useEffect(() => {
    if (!collection || !specs.length) return;
    const same = specs.length === collection.runs.length && specs.every((spec, place) => isRunOf(collection.runs[place], spec));
    if (!same) embedAll(collection, specs); // vectors of another model say nothing about this one's queries
  }, [specs.map((spec) => Object.values(spec).join()).join("\n"), collection?.texts]);
  return html`<div class="search">
    ${error && html`<${ErrorLine} error=${error} />`}
    ${models === null && !error && html`<p class="note" role="status">Asking the server for its models…</p>`}
    ${models && !model && html`<p class="panel">No model of this server makes ${collection?.pictures ? html`vectors of pictures. <button type="button" class="quiet" onClick=${forget}>Forget the pictures</button>` : "sentence vectors of texts."} See <a href="#/models">Models</a> for what it holds.</p>`}
    ${model && html`<${Setup} ...${{ models, able, model, output, other, collection, begun, change, begin }} />`}
    ${model && collection === null && begun && html`<p class="panel">Drop a file of texts, paste some, or use the sample.</p>`}
    ${model && collection && html`<${Found} key=${collection.texts} ...${{ model, models, collection, state, change }} />`}
  </div>`;
}

// Rerankers first trained, then random; a model of random weights is used only where somebody chooses it.
function rerankersOf(models) {
  return models.filter((model) => model.reads_text && abilitiesOf(model).ranks).sort((a, b) => isRandom(a) - isRandom(b));
}

// The query that a link names: {text, like}; like: the number of a row whose like is sought, or null.
function queryOf({ query, like }, { name, texts }) {
  const row = Number.isInteger(like) && like >= 0 && like < texts.length ? like : null;
  const usual = name === SAMPLE.name ? USUAL : "";
  return { text: row !== null || query === EMPTY ? "" : String(query ?? usual), like: row };
}

// [rows, error, waiting]: hits in the order of a reranker, null without one.
function useReranked(reranker, hits, texts, asked) {
  const given = hits.map(({ index }) => texts[index]);
  const { answer, error, waiting } = useAnswer(reranker && asked && given.length ? { path: "/rerank", json: { model: reranker.name, query: asked, texts: given, truncate: true } } : null);
  const fits = answer && String(answer.request.json.texts) === String(given) && answer.request.json.query === asked;
  return [orderOf(hits, reranker && fits ? answer.body : null), error, waiting];
}

function Found({ model, models, collection, state, change }) {
  const [picture, setPicture] = useState(null);
  const [over, setOver] = useState(null);
  const [chosen, setChosen] = useState(null);
  const [only, setOnly] = useState(false);
  const [focus, setFocus] = useState(null);
  const { texts, pictures, runs } = collection;
  const [run, second] = runs;
  const query = { ...queryOf(state, collection), picture };
  const sides = [run, second].map((each) => each && sidesOf(models, models.find(({ name }) => name === each.model) ?? model));
  const asked = { ...query, text: query.text.trim() };
  const [first, other] = [useQuery(run, sides[0], asked), useQuery(second, sides[1], asked)];
  const where = state.where && typeof state.where === "object" ? state.where : {};
  const has = state.has === undefined ? "" : String(state.has);
  const wanted = useMemo(() => wantedBy(collection, where, has, only && chosen ? chosen.indices : null), [texts, JSON.stringify(where), has, only, chosen]);
  const found = (own, vector) => (vector ? hitsOf(own, vector, HITS, wanted ?? (() => true)) : []);
  const hits = useMemo(() => found(run, first.vector), [first.vector, wanted, run.vectors, run.done]);
  const others = useMemo(() => (second ? found(second, other.vector) : []), [other.vector, wanted, second?.vectors, second?.done]);
  const rerankers = rerankersOf(models);
  const reranker = pictures ? null : (rerankers.find((each) => each.name === state.reranker) ?? (state.reranker === NONE ? null : rerankers.find((each) => !isRandom(each))) ?? null);
  const reference = query.like !== null ? texts[query.like] : first.asked;
  const [rows, refused, reranking] = useReranked(reranker, hits, texts, picture ? "" : reference);
  const near = useMemo(() => focus !== null && runs.map((own) => hitsOf(own, own.vectors.subarray(focus * own.width, (focus + 1) * own.width), K, (index) => index !== focus)), [focus, run.vectors, second?.vectors]);
  const shown = useMemo(() => [{ run, hits: hits.slice(0, LINES) }, ...(second ? [{ run: second, hits: others.slice(0, LINES) }] : [])], [run, second, hits, others]);
  const links = useMemo(() => runs.map((_, place) => (second && near ? near[place].map(({ index }) => [focus, index]) : [])), [near, second !== undefined]);
  const pick = (index) => (setPicture(null), second && setFocus(index), change(pictures ? { like: index } : { query: texts[index], like: undefined }));
  const searched = asked.text || query.like !== null || picture;
  const labelled = picture ? first.vector : pictures && query.like !== null ? first.vector : null;
  const maps = html`<${Maps} key="maps" ...${{ collection, shown, wanted, state, change, links, over, setOver, chosen, setChosen, only, setOnly }} onPick=${pick} />`;
  return html`
    <${Query} ...${{ collection, query, sides: sides[0], rerankers, reranker, where, has, change, setPicture }} />
    <div class=${second ? "found-and-map two" : "found-and-map"}>
      ${second && [maps, html`<${Compare} key="compare" ...${{ collection, runs, state, change, focus, setFocus }} near=${near || [[], []]} />`]}
      <${Results} key="found" title=${second ? run.model : "Results"} ...${{ collection, run, rows, vector: first.vector, asked: searched, reranker }} error=${first.error ?? refused} waiting=${first.waiting || reranking} onOver=${setOver} onPick=${pick} />
      ${second ? html`<${Results} key="others" id="others" title=${second.model} ...${{ collection, run: second, vector: other.vector, error: other.error, waiting: other.waiting }} rows=${orderOf(others, null)} asked=${searched} onOver=${setOver} onPick=${pick} />` : maps}
    </div>
    ${sides[0].texts && sides[0].pictures && html`<${ZeroShot} sides=${sides[0]} vector=${labelled} picture=${picture ?? pictures?.[query.like]} name=${picture?.name ?? texts[query.like]} ...${{ state, change }} />`}
    <${Duplicates} ...${{ collection, run, state, change, setOver }} onPick=${pick} />
    ${first.request && html`<${Snippets} label="The query's vector" request=${first.request} />`}
  `;
}
