// The map, or two of them beside each other, with what their colours mean and the list of what is chosen on them.
import { html, useMemo, useState } from "../../lib/dom.js";
import { Choice, named } from "../../components/choice.js";
import { Downloads } from "../../components/downloads.js";
import { count } from "../models/units.js";
import { isWhole } from "./collection.js";
import { colorName, looksOf, shapeName } from "./looks.js";
import { LASSO, UMAP_POINTS, TextMap, ZOOM, useLayout, useWorker } from "./map.js";
import { rowsCsv } from "./results.js";
import { RowLink } from "./row_link.js";

const GROUPS = 8;
const MOST_GROUPS = 18;
const LISTED = 200;
const CLUSTERS = "clusters";

// {look, legend, captions}: by groups of the first run's vectors, or by the column that the link names; null until the groups are found.
function useLooks(collection, color, groups) {
  const [run] = collection.runs;
  const whole = isWhole(run, collection) && run.done > 1;
  const column = collection.columns.find(({ name, few }) => few && name === color);
  const least = Math.min(groups, run.done);
  const texts = collection.pictures ? collection.texts.map(() => "") : collection.texts;
  const found = useWorker("map_worker.js", whole && !column ? { job: "groups", vectors: run.vectors, width: run.width, texts, groups: least } : null, [whole, run.vectors, column?.name, least])?.data;
  return useMemo(() => {
    const given = column ? looksOf(column.values) : found ? looksOf(Array.from(found.member, (group) => found.names[group])) : null;
    return given && { ...given, captions: collection.pictures && !column ? [] : given.legend.map(({ name, look }) => ({ look, text: String(name).split(", ").slice(0, 2).join(", ") })) };
  }, [found, column, collection.pictures]);
}

// Args: shown: [{run, hits}] of one or two runs; wanted: filter of hits.js or null; focus: a text whose neighbours are drawn, links of it a map; over,
// setOver; chosen: {name, indices} or null, setChosen; only, setOnly: whether the search is among the chosen alone.
export function Maps({ collection, shown, wanted, state, change, links, over, setOver, chosen, setChosen, only, setOnly, onPick }) {
  const [tool, setTool] = useState(null);
  const groups = Number.isInteger(state.groups) ? Math.min(MOST_GROUPS, Math.max(2, state.groups)) : GROUPS;
  const [least, most] = UMAP_POINTS;
  const small = collection.texts.length >= least && collection.texts.length <= most;
  const layout = small && state.layout !== "components" ? "neighbours" : "components";
  const colors = collection.columns.filter(({ few }) => few);
  const color = colors.some(({ name }) => name === state.color) ? state.color : state.color === CLUSTERS || !colors.length ? CLUSTERS : colors[0].name;
  const looks = useLooks(collection, color, groups);
  const [first, second] = shown;
  const layouts = [useLayout(first.run, isWhole(first.run, collection), layout), useLayout(second?.run, Boolean(second && isWhole(second.run, collection)), layout)];
  const lit = useMemo(() => {
    if (chosen) return Uint8Array.from(collection.texts, (_, index) => Number(chosen.set.has(index)));
    return wanted && Uint8Array.from(collection.texts, (_, index) => Number(wanted(index)));
  }, [chosen, wanted, collection.texts]);
  const choose = (name, indices) => setChosen(indices.length ? { name, indices, set: new Set(indices) } : null);
  const ofLook = (name, look) => (chosen?.name === name ? setChosen(null) : choose(name, Array.from(looks.look.keys()).filter((index) => looks.look[index] === look)));
  return html`<section class="panel map" aria-labelledby="map-title">
    <div class="row between">
      <h2 id="map-title">Map</h2>
      <div class="row">
        <label>Colour ${" "}<${Choice} value=${color} options=${named([CLUSTERS, ...colors.map(({ name }) => name)])} onChoose=${(chosenColor) => change({ color: chosenColor })} /></label>
        ${color === CLUSTERS && html`<label>Clusters ${" "}<input type="number" min="2" max=${MOST_GROUPS} value=${groups} onChange=${(event) => change({ groups: event.target.valueAsNumber })} /></label>`}
        <label>Layout ${" "}<${Choice} value=${layout} options=${[["neighbours", small ? "UMAP" : `UMAP (${least} to ${count(most)})`, !small], ["components", "PCA"]]} onChoose=${(each) => change({ layout: each })} /></label>
        <div class="row">
          ${[LASSO, ZOOM].map((each) => html`<button type="button" class="tab" aria-pressed=${tool === each} onClick=${() => setTool(tool === each ? null : each)}>${each}</button>`)}
        </div>
      </div>
    </div>
    <div class=${shown.length > 1 ? "maps two" : "maps"}>
      ${shown.map(({ run, hits }, place) => html`<div key=${place}>
        ${shown.length > 1 && html`<h3>${run.model}</h3>`}
        <${TextMap}
          name=${run.model}
          ...${{ collection, lit, hits, over, setOver, tool, onPick }}
          result=${layouts[place]}
          look=${looks?.look}
          captions=${looks?.captions}
          links=${links[place]}
          onLasso=${(indices) => (choose("lasso", indices), setTool(null))}
        />
      </div>`)}
    </div>
    <p class="note">Point at one to read it, press it to search for its like. Drag to move, with Lasso (or Shift) to draw around some, with Zoom (or Alt) to enlarge a part. The star is the query.</p>
    <ul class="legend" aria-label="Groups on the map">
      ${looks?.legend.map(({ name, size, look }) => html`<li>
        <button type="button" class="quiet" aria-pressed=${chosen?.name === name} onClick=${() => ofLook(name, look)}><span class=${`mark ${shapeName(look)}`} style=${{ background: `var(${colorName(look)})` }}></span>${name || "(empty)"} <small>${size}</small></button>
      </li>`)}
    </ul>
    ${chosen && html`<${Chosen} ...${{ collection, chosen, setChosen, only, setOnly, setOver, onPick }} />`}
  </section>`;
}

function Chosen({ collection, chosen: { name, indices }, setChosen, only, setOnly, setOver, onPick }) {
  return html`<div class="chosen" role="region" aria-label="Chosen on the map">
    <div class="row between">
      <h3>${count(indices.length)} chosen${name === "lasso" ? "" : `: ${name}`}</h3>
      <div class="row">
        <label class="check"><input type="checkbox" checked=${only} onChange=${(event) => setOnly(event.target.checked)} /> search these alone</label>
        <${Downloads} name="chosen" files=${{ csv: () => rowsCsv(collection, indices.map((index) => ({ index })), { row: ({ index }) => index }) }} />
        <button type="button" class="quiet" onClick=${() => setChosen(null)}>Let go</button>
      </div>
    </div>
    <ol class="listed" tabindex="0" aria-label="Texts chosen">
      ${indices.slice(0, LISTED).map((index) => html`<li key=${index}><${RowLink} ...${{ collection, index, onPick }} onOver=${setOver} /></li>`)}
    </ol>
    ${indices.length > LISTED && html`<p class="note">The first ${LISTED} are listed; the CSV has all.</p>`}
  </div>`;
}
