// The texts or pictures nearest to the query, with scores; in the order of a reranker where one is chosen, with what moved.
import { html } from "../../lib/dom.js";
import { Downloads, csvBlob, npyBlob } from "../../components/downloads.js";
import { ErrorLine, useAnswer } from "../../components/result.js";
import { WORDS } from "./roles.js";
import { RowLink } from "./row_link.js";
import { partsOf } from "./sparse.js";

const TOLD = 5; // words of a hit

function moved(before, place) {
  const steps = before - place;
  if (!steps) return html`<span class="note" aria-label="not moved">=</span>`;
  return html`<span class=${steps > 0 ? "up" : "down"} aria-label=${`${steps > 0 ? "up" : "down"} by ${Math.abs(steps)}`}>${steps > 0 ? "▲" : "▼"} ${Math.abs(steps)}</span>`;
}

// [[word, part]] of each hit: what adds most to its score; null where the run has no sparse vectors.
function useWords(run, vector, rows) {
  const parts = run.output === WORDS && vector?.indices ? rows.map(({ index }) => partsOf(vector, run.rows[index]).slice(0, TOLD)) : [];
  const ids = [...new Set(parts.flatMap((each) => each.map(([id]) => id)))];
  const named = useAnswer(ids.length ? { path: "/decode", json: { model: run.model, ids: ids.map((id) => [id]), skip_special_tokens: false } } : null);
  const words = new Map(named.answer?.request.json.ids.map(([id], at) => [id, named.answer.body[at]]));
  return parts.length ? parts.map((each) => each.map(([id, part]) => [words.get(id) || `id ${id}`, part])) : null;
}

// The CSV of rows [{index, ...}] of a collection; more: {name: row => cell} before the text.
export function rowsCsv({ texts, columns, pictures }, rows, more) {
  return csvBlob([
    [...Object.keys(more), pictures ? "picture" : "text", ...columns.map(({ name }) => name)],
    ...rows.map((row, place) => [...Object.values(more).map((cell) => cell(row, place)), texts[row.index], ...columns.map(({ values }) => values[row.index])]),
  ]);
}

// Args: id, title: of the card; rows: of orderOf; vector: the query's; reranker: its model, null without one; waiting: an answer is on its way; onOver(index), onPick(index).
export function Results({ title = "Results", id = "found", collection, run, rows, vector, asked, reranker, error, waiting, onOver, onPick }) {
  const { columns, pictures } = collection;
  const words = useWords(run, vector, rows);
  const sorted = columns.filter(({ few }) => few);
  const csv = () =>
    rowsCsv(collection, rows, {
      rank: (_, place) => place + 1,
      score: ({ score }) => score,
      ...(reranker ? { "rank before": ({ before }) => before + 1, [`score of ${reranker.name}`]: ({ reranked }) => reranked ?? "" } : {}),
    });
  const npy = () => npyBlob(run.vectors.subarray(0, run.done * run.width), [run.done, run.width]);
  const all = () => rowsCsv(collection, Array.from({ length: run.done }, (_, index) => ({ index })), { row: ({ index }) => index });
  return html`<section class="panel found" aria-labelledby=${`${id}-title`} aria-busy=${waiting ?? false}>
    <h2 id=${`${id}-title`}>${title}</h2>
    ${error && html`<${ErrorLine} error=${error} />`}
    ${!asked && !error && html`<p class="note">Type what you look for: the nearest ${pictures ? "pictures" : "texts"} come while you type.</p>`}
    ${asked && !rows.length && !error && html`<p class="note" role="status">${waiting || !run.done ? "Asking…" : "Nothing is left by these filters."}</p>`}
    ${rows.length > 0 &&
    html`<div class="scroll hits" tabindex="0" role="region" aria-label=${id === "found" ? "Texts found" : "Texts found by the other model"}>
      <table>
        <thead><tr>
          <th class="number">score</th>
          ${reranker && html`<th class="number">reranked</th><th>moved</th>`}
          <th>${pictures ? "picture" : "text"}</th>
          ${sorted.map(({ name }) => html`<th class="topic">${name}</th>`)}
        </tr></thead>
        <tbody>
          ${rows.map(
            ({ index, score, reranked, before }, place) => html`<tr key=${index} onMouseEnter=${() => onOver(index)} onMouseLeave=${() => onOver(null)} onFocusIn=${() => onOver(index)} onFocusOut=${() => onOver(null)}>
              <td class="number">${score.toFixed(3)}</td>
              ${reranker && html`<td class="number">${reranked?.toFixed(3) ?? "…"}</td><td class="moved">${moved(before, place)}</td>`}
              <td class="text">
                <${RowLink} title="Search for its like" ...${{ collection, index, onPick }} />
                ${words && html`<ul class="words" aria-label="Words that count">${words[place]?.map(([word, part]) => html`<li>${word} <small>${part.toFixed(2)}</small></li>`)}</ul>`}
              </td>
              ${sorted.map(({ values }) => html`<td class="topic"><small>${values[index]}</small></td>`)}
            </tr>`,
          )}
        </tbody>
      </table>
    </div>`}
    <div class="row">
      ${rows.length > 0 && html`<${Downloads} name=${id === "found" ? "results" : "others"} what="these results" files=${{ csv }} />`}
      ${run.done > 0 && html`<${Downloads} name=${id === "found" ? "vectors" : "other-vectors"} what=${run.output === WORDS ? "all rows, and sketches of their sparse vectors" : "all rows and vectors"} files=${{ csv: all, npy }} />`}
    </div>
  </section>`;
}
