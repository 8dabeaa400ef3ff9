// The cosine of every text with every other, and each one's nearest.
import { html, useMemo, useTheme } from "../../lib/dom.js";
import { Heatmap, colors, shortened } from "../../components/heatmap.js";
import { Downloads, csvBlob, npyBlob } from "../../components/downloads.js";
import { inkOn, matrixSvg, pictureFiles, rgb } from "../../components/picture.js";
import { Snippets } from "../../components/snippets.js";
import { Panel } from "./panel.js";
import { lineOf } from "./inputs.js";
import { SENTENCE, fieldsOf, openaiOf, truncationOf } from "./options.js";
import { rowsOf } from "./vectors.js";

const MOST_NUMBERS = 12; // texts of a table; more are drawn
const SCALE = [-1, 1];

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
  const height = texts.length < 2 ? 8 : texts.length > MOST_NUMBERS ? 58 : 17 + 4 * texts.length;
  const foot = texts.length > 1 &&
    html`<p class="note">Computed in this page from the vectors.${model.reads_text ? html` The server compares one text with others: <code>POST /similarity</code>.` : ""}</p>
      ${model.reads_text &&
      html`<${Snippets} label="Similarity with text 1" request=${requestOf(model, texts, state)} openai=${openaiCosines(model, texts, state)}
        grpc=${{ missing: "Over gRPC ask inlay.v1.Embedder/Embed for the vectors, and compare them." }} />`}`;
  return html`<${Panel} id="similarity" title="Similarity" result=${sentence} height=${height} foot=${foot}>
    ${texts.length < 2 && html`<p class="note">Two ${model.reads_text ? "texts" : "sequences"} or more can be compared.</p>`}
    ${matrix && shown.length > 1 && html`<${Matrix} matrix=${matrix} texts=${shown} />`}
  <//>`;
}

function Matrix({ matrix, texts }) {
  useTheme();
  const count = texts.length;
  const names = texts.map((text, index) => `${index + 1}. ${shortened(text, 28)}`);
  const numbers = texts.map((_, index) => String(index + 1));
  const best = nearest(matrix, count);
  const paint = colors(SCALE);
  const common = { values: Array.from(matrix), rows: count, columns: count, title: "Cosine of the texts", rowLabel: "text", columnLabel: "text", rowNames: names, columnNames: numbers, scale: SCALE };
  const cell = (row, column) => {
    const background = paint(matrix[row * count + column]);
    return html`<td class="number" style=${{ background: rgb(background), color: inkOn(background) }}>${matrix[row * count + column].toFixed(2)}</td>`;
  };
  return html`
    ${count <= MOST_NUMBERS
      ? html`<div class="scroll" tabindex="0" role="group" aria-label="Cosine of the texts">
          <table class="cosines">
            <caption class="hidden">Cosine of every text with every other</caption>
            <thead><tr><th scope="col">Text</th>${numbers.map((number) => html`<th scope="col" class="number">${number}</th>`)}</tr></thead>
            <tbody>${texts.map((text, row) => html`<tr><th scope="row" title=${text}>${names[row]}</th>${numbers.map((_, column) => cell(row, column))}</tr>`)}</tbody>
          </table>
        </div>`
      : html`<${Heatmap} ...${common} height=${420} />`}
    <h3>The nearest other text of each</h3>
    <div class="scroll nearest-texts" tabindex="0" role="group" aria-label="The nearest other text of each">
      <table class="cosines">
        <thead><tr><th scope="col">Text</th><th scope="col">Nearest</th><th scope="col" class="number">Cosine</th></tr></thead>
        <tbody>${texts.map((text, row) => html`<tr><th scope="row" title=${text}>${row + 1}. ${text}</th><td class="cut" title=${texts[best[row]]}>${best[row] + 1}. ${texts[best[row]]}</td><td class="number">${matrix[row * count + best[row]].toFixed(4)}</td></tr>`)}</tbody>
      </table>
    </div>
    <${Downloads} name="similarity" files=${{
      ...pictureFiles(() => matrixSvg({ ...common, digits: count <= 20 ? 2 : undefined, width: Math.max(300, 44 * count), height: Math.max(150, 28 * count) })),
      npy: () => npyBlob(matrix, [count, count]),
      csv: () => csvBlob([["", ...texts], ...texts.map((text, row) => [text, ...matrix.slice(row * count, (row + 1) * count)])]),
    }} />`;
}
