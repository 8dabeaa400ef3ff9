// What the server did in the last hour and does now, from GET /metrics/history: the server keeps the figures, so the view opens full.
import { html, useLayoutEffect, useMemo, useRef, useState } from "../lib/dom.js";
import { RequestError, ask } from "../lib/api.js";
import { Chart, clock } from "../components/chart.js";
import { Choice, named } from "../components/choice.js";
import { Downloads, csvBlob, npyBlob } from "../components/downloads.js";
import { curvesSvg, pictureFiles } from "../components/picture.js";
import { ErrorLine } from "../components/result.js";
import { Snippets } from "../components/snippets.js";
import { CHARTS, STAGES, asked, curvesOf } from "./now/charts.js";
import { Slowest, milliseconds } from "./now/slowest.js";
import { canRun, chosenModel, exampleIds } from "./try/inputs.js";

const PERIOD_SECONDS = 5;
const RANGES = { 60: "the last hour", 15: "15 minutes", 5: "5 minutes" };
const LEAST_SECONDS = 60; // that charts span, also of a server that has just started
const SHORTEST = 2; // seconds of a sample from which rates can be told
const HISTORY = { path: "/metrics/history" };
let kept = null; // the last answer, shown at once when the view is opened again

export default function Now({ state, setState }) {
  const [history, setHistory] = useState(kept);
  const [paused, setPaused] = useState(false);
  const [error, setError] = useState(null);
  const askNow = useHistory({ paused, onAnswer: (answer) => setHistory((kept = answer)), onError: setError });
  if (error?.status === 404)
    return html`<p role="alert" class="error">
      GET /metrics/history is not on this port (404): the server was started with INLAY_MANAGEMENT_PORT, which has the metrics. Look at that port, or at Prometheus.
    </p>`;
  const minutes = RANGES[state.minutes] ? Number(state.minutes) : 60;
  const change = (part) => setState({ ...state, ...part });
  return html`
    <div class="row controls-row">
      <label>Time <${Choice} value=${minutes} options=${Object.entries(RANGES).reverse()} onChoose=${(each) => change({ minutes: each === "60" ? undefined : Number(each) })} /></label>
      ${history && html`<${ModelFilter} samples=${history.samples} chosen=${state.model} onChoose=${(model) => change({ model })} />`}
      <button type="button" class="quiet" onClick=${() => setPaused(!paused)} aria-pressed=${paused}>${paused ? "Go on" : "Pause"}</button>
      <${SendOne} onDone=${askNow} />
    </div>
    ${error && html`<${ErrorLine} error=${error} />`}
    ${history ? html`<${Figures} history=${history} minutes=${minutes} model=${state.model} />` : !error && html`<${Awaited} />`}
    <${Snippets} request=${HISTORY} label="GET /metrics/history" grpc=${{ missing: "Figures are HTTP's alone; gRPC calls are among them." }} />
    <${Snippets} request=${{ path: "/metrics", accept: "text/plain" }} label="GET /metrics"
      grpc=${{ missing: "Metrics are HTTP's alone; gRPC calls are counted in the same numbers, protocol=\"grpc\"." }} />
    <${Queries} />
  `;
}

// Asks again and again while the page is visible; returns a function that asks at once.
function useHistory({ paused, onAnswer, onError }) {
  const handlers = useRef({});
  handlers.current = { onAnswer, onError };
  const look = useRef(() => {});
  useLayoutEffect(() => {
    if (paused) return undefined;
    const controller = new AbortController();
    let timer;
    look.current = async () => {
      clearTimeout(timer);
      if (!document.hidden) {
        try {
          const { body } = await ask(HISTORY, { signal: controller.signal });
          handlers.current.onAnswer(body);
          handlers.current.onError(null);
        } catch (error) {
          if (error.name === "AbortError") return;
          handlers.current.onError(error instanceof RequestError ? error : new RequestError(error.message));
        }
      }
      clearTimeout(timer);
      timer = setTimeout(look.current, PERIOD_SECONDS * 1000);
    };
    look.current();
    addEventListener("apikeychange", look.current);
    const asking = look.current;
    return () => {
      controller.abort();
      clearTimeout(timer);
      removeEventListener("apikeychange", asking);
      look.current = () => {};
    };
  }, [paused]);
  return () => look.current();
}

// Models that were asked, those with most requests first: also the order of their colours.
function askedModels(samples) {
  const requests = new Map();
  for (const sample of samples) for (const [name, each] of Object.entries(asked(sample))) requests.set(name, (requests.get(name) ?? 0) + each.requests);
  return [...requests].sort((a, b) => b[1] - a[1]).map(([name]) => name);
}

function ModelFilter({ samples, chosen, onChoose }) {
  const names = [...new Set([...askedModels(samples), ...(chosen ? [String(chosen)] : [])])];
  return html`<label>Model <${Choice} value=${chosen ?? ""} options=${[["", "all models"], ...named(names)]} onChoose=${(name) => onChoose(name || undefined)} /></label>`;
}

function Figures({ history, minutes, model }) {
  const until = history.samples.at(-1).at;
  const first = history.samples[0];
  const from = Math.max(until - 60 * minutes, Math.min(first.at - first.seconds, until - LEAST_SECONDS));
  const samples = useMemo(() => history.samples.filter((sample, index, all) => sample.at > from && (sample.seconds >= SHORTEST || index < all.length - 1)), [history, minutes]);
  const names = useMemo(() => askedModels(history.samples), [history]);
  const { workers } = history.samples.at(-1);
  const begins = first.at - first.seconds;
  const whose = workers > 1 ? `Of all ${workers} workers together, as worker ${history.worker} has kept them` : "Kept by the server";
  return html`
    <${Totals} samples=${samples} last=${history.samples.at(-1)} />
    <p class="note">${whose} since ${clock(begins)}, a sample every ${history.sample_seconds} s; the charts span ${clock(from)} to ${clock(until)}.</p>
    <div class="charts">${CHARTS.map((chart) => html`<${Drawn} key=${chart.title} chart=${chart} samples=${samples} model=${model} names=${names} xRange=${[from, until]} />`)}</div>
    <${Slowest} samples=${samples} model=${model} />
    <${ByModel} samples=${samples} model=${model} />
    <${ByRoute} samples=${samples} />
  `;
}

// The room of the charts until the figures have come.
function Awaited() {
  return html`<p class="note" role="status">Asking the server for the figures of its last hour…</p>
    <div class="charts">${CHARTS.map(({ title, unit }) => html`<section class="panel awaited" aria-label=${title} aria-busy="true"><h2>${title} <small class="note">${unit}</small></h2></section>`)}</div>`;
}

function Totals({ samples, last }) {
  const seconds = samples.reduce((sum, sample) => sum + sample.seconds, 0) || 1;
  const sum = (of) => samples.reduce((total, sample) => total + Object.values(of(sample)).reduce((a, b) => a + b, 0), 0);
  const requests = sum((sample) => ({ all: Object.values(sample.routes).reduce((a, each) => a + each.requests, 0) }));
  const refused = sum((sample) => sample.refusals);
  const tokens = sum((sample) => Object.fromEntries(Object.entries(asked(sample)).map(([name, each]) => [name, each.tokens ?? 0])));
  const timed = samples.filter((sample) => sample.latency);
  const latest = timed.at(-1)?.latency;
  const numbers = [
    ["requests", short(requests)],
    ["requests/s, mean", short(requests / seconds)],
    ["p50, latest", latest ? milliseconds(latest.p50) : "–"],
    ["p99, latest", latest ? milliseconds(latest.p99) : "–"],
    ["tokens/s, mean", short(tokens / seconds)],
    ["refused or failed", requests >= refused && requests ? `${short(refused)} (${short((100 * refused) / requests)} %)` : short(refused)],
    ["waiting tokens now", short(last.queue_tokens)],
    ["memory now", `${short(last.worker_private_bytes / 2 ** 20)} MiB`],
    ["workers ready", `${last.workers_ready} of ${last.workers}`],
  ];
  return html`<dl class="totals">${numbers.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

function Drawn({ chart, samples, model, names, xRange }) {
  const x = useMemo(() => samples.map((sample) => sample.at), [samples]);
  const curves = useMemo(() => curvesOf(chart, samples, model, names), [samples, model]);
  const values = curves.flatMap((curve) => curve.values);
  const empty = !values.some((value) => value);
  const of = chart.ofModel && model ? ` of ${model}` : "";
  return html`<section class="panel" aria-label=${chart.title}>
    <h2>${chart.title} <small class="note">${chart.unit}${of}</small></h2>
    <${Chart} x=${x} curves=${curves} title=${`${chart.title}, ${chart.unit}`} time=${true} xRange=${xRange} fromZero=${true} height=${160} sync="now" />
    <p class="note fixed">${empty ? "Nothing in this time." : chart.gap && values.includes(null) ? chart.gap : ""}</p>
    <${Downloads} name=${chart.title.toLowerCase().replaceAll(" ", "-")} files=${filesOf(chart, x, xRange, curves)} />
  </section>`;
}

function filesOf(chart, x, xRange, curves) {
  const rows = x.map((time, index) => [time, ...curves.map((curve) => curve.values[index] ?? NaN)]);
  const picture = () =>
    curvesSvg({ x, xRange, curves, title: chart.title, xLabel: "time", yLabel: chart.unit, fromZero: true, xText: clock, yText: (value) => String(Number(value.toPrecision(3))) });
  return {
    ...pictureFiles(picture),
    npy: () => npyBlob(rows.flatMap((row) => [row[0] - x[0], ...row.slice(1)]), [rows.length, 1 + curves.length]),
    csv: () => csvBlob([["seconds since 1970", ...curves.map((curve) => curve.name)], ...rows.map((row) => row.map((value) => (Number.isNaN(value) ? "" : value)))]),
  };
}

// Sums of the members of objects by name: [{name, ...sums}], those with most requests first.
function summed(objects) {
  const rows = new Map();
  for (const each of objects)
    for (const [name, values] of Object.entries(each)) {
      const row = rows.get(name) ?? { name };
      for (const [member, value] of Object.entries(values)) row[member] = (row[member] ?? 0) + value;
      rows.set(name, row);
    }
  return [...rows.values()].sort((a, b) => b.requests - a.requests);
}

function Table({ id, title, heads, rows, empty }) {
  return html`<section class="panel" aria-labelledby=${id}>
    <h2 id=${id}>${title}</h2>
    ${rows.length
      ? html`<div class="scroll" tabindex="0" role="group" aria-labelledby=${id}>
          <table class="wide-table">
            <tr>${heads.map((head, index) => html`<th scope="col" class=${index ? "number" : ""}>${head}</th>`)}</tr>
            ${rows.map(([name, ...cells]) => html`<tr><th scope="row">${name}</th>${cells.map((cell) => html`<td class="number">${cell}</td>`)}</tr>`)}
          </table>
        </div>`
      : html`<p class="note">${empty}</p>`}
  </section>`;
}

const NONE = "No requests in this time: send one with the button above, or from the view Try.";

function ByModel({ samples, model }) {
  const seconds = samples.reduce((sum, sample) => sum + sample.seconds, 0) || 1;
  const rows = summed(samples.map((sample) => asked(sample, model))).map((row) => [
    row.name,
    short(row.requests),
    short((row.tokens ?? 0) / seconds),
    short(row.batches ? row.inputs / row.batches : 0),
    ...STAGES.map((stage) => milliseconds((row[stage] ?? 0) / row.requests)),
  ]);
  return html`<${Table} id="by-model" title="By model" heads=${["model", "requests", "tokens/s", "inputs a run", "tokenising", "queue", "model", "writing"]} rows=${rows} empty=${NONE} />`;
}

function ByRoute({ samples }) {
  const rows = summed(samples.map((sample) => sample.routes)).map((row) => [
    html`<code>${row.name}</code>`,
    short(row.requests),
    short(row.requests - row.timed),
    row.timed ? milliseconds(row.timed_seconds / row.timed) : "–",
  ]);
  return html`<${Table} id="by-route" title="By route" heads=${["route or method", "requests", "not successful", "mean"]} rows=${rows} empty=${NONE} />`;
}

function Queries() {
  return html`<details class="snippets">
    <summary>The same in Prometheus and Grafana</summary>
    <div class="scroll" tabindex="0" role="region" aria-label="Queries">
      <table>
        <tr><th>chart</th><th>query</th></tr>
        ${CHARTS.map((chart) => html`<tr><td>${chart.title}</td><td><code>${chart.query}</code></td></tr>`)}
      </table>
    </div>
    <p class="note">deploy/helm/inlay/files/ of the repository has alerts and a Grafana dashboard with these and more.</p>
  </details>`;
}

function SendOne({ onDone }) {
  const [said, setSaid] = useState("");
  const send = async () => {
    setSaid("");
    try {
      const { body } = await ask({ path: "/models" });
      const model = chosenModel(body.models.filter(canRun));
      if (!model) {
        setSaid("No model here reads texts or token ids.");
        return;
      }
      const inputs = model.reads_text ? "hello world" : exampleIds(model);
      const { milliseconds: took } = await ask({ path: "/embed", json: { model: model.name, inputs, outputs: [model.default_output] } });
      setSaid(`Answered in ${Math.round(took)} ms`);
      onDone();
    } catch (error) {
      setSaid(error.message);
    }
  };
  return html`<button type="button" class="quiet" onClick=${send}>Send a request</button><span class="note" role="status">${said}</span>`;
}

function short(value) {
  return Math.abs(value) >= 100 || Number.isInteger(value) ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(2)));
}
