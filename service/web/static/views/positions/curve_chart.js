// Curves of several encodings over one pair of axes, by uPlot, with the values at the pointer or at the place that the arrow keys reach.
import { DASHES, usePlot } from "../../components/chart.js";
import { color, html, useEffect, useMemo, useRef, useState } from "../../lib/dom.js";

const BAND = 0.18; // opacity
const SCALES = { linear: { distr: 1 }, log: { distr: 3, log: 10 }, log2: { distr: 3, log: 2 }, symlog: { distr: 4 } };

// Args: curves: [{name, tone: 1 to 6 or 0 for a curve of reference, x, y, low, high, shape}], null in a gap; x, y: axes as the server
// describes them; marks: [{axis, value, label}]; reciprocal: {numerator, axis} of a second scale on the right, or null; title; height.
export function CurveChart({ curves, x, y, marks, reciprocal, title, height }) {
  const box = useRef(null);
  const [at, setAt] = useState(null);
  const [said, setSaid] = useState("");
  const data = useMemo(() => joined(curves), [curves]);
  const shape = JSON.stringify([curves.map(({ name, tone, shape: form, low }) => [name, tone, form, Boolean(low)]), x, y, marks, reciprocal, height]);
  const settings = (UPlot, width) => options({ UPlot, curves, x, y, marks, reciprocal, width, height, onMove: setAt });
  const plot = usePlot({ box, shape, columns: data.columns, settings });
  useEffect(() => {
    if (plot.current && plot.current.series.length === data.columns.length) plot.current.setData(data.columns);
  }, [data]);
  const read = (index) => curves.map((curve, number) => [curve.name, data.columns[data.main[number]][index]]);
  const moved = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity, PageUp: -10, PageDown: 10 }[event.key];
    if (!step || event.target !== event.currentTarget) return;
    event.preventDefault();
    const last = data.columns[0].length - 1;
    const next = Math.min(last, Math.max(0, at === null ? (step > 0 && Number.isFinite(step) ? 0 : step < 0 ? 0 : last) : at + step));
    setAt(next);
    plot.current?.setCursor({ left: plot.current.valToPos(data.columns[0][next], "x"), top: 0 }, false);
    setSaid(`${unbroken(x.label)} ${short(data.columns[0][next])}: ${read(next).map(([name, value]) => `${name} ${short(value)}`).join(", ")}`);
  };
  const values = at === null || at >= data.columns[0].length ? null : read(at);
  return html`<figure class="figure" ref=${box}>
    <div class="plot" tabindex="0" role="group" aria-label=${`${title}. Arrow keys read single values.`} style=${{ minHeight: `${height}px` }} onKeyDown=${moved}></div>
    <table class="curve-values">
      <caption class="hidden">${title}</caption>
      <tr>
        <th scope="col">${values ? `${unbroken(x.label)}: ${short(data.columns[0][at])}` : "curve"}</th>
        <th scope="col" class="number">${unbroken(y.label)}${values ? "" : ", lowest to highest"}</th>
        ${reciprocal && html`<th scope="col" class="number">${unbroken(reciprocal.axis.label)}</th>`}
      </tr>
      ${curves.map((curve, number) => valueRow(curve, values?.[number][1], reciprocal))}
      ${marks.filter((mark) => mark.label).map((mark) => markRow(mark, reciprocal))}
    </table>
    <span class="hidden" role="status">${said}</span>
  </figure>`;
}

function valueRow(curve, value, reciprocal) {
  const numbers = curve.y.filter((each) => each !== null);
  const [low, high] = [numbers.reduce((a, b) => Math.min(a, b), Infinity), numbers.reduce((a, b) => Math.max(a, b), -Infinity)];
  const range = (from, to) => (numbers.length ? (short(from) === short(to) ? short(from) : `${short(from)} to ${short(to)}`) : "none");
  const inverse = (each) => (each ? reciprocal.numerator / each : Infinity);
  return html`<tr>
    <th scope="row"><${Swatch} tone=${curve.tone} dash=${curve.dash} /> ${curve.name}</th>
    <td class="number">${value === undefined ? range(low, high) : short(value)}</td>
    ${reciprocal && html`<td class="number">${value === undefined ? range(inverse(high), inverse(low)) : value ? short(inverse(value)) : ""}</td>`}
  </tr>`;
}

function markRow(mark, reciprocal) {
  return html`<tr class="note">
    <th scope="row"><${Swatch} tone=${0} dash=${2} /> ${mark.label}</th>
    <td class="number">${short(mark.value)}</td>
    ${reciprocal && html`<td class="number">${mark.axis === "y" ? short(reciprocal.numerator / mark.value) : ""}</td>`}
  </tr>`;
}

// The line of a curve, as it is drawn.
export function Swatch({ tone, dash = tone - 1 }) {
  const dashes = (DASHES[Math.max(0, dash) % DASHES.length] ?? []).join(" ");
  return html`<svg class="swatch" width="30" height="10" aria-hidden="true">
    <line x1="0" y1="5" x2="30" y2="5" stroke=${tone ? `var(--series-${tone})` : "var(--strong-line)"} stroke-width="3" stroke-dasharray=${dashes || "none"} />
  </svg>`;
}

const unbroken = (label) => label.replaceAll("\n", " ");

export function short(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size < 0.001 || size >= 1e7 ? value.toExponential(3) : value.toLocaleString("en", { maximumSignificantDigits: 5 });
}

// The curves over all their x in one ascending list. Where a curve has no point its value is undefined, which is no gap; null is one.
function joined(curves) {
  const xs = Float64Array.from(new Set(curves.flatMap((curve) => curve.x))).sort();
  const place = new Map(Array.from(xs, (value, index) => [value, index]));
  const columns = [Array.from(xs)];
  const spread = (curve, values) => {
    const column = new Array(xs.length).fill(undefined);
    curve.x.forEach((value, index) => (column[place.get(value)] = values[index]));
    return column;
  };
  const main = curves.map((curve) => {
    const own = columns.push(spread(curve, curve.y)) - 1;
    if (curve.low) columns.push(spread(curve, curve.low), spread(curve, curve.high));
    return own;
  });
  return { columns, main };
}

function options({ UPlot, curves, x, y, marks, reciprocal, width, height, onMove }) {
  const axis = { stroke: color("--ink"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line"), width: 1 }, labelSize: 22 };
  const narrow = width < 500;
  const beside = (label) => (narrow ? undefined : unbroken(label).length * 8 < height ? unbroken(label) : label.split("\n")[0]);
  const below = (label) => (label.length * 7.5 > width - 130 ? unbroken(label).replace(/ \([^)]*\)$/, "") : unbroken(label));
  const side = { ...axis, size: 62, label: beside(y.label), splits: splitsOf(y) };
  const right = reciprocal && { ...axis, side: 1, grid: { show: false }, size: 62, label: beside(reciprocal.axis.label), splits: reciprocalSplits(y, reciprocal), filter: (_, splits) => splits, values: (_, splits) => splits.map((value) => tick(value && reciprocal.numerator / value)) };
  const { series, bands } = drawn(UPlot, curves);
  return {
    width,
    height,
    legend: { show: false },
    scales: { x: { time: false, ...scaleOf(x, true) }, y: scaleOf(y) },
    axes: [{ ...axis, size: 34, label: below(x.label), values: ticks, splits: splitsOf(x) }, { ...side, values: ticks }, ...(right ? [right] : [])],
    series: [{}, ...series],
    bands,
    cursor: { drag: { x: true, y: false }, points: { size: 7 } },
    padding: [10, right ? 0 : 14, 0, 0],
    hooks: { setCursor: [(self) => onMove(self.cursor.idx ?? null)], drawAxes: [(self) => drawMarks(self, marks)] },
  };
}

const ticks = (_, splits) => splits.map(tick);

function tick(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "";
  const size = Math.abs(value);
  if (value !== 0 && (size < 0.001 || size >= 1e5)) return Number(value.toPrecision(2)).toExponential().replace("e+", "e");
  return Number(value.toPrecision(4)).toLocaleString("en");
}

function scaleOf({ scale, limits, linear_up_to: near }, isX = false) {
  const own = scale === "symlog" ? { ...SCALES.symlog, asinh: near } : SCALES[scale];
  if (limits) return { ...own, range: limits };
  return isX ? { ...own, range: (_, low, high) => (low < high ? [low, high] : [low - 0.5, low + 0.5]) } : own;
}

// The places of ticks: powers of 10, or of 2, and between them where these are few; undefined leaves it to uPlot.
function splitsOf({ scale }) {
  if (scale !== "log" && scale !== "log2") return undefined;
  const base = scale === "log" ? 10 : 2;
  return (_, __, low, high) => {
    const powers = [];
    if (!(low > 0 && high >= low)) return powers;
    for (let power = Math.ceil(Math.log(low) / Math.log(base) - 1e-9); base ** power <= high * (1 + 1e-9); power++) powers.push(base ** power);
    const every = Math.ceil(powers.length / 10);
    const kept = powers.filter((_value, index) => index % every === 0);
    if (base === 2 || kept.length > 2) return kept;
    return [low / 10, ...powers].flatMap((value) => [1, 2, 5].map((part) => part * 10 ** Math.floor(Math.log10(value)))).filter((value, index, all) => value >= low && value <= high && all.indexOf(value) === index);
  };
}

// The places on the left axis of round numbers on the right one, which has numerator / value.
function reciprocalSplits(y, { numerator }) {
  const round = splitsOf(y);
  return round && ((self, at, low, high) => (low > 0 ? round(self, at, numerator / high, numerator / low).map((value) => numerator / value).reverse() : []));
}

function drawn(UPlot, curves) {
  const series = [];
  const bands = [];
  for (const curve of curves) {
    const stroke = curve.tone ? color(`--series-${curve.tone}`) : color("--strong-line");
    const paths = curve.shape === "steps" ? UPlot.paths.stepped({ align: 1 }) : curve.shape === "points" ? UPlot.paths.points() : UPlot.paths.linear();
    const dash = DASHES[(curve.dash ?? 0) % DASHES.length];
    const main = series.push({ stroke, width: 2, dash, paths, points: { show: curve.shape === "points" || curve.y.length < 2, size: 6 } });
    if (!curve.low) continue;
    for (let edge = 0; edge < 2; edge++) series.push({ stroke: "transparent", width: 0, paths, points: { show: false } });
    bands.push({ series: [main + 2, main + 1], fill: transparent(stroke) });
  }
  return { series, bands };
}

function transparent(stroke) {
  const [red, green, blue] = [1, 3, 5].map((start) => parseInt(stroke.slice(start, start + 2), 16));
  return `rgba(${red}, ${green}, ${blue}, ${BAND})`;
}

function drawMarks(self, marks) {
  const { ctx, bbox } = self;
  ctx.save();
  ctx.strokeStyle = color("--strong-line");
  ctx.lineWidth = devicePixelRatio;
  ctx.setLineDash([2 * devicePixelRatio, 3 * devicePixelRatio]);
  ctx.beginPath();
  for (const { axis, value } of marks) {
    const place = self.valToPos(value, axis, true);
    if (axis === "x" && place >= bbox.left && place <= bbox.left + bbox.width) ctx.rect(place, bbox.top, 0, bbox.height);
    if (axis === "y" && place >= bbox.top && place <= bbox.top + bbox.height) ctx.rect(bbox.left, place, bbox.width, 0);
  }
  ctx.stroke();
  ctx.restore();
}
