// Requests to this server. The API key is kept in this module's memory alone.
//
// A request is data: {method, path, query, json, accept}. Views hand the same object to `ask` and to <Snippets>, so what is shown
// is what was sent.
let apiKey = null;
const listeners = { unauthorized: new Set(), state: new Set() };
let state = { kind: "ok", message: "" };

export function subscribe(event, listener) {
  listeners[event].add(listener);
  return () => listeners[event].delete(listener);
}

function emit(event, value) {
  for (const listener of listeners[event]) listener(value);
}

// What the last request told of the server: ok, overloaded (429), unavailable (503) or unreachable.
export function serverState() {
  return state;
}

function setState(kind, message = "") {
  if (state.kind === kind && state.message === message) return;
  state = { kind, message };
  emit("state", state);
}

export function setApiKey(key) {
  apiKey = key || null;
  emit("state", state);
  dispatchEvent(new Event("apikeychange"));
}

export function hasApiKey() {
  return apiKey !== null;
}

// An error response of the server, or the lack of one (status 0). `retryAfter` is in seconds; `document` is its problem document.
export class RequestError extends Error {
  constructor(message, { status = 0, code = "", retryAfter = null, document = {}, requestId = "" } = {}) {
    super(message);
    Object.assign(this, { status, code, retryAfter, document, requestId });
  }
}

export function target(request) {
  const given = Object.entries(request.query ?? {}).filter(([, value]) => value !== undefined && value !== null && value !== "");
  // a list is a parameter that comes several times
  const query = new URLSearchParams(given.flatMap(([name, value]) => [].concat(value).map((each) => [name, each]))).toString();
  return request.path + (query ? `?${query}` : "");
}

// Sends a request and returns {response, body, milliseconds}: body is JSON, or an ArrayBuffer unless the answer is JSON.
export async function ask(request, { signal } = {}) {
  const headers = { accept: request.accept ?? "application/json" };
  if (apiKey) headers.authorization = `Bearer ${apiKey}`;
  if (request.json !== undefined) headers["content-type"] = "application/json";
  const begun = performance.now();
  let response;
  try {
    response = await fetch(target(request), {
      method: request.method ?? (request.json === undefined ? "GET" : "POST"),
      headers,
      body: request.json === undefined ? undefined : JSON.stringify(request.json),
      signal,
    });
    if (!response.ok) throw await errorOf(response);
    const isJson = /json/.test(response.headers.get("content-type") ?? "");
    const body = isJson ? await response.json() : await response.arrayBuffer();
    setState("ok");
    return { response, body, milliseconds: performance.now() - begun };
  } catch (error) {
    if (error.name === "AbortError" || error instanceof RequestError) throw error;
    setState("unreachable", "The server does not answer. It was stopped, or the network is down.");
    throw new RequestError("The server does not answer.");
  }
}

async function errorOf(response) {
  let document = {};
  try {
    document = await response.json();
  } catch {
    // not JSON: a proxy's page, for instance
  }
  const said = document.detail ?? document.error?.message ?? document.error ?? document.message;
  const message = typeof said === "string" ? said : `${response.status} ${response.statusText}`;
  const seconds = Number(response.headers.get("retry-after"));
  const error = new RequestError(message, {
    status: response.status,
    code: document.code ?? "",
    document,
    requestId: response.headers.get("x-request-id") ?? "",
    retryAfter: Number.isFinite(seconds) && seconds > 0 ? seconds : null,
  });
  if (response.status === 401) emit("unauthorized");
  if (response.status === 429) setState("overloaded", `The server is busy: ${message}`);
  else if (response.status === 503) setState("unavailable", `The server takes no requests: ${message}`);
  else setState("ok");
  return error;
}

// Raw rows of an answer in application/octet-stream: {shape, values}; float32 alone.
export function rawRows({ response, body }) {
  const shape = response.headers.get("inlay-shape").split(",").map(Number);
  return { shape, values: new Float32Array(body) };
}

const cached = new Map();

// Asks once and keeps the answer until the key changes: lists that several views read.
export function askOnce(request) {
  const address = target(request);
  if (!cached.has(address)) {
    const answer = ask(request).then(({ body }) => body);
    answer.catch(() => cached.delete(address));
    cached.set(address, answer);
  }
  return cached.get(address);
}

addEventListener("apikeychange", () => cached.clear());
