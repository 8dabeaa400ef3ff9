// The cosine of every text with every other, and each one's nearest.
import { html, useMemo, useTheme } from "../../lib/dom.js";
import { colors, shortened } from "../../components/heatmap.js";
import { Strips } from "../../components/strips.js";
import { Downloads, csvBlob, npyBlob } from "../../components/downloads.js";
import { inkOn, matrixSvg, pictureFiles, rgb } from "../../components/picture.js";
import { Snippets } from "../../components/snippets.js";
import { clustered } from "./clusters.js";
import { Panel } from "./panel.js";
import { lineOf } from "./inputs.js";
import { SENTENCE, fieldsOf, openaiOf, truncationOf } from "./options.js";
import { rowsOf } from "./vectors.js";

const MOST_NUMBERS = 40; // texts of a table; more are drawn as strips
export const WIDE = 8; // more texts take the whole width of the view

// Cosines of the rows with each other; 0 where a row is zero.
export function cosines({ values, rows, columns }) {
  const norms = Array.from({ length: rows }, (_, row) => Math.hypot(...values.slice(row * columns, (row + 1) * columns)));
  const matrix = new Float64Array(rows * rows);
  for (let a = 0; a < rows; a++)
    for (let b = 0; b <= a; b++) {
      let sum = 0;
      for (let column = 0; column < columns; column++) sum += values[a * columns + column] * values[b * columns + column];
      const cosine = norms[a] && norms[b] ? sum / (norms[a] * norms[b]) : 0;
      matrix[a * rows + b] = matrix[b * rows + a] = cosine;
    }
  return matrix;
}

// For each row the column of its largest value outside the diagonal.
export function nearest(matrix, count) {
  return Array.from({ length: count }, (_, row) => {
    let best = -1;
    for (let column = 0; column < count; column++)
      if (column !== row && (best < 0 || matrix[row * count + column] > matrix[row * count + best])) best = column;
    return best;
  });
}

function requestOf(model, texts, state) {
  const [source, ...sentences] = texts;
  const parameters = truncationOf(state);
  if (model.prompts.includes(state.prompt)) parameters.prompt_name = state.prompt;
  const json = { model: model.name, inputs: { source_sentence: source, sentences } };
  if (Object.keys(parameters).length) json.parameters = parameters;
  return { path: "/similarity", json };
}

// With OpenAI's client: the vectors, and their cosines in NumPy.
function openaiCosines(model, texts, state) {
  const call = openaiOf(model, texts, fieldsOf(model, state, SENTENCE));
  if (call.missing) return call;
  return `import numpy as np\n\n${call.split("\nprint(")[0]}\nrows = np.array([each.embedding for each in answer.data])\nrows /= np.linalg.norm(rows, axis=1, keepdims=True)\nprint(np.round(rows @ rows.T, 4))`;
}

// The client of text-embeddings-inference compares a text with others, on the server.
function teiCosines(model, texts, state) {
  if (!model.default) return undefined;
  if (Object.keys(requestOf(model, texts, state).json).includes("parameters")) return { missing: "This client takes no options here: leave them as they are, or ask /similarity." };
  const [source, ...others] = texts;
  return `print(client.sentence_similarity(\n    ${JSON.stringify(source)},\n    other_sentences=[\n${others.map((text) => `        ${JSON.stringify(text)},\n`).join("")}    ],\n))`;
}

// Args: sentence: the result of the request for sentence vectors.
export function Similarity({ model, texts, state, sentence }) {
  const answer = sentence.answer?.body.outputs?.[SENTENCE] ? sentence.answer : null;
  const shown = (answer?.request.json.inputs ?? []).map(lineOf);
  const matrix = useMemo(() => {
    if (!answer) return null;
    const rows = rowsOf(answer, SENTENCE);
    // uint8 is int8 moved by 128, so that 128 stands for nothing
    return cosines(rows.dtype === "uint8" ? { ...rows, values: rows.values.map((value) => value - 128) } : rows);
  }, [answer]);
  const height = texts.length < 2 ? 8 : 22 + Math.min(36, 2 * texts.length) + Math.min(24, 2 * texts.length);
  const foot = texts.length > 1 &&
    html`<p class="note">Computed in this page from the vectors.${model.reads_text ? html` The server compares one text with others: <code>POST /similarity</code>.` : ""}</p>
      ${model.reads_text &&
      html`<${Snippets} label="Similarity with text 1" request=${requestOf(model, texts, state)} openai=${openaiCosines(model, texts, state)} tei=${teiCosines(model, texts, state)}
        grpc=${{ missing: "Over gRPC ask inlay.v1.Embedder/Embed for the vectors, and compare them." }} />`}`;
  return html`<${Panel} id="similarity" title="Similarity" result=${sentence} height=${height} wide=${texts.length > WIDE} foot=${foot}>
    ${texts.length < 2 && html`<p class="note">Two ${model.reads_text ? "texts" : "sequences"} or more can be compared.</p>`}
    ${matrix && shown.length > 1 && html`<${Matrix} matrix=${matrix} texts=${shown} />`}
  <//>`;
}

function Matrix({ matrix, texts }) {
  useTheme();
  const count = texts.length;
  const { order, starts } = useMemo(() => clustered(matrix, count), [matrix]);
  const at = (row, column) => matrix[order[row] * count + order[column]];
  const others = useMemo(() => order.flatMap((_, row) => order.map((_, column) => (row === column ? NaN : at(row, column)))), [matrix]);
  const most = Math.max(0.01, ...others.filter((value) => !Number.isNaN(value)).map(Math.abs));
  const scale = [-most, most]; // a text's cosine with itself, always 1, would leave no colours for the others
  const names = order.map((text) => `${text + 1}. ${texts[text]}`);
  const numbers = order.map((text) => String(text + 1));
  const best = nearest(matrix, count);
  const values = order.flatMap((_, row) => order.map((_, column) => at(row, column)));
  const picture = { values, rows: count, columns: count, title: "Cosine of the texts", rowLabel: "text", columnLabel: "text", rowNames: names.map((name) => shortened(name, 28)), columnNames: numbers, scale };
  return html`
    ${count <= MOST_NUMBERS
      ? html`<${Numbers} ...${{ at, order, starts, names, numbers, texts, paint: colors(scale) }} />`
      : html`<${Strips} rows=${order.map((_, row) => others.slice(row * count, (row + 1) * count))} names=${names} title="Cosine of the texts" nameOf=${(column) => names[column]} scale=${scale} strong=${starts} beside textOf=${(value) => value.toFixed(4)} />`}
    ${starts.length > 1 && html`<p class="note">Like texts lie beside each other: ${starts.length} groups, by the mean cosine of their texts.</p>`}
    <h3>The nearest other text of each</h3>
    <div class="scroll nearest-texts" tabindex="0" role="group" aria-label="The nearest other text of each">
      <table class="cosines">
        <thead><tr><th scope="col">Text</th><th scope="col">Nearest</th><th scope="col" class="number">Cosine</th></tr></thead>
        <tbody>${texts.map((text, row) => html`<tr><th scope="row" title=${text}>${row + 1}. ${text}</th><td class="cut" title=${texts[best[row]]}>${best[row] + 1}. ${texts[best[row]]}</td><td class="number">${matrix[row * count + best[row]].toFixed(4)}</td></tr>`)}</tbody>
      </table>
    </div>
    <${Downloads} name="similarity" files=${{
      ...pictureFiles(() => matrixSvg({ ...picture, digits: count <= 20 ? 2 : undefined, width: Math.max(300, 44 * Math.min(count, 60)), height: Math.max(150, 28 * Math.min(count, 60)) })),
      npy: () => npyBlob(matrix, [count, count]),
      csv: () => csvBlob([["", ...texts], ...texts.map((text, row) => [text, ...matrix.slice(row * count, (row + 1) * count)])]),
    }} />`;
}

// The cosines as a table, which scrolls both ways below its heads.
function Numbers({ at, order, starts, names, numbers, texts, paint }) {
  const dense = order.length > 12;
  const written = (value) => (dense ? value.toFixed(2).replace(/^(-?)0\./, "$1.") : value.toFixed(2));
  const cell = (row, column) => {
    const value = at(row, column);
    const place = starts.includes(column) ? "number group" : "number";
    if (row === column) return html`<td class=${`${place} itself`}>${written(value)}</td>`;
    const background = paint(value);
    return html`<td class=${place} style=${{ background: rgb(background), color: inkOn(background) }} title=${`${names[row]} — ${names[column]}`}>${written(value)}</td>`;
  };
  return html`<div class="scroll cosine-table" tabindex="0" role="group" aria-label="Cosine of the texts">
    <table class=${dense ? "cosines dense" : "cosines"}>
      <caption class="hidden">Cosine of every text with every other, like texts beside each other</caption>
      <thead><tr><th scope="col">Text</th>${numbers.map((number, column) => html`<th scope="col" class=${starts.includes(column) ? "number group" : "number"} title=${texts[order[column]]}>${number}</th>`)}</tr></thead>
      <tbody>${order.map((text, row) => html`<tr class=${starts.includes(row) ? "group" : ""}><th scope="row" title=${texts[text]}>${names[row]}</th>${numbers.map((_, column) => cell(row, column))}</tr>`)}</tbody>
    </table>
  </div>`;
}
