// Positional encodings of any parameters and of the models of this server, up to six compared.
import { useModels } from "../components/model_choice.js";
import { ErrorLine } from "../components/result.js";
import { askOnce, target } from "../lib/api.js";
import { html, useEffect, useMemo, useRef, useState } from "../lib/dom.js";
import { useAnswers } from "./positions/answers.js";
import { Controls } from "./positions/controls.js";
import { MOST, exampleState, figureRequest, fieldsOf, hasAxis, hasFigure, nameOf, readState } from "./positions/encodings.js";
import { EXAMPLES } from "./positions/examples.js";
import { Figures } from "./positions/figures.js";
import { EncodingList } from "./positions/encoding_list.js";
import { Facts, Files } from "./positions/facts.js";

const LINK_PAUSE = 300; // milliseconds without a change until the address is written

export default function Positions({ state, setState }) {
  const lists = useLists();
  const { models } = useModels();
  if (lists.error) return html`<${ErrorLine} error=${lists.error} />`;
  if (!lists.schemes) return html`<p class="note positions-room" role="status">Asking the server for its schemes…</p>`;
  return html`<${Comparison} ...${{ state, setState, ...lists, models: models ?? [] }} />`;
}

// {schemes, presets} of GET /positions, or {error}; asked again until it is answered.
function useLists() {
  const [lists, setLists] = useState({});
  useEffect(() => {
    let current = true;
    let timer;
    const load = () =>
      Promise.all([askOnce({ path: "/positions" }), askOnce({ path: "/positions/presets" })]).then(
        ([{ schemes }, { presets }]) => current && setLists({ schemes, presets }),
        (error) => {
          if (!current) return;
          setLists((before) => (before.schemes ? before : { error }));
          if (error.status !== 401) timer = setTimeout(load, 1000 * error.retryAfter);
        },
      );
    load();
    addEventListener("apikeychange", load);
    return () => {
      current = false;
      clearTimeout(timer);
      removeEventListener("apikeychange", load);
    };
  }, []);
  return lists;
}

function Comparison({ state, setState, schemes, presets, models }) {
  const [view, setView] = useDraft(state, setState, (from) => readState(from, schemes));
  const [changed, setChanged] = useState(null); // the parameter that was changed last
  const schemeOf = (encoding) => schemes.find((row) => row.name === encoding.s);
  const chosen = view.e[view.i];
  const figures = useMemo(() => figuresOf(view.e, schemes), [JSON.stringify(view.e.map(({ s, m }) => [s, m])), schemes]);
  const figure = figures.some(({ name }) => name === view.f) ? view.f : figures[0]?.name;
  const axis = hasAxis(schemes, figure) ? view.a : "";
  const requests = view.e.map((each) => (hasFigure(schemeOf(each), each, figure) ? figureRequest(schemeOf(each), each, figure, axis) : null));
  const answers = useAnswers(requests);
  const setEncoding = (encoding, name) => {
    setChanged(name);
    setView({ ...view, e: view.e.map((each, index) => (index === view.i ? encoding : each)) });
  };
  const begun = useRef(false); // the first figure waits for all encodings, so that nothing moves as they come one by one
  begun.current ||= answers.every(({ answer, error }, at) => !requests[at] || answer || error);
  const drawn = useShown(view.e, requests, answers, drawnFigure({ plot: figure, axis }));
  const shown = begun.current ? drawn : [];
  const errors = answers.map(({ error }) => error);
  const others = errors.filter((error) => error && ![400, 404, 422].includes(error.status));
  const rows = view.e.map((each) => [schemeOf(each), each]);
  const { errorOf, unplaced } = placedError(schemeOf(chosen), chosen, errors[view.i], changed);
  return html`<div>
    <div class="row examples" role="group" aria-label="Examples">
      <span class="note">Examples</span>
      ${EXAMPLES.map((example) => html`<button type="button" class="quiet" onClick=${() => setView(exampleState(example))}>${example.title}</button>`)}
    </div>
    <div class="columns positions">
      <section class="panel list" aria-label="Encodings">
        <${EncodingList} view=${view} setView=${setView} errors=${errors} />
      </section>
      <section class="drawn" aria-label="Figure" aria-busy=${answers.some(({ waiting }, index) => waiting && requests[index])}>
        <${FigureChoice} ...${{ figures, figure, axis, canScale: hasAxis(schemes, figure) }} onChange=${(change) => setView({ ...view, ...change })} />
        ${others.length > 0 && html`<${ErrorLine} error=${others[0]} />`}
        ${view.e.map((each, index) => !requests[index] && html`<p class="note">${nameOf(each)} has no figure “${figure}”: ${Object.keys(schemeOf(each).plots).join(", ")}.</p>`)}
        <div class="positions-room">
          ${shown.length ? html`<${Figures} shown=${shown} several=${view.e.length > 1} />` : html`<p class="note">${others.length ? "" : errors.some(Boolean) ? "No figure: see the message at the left." : "Computing…"}</p>`}
        </div>
        ${begun.current &&
        html`<${Facts} rows=${rows} answers=${answers} />
        <${Files} ...${{ rows, requests, shown, figure, axis, chosen: view.i, maxSubjects: maxSubjects(schemes, figure) }} />`}
      </section>
      <section class="panel parameters" aria-label="Parameters">
        <h2>${nameOf(chosen)}</h2>
        ${unplaced && html`<p class="error" role="alert">${unplaced}</p>`}
        <${Controls} ...${{ encoding: chosen, schemes, presets, models }} onChange=${setEncoding} errorOf=${errorOf} />
      </section>
    </div>
  </div>`;
}

// The state while somebody drags, and the link, which is written when they pause.
function useDraft(state, setState, read) {
  const [view, setView] = useState(() => read(state));
  const written = useRef(JSON.stringify(state));
  const timer = useRef(0);
  useEffect(() => {
    if (JSON.stringify(state) === written.current) return;
    written.current = JSON.stringify(state); // the address was changed from outside
    setView(read(state));
  }, [JSON.stringify(state)]);
  const unwritten = useRef(null);
  const write = () => {
    clearTimeout(timer.current);
    const kept = unwritten.current;
    unwritten.current = null;
    if (!kept) return;
    written.current = JSON.stringify(kept);
    setState(kept);
  };
  const latest = useRef(write);
  latest.current = write;
  useEffect(() => () => latest.current(), []); // also when the view is left
  const change = (next) => {
    setView(next);
    clearTimeout(timer.current);
    unwritten.current = { ...next, a: next.a || undefined };
    timer.current = setTimeout(() => latest.current(), LINK_PAUSE);
  };
  return [view, change];
}

// What is drawn: the answers that show the chosen figure, or, until the first of them has come, those of the figure before.
// An answer that is waited for replaces one that keeps the name under which it was asked for.
function useShown(encodings, requests, answers, wantedFigure) {
  const named = useRef([]).current;
  answers.forEach(({ answer }, at) => {
    const isCurrent = answer && requests[at] && target(answer.request) === target(requests[at]);
    if (isCurrent || answer !== named[at]?.answer) named[at] = { answer, name: nameOf(encodings[at]), tone: encodings[at].c };
  });
  const key = JSON.stringify(encodings.map(({ c }, index) => [nameOf(encodings[index]), c]));
  return useMemo(() => {
    const all = answers.map(({ answer }, at) => answer && { at, name: named[at].name, tone: named[at].tone, document: answer.body, figure: drawnFigure(answer.request.query) });
    const there = all.filter(Boolean);
    const wanted = there.filter(({ figure }) => figure === wantedFigure);
    return wanted.length ? wanted : there.filter(({ figure }) => figure === there[0].figure);
  }, [key, wantedFigure, ...padded(answers.map(({ answer }) => answer))]);
}

const drawnFigure = ({ plot, axis }) => `${plot} ${axis ?? ""}`;
const padded = (list) => Array.from({ length: MOST }, (_, index) => list[index] ?? null);

function figuresOf(encodings, schemes) {
  const found = new Map();
  for (const encoding of encodings) {
    const scheme = schemes.find((row) => row.name === encoding.s);
    for (const [name, about] of Object.entries(scheme.plots)) if (hasFigure(scheme, encoding, name) && !found.has(name)) found.set(name, about);
  }
  return Array.from(found, ([name, about]) => ({ name, about }));
}

function maxSubjects(schemes, figure) {
  return Math.min(...schemes.flatMap((scheme) => scheme.figures.filter((row) => row.name === figure).map((row) => row.max_subjects)), MOST);
}

// Returns {errorOf: parameter -> the server's message, unplaced}: beside the parameter that it names, else the one that was changed
// last; unplaced where the encoding has no parameter.
function placedError(scheme, encoding, error, changed) {
  if (!error || ![400, 404, 422].includes(error.status)) return { errorOf: () => undefined };
  const names = Object.keys(fieldsOf(scheme, encoding)).filter((name) => name !== "rope_type");
  const named = names.filter((name) => new RegExp(`\\b(rope_)?${name}\\b`).test(error.message));
  const place = named.includes(changed) ? changed : (named[0] ?? (names.includes(changed) ? changed : names[0]));
  return { errorOf: (name) => (name === place ? error.message : undefined), unplaced: place ? undefined : error.message };
}

const FIGURE_TITLES = { heatmap: "Heat map", spectrum: "Frequencies", decay: "Score over distance", error: "float32 error", similarity: "Similarity by distance", similarity_matrix: "Similarity matrix", slopes: "Slopes", bias: "Bias by distance", bucket: "Buckets" };

function FigureChoice({ figures, figure, axis, canScale, onChange }) {
  const about = figures.find(({ name }) => name === figure)?.about;
  return html`<div class="row" role="group" aria-label="Figure">
      ${figures.map(({ name }) => html`<button type="button" class="tab" aria-pressed=${name === figure} onClick=${() => onChange({ f: name })}>${FIGURE_TITLES[name] ?? name}</button>`)}
      ${canScale &&
      html`<label>
        Axis ${" "}
        <select value=${axis} onChange=${(event) => onChange({ a: event.target.value })}>
          <option value="">by length</option>
          <option value="linear">linear</option>
          <option value="log">logarithmic</option>
        </select>
      </label>`}
    </div>
    <p class="note">${about && about[0].toUpperCase() + about.slice(1)}.</p>`;
}
