// Encodings as data: what the link keeps of them, and the requests that they stand for.
//
// An encoding is {s: scheme, m: model or nothing, n: name, c: colour 1 to 6, t: preset it was filled from, p: parameters}.
import { EXAMPLES } from "./examples.js";
import { modelStartValues } from "./fields.js";

export const MOST = 6;
export const COLORS = ["blue", "orange", "green", "pink", "ochre", "violet"];

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

// The view's state from a link that anybody may have written: what is not understood is left out.
export function readState(state, schemes) {
  const known = (each) => isObject(each) && schemes.some((row) => row.name === each.s && (each.m || row.figures.length));
  const list = Array.isArray(state.e) ? state.e.filter(known) : [];
  if (!list.length) return exampleState(EXAMPLES[0]);
  const encodings = list.slice(0, MOST).map((each, index) => ({
    s: each.s,
    ...(typeof each.m === "string" && each.m ? { m: each.m } : {}),
    ...(typeof each.t === "string" && each.t ? { t: each.t } : {}),
    n: typeof each.n === "string" ? each.n.slice(0, 80) : "",
    c: Number.isInteger(each.c) && each.c >= 1 && each.c <= MOST ? each.c : index + 1,
    p: startOf(each, schemes),
  }));
  const chosen = Number.isInteger(state.i) && state.i >= 0 && state.i < encodings.length ? state.i : 0;
  return { e: encodings, i: chosen, f: typeof state.f === "string" ? state.f : "", a: ["linear", "log"].includes(state.a) ? state.a : "" };
}

// The parameters of a link; a link to a model's encoding may leave all but its kind of layer out.
function startOf({ s, m, p }, schemes) {
  const given = isObject(p) ? p : {};
  const isWhole = !m || Object.keys(given).some((name) => name !== "layer_type");
  return isWhole ? given : { ...modelStartValues(schemes.find((row) => row.name === s)), ...given };
}

export function exampleState({ e, f }) {
  return { e: e.map((each, index) => ({ c: index + 1, ...each })), i: e.length > 1 ? 1 : 0, f, a: "" };
}

export function freeColor(encodings) {
  return COLORS.map((_, index) => index + 1).find((color) => !encodings.some((each) => each.c === color)) ?? 1;
}

// A short name where none was given.
export function nameOf(encoding) {
  if (encoding.n) return encoding.n;
  if (encoding.m) return `${encoding.m} ${encoding.s}`;
  const { rope_type: type, factor, kind } = encoding.p;
  if (type && type !== "default") return factor ? `${type} ×${factor}` : String(type);
  return kind ? `${encoding.s} ${kind}` : encoding.s;
}

// ---- parameters

// The number of the group that is used, for each of the scheme's choices between groups of parameters: the one that a parameter
// belongs to, else what makes up a rope by its parameters, else the first.
export function chosenGroups(scheme, parameters) {
  return scheme.exclusive.map((groups) => {
    const used = groups.findIndex((group) => group.some((name) => name in parameters));
    return used >= 0 ? used : groups.some((group) => group.includes("theta")) ? groups.length - 1 : 0;
  });
}

// The fields that apply to an encoding, by name, in the order of the server.
export function fieldsOf(scheme, encoding) {
  const groups = chosenGroups(scheme, encoding.p);
  const unused = new Set(scheme.exclusive.flatMap((choice, at) => choice.filter((_, index) => index !== groups[at]).flat()));
  const byConfig = !encoding.m && scheme.exclusive.some((choice, at) => choice[groups[at]].includes("config"));
  const type = encoding.p.rope_type ?? "default";
  const applies = ([name, field]) => {
    if (unused.has(name)) return false;
    if (encoding.m) return true;
    if (field.role !== "encoding") return false;
    if (name === "layer" || name === "layer_type") return byConfig;
    return !field.rope_types || byConfig || field.rope_types.includes(type);
  };
  return Object.fromEntries(Object.entries(encoding.m ? scheme.model_fields : scheme.fields).filter(applies));
}

// The parameters that a request carries, as texts of a query string.
export function queryOf(scheme, encoding) {
  const fields = fieldsOf(scheme, encoding);
  const sent = Object.keys(fields).filter((name) => given(encoding.p[name]));
  return Object.fromEntries(sent.map((name) => [name, textOf(encoding.p[name])]));
}

export const given = (value) => value !== undefined && value !== null && value !== "";

export function textOf(value) {
  if (Array.isArray(value)) return Array.isArray(value[0]) ? JSON.stringify(value) : value.join(",");
  return isObject(value) ? JSON.stringify(value) : String(value);
}

// ---- requests

export function pathOf(encoding, suffix = "") {
  return `${encoding.m ? `/models/${encodeURIComponent(encoding.m)}` : "/positions"}/${encoding.s}${suffix}`;
}

export function hasFigure(scheme, encoding, figure) {
  return figure in scheme.plots && (Boolean(encoding.m) || scheme.figures.some((row) => row.name === figure));
}

export function hasAxis(schemes, figure) {
  return schemes.some((scheme) => scheme.figures.some((row) => row.name === figure && row.distance_axis));
}

// The numbers of one encoding's figure, which this view draws.
export function figureRequest(scheme, encoding, figure, axis) {
  return { path: pathOf(encoding, ".json"), query: { plot: figure, axis, ...queryOf(scheme, encoding) } };
}

// The server's picture of all encodings.
export function pictureRequest(rows, figure, axis, suffix, { dark, width } = {}) {
  const [[scheme, first], ...others] = rows;
  const compare = others.map(([row, encoding]) => {
    const model = encoding.m ? { model: encoding.m } : {};
    return new URLSearchParams({ scheme: encoding.s, ...model, label: nameOf(encoding), ...queryOf(row, encoding) }).toString();
  });
  const looks = { width, dark: dark ? "true" : undefined };
  return {
    path: pathOf(first, `.${suffix}`),
    query: { plot: figure, axis, label: nameOf(first), ...queryOf(scheme, first), ...looks, compare: compare.length ? compare : undefined },
    accept: { png: "image/png", svg: "image/svg+xml" }[suffix],
  };
}

// The table itself as a NumPy file.
export function tableRequest(scheme, encoding, output) {
  return { path: pathOf(encoding), query: { ...queryOf(scheme, encoding), output }, accept: "application/x-npy" };
}

export function grpcOf(scheme, encoding) {
  const parameters = Object.fromEntries(
    Object.keys(queryOf(scheme, encoding)).map((name) => [name, encoding.p[name]]),
  );
  const message = { scheme: encoding.s, ...(encoding.m ? { model: encoding.m } : {}), parameters };
  return { service: "inlay.v1.Embedder", method: "Positions", message };
}
