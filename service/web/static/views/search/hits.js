// What is nearest to a query, and the order that a reranker gives.
import { Best, dot } from "./nearest.js";
import { WORDS } from "./roles.js";
import { partsOf } from "./sparse.js";

// [{index, score}], best first; query: a vector, or {indices, values} for a run by WORDS; wanted(index): which texts may come.
export function hitsOf(run, query, most, wanted) {
  const best = new Best(most);
  const vector = run.output === WORDS ? null : Float32Array.from(query);
  for (let index = 0; index < run.done; index++) {
    if (!wanted(index)) continue;
    best.offer(index, vector ? dot(run.vectors, index * run.width, vector, 0, run.width) : partsOf(query, run.rows[index]).reduce((sum, [, part]) => sum + part, 0));
  }
  return best.rows;
}

// ranks: [{index: place in hits, score}] of the reranker, null without one; {index, score, reranked, before} in the order to show.
export function orderOf(hits, ranks) {
  if (!ranks) return hits.map((hit, place) => ({ ...hit, before: place }));
  return ranks.filter(({ index }) => hits[index]).map(({ index, score }) => ({ ...hits[index], reranked: score, before: index }));
}

// A function that says whether a text may come: where: {column: value}; has: words that it must hold; chosen: numbers of texts, null: all.
export function wantedBy({ texts, columns }, where, has, chosen) {
  const equal = columns.filter(({ name, few }) => few && where[name]).map(({ name, values }) => [values, where[name]]);
  const words = has.toLowerCase().split(/\s+/).filter(Boolean);
  const among = chosen && new Set(chosen);
  if (!equal.length && !words.length && !among) return null;
  const holds = (text) => words.every((word) => text.includes(word));
  return (index) => (!among || among.has(index)) && equal.every(([values, value]) => values[index] === value) && (!words.length || holds(texts[index].toLowerCase()));
}
