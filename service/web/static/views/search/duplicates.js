// Pairs of texts or pictures that nearly repeat each other, above a threshold that somebody sets.
import { html, useState } from "../../lib/dom.js";
import { Downloads, csvBlob } from "../../components/downloads.js";
import { count } from "../models/units.js";
import { isWhole } from "./collection.js";
import { useWorker } from "./map.js";
import { RowLink } from "./row_link.js";

const LEAST = 0.7;
const USUAL = 0.9;
const MOST = 5000; // pairs that are sought
const LISTED = 100;

export function Duplicates({ collection, run, state, change, onPick, setOver }) {
  const [opened, setOpened] = useState(false);
  const threshold = typeof state.alike === "number" && state.alike >= LEAST && state.alike <= 1 ? state.alike : USUAL;
  const { texts } = collection;
  const wanted = opened && isWhole(run, collection) && run.done > 1;
  const result = useWorker("map_worker.js", wanted ? { job: "duplicates", vectors: run.vectors, width: run.width, threshold, most: MOST } : null, [wanted, run.vectors, threshold]);
  const pairs = result?.data?.pairs;
  const running = result?.progress < 1 && !result.stopped;
  const csv = () => csvBlob([["score", "row", "text", "row of the other", "the other"], ...pairs.map(({ a, b, score }) => [score, a, texts[a], b, texts[b]])]);
  return html`<details class="panel duplicates" open=${opened} onToggle=${(event) => setOpened(event.target.open)}>
    <summary><h2>Near-duplicates</h2></summary>
    <label class="field"><span>Cosine of at least ${threshold.toFixed(2)}</span>
      <input type="range" min=${LEAST} max="1" step="0.01" value=${threshold} onChange=${(event) => change({ alike: event.target.valueAsNumber })} />
    </label>
    ${opened && !pairs && html`<p class="note" role="status">${result?.error ? `It failed: ${result.error.message}.` : wanted ? "Comparing…" : "They are sought once all is embedded."}</p>`}
    ${running && html`<div class="row progress"><progress max="1" value=${result.progress} aria-label="Compared"></progress><button type="button" class="quiet" onClick=${result.stop}>Stop</button></div>`}
    ${pairs && html`<p role=${running ? undefined : "status"}>${result.data.more ? `More than ${count(MOST)} pairs: raise the threshold.` : `${count(pairs.length)} ${pairs.length === 1 ? "pair" : "pairs"}${running ? " so far" : result.stopped ? ", stopped before all were compared" : ""}.`}</p>`}
    ${pairs?.length > 0 &&
    html`<ol class="listed pairs" tabindex="0" aria-label="Pairs that are nearly the same">
        ${pairs.slice(0, LISTED).map(({ a, b, score }) => html`<li key=${`${a}-${b}`}><span class="number">${score.toFixed(3)}</span> <div>${[a, b].map((index) => html`<${RowLink} ...${{ collection, index, onPick }} onOver=${setOver} />`)}</div></li>`)}
      </ol>
      <${Downloads} name="pairs" files=${{ csv }} />`}
  </details>`;
}
