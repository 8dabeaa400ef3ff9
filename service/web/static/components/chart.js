// Curves over a common axis, by uPlot, which is loaded with the first chart.
import { color, html, useEffect, useRef, useTheme, useWidth } from "../lib/dom.js";

const SERIES = 6; // colours of the style sheet
const RETRY_MILLISECONDS = 3000;
let loading = null;

function loadUplot() {
  loading ??= new Promise((resolve) => {
    const style = document.createElement("link");
    style.rel = "stylesheet";
    style.href = "/web/vendor/uplot.css";
    document.head.append(style);
    loadScript(resolve);
  });
  return loading;
}

// Tries again until the server answers: it may be starting again.
function loadScript(done) {
  const script = document.createElement("script");
  script.src = "/web/vendor/uplot.js";
  script.onload = () => done(window.uPlot);
  script.onerror = () => {
    script.remove();
    setTimeout(() => loadScript(done), RETRY_MILLISECONDS);
  };
  document.head.append(script);
}

export const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3], [6, 3], [12, 3, 2, 3, 2, 3]];

// The ref of a plot in the element .plot of `box`, drawn anew when `shape`, the width or the theme changes.
// Args: columns: its data; settings: (UPlot, width) -> the plot's options.
export function usePlot({ box, shape, columns, settings }) {
  const plot = useRef(null);
  const width = useWidth(box);
  const theme = useTheme();
  const latest = useRef(columns);
  latest.current = columns; // uPlot may arrive after newer data
  useEffect(() => {
    if (!width) return undefined;
    let current = true;
    loadUplot().then((UPlot) => {
      if (!current) return;
      plot.current?.destroy();
      plot.current = new UPlot(settings(UPlot, width), latest.current, box.current.querySelector(".plot"));
    });
    return () => {
      current = false;
    };
  }, [width, shape, theme]);
  useEffect(() => () => plot.current?.destroy(), []);
  return plot;
}

// Args: x: numbers; curves: [{name, values}] on x, null where there is none; title, xLabel, yLabel; xLog, yLog: logarithmic axes;
// time: x is seconds since 1970, written as the hour of the day, and the legend has the last values until one points at others;
// xRange: [first, last] of the x axis, else those of x; fromZero: the y axis begins at 0; height in CSS pixels; sync: charts of this
// name share the line under the pointer. Curves differ in colour and dashes, by their place or their own `slot`.
export function Chart({ x, curves, title, xLabel, yLabel, xLog = false, yLog = false, time = false, xRange = null, fromZero = false, height = 280, sync = null }) {
  const box = useRef(null);
  const range = useRef(xRange);
  range.current = xRange;
  const columns = [x, ...curves.map((curve) => curve.values)];
  const shape = JSON.stringify([curves.map((curve) => [curve.name, curve.slot]), xLabel, yLabel, xLog, yLog, time, fromZero, height]);
  const settings = (UPlot, width) => options({ curves, xLabel, yLabel, xLog, yLog, time, range, fromZero, width, height, sync }, UPlot);
  const plot = usePlot({ box, shape, columns, settings });
  useEffect(() => {
    if (plot.current?.series.length === columns.length) plot.current.setData(columns); // else it is about to be drawn anew
  }, [x, curves, xRange?.[0], xRange?.[1]]);
  return html`<figure class="figure" ref=${box} role="group" aria-label=${title}>
    <div class="plot" style=${{ minHeight: `${height + 36}px` }}></div>
    <div class="hidden"><table>
      <caption>
        ${title}
      </caption>
      <tr>
        <th>curve</th>
        <th>first</th>
        <th>least</th>
        <th>most</th>
        <th>last</th>
      </tr>
      ${curves.map((curve) => summaryRow(curve))}
    </table></div>
  </figure>`;
}

function summaryRow({ name, values }) {
  const numbers = Array.from(values).filter((value) => value !== null && Number.isFinite(value));
  const cells = [numbers[0], numbers.reduce((a, b) => Math.min(a, b), Infinity), numbers.reduce((a, b) => Math.max(a, b), -Infinity), numbers.at(-1)];
  return html`<tr>
    <th>${name}</th>
    ${cells.map((value) => html`<td>${Number.isFinite(value) ? Number(value.toPrecision(4)) : "none"}</td>`)}
  </tr>`;
}

// 24-hour HH:MM:SS of seconds since 1970, in the browser's time zone.
export function clock(seconds) {
  return new Date(1000 * seconds).toLocaleTimeString("en-GB");
}

function options({ curves, xLabel, yLabel, xLog, yLog, time, range, fromZero, width, height, sync }, UPlot) {
  const axis = { stroke: color("--ink"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line"), width: 1 }, labelSize: 22 };
  return {
    width,
    height,
    scales: { x: { time, distr: xLog ? 3 : 1, ...(range.current && { range: () => range.current }) }, y: { distr: yLog ? 3 : 1, ...(fromZero && { range: (_, __, most) => [0, most > 0 ? 1.05 * most : 1] }) } },
    axes: [
      { ...axis, ...(xLabel && { label: xLabel }), ...(time && { values: (_, splits) => splits.map(clock), space: 60 }) },
      { ...axis, ...(yLabel && { label: yLabel }), size: 64 },
    ],
    series: [
      { label: xLabel ?? "time", ...(time && { value: (plot, value) => clockOf(value ?? plot.data[0].at(-1)) }) },
      ...curves.map((curve, index) => ({
        label: curve.name,
        stroke: color(`--series-${((curve.slot ?? index) % SERIES) + 1}`),
        width: 2,
        dash: DASHES[(curve.slot ?? index) % DASHES.length],
        points: { show: true, filter: (plot, series) => isolated(plot.data[series]) },
        value: (plot, value, series, at) => valueText(time && (at === null || at === undefined) ? plot.data[series].at(-1) : value),
      })),
    ],
    cursor: { drag: { x: sync === null, y: false }, ...(sync && { sync: { key: sync } }) },
    padding: [8, 12, 0, 0],
  };
}

// Places of values without neighbours, which no line shows.
function isolated(values) {
  const has = (index) => values[index] !== null && values[index] !== undefined;
  return Array.from(values.keys()).filter((index) => has(index) && !has(index - 1) && !has(index + 1));
}

const clockOf = (seconds) => (seconds ? clock(seconds) : "–");

const valueText = (value) => (value === null || value === undefined ? "–" : Number(value.toPrecision(4)));
