// Which models Search can use, and the requests by which texts and pictures become vectors.
import { rawRows } from "../../lib/api.js";
import { abilitiesOf } from "../try/options.js";

export const MEANING = "sentence_embedding";
export const WORDS = "sparse_embedding";
const RAW = "application/octet-stream";

export function readsPictures(model) {
  return Boolean(model.image?.reads_pictures && (model.image.vector_width || (model.reads_text && model.outputs.includes(MEANING))));
}

// What a model makes of texts here: MEANING, WORDS, both or nothing.
export function outputsOf(model) {
  const able = abilitiesOf(model);
  return model.reads_text ? [able.sentence && MEANING, able.sparse && WORDS].filter(Boolean) : [];
}

const kin = ({ source }) => String(source ?? "").replace(/vision|text/, "");

// {texts, pictures}: the models whose vectors may be compared with those of `model`: itself, or the other side of its checkpoint; null: none.
export function sidesOf(models, model) {
  const width = (each) => (each.reads_text ? each.sentence_width : each.image?.vector_width);
  const other = models.find((each) => each !== model && each.reads_text !== model.reads_text && model.source && kin(each) === kin(model) && width(each) === width(model));
  return {
    texts: model.reads_text ? model : other && outputsOf(other).includes(MEANING) ? other : null,
    pictures: readsPictures(model) ? model : other && readsPictures(other) ? other : null,
  };
}

// The request that makes a query's vector, in JSON, so that it can be shown as code.
export function queryRequest(model, output, text) {
  const named = output === WORDS || model.default_output !== MEANING;
  const how = output === WORDS ? {} : { normalize: true };
  return { path: "/embed", json: { model: model.name, inputs: [text], ...(named ? { outputs: [output] } : {}), input_type: "query", truncate: true, ...how } };
}

// What an answer to queryRequest holds: a vector, or {indices, values}.
export function queryVector({ body }, output) {
  return Array.isArray(body) ? body[0] : body.outputs[output][0];
}

// The request that makes the vectors of texts.
export function textsRequest(name, output, inputs) {
  const how = output === WORDS ? { json: { truncate: true } } : { json: { truncate: true, normalize: true }, accept: RAW };
  return { path: "/embed", accept: how.accept, json: { model: name, inputs, outputs: [output], input_type: "document", ...how.json } };
}

// The request that makes the vectors of pictures, which are data URLs; mixed: whether the model reads texts too.
export function picturesRequest(name, mixed, urls) {
  if (mixed) return { path: "/embed", accept: RAW, json: { model: name, inputs: urls.map((image) => ({ image })), outputs: [MEANING], normalize: true } };
  return { path: `/models/${name}/images`, accept: RAW, json: { inputs: urls, normalize: true } };
}

// {width, values}: dense rows of an answer, one after another.
export function rowsOf(answer) {
  const { shape, values } = rawRows(answer);
  return { width: shape.at(-1), values };
}

export function dataUrl(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error("the file cannot be read"));
    reader.readAsDataURL(blob);
  });
}

const addresses = new WeakMap();

// An address of a picture for <img>, the same each time.
export function addressOf(blob) {
  if (!addresses.has(blob)) addresses.set(blob, URL.createObjectURL(blob));
  return addresses.get(blob);
}
