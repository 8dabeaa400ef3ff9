// The slowest requests of the time that is shown, each with what its time went into.
import { html } from "../../lib/dom.js";
import { clock } from "../../components/chart.js";
import { CopyButton } from "../../components/copy_button.js";
import { Downloads, csvBlob } from "../../components/downloads.js";
import { STAGES } from "./charts.js";

const SHOWN = 5; // at once, and as many more
const NAMES = { tokenize: "tokenising", queue: "waiting in the queue", run: "the model", encode: "writing the answer", other: "before and around the model" };
const WHY = {
  tokenize: () => "Its texts are long, or many.",
  queue: () => "Other requests were being run: more came than the engine takes at once.",
  run: ({ tokens }) => `The model computed${tokens ? ` ${tokens.toLocaleString("en")} tokens` : ""}: fewer or shorter texts take less.`,
  encode: () => "Its answer is large, or its client read slowly.",
  other: ({ stages }) =>
    Object.keys(stages).length ? "It was read slowly, waited for its turn to begin, or asked for work beside the model." : "No model was run: it was refused, or the route's own work took that long.",
};

// [[stage, seconds]] of a request, and what no stage accounts for.
export function partsOf({ seconds, stages }) {
  const known = STAGES.filter((stage) => stage in stages).map((stage) => [stage, stages[stage]]);
  return [...known, ["other", Math.max(0, seconds - known.reduce((sum, [, each]) => sum + each, 0))]];
}

export const milliseconds = (seconds) => `${(1000 * seconds).toLocaleString("en", { maximumSignificantDigits: 3 })} ms`;

export function Slowest({ samples, model }) {
  const found = samples.flatMap((sample) => sample.slowest).filter((each) => !model || each.model === model);
  const slowest = found.sort((a, b) => b.seconds - a.seconds).slice(0, 2 * SHOWN);
  const items = (some) => html`<ol class="slowest">${some.map((each) => html`<${Slow} key=${`${each.at} ${each.request_id}`} slow=${each} longest=${slowest[0].seconds} />`)}</ol>`;
  return html`<section class="panel" aria-labelledby="slowest">
    <h2 id="slowest">Slowest requests</h2>
    ${slowest.length > 0 && html`<p class="note stage-legend">
      ${[...STAGES, "other"].map((stage) => html`<span><i class=${`stage ${stage}`} aria-hidden="true"></i>${NAMES[stage]}</span>`)}
    </p>`}
    ${slowest.length
      ? html`${items(slowest.slice(0, SHOWN))}
          ${slowest.length > SHOWN && html`<details class="snippets"><summary>${slowest.length - SHOWN} more</summary>${items(slowest.slice(SHOWN))}</details>`}
          <${Downloads} name="slowest" files=${{ csv: () => csvBlob(rowsOf(found)) }} />`
      : html`<p class="note">None took 10 ms or more in this time.</p>`}
  </section>`;
}

function Slow({ slow, longest }) {
  const parts = partsOf(slow);
  const [most, seconds] = parts.reduce((best, part) => (part[1] > best[1] ? part : best));
  return html`<li>
    <p class="row between"><span><strong>${milliseconds(slow.seconds)}</strong> <code>${slow.method}</code> ${slow.status}</span>
      <span class="note">${clock(slow.at)}${slow.model ? `, ${slow.model}, ${slow.tokens.toLocaleString("en")} tokens` : ""}</span></p>
    <div class="stages" aria-hidden="true" style=${{ width: `${Math.max(2, (100 * slow.seconds) / longest)}%` }}>
      ${parts.map(([stage, each]) => html`<i class=${`stage ${stage}`} style=${{ width: `${(100 * each) / slow.seconds}%` }} title=${`${NAMES[stage]}: ${milliseconds(each)}`}></i>`)}
    </div>
    <p class="note">${Math.round((100 * seconds) / slow.seconds)} % ${NAMES[most]}: ${WHY[most](slow)}</p>
    <details><summary>Its stages and id</summary>
      <dl class="facts">
        ${parts.map(([stage, each]) => html`<dt>${NAMES[stage]}</dt><dd>${milliseconds(each)}</dd>`)}
        ${slow.request_id && html`<dt>request id</dt><dd><code>${slow.request_id}</code> <${CopyButton} text=${slow.request_id} /> The log has it too.</dd>`}
        ${slow.key && html`<dt>key</dt><dd>${slow.key}</dd>`}
      </dl>
    </details>
  </li>`;
}

const rowsOf = (found) => [
  ["seconds since 1970", "protocol", "method", "status", "seconds", "model", "tokens", ...STAGES, "request id"],
  ...found.map((each) => [each.at, each.protocol, each.method, each.status, each.seconds, each.model ?? "", each.tokens ?? "", ...STAGES.map((stage) => each.stages[stage] ?? ""), each.request_id ?? ""]),
];
