// The labels of each text, of a model that classifies.
import { html } from "../../lib/dom.js";
import { Bars } from "../../components/bars.js";
import { barsSvg, pictureFiles } from "../../components/picture.js";
import { Downloads, csvBlob } from "../../components/downloads.js";
import { Snippets } from "../../components/snippets.js";
import { useAnswer } from "../../components/result.js";
import { Cost, Panel } from "./panel.js";
import { truncationOf } from "./options.js";

const SHOWN = 10; // labels of a text; CSV has all

const base64 = (text) => btoa(String.fromCharCode(...new TextEncoder().encode(text)));

function grpcOf(model, texts) {
  if (model.default) return { service: "tei.v1.Predict", method: "Predict", message: { inputs: texts[0], truncate: true } };
  const tensor = { name: "text", datatype: "BYTES", shape: [texts.length], contents: { bytes_contents: texts.map(base64) } };
  return { service: "inference.GRPCInferenceService", method: "ModelInfer", message: { model_name: model.name, inputs: [tensor], outputs: [{ name: "scores" }] } };
}

export function Labels({ model, texts, state }) {
  const request = { path: "/predict", json: { model: model.name, inputs: texts.map((text) => [text]), ...truncationOf(state) } };
  const result = useAnswer(request);
  const { answer } = result;
  const groups = (answer?.body ?? []).map((scores, index) => ({
    name: `${index + 1}. ${answer.request.json.inputs[index][0]}`,
    bars: scores.slice(0, SHOWN).map(({ label, score }) => ({ label, value: score })),
  }));
  const foot = html`<${Cost} answer=${answer} />
    ${answer &&
    html`<${Downloads} name="labels" files=${{
      ...pictureFiles(() => barsSvg({ groups, title: `Labels by ${model.name}, bars from 0 to 1`, most: 1 })),
      csv: () => csvBlob([["text", "label", "score"], ...answer.body.flatMap((scores, index) => scores.map(({ label, score }) => [answer.request.json.inputs[index][0], label, score]))]),
    }} />`}
    <${Snippets} label="Labels" request=${request} grpc=${grpcOf(model, texts)} />`;
  return html`<${Panel} id="labels" title="Labels" result=${result} height=${36} foot=${foot}>
    <p class="note">Bars: score from 0 to 1.</p>
    <div class="scroll groups" tabindex="0" role="group" aria-label="Labels of each text">
      ${groups.map(({ name, bars }) => html`<div><h3>${name}</h3><${Bars} bars=${bars} most=${1} title=${`Labels of text ${name}`} /></div>`)}
    </div>
  <//>`;
}
