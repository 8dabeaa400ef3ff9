// Several vectors a text (late interaction): which token of a query meets which token of a text, and the score that comes of it.
import { html, useMemo } from "../../lib/dom.js";
import { Choice } from "../../components/choice.js";
import { Heatmap, shortened } from "../../components/heatmap.js";
import { Downloads, csvBlob, npyBlob } from "../../components/downloads.js";
import { matrixSvg, pictureFiles } from "../../components/picture.js";
import { Snippets } from "../../components/snippets.js";
import { useAnswer } from "../../components/result.js";
import { Cost, Panel } from "./panel.js";
import { fieldsOf, grpcOf } from "./options.js";
import { queryOf } from "./rank.js";

const SEVERAL = "multi_vector_embedding";

function requestOf(model, text, state, purpose) {
  const { dtype, input_type, ...fields } = fieldsOf(model, state, SEVERAL); // drawn as float32, and the purpose is fixed here
  return { path: "/embed", json: { model: model.name, inputs: [text], outputs: [SEVERAL], ...fields, input_type: purpose } };
}

// Products of the query's vectors with the document's: {values, rows, columns}.
export function products(query, document) {
  const values = query.flatMap((row) => document.map((column) => row.reduce((sum, value, index) => sum + value * column[index], 0)));
  return { values, rows: query.length, columns: document.length };
}

// The sum of each row's largest value, or its mean.
export function maxSim({ values, rows, columns }, mean) {
  if (!rows || !columns) return 0;
  let sum = 0;
  for (let row = 0; row < rows; row++) sum += Math.max(...values.slice(row * columns, (row + 1) * columns));
  return mean ? sum / rows : sum;
}

// The pieces that the vectors stand for, where that is certain: one each, or all but the first (BGE-M3).
function namesOf(model, tokens, count) {
  if (!tokens) return undefined;
  const bge = model.multi_vector.function === "meanmaxsim" && model.default_output !== SEVERAL;
  const own = bge ? tokens.slice(1) : tokens;
  return own.length === count ? own.map((token) => token.text) : undefined;
}

export function Several({ model, texts, state, change, usual }) {
  const query = queryOf(state, usual).trim() || texts[0];
  const chosen = Math.min(Math.max(0, Number.isInteger(state.text) ? state.text : 0), texts.length - 1);
  const [asked, given] = [requestOf(model, query, state, "query"), requestOf(model, texts[chosen], state, "document")];
  const [first, second] = [useAnswer(asked), useAnswer(given)];
  const cut = useAnswer({ path: "/tokenize", json: { model: model.name, inputs: [query, texts[chosen]] } });
  const result = { answer: first.answer && second.answer, error: first.error ?? second.error, waiting: first.waiting || second.waiting };
  const table = useMemo(() => result.answer && products(first.answer.body.outputs[SEVERAL][0], second.answer.body.outputs[SEVERAL][0]), [first.answer, second.answer]);
  const mean = model.multi_vector.function === "meanmaxsim";
  const fresh = cut.answer && first.answer?.request.json.inputs[0] === cut.answer.request.json.inputs[0] && second.answer?.request.json.inputs[0] === cut.answer.request.json.inputs[1];
  const names = fresh && table ? [namesOf(model, cut.answer.body[0], table.rows), namesOf(model, cut.answer.body[1], table.columns)] : [];
  const common = table && { ...table, title: "Products of the query's vectors with the text's", rowLabel: "query vector", columnLabel: "vector of the text", rowNames: names[0], columnNames: names[1] };
  const foot = html`<${Snippets} label="The query's vectors" request=${asked} grpc=${grpcOf(model, [query], asked.json, SEVERAL)} />
    <${Snippets} label="The text's vectors" request=${given} grpc=${grpcOf(model, [texts[chosen]], given.json, SEVERAL)} />`;
  return html`<${Panel} id="several" title="Late interaction" result=${result} height=${36} wide foot=${foot}>
    <label class="field"><span>Text compared with the query</span>
      <${Choice} value=${chosen} options=${texts.map((text, index) => [index, `${index + 1}. ${shortened(text, 60)}`])} onChoose=${(index) => change({ text: Number(index) || undefined })} />
    </label>
    ${table &&
    html`<p class="note">Query “${first.answer.request.json.inputs[0]}”: ${table.rows} vectors; the text: ${table.columns}. ${mean ? "Mean" : "Sum"} of each row's largest value
        (${mean ? "mean MaxSim" : "MaxSim"}): <strong>${maxSim(table, mean).toFixed(4)}</strong></p>
      <${Heatmap} ...${common} height=${Math.max(200, Math.min(420, 70 + 24 * table.rows))} />
      <${Cost} answer=${second.answer} />
      <${Downloads} name="maxsim" files=${{
        ...pictureFiles(() => matrixSvg({ ...common, digits: table.columns <= 16 ? 2 : undefined, width: Math.max(400, 44 * table.columns), height: Math.max(120, 26 * table.rows) })),
        npy: () => npyBlob(table.values, [table.rows, table.columns]),
        csv: () => csvBlob(Array.from({ length: table.rows }, (_, row) => table.values.slice(row * table.columns, (row + 1) * table.columns))),
      }} />`}
  <//>`;
}
