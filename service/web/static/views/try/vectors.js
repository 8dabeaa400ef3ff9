// The vectors of the texts as a strip under each, or the rows of one text's tokens as a heat map.
import { html, useMemo } from "../../lib/dom.js";
import { Choice } from "../../components/choice.js";
import { Heatmap, rangeOf, shortened } from "../../components/heatmap.js";
import { Strips } from "../../components/strips.js";
import { Downloads, csvBlob, npyBlob } from "../../components/downloads.js";
import { pictureFiles, matrixSvg } from "../../components/picture.js";
import { Snippets } from "../../components/snippets.js";
import { useAnswer } from "../../components/result.js";
import { lineOf } from "./inputs.js";
import { Cost, Panel, cutInputs } from "./panel.js";
import { SENTENCE, fieldsOf, grpcOf, openaiOf, teiOf } from "./options.js";

const STORED = { int8: "|i1", uint8: "|u1", binary: "|i1", ubinary: "|u1" };

export function embedRequest(model, texts, state, output) {
  return { path: "/embed", json: { model: model.name, inputs: texts, outputs: [output], ...fieldsOf(model, state, output) } };
}

// The rows of an answer: {values, rows, columns, stored}. Signs are unpacked: -1 and 1 in place of bits; `stored` is what was sent.
export function rowsOf(answer, output) {
  const { dtype } = answer.request.json;
  const sent = answer.body.outputs[output];
  const matrix = output === SENTENCE ? sent : sent[0];
  const bits = dtype === "binary" || dtype === "ubinary";
  const shown = bits ? matrix.map((row) => row.flatMap((byte) => signsOf(byte + (dtype === "binary" ? 128 : 0)))) : matrix;
  return { values: shown.flat(), rows: shown.length, columns: shown[0]?.length ?? 0, stored: matrix, dtype: dtype ?? "float32", bits };
}

const signsOf = (byte) => Array.from({ length: 8 }, (_, index) => ((byte >> (7 - index)) & 1 ? 1 : -1));

// Args: model; texts, or lists of ids; output; sentence: the result of the request for sentence vectors, which the similarity uses too.
export function Vectors({ model, texts, state, change, output, sentence, sentenceRequest, tokens }) {
  const pooled = output === SENTENCE;
  const chosen = Math.min(Math.max(0, Number.isInteger(state.text) ? state.text : 0), texts.length - 1);
  const rowRequest = embedRequest(model, [texts[chosen]], state, output);
  const single = useAnswer(pooled ? null : rowRequest);
  const result = pooled ? sentence : single;
  const request = pooled ? sentenceRequest : rowRequest;
  const { answer } = result;
  const current = answer?.body.outputs?.[output] ? answer : null;
  const table = useMemo(() => current && rowsOf(current, output), [current, output]);
  const first = current?.request.json.inputs[0];
  const pieces = Array.isArray(first) ? first.map((id) => `id ${id}`) : tokens?.body[tokens.request.json.inputs.indexOf(first)]?.map((token) => token.text);
  const names = current && (pooled ? current.request.json.inputs.map((text, index) => `${index + 1}. ${shortened(lineOf(text), 24)}`) : pieces?.length === table.rows ? pieces : undefined);
  const drawn = texts.findIndex((text) => String(text) === String(first)); // until the next answer comes, the text of the one before
  const title = pooled ? "Sentence vectors" : `${output} of ${model.reads_text ? "text" : "sequence"} ${(drawn < 0 ? chosen : drawn) + 1}`;
  const cut = cutInputs(current);
  const fields = fieldsOf(model, state, output);
  const asked = request.json.inputs;
  const foot = html`<${Snippets} label="Vectors" request=${request} grpc=${grpcOf(model, asked, fields, output)}
      openai=${pooled ? openaiOf(model, asked, fields) : undefined} tei=${pooled ? teiOf(model, asked, fields) : undefined} />`;
  return html`<${Panel} id="vectors" title="Vectors" result=${result} height=${pooled ? 11 + Math.min(30, 3.2 * texts.length) : 32} wide foot=${foot}>
    ${!pooled &&
    html`<label class="field"><span>${model.reads_text ? "Text" : "Sequence of ids"}</span>
      <${Choice} value=${chosen} options=${texts.map((text, index) => [index, `${index + 1}. ${shortened(lineOf(text), 60)}`])} onChoose=${(index) => change({ text: Number(index) || undefined })} />
    </label>`}
    ${table &&
    html`<p class="note">
        ${table.rows} ${pooled ? "text" : "token"}${table.rows === 1 ? "" : "s"} × ${table.columns} dimensions, ${table.dtype}${table.bits ? `: signs, ${table.columns / 8} bytes a text` : ""}.
        ${cut.length ? html`<strong> Cut, because too long: ${cut.length === 1 ? "text" : "texts"} ${cut.map((index) => index + 1).join(", ")}.</strong>` : ""}
      </p>
      ${pooled
        ? html`<${Strips} rows=${rowsIn(table)} names=${current.request.json.inputs.map((text, index) => `${index + 1}. ${lineOf(text)}`)} title=${title} nameOf=${(column) => `dimension ${column}`} />`
        : html`<${Heatmap} values=${table.values} rows=${table.rows} columns=${table.columns} title=${title} rowLabel="token" columnLabel="dimension" rowNames=${names}
          height=${360} />`}
      <${Cost} answer=${current} />
      <${Downloads} name=${pooled ? "vectors" : output} files=${filesOf(table, { title, names, rowLabel: pooled ? "text" : "token" })} />`}
  <//>`;
}

function rowsIn({ values, rows, columns }) {
  return Array.from({ length: rows }, (_, row) => values.slice(row * columns, (row + 1) * columns));
}

function filesOf(table, { title, names, rowLabel }) {
  const { values, rows, columns, stored, dtype } = table;
  const picture = () => matrixSvg({ values, rows, columns, title, rowLabel, columnLabel: "dimension", rowNames: names, scale: rangeOf(values), width: 1000, height: Math.max(120, Math.min(600, 24 * rows)) });
  return {
    ...pictureFiles(picture),
    npy: () => npyBlob(stored.flat(), [stored.length, stored[0].length], STORED[dtype]),
    csv: () => csvBlob([[rowLabel, ...stored[0].keys()], ...stored.map((row, index) => [names?.[index] ?? index + 1, ...row])]),
  };
}
