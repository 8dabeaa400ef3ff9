// A request as curl, Python (httpx), OpenAI client and grpcurl, ready to copy.
import { html, useState } from "../lib/dom.js";
import { hasApiKey, target } from "../lib/api.js";
import { CopyButton } from "./copy_button.js";

const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

// A value of JSON as Python writes it.
export function python(value, indent = 0) {
  const pad = "    ".repeat(indent + 1);
  const end = "    ".repeat(indent);
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const flat = JSON.stringify(value).length <= 70;
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  const parts = Array.isArray(value)
    ? value.map((each) => python(each, indent + 1))
    : Object.entries(value).map(([name, each]) => `${JSON.stringify(name)}: ${python(each, indent + 1)}`);
  return flat ? `${open}${parts.join(", ")}${close}` : `${open}\n${parts.map((part) => `${pad}${part},\n`).join("")}${end}${close}`;
}

export function curl(request) {
  const lines = [`curl ${quoted(location.origin + target(request))}`];
  if (hasApiKey()) lines.push(`-H "authorization: Bearer $INLAY_API_KEY"`);
  if (request.accept) lines.push(`-H ${quoted(`accept: ${request.accept}`)}`);
  if (request.json !== undefined) lines.push(`-H 'content-type: application/json'`, `-d ${quoted(JSON.stringify(request.json))}`);
  if (request.accept && !/json/.test(request.accept)) lines.push(`-o answer${SUFFIX[request.accept] ?? ".bin"}`);
  return lines.join(" \\\n  ");
}

const SUFFIX = { "application/x-npy": ".npy", "application/vnd.safetensors": ".safetensors", "image/png": ".png", "image/svg+xml": ".svg" };

export function httpx(request) {
  const given = [JSON.stringify(location.origin + request.path)];
  const query = Object.fromEntries(Object.entries(request.query ?? {}).filter(([, value]) => value !== undefined && value !== null && value !== ""));
  if (Object.keys(query).length) given.push(`params=${python(query, 1)}`);
  if (request.json !== undefined) given.push(`json=${python(request.json, 1)}`);
  const headers = [];
  if (request.accept) headers.push(`"accept": ${JSON.stringify(request.accept)}`);
  if (hasApiKey()) headers.push(`"authorization": "Bearer " + os.environ["INLAY_API_KEY"]`);
  if (headers.length) given.push(`headers={${headers.join(", ")}}`);
  const verb = (request.method ?? (request.json === undefined ? "GET" : "POST")).toLowerCase();
  const raw = request.accept === "application/octet-stream";
  return [
    ...(hasApiKey() ? ["import os", ""] : []),
    raw ? "import httpx\nimport numpy as np\n" : "import httpx\n",
    `answer = httpx.${verb}(\n    ${given.join(",\n    ")},\n)`,
    "answer.raise_for_status()",
    raw
      ? `rows = np.frombuffer(answer.content, answer.headers["inlay-dtype"])\nprint(rows.reshape([int(n) for n in answer.headers["inlay-shape"].split(",")]))`
      : !request.accept || /json/.test(request.accept)
        ? "print(answer.json())"
        : `open("answer${SUFFIX[request.accept] ?? ".bin"}", "wb").write(answer.content)`,
  ].join("\n");
}

// The server's gRPC port is not known to a page: the default one is written.
export function grpcurl({ service, method, message }) {
  const key = hasApiKey() ? `-H "authorization: Bearer $INLAY_API_KEY" ` : "";
  const plain = location.protocol === "https:" ? "" : "-plaintext ";
  return `grpcurl ${plain}${key}\\\n  -d ${quoted(JSON.stringify(message))} \\\n  ${location.hostname}:50051 ${service}/${method}`;
}

// OpenAI's client with its base address and key; `call` is what is made with `client`.
export function openaiClient(call) {
  const key = hasApiKey() ? `os.environ["INLAY_API_KEY"]` : `"any"`;
  return `${hasApiKey() ? "import os\n\n" : ""}from openai import OpenAI\n\nclient = OpenAI(base_url="${location.origin}/v1", api_key=${key})\n${call}`;
}

// Args: request as `ask` takes it; grpc: {service, method, message}, or {missing: why there is none}; openai: Python that uses
// `client`, or {missing: why not with these options}; left out where OpenAI's API has no such call.
export function Snippets({ request, grpc, openai, label = "This request" }) {
  const [chosen, setKind] = useState("curl");
  const texts = {
    curl: () => curl(request),
    Python: () => httpx(request),
    ...(openai && { OpenAI: () => (openai.missing ? null : openaiClient(openai)) }),
    grpcurl: () => (grpc?.missing || !grpc ? null : grpcurl(grpc)),
  };
  const kind = chosen in texts ? chosen : "curl";
  const missing = { OpenAI: openai?.missing, grpcurl: grpc?.missing ?? "There is no such call over gRPC." };
  const text = texts[kind]();
  return html`<details class="snippets">
    <summary>${label} as code</summary>
    <div class="row" role="group" aria-label="Client">
      ${Object.keys(texts).map(
        (each) => html`<button type="button" class="tab" aria-pressed=${each === kind} onClick=${() => setKind(each)}>${each}</button>`,
      )}
      ${text && html`<${CopyButton} text=${text} />`}
    </div>
    ${text ? html`<pre tabindex="0" aria-label=${`${label} as ${kind}`}><code>${text}</code></pre>` : html`<p class="note">${missing[kind]}</p>`}
  </details>`;
}
