// What is searched and its vectors: embedded in pieces, kept in this page and, until it is forgotten, in this browser.
import { useEffect, useState } from "../../lib/dom.js";
import { ask } from "../../lib/api.js";
import { read, wipe, write } from "./kept.js";
import { WORDS, dataUrl, picturesRequest, rowsOf, textsRequest } from "./roles.js";
import { SKETCH, sketch } from "./sparse.js";

const PIECE = 32; // texts of a request: small enough that a person's other requests get their turn
const PICTURES = 4;

// {name, texts, columns: [{name, values, few}], pictures: [Blob] | null, unread: [name], runs: [Run], running, error}; null: none yet. The texts
// of pictures are their files' names, and `unread` those that the server could not read. A Run is {model, version, output, mixed, width, vectors: Float32Array [texts, width], rows, done, milliseconds}: the
// first is searched, a second compared with it; rows: sparse vectors {indices, values}, of which `vectors` are sketches.
let collection = null;
let generation = 0; // of the loop that may write: another collection or model ends the one before
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

// How a model of GET /models is to embed a collection: what tells one run from another.
export function specOf(model, output) {
  return { model: model.name, version: model.version, output, mixed: model.reads_text };
}

export function isRunOf(run, spec) {
  return Boolean(run && spec) && run.model === spec.model && run.version === spec.version && run.output === spec.output;
}

export function isWhole(run, { texts }) {
  return run.done === texts.length;
}

// Embeds {name, texts, columns, pictures} by one or two specs; runs that exist go on where they are.
export function embedAll({ name, texts, columns = [], pictures = null, unread = [] }, specs) {
  const known = collection?.texts === texts ? collection.runs : [];
  const begun = (spec) => known.find((run) => isRunOf(run, spec)) ?? { ...spec, width: 0, vectors: new Float32Array(0), rows: [], done: 0, milliseconds: 0 };
  change({ name, texts, columns, pictures, unread, runs: specs.map(begun), error: null });
  return resume();
}

export function pause() {
  generation += 1;
  change({ running: false });
  keep();
}

function keep() {
  const { running, error, ...kept } = collection;
  return write(kept);
}

const waiting = () => collection.runs.findIndex((run) => !isWhole(run, collection));

// Goes on where embedding was paused or failed; waits where the server is busy.
export async function resume() {
  const loop = ++generation;
  change({ running: true, error: null });
  for (let index = waiting(); index >= 0; index = waiting()) {
    try {
      const part = await embedded(collection, collection.runs[index]);
      if (loop !== generation) return;
      add(index, part);
    } catch (error) {
      if (loop !== generation) return;
      if (collection.pictures?.length > 1 && error.code === "bad_input" && error.document.index >= 0) {
        leaveOut(collection.runs[index].done + error.document.index);
        continue;
      }
      change({ error });
      if (!error.passing) return change({ running: false });
      await new Promise((done) => setTimeout(done, 1000 * error.retryAfter));
      if (loop !== generation) return;
    }
  }
  change({ running: false });
  keep();
}

// {width, values, rows, milliseconds} of a run's next piece.
async function embedded({ texts, pictures }, { model, output, mixed, done }) {
  if (pictures) {
    const urls = await Promise.all(pictures.slice(done, done + PICTURES).map(dataUrl));
    const answer = await ask(picturesRequest(model, mixed, urls));
    return { ...rowsOf(answer), rows: [], milliseconds: answer.milliseconds };
  }
  const answer = await ask(textsRequest(model, output, texts.slice(done, done + PIECE)));
  if (output !== WORDS) return { ...rowsOf(answer), rows: [], milliseconds: answer.milliseconds };
  const rows = answer.body.outputs[WORDS].map(({ indices, values }) => ({ indices: Uint32Array.from(indices), values: Float32Array.from(values) }));
  return { width: SKETCH, values: sketch(rows), rows, milliseconds: answer.milliseconds };
}

function add(index, { width, values, rows, milliseconds }) {
  const before = collection.runs[index];
  const vectors = before.done ? before.vectors : new Float32Array(collection.texts.length * width);
  vectors.set(values, before.done * width);
  const after = { ...before, width, vectors, rows: before.rows.concat(rows), done: before.done + values.length / width, milliseconds: before.milliseconds + milliseconds };
  change({ runs: collection.runs.with(index, after), error: null });
}

// Goes on without a picture that the server cannot read.
function leaveOut(row) {
  const { texts, pictures, runs, unread } = collection;
  const kept = texts.toSpliced(row, 1);
  change({ texts: kept, pictures: pictures.toSpliced(row, 1), unread: [...unread, texts[row]], runs: runs.map((run) => ({ ...run, vectors: run.vectors.slice(0, kept.length * run.width) })) });
}

export async function forget() {
  generation += 1;
  change(null);
  await wipe();
}

// The collection of an earlier visit, unless there is one by now; null: none is kept.
export async function restore() {
  const kept = collection ?? (await read());
  if (!collection && kept?.runs) change({ ...kept, running: false, error: null });
  return collection;
}
