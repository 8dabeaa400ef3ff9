// Figures of the server (GET {scheme}.json) as charts and heat maps of this page.
import { Heatmap } from "../../components/heatmap.js";
import { html, useMemo } from "../../lib/dom.js";
import { CurveChart, Swatch, short } from "./curve_chart.js";

const GRIDS_COMPARED = 2; // of each encoding, where several are shown

// Args: shown: [{name, tone, document}], at least one; several: whether encodings are compared.
export function Figures({ shown, several }) {
  const curves = shown.filter(({ document }) => document.panels[0]?.[0]?.kind === "curves");
  const grids = shown.filter(({ document }) => document.panels[0]?.[0]?.kind === "grid");
  return html`${curves.length > 0 && html`<${CurveFigure} shown=${curves} several=${several} />`}
  ${grids.length > 0 && html`<${GridFigure} shown=${grids} several=${several} />`}`;
}

// ---- curves

function CurveFigure({ shown, several }) {
  const panels = useMemo(() => mergedPanels(shown, several), [shown, several]);
  const notes = [...new Set(shown.flatMap(({ document }) => document.notes))];
  return html`<div>
    ${panels.map((panel, index) => html`<${CurveChart} key=${index} ...${panel} title=${panelTitle(shown[0].document, panel)} height=${index ? 220 : 340} />`)}
    ${notes.map((note) => html`<p class="note">${note}</p>`)}
  </div>`;
}

const RATIO = /^slowed down by/; // the panel that the server leaves out of an encoding alone that nothing slows

// That panel of the encodings without it: 1 at every channel pair.
function unscaled(shown, panel, row) {
  const without = shown.filter(({ document }) => !document.panels[row]);
  return without.map((each) => {
    const [own] = each.document.panels[0][0].curves.filter((curve) => !curve.reference);
    return { ...each, panel: { ...panel, marks: [], curves: [{ ...own, y: own.y.map((value) => (value === null ? null : 1)) }] } };
  });
}

const panelTitle = (document, panel) => `${document.title}: ${panel.y.label.replaceAll("\n", " ")}`;

// One panel for each row of the documents' panels, with the curves of all of them.
export function mergedPanels(shown, several) {
  const rows = Math.max(...shown.map(({ document }) => document.panels.length));
  return Array.from({ length: rows }, (_, row) => {
    const drawn = shown.filter(({ document }) => document.panels[row]).map((each) => ({ ...each, panel: each.document.panels[row][0] }));
    const [{ panel }] = drawn;
    const parts = RATIO.test(panel.y.label) ? [...drawn, ...unscaled(shown, panel, row)].sort((a, b) => a.at - b.at) : drawn;
    const marks = parts.flatMap((part) => part.panel.marks);
    return {
      x: commonAxis(parts, "x"),
      y: commonAxis(parts, "y"),
      marks: marks.filter((mark, index) => marks.findIndex((each) => each.axis === mark.axis && each.value === mark.value) === index),
      reciprocal: panel.reciprocal,
      curves: [...references(parts), ...parts.flatMap((part) => ownCurves(part, several))].map(commonScale(parts, "x") === "log" ? positive : (curve) => curve),
    };
  });
}

// The axis that holds those of all encodings: one may be logarithmic because it is long, another linear from 0.
function commonAxis(parts, name) {
  const scale = commonScale(parts, name);
  const limits = parts.map(({ panel }) => panel[name].limits);
  if (!limits.every(Boolean)) return { ...parts[0].panel[name], scale, limits: null };
  const lows = limits.map(([low]) => low).filter((low) => low > 0 || !scale.startsWith("log"));
  return { ...parts[0].panel[name], scale, limits: [lows.length ? Math.min(...lows) : 1, Math.max(...limits.map(([, high]) => high))] };
}

// The curve where x is above 0, which is all that a logarithmic axis has.
function positive(curve) {
  const kept = (values) => values?.filter((_, index) => curve.x[index] > 0);
  return { ...curve, x: kept(curve.x), y: kept(curve.y), low: kept(curve.low), high: kept(curve.high) };
}

function commonScale(parts, axis) {
  const scales = parts.map(({ panel }) => panel[axis].scale);
  return scales.find((scale) => scale !== "linear") ?? "linear";
}

// Curves of reference, such as the unscaled frequencies: once each, and not where an encoding has the same values.
function references(parts) {
  const values = (curve) => curve.y.map((value) => value?.toPrecision(9)).join();
  const own = new Set(parts.flatMap(({ panel }) => panel.curves.filter((curve) => !curve.reference).map(values)));
  const found = new Map();
  for (const { name, panel } of parts)
    for (const curve of panel.curves)
      if (curve.reference && !own.has(values(curve)) && !found.has(values(curve)))
        found.set(values(curve), { ...curve, name: `${name}, ${curve.label}`, tone: 0, dash: 1 });
  return [...found.values()];
}

function ownCurves({ name, tone, panel }, several) {
  const curves = panel.curves.filter((curve) => !curve.reference);
  if (curves.length === 1) return [{ ...curves[0], name, tone, dash: tone - 1 }];
  if (!several) return curves.map((curve, index) => ({ ...curve, name: curve.label, tone: index + 1, dash: index }));
  return [{ ...band(curves), name: `${name} (mean and range of ${curves.length} heads)`, tone, dash: tone - 1 }];
}

// The mean and the extremes of curves over the same x.
function band(curves) {
  const each = (combine) => curves[0].x.map((_, index) => combine(curves.map((curve) => curve.y[index])));
  return {
    x: curves[0].x,
    shape: curves[0].shape,
    y: each((values) => values.reduce((sum, value) => sum + value, 0) / values.length),
    low: each((values) => Math.min(...values)),
    high: each((values) => Math.max(...values)),
  };
}

// ---- grids

function GridFigure({ shown, several }) {
  const rows = useMemo(
    () =>
      shown.map((each) => {
        const panels = each.document.panels.flat();
        const kept = several && panels.length > GRIDS_COMPARED ? [panels[0], panels.at(-1)] : panels;
        return { ...each, all: panels.length, panels: kept.map((panel) => ({ ...panel, values: valuesOf(panel) })) };
      }),
    [shown, several],
  );
  const scales = useMemo(() => commonRanges(rows), [rows]);
  const most = Math.max(...rows.map(({ panels }) => panels.length));
  return html`<div class=${`grids${several ? " compared" : ""}${!several && most > 2 ? " many" : ""}`}>
    ${rows.map((row) => html`<${EncodingGrids} key=${row.at} ...${row} scale=${scales.get(row.document.colours.label)} several=${several} />`)}
  </div>`;
}

function EncodingGrids({ name, tone, document, panels, all, scale, several }) {
  const { colours, notes } = document;
  const height = several ? (panels.length > 1 ? 220 : 300) : panels.length > 2 ? 240 : 380;
  return html`<section class="grid-set" aria-label=${name}>
    ${several && html`<h2><${Swatch} tone=${tone} dash=${0} /> ${name}</h2>`}
    <div class="grid-panels">
      ${panels.map((panel, index) => html`<${Grid} key=${index} ...${{ name, panel, colours, scale, height }} />`)}
    </div>
    ${panels.length < all && html`<p class="note">The first and the last of ${all}; a single encoding shows all.</p>`}
    ${notes.map((note) => html`<p class="note">${note}</p>`)}
  </section>`;
}

function Grid({ name, panel, colours, scale, height }) {
  const title = [name, panel.title || colours.label || "mask"].filter(Boolean).join(", ");
  const at = useMemo(() => ({ row: places(panel.y.limits, panel.rows), column: places(panel.x.limits, panel.columns) }), [panel]);
  const classes = colours.kind === "classes" ? colours.classes : null;
  return html`<div>
    ${panel.title && html`<p class="panel-title">${panel.title}</p>`}
    <${Heatmap}
      values=${panel.values}
      rows=${panel.rows}
      columns=${panel.columns}
      title=${title}
      rowLabel=${panel.y.label}
      columnLabel=${panel.x.label}
      rowAt=${at.row}
      columnAt=${at.column}
      textOf=${(value) => (classes ? classes[value] : short(value))}
      classes=${classes}
      scale=${scale}
      height=${height}
    />
  </div>`;
}

// Returns index -> position. Where cells are left out, a cell stands for several positions and the middle one is named.
function places([low, high], count) {
  const step = (high - low) / count;
  return { start: low + step / 2, step };
}

function commonRanges(rows) {
  const ranges = new Map();
  for (const { document, panels } of rows) {
    const { label, kind, low, high } = document.colours;
    const own = kind === "classes" ? [0, 1] : kind === "diverging" ? [-Math.max(-low, high), Math.max(-low, high)] : [Math.min(low, 0), Math.max(high, 0)];
    const before = ranges.get(label) ?? own;
    if (panels.length) ranges.set(label, [Math.min(before[0], own[0]), Math.max(before[1], own[1])]);
  }
  return ranges;
}

const decodedPanels = new WeakMap();

// The values of a grid, decoded once.
function valuesOf(panel) {
  if (!decodedPanels.has(panel)) decodedPanels.set(panel, decoded(panel.data));
  return decodedPanels.get(panel);
}

export function decoded(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Float32Array(bytes.buffer);
}

// ---- as a file

// The rows of a CSV file of what is shown.
export function csvRows(shown) {
  const rows = [];
  for (const { name, document } of shown)
    for (const panel of document.panels.flat()) rows.push(...(panel.kind === "curves" ? curveRows(name, panel) : gridRows(name, panel)));
  const isCurves = shown[0].document.panels[0][0].kind === "curves";
  return [isCurves ? ["encoding", "quantity", "curve", "x", "y", "low", "high"] : ["encoding", "grid", "row", "column", "value"], ...rows];
}

function curveRows(name, panel) {
  const quantity = panel.y.label.replaceAll("\n", " ");
  return panel.curves.flatMap((curve) =>
    curve.x.map((x, index) => [name, quantity, curve.label, x, curve.y[index] ?? "", curve.low?.[index] ?? "", curve.high?.[index] ?? ""]),
  );
}

function gridRows(name, panel) {
  const values = valuesOf(panel);
  const [row, column] = [places(panel.y.limits, panel.rows), places(panel.x.limits, panel.columns)];
  const at = ({ start, step }, index) => Number((start + index * step).toPrecision(12));
  return Array.from(values, (value, index) => [
    name,
    panel.title,
    at(row, Math.floor(index / panel.columns)),
    at(column, index % panel.columns),
    value,
  ]);
}
