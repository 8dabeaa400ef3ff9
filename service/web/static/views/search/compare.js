// Two models on the same texts: whose nearest neighbours share a column's value, and for which texts they differ.
import { html, useMemo } from "../../lib/dom.js";
import { Choice, named } from "../../components/choice.js";
import { Downloads, csvBlob } from "../../components/downloads.js";
import { isWhole } from "./collection.js";
import { useWorker } from "./map.js";
import { RowLink, RowName } from "./row_link.js";

export const K = 10;
const MOST_ASKED = 1000; // texts whose neighbours are sought, evenly spread: with 20,000 texts ten seconds a model
const LISTED = 12;
const MOST = 120; // characters of each

const percent = (share) => `${Math.round(100 * share)} %`;

// Of each asked row, the share of its neighbours that have its own value.
export function sharesOf({ rows, k, neighbours }, values) {
  return Float64Array.from(rows, (row, place) => neighbours.subarray(place * k, (place + 1) * k).reduce((sum, other) => sum + (values[other] === values[row]), 0) / k);
}

// Of each asked row, the share of its neighbours that both models name.
export function commonOf(first, second) {
  const { rows, k } = first;
  return Float64Array.from(rows, (_, place) => {
    const own = new Set(first.neighbours.subarray(place * k, (place + 1) * k));
    return second.neighbours.subarray(place * k, (place + 1) * k).reduce((sum, other) => sum + own.has(other), 0) / k;
  });
}

const meanOf = (values) => values.reduce((sum, value) => sum + value, 0) / (values.length || 1);

// {means, chance, clear, labels: [{label, size, means}]} of the shares of two models; clear: whether their difference is twice its standard error.
export function scoreOf(found, values) {
  const shares = found.map((each) => sharesOf(each, values));
  const { rows } = found[0];
  const gaps = shares[0].map((share, place) => share - shares[1][place]);
  const gap = meanOf(gaps);
  const error = Math.sqrt(meanOf(gaps.map((each) => (each - gap) ** 2)) / gaps.length);
  const sizes = new Map();
  for (const value of values) sizes.set(value, (sizes.get(value) ?? 0) + 1);
  const chance = [...sizes.values()].reduce((sum, size) => sum + (size / values.length) * ((size - 1) / (values.length - 1)), 0);
  const labels = [...sizes].map(([label, size]) => ({ label, size, means: shares.map((own) => meanOf(own.filter((_, place) => values[rows[place]] === label))) }));
  labels.sort((a, b) => Math.abs(b.means[0] - b.means[1]) - Math.abs(a.means[0] - a.means[1]));
  return { means: shares.map(meanOf), chance, clear: Math.abs(gap) > 2 * error, labels };
}

function useNeighbours(run, collection) {
  const whole = isWhole(run, collection) && run.done > K;
  return useWorker("map_worker.js", whole ? { job: "neighbours", vectors: run.vectors, width: run.width, asked: MOST_ASKED, k: K } : null, [whole, run.vectors]);
}

// Args: runs: two; near: for each the neighbours [{index, score}] of the text in focus; focus: its number or null; setFocus.
export function Compare({ collection, runs, state, change, focus, setFocus, near }) {
  const found = [useNeighbours(runs[0], collection), useNeighbours(runs[1], collection)];
  const sorted = collection.columns.filter(({ few }) => few);
  const column = sorted.find(({ name }) => name === state.score) ?? sorted[0];
  const ready = found.every((each) => each?.data);
  const score = useMemo(() => ready && column && scoreOf(found.map(({ data }) => data), column.values), [ready, found[0], found[1], column]);
  const common = useMemo(() => ready && commonOf(found[0].data, found[1].data), [ready, found[0], found[1]]);
  const names = runs.map(({ model }) => model);
  return html`<section class="panel compare" aria-labelledby="compare-title" aria-busy=${!ready}>
    <div class="row between">
      <h2 id="compare-title">Two models</h2>
      ${sorted.length > 1 &&
      html`<label>Topics in column ${" "}<${Choice} value=${column.name} options=${named(sorted.map(({ name }) => name))} onChoose=${(name) => change({ score: name })} /></label>`}
    </div>
    <div class="compare-parts">
    ${!ready && html`<p class="note" role="status">${collection.texts.length <= K ? `It takes more than ${K} texts.` : found.some(Boolean) ? `Seeking the neighbours: ${Math.round(50 * found.reduce((sum, each) => sum + (each?.progress ?? 0), 0))} %` : "The neighbours are sought once both models have embedded all…"}</p>`}
    ${ready && !column && html`<p class="note">Bring a table with a column of topics, and it is measured which model separates them better.</p>`}
    ${score && html`<${Verdict} ...${{ score, names, column }} />`}
    ${common &&
    html`<div><h3>Where their neighbours differ</h3>
      <p>Of the ${K} nearest neighbours of a text, <strong>${percent(meanOf(common))}</strong> are the same for both. Least alike:</p>
      <div class="compare-lists">
        <ol class="listed" tabindex="0" aria-label="Texts whose neighbours differ most">
          ${Array.from(common.keys())
            .sort((a, b) => common[a] - common[b] || a - b)
            .slice(0, LISTED)
            .map((place) => found[0].data.rows[place])
            .map((index, place) => html`<li key=${index}><${RowLink} ...${{ collection, index }} most=${MOST} aria-pressed=${focus === index} onPick=${() => setFocus(focus === index ? null : index)} /></li>`)}
        </ol>
        ${focus !== null ? names.map((name, place) => html`<${Near} ...${{ collection, name, near: near[place], other: near[1 - place] }} />`) : html`<p class="note">Press one: its neighbours by each model are listed here and drawn on both maps.</p>`}
      </div></div>`}
    </div>
  </section>`;
}

function Near({ collection, name, near, other }) {
  const shared = new Set(other.map(({ index }) => index));
  return html`<div>
    <h3>${name}</h3>
    <ol class="listed" tabindex="0" aria-label=${`Neighbours by ${name}`}>
      ${near.map(({ index, score }) => html`<li key=${index}><span class="note">${score.toFixed(3)}</span> <${RowName} ...${{ collection, index }} most=${MOST} /> ${shared.has(index) && html`<small class="both">both</small>`}</li>`)}
    </ol>
  </div>`;
}

function Verdict({ score: { means, chance, clear, labels }, names, column }) {
  const better = means[0] >= means[1] ? 0 : 1;
  const csv = () => csvBlob([[column.name, "rows", ...names], ...labels.map(({ label, size, means: own }) => [label, size, ...own])]);
  return html`<div>
    <p class="verdict" role="status">
      ${clear ? html`<strong>${names[better]}</strong> separates ${column.name} better: <strong>${percent(means[better])}</strong> against ${percent(means[1 - better])}.` : html`<strong>No clear difference</strong> in ${column.name}: ${names[0]} ${percent(means[0])}, ${names[1]} ${percent(means[1])}.`}
    </p>
    <p class="note">Share of a row's ${K} nearest neighbours that have its own ${column.name}; by chance it is ${percent(chance)}. ${clear ? "" : "A difference below twice its standard error is not called one."}</p>
    <div class="scroll scores" tabindex="0" role="region" aria-label=${`Scores by ${column.name}`}>
      <table>
        <thead><tr><th>${column.name}</th><th class="number">rows</th>${names.map((name) => html`<th class="number">${name}</th>`)}</tr></thead>
        <tbody>${labels.map(({ label, size, means: own }) => html`<tr key=${label}><th scope="row">${label || "(empty)"}</th><td class="number">${size}</td>${own.map((share, place) => html`<td class="number">${share > own[1 - place] ? html`<strong>${percent(share)}</strong>` : percent(share)}</td>`)}</tr>`)}</tbody>
      </table>
    </div>
    <${Downloads} name="scores" files=${{ csv }} />
  </div>`;
}
