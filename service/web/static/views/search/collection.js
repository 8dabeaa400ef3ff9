// The texts that are searched, and their vectors: embedded in pieces, kept in this page and, until they are forgotten, in this browser.
import { useEffect, useState } from "../../lib/dom.js";
import { ask } from "../../lib/api.js";

const PIECE = 32; // texts of a request: small enough that a person's other requests get their turn
const DATABASE = "inlay-search";

// {name, texts, topics, model, version, width, vectors: Float32Array [texts, width], done, running, error, milliseconds}; null: none yet.
let collection = null;
let generation = 0; // of the run that may write: another collection or model ends the one before
const listeners = new Set();

function change(part) {
  collection = part && { ...collection, ...part };
  for (const listener of listeners) listener(collection);
}

export function useCollection() {
  const [shown, setShown] = useState(collection);
  useEffect(() => {
    listeners.add(setShown);
    setShown(collection);
    return () => listeners.delete(setShown);
  }, []);
  return shown;
}

// Embeds a collection {name, texts, topics} by a model of GET /models, from its first text.
export function embedAll({ name, texts, topics }, model) {
  change({ name, texts, topics, model: model.name, version: model.version, width: 0, vectors: new Float32Array(0), done: 0, milliseconds: 0, error: null });
  return resume();
}

export function pause() {
  generation += 1;
  change({ running: false });
}

// Goes on where embedding was paused or failed; waits where the server is busy.
export async function resume() {
  const run = ++generation;
  change({ running: true, error: null });
  while (collection.done < collection.texts.length) {
    const { texts, model, done } = collection;
    const inputs = texts.slice(done, done + PIECE);
    try {
      const { body, milliseconds } = await ask({ path: "/embed", json: { model, inputs, input_type: "document", truncate: true, normalize: true } });
      if (run !== generation) return;
      add(body, milliseconds);
    } catch (error) {
      if (run !== generation) return;
      change({ error });
      if (!error.passing) return change({ running: false });
      await new Promise((done) => setTimeout(done, 1000 * error.retryAfter));
      if (run !== generation) return;
    }
  }
  change({ running: false });
  keep();
}

function add(rows, milliseconds) {
  const width = rows[0].length;
  const vectors = collection.done ? collection.vectors : new Float32Array(collection.texts.length * width);
  for (const [index, row] of rows.entries()) vectors.set(row, (collection.done + index) * width);
  change({ vectors, width, done: collection.done + rows.length, milliseconds: collection.milliseconds + milliseconds, error: null });
}

// IndexedDB, with one collection at most; where the browser has none, the collection lasts as long as the page.
function store(mode, use) {
  return new Promise((resolve) => {
    const opening = indexedDB.open(DATABASE, 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore("collections");
    opening.onerror = () => resolve(null);
    opening.onsuccess = () => {
      const request = use(opening.result.transaction("collections", mode).objectStore("collections"));
      request.onsuccess = () => resolve(request.result ?? null);
      request.onerror = () => resolve(null);
      request.transaction.oncomplete = () => opening.result.close();
    };
  });
}

function keep() {
  const { running, error, ...kept } = collection;
  return store("readwrite", (rows) => rows.put(kept, "last"));
}

export async function forget() {
  generation += 1;
  change(null);
  await store("readwrite", (rows) => rows.clear());
}

// The collection of an earlier visit, unless there is one by now; null: none is kept.
export async function restore() {
  const kept = collection ?? (await store("readonly", (rows) => rows.get("last")));
  if (!collection && kept) change({ ...kept, running: false, error: null });
  return collection;
}

// [{index, score}] of the texts nearest to a query's vector, best first; `wanted`: which texts may come.
export function nearest({ vectors, width, done }, query, most, wanted) {
  const scores = [];
  for (let index = 0; index < done; index++) {
    if (!wanted(index)) continue;
    let score = 0;
    for (let column = 0; column < width; column++) score += vectors[index * width + column] * query[column];
    scores.push({ index, score });
  }
  return scores.sort((a, b) => b.score - a.score).slice(0, most);
}
