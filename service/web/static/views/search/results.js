// The texts nearest to the query, with scores; in the order of a reranker where one is chosen, with what moved.
import { html } from "../../lib/dom.js";
import { Downloads, csvBlob, npyBlob } from "../../components/downloads.js";
import { ErrorLine } from "../../components/result.js";

// hits: [{index, score}], best first; ranks: [{index: place in hits, score}] of the reranker, null without one.
export function orderOf(hits, ranks) {
  if (!ranks) return hits.map((hit, place) => ({ ...hit, before: place }));
  return ranks.filter(({ index }) => hits[index]).map(({ index, score }) => ({ ...hits[index], reranked: score, before: index }));
}

function moved(before, place) {
  const steps = before - place;
  if (!steps) return html`<span class="note">=</span>`;
  return html`<span class=${steps > 0 ? "up" : "down"} aria-label=${`${steps > 0 ? "up" : "down"} by ${Math.abs(steps)}`}>${steps > 0 ? "▲" : "▼"} ${Math.abs(steps)}</span>`;
}

// Args: rows: of orderOf; reranker: its model, null without one; waiting: an answer is on its way.
export function Results({ collection, rows, query, reranker, error, waiting, onChoose }) {
  const { texts, topics } = collection;
  const csv = () =>
    csvBlob([
      ["rank", "text", "score", ...(reranker ? ["rank before", `score of ${reranker.name}`] : []), ...(topics ? ["topic"] : [])],
      ...rows.map(({ index, score, reranked, before }, place) => [place + 1, texts[index], score, ...(reranker ? [before + 1, reranked ?? ""] : []), ...(topics ? [topics[index]] : [])]),
    ]);
  const npy = () => npyBlob(collection.vectors.subarray(0, collection.done * collection.width), [collection.done, collection.width]);
  return html`<section class="panel found" aria-labelledby="found-title" aria-busy=${waiting}>
    <h2 id="found-title">Results</h2>
    ${error && html`<${ErrorLine} error=${error} />`}
    ${!query && html`<p class="note">Type what you look for: the nearest texts come while you type.</p>`}
    ${query && !rows.length && !error && html`<p class="note">${waiting ? "Asking…" : "No text is left by this filter."}</p>`}
    ${rows.length > 0 &&
    html`<div class="scroll hits" tabindex="0" role="region" aria-label="Texts found">
      <table>
        <thead><tr>
          <th class="number">score</th>
          ${reranker && html`<th class="number">reranked</th><th>moved</th>`}
          <th>text</th>
          ${topics && html`<th class="topic">topic</th>`}
        </tr></thead>
        <tbody>
          ${rows.map(
            ({ index, score, reranked, before }, place) => html`<tr key=${index}>
              <td class="number">${score.toFixed(3)}</td>
              ${reranker && html`<td class="number">${reranked?.toFixed(3) ?? "…"}</td><td class="moved">${moved(before, place)}</td>`}
              <td class="text"><button type="button" class="text-link" title="Search for texts like this" onClick=${() => onChoose(texts[index])}>${texts[index]}</button></td>
              ${topics && html`<td class="topic"><small>${topics[index]}</small></td>`}
            </tr>`,
          )}
        </tbody>
      </table>
    </div>`}
    <div class="row">
      ${rows.length > 0 && html`<${Downloads} name="results" files=${{ csv }} />`}
      ${collection.done > 0 && html`<${Downloads} name="vectors" what="all vectors" files=${{ npy }} />`}
    </div>
  </section>`;
}
