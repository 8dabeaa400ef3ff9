// Requests to this server. The API key is kept in this module's memory alone.
//
// A request is data: {method, path, query, json, accept}. Views hand the same object to `ask` and to <Snippets>, so what is shown
// is what was sent.
let apiKey = null;
// unauthorized: a key is missing or wrong (whether one was sent); state: what serverState says; models: the server may hold other models than before;
// wantsKey: somebody asks for the dialog of the key
const listeners = { unauthorized: new Set(), state: new Set(), models: new Set(), wantsKey: new Set() };
let state = { kind: "ok", message: "" };

export function subscribe(event, listener) {
  listeners[event].add(listener);
  return () => listeners[event].delete(listener);
}

export function emit(event, value) {
  for (const listener of listeners[event]) listener(value);
}

// What the last request told of the server: ok, overloaded (429), unavailable (503) or unreachable.
export function serverState() {
  return state;
}

const GONE = ["unavailable", "unreachable"];

function setState(kind, message = "") {
  if (state.kind === kind && state.message === message) return;
  const isBack = kind === "ok" && GONE.includes(state.kind);
  state = { kind, message };
  emit("state", state);
  if (!isBack) return;
  cached.clear(); // it may have been started again with another store
  emit("models");
}

export function setApiKey(key) {
  apiKey = key || null;
  emit("state", state);
  dispatchEvent(new Event("apikeychange"));
}

export function hasApiKey() {
  return apiKey !== null;
}

// An error response of the server, or the lack of one (status 0). `retryAfter` is in seconds; `passing`: worth asking again; `document`
// is its problem document.
export class RequestError extends Error {
  constructor(message, { status = 0, code = "", retryAfter = 3, document = {}, requestId = "" } = {}) {
    super(message);
    Object.assign(this, { status, code, retryAfter, passing: PASSING.includes(status), document, requestId });
  }
}

const PASSING = [0, 429, 502, 503]; // 502: a proxy in front, while the server starts again

export function target(request) {
  const given = Object.entries(request.query ?? {}).filter(([, value]) => value !== undefined && value !== null && value !== "");
  // a list is a parameter that comes several times
  const query = new URLSearchParams(given.flatMap(([name, value]) => [].concat(value).map((each) => [name, each]))).toString();
  return request.path + (query ? `?${query}` : "");
}

// Sends a request and returns {response, body, milliseconds}: body is JSON, or an ArrayBuffer unless the answer is JSON.
export async function ask(request, { signal } = {}) {
  const key = apiKey;
  const headers = { accept: request.accept ?? "application/json" };
  if (key) headers.authorization = `Bearer ${key}`;
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
    if (!response.ok) throw await errorOf(response, key);
    const type = (response.headers.get("content-type") ?? "nothing").split(";")[0];
    if (type !== headers.accept) throw new RequestError(`${type} came in place of ${headers.accept}: a proxy answered instead of the server.`, { status: response.status });
    const body = type === "application/json" ? await response.json() : await response.arrayBuffer();
    setState("ok");
    return { response, body, milliseconds: performance.now() - begun };
  } catch (error) {
    if (signal?.aborted) throw signal.reason; // also where the body of an error was on its way
    if (error instanceof RequestError) throw error;
    setState("unreachable", "The server does not answer. It was stopped, or the network is down.");
    throw new RequestError("The server does not answer.");
  }
}

async function errorOf(response, key) {
  let document = {};
  try {
    document = (await response.json()) ?? {};
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
    retryAfter: seconds > 0 ? Math.min(3600, Math.max(1, seconds)) : undefined, // 3600: a timer of 2 ** 31 ms would fire at once
  });
  if (response.status === 401 && key === apiKey) emit("unauthorized", key !== null);
  if (error.code === "unknown_model") emit("models");
  if (response.status === 429) setState("overloaded", `The server is busy: ${message}`);
  else if (response.status === 502 || response.status === 503) setState("unavailable", `The server takes no requests: ${message}`);
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
