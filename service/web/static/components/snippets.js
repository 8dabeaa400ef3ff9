// A request as curl, Python, JavaScript, grpcurl and in the clients of OpenAI, Cohere and text-embeddings-inference, ready to copy.
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
  if (request.accept && !/json|^text/.test(request.accept)) lines.push(`-o answer${SUFFIX[request.accept] ?? ".bin"}`);
  return lines.join(" \\\n  ");
}

const SUFFIX = { "application/x-npy": ".npy", "application/vnd.safetensors": ".safetensors", "image/png": ".png", "image/svg+xml": ".svg" };

const queryOf = (request) => Object.fromEntries(Object.entries(request.query ?? {}).filter(([, value]) => value !== undefined && value !== null && value !== ""));
const verbOf = (request) => request.method ?? (request.json === undefined ? "GET" : "POST");
const isText = (request) => /^text\//.test(request.accept ?? "");
const isJson = (request) => !request.accept || /json/.test(request.accept);
const fileOf = (request) => `"answer${SUFFIX[request.accept] ?? ".bin"}"`;

// Of an object that maps names to code: members of a dict of Python or an object of JavaScript.
const members = (object) => Object.entries(object).map(([name, code]) => `"${name}": ${code}`).join(", ");

function headersOf(request, key) {
  return {
    ...(request.accept && { accept: JSON.stringify(request.accept) }),
    ...(request.json !== undefined && { "content-type": '"application/json"' }),
    ...(hasApiKey() && { authorization: key }),
  };
}

// Python with nothing installed.
export function urllib(request) {
  const headers = headersOf(request, `"Bearer " + os.environ["INLAY_API_KEY"]`);
  const given = [JSON.stringify(location.origin + target(request))];
  if (request.json !== undefined) given.push("json.dumps(body).encode()");
  if (Object.keys(headers).length) given.push(`headers={${members(headers)}}`);
  if (request.method) given.push(`method=${JSON.stringify(request.method)}`);
  const imports = [(request.json !== undefined || isJson(request)) && "json", hasApiKey() && "os", "urllib.request"].filter(Boolean);
  const read = isJson(request) ? "    print(json.load(answer))" : isText(request) ? "    print(answer.read().decode())" : `    open(${fileOf(request)}, "wb").write(answer.read())`;
  return [
    ...imports.map((name) => `import ${name}`),
    "",
    ...(request.json !== undefined ? [`body = ${python(request.json)}`] : []),
    `request = urllib.request.Request(\n    ${given.join(",\n    ")},\n)`,
    `with urllib.request.urlopen(request) as answer:\n${read}`,
  ].join("\n");
}

export function httpx(request) {
  const given = [JSON.stringify(location.origin + request.path)];
  const query = queryOf(request);
  if (Object.keys(query).length) given.push(`params=${python(query, 1)}`);
  if (request.json !== undefined) given.push(`json=${python(request.json, 1)}`);
  const { "content-type": _, ...headers } = headersOf(request, `"Bearer " + os.environ["INLAY_API_KEY"]`); // httpx says it for JSON
  if (Object.keys(headers).length) given.push(`headers={${members(headers)}}`);
  return [
    ...(hasApiKey() ? ["import os", ""] : []),
    "import httpx\n",
    `answer = httpx.${verbOf(request).toLowerCase()}(\n    ${given.join(",\n    ")},\n)`,
    "answer.raise_for_status()",
    isJson(request) ? "print(answer.json())" : isText(request) ? "print(answer.text)" : `open(${fileOf(request)}, "wb").write(answer.content)`,
  ].join("\n");
}

// A module for Node, Deno and Bun; in a browser of another origin INLAY_CORS_ORIGINS has to allow it.
export function javascript(request) {
  const headers = headersOf(request, "`Bearer ${process.env.INLAY_API_KEY}`");
  const given = [
    verbOf(request) !== "GET" && `method: "${verbOf(request)}"`,
    Object.keys(headers).length && `headers: { ${members(headers)} }`,
    request.json !== undefined && `body: JSON.stringify(${JSON.stringify(request.json, null, 2).replaceAll("\n", "\n  ")})`,
  ].filter(Boolean);
  const read = isJson(request)
    ? "console.log(JSON.stringify(await answer.json()));"
    : isText(request)
      ? "console.log(await answer.text());"
      : `await writeFile(${fileOf(request)}, Buffer.from(await answer.arrayBuffer()));`;
  const options = given.length ? `, {\n${given.map((each) => `  ${each},\n`).join("")}}` : "";
  return [
    ...(read.startsWith("await writeFile") ? [`import { writeFile } from "node:fs/promises";`, ""] : []),
    `const answer = await fetch(${JSON.stringify(location.origin + target(request))}${options});`,
    "if (!answer.ok) throw new Error(await answer.text());",
    read,
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

// Cohere's client; `call` is what is made with `client`.
export function cohereClient(call) {
  const key = hasApiKey() ? `os.environ["INLAY_API_KEY"]` : `"any"`;
  return `${hasApiKey() ? "import os\n\n" : ""}import cohere\n\nclient = cohere.ClientV2(base_url="${location.origin}", api_key=${key})\n${call}`;
}

// The client of text-embeddings-inference, which is the hub's; it asks the server's default model.
export function teiClient(call) {
  const key = hasApiKey() ? `, token=os.environ["INLAY_API_KEY"]` : "";
  return `${hasApiKey() ? "import os\n\n" : ""}from huggingface_hub import InferenceClient\n\nclient = InferenceClient("${location.origin}"${key})\n${call}`;
}

// Args: request as `ask` takes it; grpc: {service, method, message}, or {missing: why there is none}; openai, cohere, tei: Python that
// uses `client`, or {missing: why not with these options}; left out where that API has no such call.
export function Snippets({ request, grpc, openai, cohere, tei, label = "This request" }) {
  const [chosen, setKind] = useState("curl");
  const made = (call, whole) => call && (() => (call.missing ? null : whole(call)));
  const offered = {
    curl: () => curl(request),
    Python: () => urllib(request),
    httpx: () => httpx(request),
    JavaScript: () => javascript(request),
    OpenAI: made(openai, openaiClient),
    Cohere: made(cohere, cohereClient),
    TEI: made(tei, teiClient),
    grpcurl: () => (grpc?.missing || !grpc ? null : grpcurl(grpc)),
  };
  const texts = Object.fromEntries(Object.entries(offered).filter(([, make]) => make));
  const kind = chosen in texts ? chosen : "curl";
  const missing = { OpenAI: openai?.missing, Cohere: cohere?.missing, TEI: tei?.missing, grpcurl: grpc?.missing ?? "There is no such call over gRPC." };
  const text = texts[kind]();
  return html`<details class="snippets">
    <summary>${label} as code</summary>
    <div class="row" role="group" aria-label="Client">
      ${Object.keys(texts).map(
        (each) => html`<button type="button" class="tab" aria-pressed=${each === kind} title=${ABOUT[each]} onClick=${() => setKind(each)}>${each}</button>`,
      )}
      ${text && html`<${CopyButton} text=${text} />`}
    </div>
    ${text ? html`<pre tabindex="0" aria-label=${`${label} as ${kind}`}><code>${text}</code></pre>` : html`<p class="note">${missing[kind]}</p>`}
  </details>`;
}

const ABOUT = {
  Python: "The standard library alone",
  httpx: "pip install httpx",
  JavaScript: "Node 18 or newer",
  OpenAI: "pip install openai",
  Cohere: "pip install cohere",
  TEI: "pip install huggingface_hub",
};
