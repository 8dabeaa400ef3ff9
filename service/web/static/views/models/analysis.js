// Norms and singular spectrum of a model's word table, memory and computation by component: GET /models/{name}/analysis.
import { html } from "../../lib/dom.js";
import { Chart } from "../../components/chart.js";
import { Downloads, csvBlob } from "../../components/downloads.js";
import { curvesSvg, pictureFiles } from "../../components/picture.js";
import { ErrorLine, useAnswer } from "../../components/result.js";
import { Snippets } from "../../components/snippets.js";
import { bytes, count, flops } from "./units.js";

export function Analysis({ model }) {
  const path = `/models/${encodeURIComponent(model.name)}/analysis`;
  const { answer, error, waiting } = useAnswer({ path });
  const found = answer?.body;
  return html`<section class="panel" aria-labelledby="analysis" aria-busy=${waiting}>
    <h3 id="analysis">Its word table</h3>
    ${error && html`<${ErrorLine} error=${error} />`}
    ${!found && !error && html`<p class="note" role="status">Computing the singular values; a large table takes a while.</p>`}
    <div class="pair">${found && html`<${Figures} found=${found} name=${model.name} />`}</div>
    ${found && html`<${Summary} found=${found} /><${Components} found=${found} />`}
    ${found && html`<${Files} found=${found} name=${model.name} />`}
    <${Snippets}
      label="The analysis"
      request=${{ path }}
      grpc=${{ service: "inlay.v1.Embedder", method: "Analysis", message: { model: model.name } }}
    />
  </section>`;
}

function Figures({ found, name }) {
  return html`<${Figure} name=${`${name}-norms`} chart=${normsOf(found)} />
    ${found.spectrum
      ? html`<${Figure} name=${`${name}-singular-values`} chart=${spectrumOf(found)} />`
      : html`<p class="note">No singular values.</p>`}`;
}

function normsOf(found) {
  const { edges, counts } = found.norms.histogram;
  const x = counts.map((_, index) => (edges[index] + edges[index + 1]) / 2);
  return { x, curves: [{ name: "rows", values: counts }], title: "Histogram of row norms", xLabel: "norm of a row", yLabel: "rows" };
}

function spectrumOf(found) {
  const values = found.spectrum.singular_values;
  return {
    x: values.map((_, index) => index + 1),
    curves: [{ name: "singular value", values: values.map((value) => (value > 0 ? value : null)) }],
    title: "Singular values of the word table",
    xLabel: "rank",
    yLabel: "singular value",
    yLog: true,
  };
}

const short = (value) => String(Number(value.toPrecision(3)));

function Figure({ name, chart }) {
  const picture = () => curvesSvg({ ...chart, xText: short, yText: short });
  return html`<div>
    <${Chart} ...${chart} height=${240} />
    <${Downloads} name=${name} files=${pictureFiles(picture)} />
  </div>`;
}

function Summary({ found }) {
  const facts = [
    ["table", `${found.table.name}, ${found.table.shape.map(count).join(" × ")}, ${found.table.dtype}, ${bytes(found.table.bytes)}`],
    ["norms", `${found.norms.min.toPrecision(3)} to ${found.norms.max.toPrecision(3)}, mean ${found.norms.mean.toPrecision(3)}`],
    ["effective rank", found.spectrum ? `${found.spectrum.effective_rank.toPrecision(4)} of ${count(found.table.shape[1])}` : null],
    ["half, 90 %, 99 % of the energy", found.spectrum ? Object.values(found.spectrum.energy_ranks).map((rank) => `rank ${rank}`).join(", ") : null],
    ["mean cosine of two rows", found.mean_cosine?.toPrecision(3)],
    ["rows of zeros, equal rows", `${count(found.zero_rows.count)}, ${count(found.duplicate_rows.count)}`],
  ];
  return html`<dl class="facts">
    ${facts.filter(([, value]) => value).map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}
  </dl>`;
}

// What the steps of a recipe do, in the order of models/recipes/steps.py; others are shown by their name.
const STEPS = {
  Embed: "rows of the word table",
  AddType: "add the rows of token_type_ids",
  AddPosition: "add the rows of the positions",
  AddSinusoid: "add sinusoids of the positions",
  Scale: "multiply by a number",
  Linear: "projection",
  Encoder: "all blocks",
  Head: "logits",
};

function named({ step, steps, parameters, tensors }) {
  const shared = parameters === 0 && tensors?.length ? `, which share ${tensors.join(", ")}` : "";
  return `${STEPS[step] ?? step}${steps ? ` (${steps} steps)` : ""}${shared}`;
}

function Components({ found }) {
  const rows = Object.entries(found.components).flatMap(([part, steps]) => steps.map((step) => [part.replaceAll("_", " "), step]));
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Memory and computation by component">
    <table>
      <tr>
        <th>part</th>
        <th>step</th>
        <th class="number">parameters</th>
        <th class="number">bytes</th>
        <th class="number">computation per token</th>
      </tr>
      ${rows.map(([part, step]) => html`<tr>
        <td>${part}</td>
        <td title=${step.step}>${named(step)}</td>
        <td class="number">${count(step.parameters)}</td>
        <td class="number">${bytes(step.bytes)}</td>
        <td class="number">${flops(step.flops_per_token ?? 0)}</td>
      </tr>`)}
    </table>
  </div>`;
}

function Files({ found, name }) {
  const csv = () =>
    csvBlob([
      ["what", "x", "value"],
      ...found.norms.histogram.counts.map((value, index) => ["rows by norm from", found.norms.histogram.edges[index], value]),
      ...(found.spectrum?.singular_values ?? []).map((value, index) => ["singular value of rank", index + 1, value]),
    ]);
  return html`<${Downloads} name=${`${name}-table`} what="norms and singular values" files=${{ csv }} />`;
}
