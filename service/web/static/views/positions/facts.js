// How the values were computed, the requests behind the view, and files of what is shown.
import { Downloads, csvBlob } from "../../components/downloads.js";
import { Snippets } from "../../components/snippets.js";
import { ask } from "../../lib/api.js";
import { html } from "../../lib/dom.js";
import { grpcOf, nameOf, pictureRequest, tableRequest } from "./encodings.js";
import { csvRows } from "./figures.js";

const WIDTH = 1200; // pixels of a saved picture
const FIRST_OUTPUT = ["bias", "bucket", "mask", "table"];

// Formula, factor and remarks of each encoding, as the server computed it.
export function Facts({ rows, answers }) {
  const known = rows.map(([, encoding], index) => [encoding, answers[index].answer?.body.tables[0]]).filter(([, table]) => table);
  return html`<details class="facts">
    <summary>How the values are computed</summary>
    <div class="scroll" tabindex="0" role="region" aria-label="How the values are computed">
      <table>
        <tr>
          <th scope="col">Encoding</th>
          <th scope="col">Formula</th>
          <th scope="col">cos and sin times</th>
          <th scope="col">Shapes</th>
          <th scope="col">Remarks</th>
        </tr>
        ${known.map(
          ([encoding, { facts, notes, shapes }]) => html`<tr>
            <th scope="row">${nameOf(encoding)}</th>
            <td><code>${facts.formula ?? ""}</code></td>
            <td class="number">${facts.attention_factor === undefined ? "" : Number(facts.attention_factor.toPrecision(6))}</td>
            <td>
              ${Object.entries(shapes)
                .map(([name, shape]) => `${name} ${shape.join("×")}`)
                .join(", ")}
            </td>
            <td>${notes.join(" ")}</td>
          </tr>`,
        )}
      </table>
    </div>
  </details>`;
}

// Args: rows: [[scheme, encoding]]; requests: of the figure's numbers; shown: what is drawn; chosen: number of the edited encoding.
export function Files({ rows, requests, shown, figure, axis, chosen, maxSubjects }) {
  const drawn = rows.map((_, index) => index).filter((index) => requests[index]);
  if (!drawn.length) return null;
  const alike = drawn.filter((index) => quantity(shown, index) === quantity(shown, drawn.includes(chosen) ? chosen : drawn[0]));
  const pictured = alike.slice(0, maxSubjects).map((index) => rows[index]);
  const [scheme, encoding] = rows[chosen];
  const shapes = shown.find(({ at }) => at === chosen)?.document.tables[0]?.shapes ?? {};
  const output = outputOf(shapes, figure);
  const table = tableRequest(scheme, encoding, output);
  const picture = (suffix) => async () => {
    const request = pictureRequest(pictured, figure, axis, suffix, { dark: document.documentElement.dataset.theme === "dark", width: WIDTH });
    const { body } = await ask(request);
    return new Blob([body], { type: request.accept });
  };
  const files = { png: picture("png"), svg: picture("svg"), ...(shown.length ? { csv: () => csvBlob(csvRows(shown)) } : {}) };
  const npy = { npy: async () => new Blob([(await ask(table)).body], { type: "application/octet-stream" }) };
  return html`<div>
    <${Downloads} name=${`positions-${figure}`} what="this figure" files=${files} />
    ${pictured.length < drawn.length && html`<p class="note">PNG and SVG hold ${pictured.map(([, each]) => nameOf(each)).join(", ")}: one picture of the server shows up to ${maxSubjects} tables of one quantity in this figure.</p>`}
    <${Downloads} name=${fileName(encoding, output)} what=${`the table of ${nameOf(encoding)}${output ? `: ${output}` : ""}`} files=${npy} />
    <${Snippets} label="This picture" request=${pictureRequest(pictured, figure, axis, "svg")} grpc=${{ missing: "Pictures are HTTP's alone. The table itself comes over gRPC too: see below." }} />
    <${Snippets} label=${`The table of ${nameOf(encoding)}`} request=${table} grpc=${grpcOf(scheme, encoding)} />
  </div>`;
}

// What an encoding's figure shows, such as the bias or the bucket: a picture shows one of them.
function quantity(shown, index) {
  const document = shown.find(({ at }) => at === index)?.document;
  return document?.colours?.label ?? document?.panels[0]?.[0]?.y.label;
}

// The output that a NumPy file holds where they differ in shape: the one of the figure. "": all of them, stacked.
function outputOf(shapes, figure) {
  const names = Object.keys(shapes);
  if (new Set(Object.values(shapes).map(String)).size < 2) return undefined;
  return names.find((name) => name === figure) ?? FIRST_OUTPUT.find((name) => names.includes(name)) ?? names[0];
}

function fileName(encoding, output) {
  const name = nameOf(encoding).normalize("NFKD").replace(/[^A-Za-z0-9.]+/g, "-").replace(/^-|-$/g, "");
  return [name || encoding.s, output].filter(Boolean).join("-");
}
