// Labels for one picture by a dual encoder: the probabilities of sentences that one writes, by the server's own scale.
import { html } from "../../lib/dom.js";
import { Bars } from "../../components/bars.js";
import { ErrorLine, useAnswer } from "../../components/result.js";
import { useDraft } from "../try/panel.js";
import { MEANING, addressOf } from "./roles.js";

const USUAL = "cat, dog, landscape, chart";
const TEMPLATE = "a photo of a {}";
const MOST = 50;

// Args: sides: of sidesOf, both there; vector: the picture's, null while there is none; picture: its Blob; name: its name.
export function ZeroShot({ sides, vector, picture, name, state, change }) {
  const [labels, setLabels] = useDraft(state.labels ?? USUAL, (text) => change({ labels: text || undefined }));
  const [template, setTemplate] = useDraft(state.template ?? TEMPLATE, (text) => change({ template: text || undefined }));
  const written = String(state.labels ?? USUAL).split(",").map((each) => each.trim()).filter(Boolean).slice(0, MOST);
  const pattern = String(state.template ?? TEMPLATE);
  const sentences = written.map((label) => (pattern.includes("{}") ? pattern.replaceAll("{}", label) : `${pattern} ${label}`));
  const texts = useAnswer(vector && written.length ? { path: "/embed", json: { model: sides.texts.name, inputs: sentences, outputs: [MEANING], truncate: true } } : null);
  const same = texts.answer?.request.json.inputs.join("\n") === sentences.join("\n");
  const body = same && vector ? { text_embeds: texts.answer.body.outputs[MEANING], image_embeds: [Array.from(vector)] } : null;
  const result = useAnswer(body && { path: `/models/${sides.pictures.name}/similarity`, json: body });
  const found = result.answer && body && result.answer.body.probabilities[0].length === written.length ? result.answer.body : null;
  const bars = found?.probabilities[0].map((value, place) => ({ label: written[place], title: sentences[place], value })).sort((a, b) => b.value - a.value);
  return html`<section class="panel" aria-labelledby="labels-title" aria-busy=${texts.waiting || result.waiting}>
    <h2 id="labels-title">Labels of a picture</h2>
    ${!vector && html`<p class="note">Press a picture in the results or on the map: these labels are then weighed for it.</p>`}
    ${vector && html`<p class="row like">${picture && html`<img src=${addressOf(picture)} alt="" />`} <strong>${name}</strong></p>`}
    <div class="own">
      <label class="field"><span>Labels, by commas</span><input type="text" value=${labels} onInput=${(event) => setLabels(event.target.value)} /></label>
      <label class="field"><span>Sentence of a label</span><input type="text" value=${template} onInput=${(event) => setTemplate(event.target.value)} /></label>
    </div>
    ${(texts.error ?? result.error) && html`<${ErrorLine} error=${texts.error ?? result.error} />`}
    ${bars && html`<${Bars} bars=${bars} most=${1} title="Probabilities of the labels" ordered />
      <p class="note">${found.kind === "softmax" ? "The probabilities of all labels sum to 1." : "Each label has a probability of its own."}</p>`}
  </section>`;
}
