// What the server does at this moment: requests, latency, queue, batches, refusals, from GET /metrics.
import { html, useEffect, useMemo, useRef, useState } from "../lib/dom.js";
import { RequestError, ask } from "../lib/api.js";
import { Scrape, mean, parseMetrics, quantile, rate, rates } from "../lib/prometheus.js";
import { Chart, clock } from "../components/chart.js";
import { Downloads, csvBlob, npyBlob } from "../components/downloads.js";
import { curvesSvg, pictureFiles } from "../components/picture.js";
import { ErrorLine } from "../components/result.js";
import { canRun, chosenModel, exampleIds } from "./try/inputs.js";
import { Snippets } from "../components/snippets.js";

const PERIOD_SECONDS = 2;
const SHOWN_SECONDS = 300; // of every chart
let kept = []; // scrapes of the last minutes, also while another view is shown
const METRICS = { path: "/metrics", accept: "text/plain" };
const MOST_CURVES = 6;
// The page's own scrapes are counted as any other request; what is sent to these routes is left out here.
const served = (labels) => labels.method !== "/metrics";

// Each chart: what it shows of two scrapes as {curve: value} (`absent`: the value of a curve that is missing there), and the query that shows the same in Prometheus.
const CHARTS = [
  {
    title: "Requests",
    unit: "requests/s",
    absent: 0,
    query: "sum by (method) (rate(inlay_requests_total[1m])) > 0",
    curves: (before, after) => largest(rates(before, after, "inlay_requests_total", "method", served)),
  },
  {
    title: "Latency of successful requests",
    unit: "seconds",
    gap: "A gap: no request was answered in that time.",
    query: "histogram_quantile(0.99, sum by (le) (rate(inlay_request_seconds_bucket[1m])))",
    curves: (before, after) =>
      Object.fromEntries([0.5, 0.95, 0.99].map((share) => [`p${100 * share}`, quantile(share, before, after, "inlay_request_seconds", served)])),
  },
  {
    title: "Queue",
    unit: "waiting now",
    query: "sum by (model, graph) (inlay_queue_tokens)",
    curves: (_, after) => ({ tokens: after.sum("inlay_queue_tokens"), inputs: after.sum("inlay_queue_items") }),
  },
  {
    title: "Batch size",
    unit: "inputs a run",
    gap: "A gap: no batch ran in that time.",
    query: "sum by (model) (rate(inlay_batch_items_sum[1m])) / sum by (model) (rate(inlay_batch_items_count[1m]))",
    curves: (before, after) =>
      Object.fromEntries(
        [...after.sums("inlay_batch_items_count", "model").keys()].map((model) => [
          model,
          mean(before, after, "inlay_batch_items", (labels) => labels.model === model),
        ]),
      ),
  },
  {
    title: "Refusals and errors",
    unit: "requests/s",
    absent: 0,
    query: "sum by (reason) (rate(inlay_refusals_total[1m])) > 0",
    curves: (before, after) => largest(rates(before, after, "inlay_refusals_total", "reason")),
  },
  {
    title: "In flight",
    unit: "requests",
    query: "sum(inlay_requests_in_flight)",
    curves: (_, after) => ({ requests: after.sum("inlay_requests_in_flight") }),
  },
];

// The entries above zero, the largest first, at most as many as there are colours.
function largest(map) {
  return Object.fromEntries([...map].filter(([, value]) => value > 0).sort((a, b) => b[1] - a[1]).slice(0, MOST_CURVES));
}

function recent(scrapes) {
  return scrapes.filter((scrape) => scrape.seconds >= Date.now() / 1000 - SHOWN_SECONDS);
}

export default function Now() {
  const [scrapes, setScrapes] = useState(() => recent(kept));
  const [paused, setPaused] = useState(false);
  const [error, setError] = useState(null);
  useScrapes({ paused, onScrape: (scrape) => setScrapes((kept = recent([...kept, scrape]))), onError: setError });
  if (error?.status === 404)
    return html`<p role="alert" class="error">
      GET /metrics is not on this port (404): the server was started with INLAY_MANAGEMENT_PORT, which has the metrics. Look at that port, or at Prometheus.
    </p>`;
  const last = scrapes.at(-1);
  const until = last?.seconds ?? Date.now() / 1000;
  return html`
    <div class="row">
      <button type="button" onClick=${() => setPaused(!paused)} aria-pressed=${paused}>${paused ? "Go on" : "Pause"}</button>
      <${SendOne} />
      <span class="note">Asked every ${PERIOD_SECONDS} s while this page is visible; the last five minutes are kept, in this page alone and until it is closed.</span>
    </div>
    ${error && html`<${ErrorLine} error=${error} />`}
    <${Totals} scrapes=${scrapes} />
    <p class="note">The charts show the last five minutes, from ${clock(until - SHOWN_SECONDS)} to ${clock(until)}.</p>
    <div class="charts">${CHARTS.map((chart) => html`<${Live} key=${chart.title} chart=${chart} scrapes=${scrapes} until=${until} />`)}</div>
    <${ByRoute} last=${last} />
    <${Snippets}
      request=${METRICS}
      label="GET /metrics"
      grpc=${{ missing: "Metrics are HTTP's alone; gRPC calls are counted in the same numbers, protocol=\"grpc\"." }}
    />
    <details class="snippets">
      <summary>The same in Prometheus and Grafana</summary>
      <div class="scroll" tabindex="0" role="region" aria-label="Queries">
        <table>
          <tr>
            <th>chart</th>
            <th>query</th>
          </tr>
          ${CHARTS.map((chart) => html`<tr>
            <td>${chart.title}</td>
            <td><code>${chart.query}</code></td>
          </tr>`)}
        </table>
      </div>
      <p class="note">deploy/helm/inlay/files/ of the repository has alerts and a Grafana dashboard with these and more.</p>
    </details>
  `;
}

// Asks /metrics again and again while the page is visible.
function useScrapes({ paused, onScrape, onError }) {
  const handlers = useRef({});
  handlers.current = { onScrape, onError };
  useEffect(() => {
    if (paused) return undefined;
    const controller = new AbortController();
    let timer;
    const scrape = async () => {
      if (!document.hidden) {
        try {
          const { body } = await ask(METRICS, { signal: controller.signal });
          handlers.current.onScrape(new Scrape(Date.now() / 1000, parseMetrics(new TextDecoder().decode(body))));
          handlers.current.onError(null);
        } catch (error) {
          if (error.name === "AbortError") return;
          handlers.current.onError(error instanceof RequestError ? error : new RequestError(error.message));
        }
      }
      timer = setTimeout(scrape, PERIOD_SECONDS * 1000);
    };
    scrape();
    return () => {
      controller.abort();
      clearTimeout(timer);
    };
  }, [paused]);
}

function Totals({ scrapes }) {
  const [before, after] = scrapes.slice(-2);
  const last = after ?? before;
  const known = (value) => (last ? value() : "–");
  const numbers = [
    ["requests/s", known(() => (after ? short(rate(before, after, "inlay_requests_total", served)) : "–"))],
    ["p50", known(() => (after ? milliseconds(quantile(0.5, before, after, "inlay_request_seconds", served)) : "–"))],
    ["p99", known(() => (after ? milliseconds(quantile(0.99, before, after, "inlay_request_seconds", served)) : "–"))],
    ["waiting tokens", known(() => short(last.sum("inlay_queue_tokens")))],
    ["answered since the start", known(() => short(last.sum("inlay_requests_total", served)))],
    ["refused or failed", known(() => short(last.sum("inlay_refusals_total")))],
    ["workers ready", known(() => `${last.sum("inlay_workers_ready")} of ${last.sum("inlay_workers")}`)],
    ["up", known(() => duration(last.seconds - last.sum("process_start_time_seconds")))],
  ];
  return html`<dl class="totals">
    ${numbers.map(([name, value]) => html`<div>
      <dt>${name}</dt>
      <dd>${value}</dd>
    </div>`)}
  </dl>`;
}

function Live({ chart, scrapes, until }) {
  const xRange = [until - SHOWN_SECONDS, until];
  const { x, curves } = useMemo(() => series(chart, scrapes), [scrapes]);
  return html`<section class="panel" aria-label=${chart.title}>
    <h2>${chart.title}</h2>
    <${Chart}
      x=${x}
      curves=${curves}
      title=${`${chart.title}, ${chart.unit}`}
      xLabel="time"
      yLabel=${chart.unit}
      time=${true}
      xRange=${xRange}
      fromZero=${true}
      height=${200}
    />
    <p class="note fixed">${saidOf(chart, curves, scrapes)}</p>
    <${Downloads} name=${chart.title.toLowerCase().replaceAll(" ", "-")} files=${filesOf(chart, x, xRange, curves)} />
  </section>`;
}

function saidOf(chart, curves, scrapes) {
  if (scrapes.length < 2) return "Waiting for the second measurement.";
  const values = curves.flatMap((curve) => curve.values);
  if (!values.some((value) => value)) return "Nothing in this time.";
  return chart.gap && values.includes(null) ? chart.gap : "";
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

// The curves of a chart over the kept scrapes; a curve that is missing in one is null there.
function series(chart, scrapes) {
  const pairs = scrapes.slice(1).map((after, index) => [scrapes[index], after]);
  const points = pairs.map(([before, after]) => chart.curves(before, after));
  const peaks = new Map();
  for (const point of points)
    for (const [name, value] of Object.entries(point)) if (value !== null) peaks.set(name, Math.max(peaks.get(name) ?? 0, value));
  const names = [...peaks].sort((a, b) => b[1] - a[1]).slice(0, MOST_CURVES).map(([name]) => name);
  if (chart.title.startsWith("Latency")) names.sort();
  return {
    x: pairs.map(([, after]) => after.seconds),
    curves: names.map((name) => ({ name, values: points.map((point) => point[name] ?? chart.absent ?? null) })),
  };
}

function ByRoute({ last }) {
  const rows = useMemo(() => {
    const routes = new Map();
    for (const { labels, value } of last?.samples("inlay_requests_total") ?? []) {
      if (!value || !served(labels)) continue;
      const key = `${labels.protocol} ${labels.method}`;
      const row = routes.get(key) ?? { ...labels, total: 0, statuses: {} };
      row.total += value;
      row.statuses[labels.status] = value;
      routes.set(key, row);
    }
    return [...routes.values()].sort((a, b) => b.total - a.total);
  }, [last]);
  return html`<section class="panel" aria-labelledby="by-route">
    <h2 id="by-route">Since the start, by route</h2>
    ${rows.length
      ? html`<div class="scroll" tabindex="0" role="group" aria-labelledby="by-route">
          <table>
            <tr>
              <th>protocol</th>
              <th>route or method</th>
              <th class="number">answered</th>
              <th>by status</th>
            </tr>
            ${rows.map((row) => html`<tr>
              <td>${row.protocol}</td>
              <td><code>${row.method}</code></td>
              <td class="number">${row.total}</td>
              <td>${Object.entries(row.statuses).map(([status, count]) => `${status}: ${count}`).join(", ")}</td>
            </tr>`)}
          </table>
        </div>`
      : html`<p class="note">${last ? "No requests yet: send one with the button above, or from the view Try." : "Waiting for the first measurement."}</p>`}
  </section>`;
}

function SendOne() {
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
    } catch (error) {
      setSaid(error.message);
    }
  };
  return html`<button type="button" class="quiet" onClick=${send}>Send a request</button><span class="note" role="status">${said}</span>`;
}

function short(value) {
  return Math.abs(value) >= 100 || Number.isInteger(value) ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(2)));
}

function milliseconds(seconds) {
  return seconds === null ? "–" : `${Number((1000 * seconds).toPrecision(2))} ms`;
}

function duration(seconds) {
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const [unit, size] = units.find(([, each]) => seconds >= each) ?? units.at(-1);
  return `${Math.floor(seconds / size)} ${unit}`;
}
