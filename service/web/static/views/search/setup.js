// What is searched and by which model: texts or pictures of one's own, a sample; how far they are embedded.
import { html, useEffect, useState } from "../../lib/dom.js";
import { Choice } from "../../components/choice.js";
import { ModelChoice, isRandom, titleOf } from "../../components/model_choice.js";
import { ErrorLine } from "../../components/result.js";
import { count } from "../models/units.js";
import { forget, isWhole, pause, resume } from "./collection.js";
import { MOST_PICTURES, MOST_TEXTS, PICTURE, likelyColumn, readText, tableOf, textsOf } from "./files.js";
import { MEANING, WORDS, outputsOf, readsPictures } from "./roles.js";
import { SAMPLE } from "./sample.js";

const NONE = "";

// Args: able: models for what is searched; begun: whether an earlier collection was looked for; other: the model it is compared with, null without one; begin({name, texts, columns, pictures}).
export function Setup({ models, able, model, output, other, collection, begun, change, begin }) {
  const [over, setOver] = useState(false);
  const [unfolded, setOpened] = useState(null); // null until somebody folds it
  const opened = unfolded ?? (begun && !collection);
  const own = useOwn(models, (given) => (setOpened(false), begin(given)));
  useEffect(() => void ((own.problem || own.table) && setOpened(true)), [own.problem, own.table]); // also of files that are dropped on the folded card
  const drop = (event) => {
    event.preventDefault();
    setOver(false);
    own.takeFiles([...event.dataTransfer.files]);
  };
  const rivals = able.filter((each) => each !== model && (collection?.pictures || outputsOf(each).includes(MEANING)));
  return html`<section class=${over ? "panel setup over" : "panel setup"} aria-labelledby="source-title" onDragOver=${(event) => (event.preventDefault(), setOver(true))} onDragLeave=${() => setOver(false)} onDrop=${drop}>
    <div class="setup-row">
      <div class="field">
        <h2 id="source-title">${collection?.pictures ? "Pictures" : "Texts"}</h2>
        <${Name} collection=${collection} />
      </div>
      <${ModelChoice} models=${able} chosen=${model.name} onChoose=${(name) => change({ model: name })} />
      ${outputsOf(model).length > 1 &&
      !collection?.pictures &&
      html`<label class="field"><span>Find by</span>
        <${Choice} value=${output} options=${[[MEANING, "meaning (dense vector)"], [WORDS, "words (sparse vector)"]]} onChoose=${(each) => change({ by: each === WORDS ? "words" : undefined })} />
      </label>`}
      ${rivals.length > 0 &&
      output === MEANING &&
      html`<label class="field"><span>Compare with</span>
        <${Choice} value=${other?.name ?? NONE} options=${[[NONE, "no other model"], ...rivals.map((each) => [each.name, titleOf(each)])]} onChoose=${(name) => change({ other: name || undefined })} />
      </label>`}
    </div>
    ${[model, other].filter((each) => each && isRandom(each)).map((each) => html`<p class="note warn">The weights of ${each.name} are random: what it finds means nothing.</p>`)}
    ${collection && html`<${Progress} collection=${collection} />`}
    <details open=${opened}>
      <summary onClick=${(event) => (event.preventDefault(), setOpened(!opened))}>Search your own texts or pictures</summary>
      <${Own} own=${own} pictures=${models.some(readsPictures)} collection=${collection} begin=${begin} />
    </details>
  </section>`;
}

const nameOf = (name, taken, given) => (given > taken ? `${name}, the first ${count(taken)} of ${count(given)}` : name);

// Files and lines that somebody gives: {takeFiles, take, problem, table, setTable, embed}.
function useOwn(models, begin) {
  const [table, setTable] = useState(null); // {name, columns, rows, column}: read, not yet embedded
  const [problem, setProblem] = useState("");
  const embed = (read) => {
    const { given, ...found } = textsOf(read, read.column);
    setTable(null);
    begin({ ...found, name: nameOf(read.name, found.texts.length, given) });
  };
  const take = (text, name) => {
    setProblem("");
    setTable(null);
    if (!models.some((each) => outputsOf(each).length)) return setProblem("No model of this server makes vectors of texts.");
    try {
      const read = tableOf(text, name);
      const column = likelyColumn(read);
      if (!textsOf(read, column).texts.length) throw new Error("it holds no texts");
      if (read.columns.length === 1) embed({ ...read, name, column });
      else setTable({ ...read, name, column });
    } catch (error) {
      setProblem(`${name} is not taken: ${error.message}.`);
    }
    return undefined;
  };
  const takeFiles = async (files) => {
    if (!files.length) return undefined;
    setProblem("");
    setTable(null);
    const all = files.filter(({ type }) => PICTURE.test(type));
    const pictures = all.slice(0, MOST_PICTURES);
    if (!pictures.length && files.length > 1) return setProblem("One file of texts is taken at a time: put them into one, or choose pictures.");
    if (!pictures.length)
      return readText(files[0]).then(
        (text) => take(text, files[0].name),
        (error) => setProblem(`${files[0].name} is not taken: ${error.message}.`),
      );
    if (!models.some(readsPictures)) return setProblem("No model of this server makes vectors of pictures: export a CLIP, SigLIP or DINO.");
    return begin({ name: pictures.length === 1 ? pictures[0].name : nameOf(`${count(pictures.length)} pictures`, pictures.length, all.length), texts: pictures.map(({ name }) => name), columns: [], pictures });
  };
  return { takeFiles, take, problem, table, setTable, embed };
}

function Own({ own: { takeFiles, take, problem, table, setTable, embed }, pictures, collection, begin }) {
  const [pasted, setPasted] = useState("");
  return html`
    <div class="own">
      <label class="field">
        <span>Your own: a file of texts${pictures ? ", or pictures" : ""}</span>
        <input type="file" multiple accept=${`.txt,.md,.csv,.tsv,.jsonl,.ndjson,text/plain${pictures ? ",image/png,image/jpeg,image/webp" : ""}`} onChange=${(event) => takeFiles([...event.target.files])} />
        <span class="note">.txt, .csv, .tsv or .jsonl, up to ${count(MOST_TEXTS)} texts${pictures ? `; PNG, JPEG or WebP, up to ${count(MOST_PICTURES)}` : ""}. Or drop files on this card.</span>
      </label>
      <div>
        <label class="field"><span>Or paste lines</span>
          <textarea rows="3" spellcheck="false" value=${pasted} onInput=${(event) => setPasted(event.target.value)}></textarea>
        </label>
        <button type="button" class="quiet" disabled=${!pasted.trim()} onClick=${() => take(pasted, "Pasted lines")}>Embed these lines</button>
      </div>
    </div>
    ${problem && html`<p class="error" role="alert">${problem}</p>`}
    ${table &&
    html`<div class="row">
      <label>Column of the texts ${" "}<${Choice} value=${table.column} options=${table.columns.map((name, index) => [index, name])} onChoose=${(index) => setTable({ ...table, column: Number(index) })} /></label>
      <button type="button" onClick=${() => embed(table)}>Embed ${count(table.rows.length)} rows</button>
    </div>`}
    <div class="row">
      <button type="button" class="quiet" onClick=${() => begin(SAMPLE)}>Use the sample</button>
      ${collection && html`<button type="button" class="quiet" onClick=${forget}>Forget these ${collection.pictures ? "pictures" : "texts"}</button>`}
      <span class="note">All stays in this browser, and the server keeps none.</span>
    </div>`;
}

function Name({ collection }) {
  if (!collection) return html`<p class="note">none yet</p>`;
  const { name, texts, runs, unread = [] } = collection;
  return html`<p class="own-name">${name} <span class="note">${runs[0].done < texts.length ? `${count(runs[0].done)} of ` : ""}${count(texts.length)} by ${runs[0].model}${unread.length ? `, without ${unread.slice(0, 3).join(", ")}${unread.length > 3 ? ` and ${unread.length - 3} more` : ""}: not read` : ""}</span></p>`;
}

function Progress({ collection }) {
  const { texts, runs, running, error } = collection;
  const open = runs.filter((run) => !isWhole(run, collection));
  if (!open.length && !error) return null;
  const [done, all] = [runs.reduce((sum, run) => sum + run.done, 0), runs.length * texts.length];
  return html`
    ${open.length > 0 &&
    html`<div class="row progress">
      <progress max=${all} value=${done} aria-label="Texts embedded"></progress>
      <button type="button" class="quiet" onClick=${running ? pause : resume}>${running ? "Pause" : "Go on"}</button>
      <span class="note">${running ? leftOf(open, texts.length) : "paused"}</span>
    </div>`}
    ${error && html`<${ErrorLine} error=${error} />`}
  `;
}

// How long what is left takes at the speed so far.
function leftOf(open, all) {
  const parts = open.map(({ done, milliseconds }) => (done ? ((all - done) * milliseconds) / done / 1000 : NaN));
  const seconds = parts.reduce((sum, part) => sum + (Number.isNaN(part) ? parts[0] : part), 0);
  if (Number.isNaN(seconds)) return "";
  return seconds < 90 ? `about ${Math.max(1, Math.round(seconds))} s left` : `about ${Math.round(seconds / 60)} min left`;
}
