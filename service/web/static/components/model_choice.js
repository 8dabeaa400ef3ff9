// The models of this server, and a select of those that can do what a view needs.
import { html, useEffect, useState } from "../lib/dom.js";
import { ask, subscribe } from "../lib/api.js";
import { Choice } from "./choice.js";

const EMPTY_SECONDS = 5; // until a server without models is asked again
let known = null; // rows of the last answer, shown at once by the next view

// {models, error}: the rows of GET /models, null until they have come; asked again when the server may hold other models.
export function useModels() {
  const [result, setResult] = useState({ models: known, error: null });
  useEffect(() => {
    const controller = new AbortController();
    let timer;
    const load = () => {
      clearTimeout(timer);
      ask({ path: "/models" }, { signal: controller.signal }).then(
        ({ body }) => {
          known = body.models;
          setResult({ models: known, error: null });
          if (!known.length) timer = setTimeout(load, 1000 * EMPTY_SECONDS);
        },
        (error) => {
          if (error.name === "AbortError") return;
          setResult((before) => ({ models: error.passing ? before.models : null, error }));
          if (error.status !== 401) timer = setTimeout(load, 1000 * error.retryAfter); // with another key it is asked again anyway
        },
      );
    };
    load();
    const forget = subscribe("models", load);
    addEventListener("apikeychange", load);
    return () => {
      controller.abort();
      clearTimeout(timer);
      forget();
      removeEventListener("apikeychange", load);
    };
  }, []);
  return result;
}

// The model that requests without a name go to, or the first; one of random weights only where there is no other.
export function usualModel(models) {
  return models.find((model) => model.default) ?? models.find((model) => !isRandom(model)) ?? models[0];
}

// Whether weights of a model were drawn by `inlay create`, as its card says: what it answers means nothing.
export function isRandom(model) {
  return (model.provenance ?? []).some(({ name, value }) => name === "weights" && value.startsWith("random"));
}

// A model's name with what somebody should know before it is chosen.
export const titleOf = (model) => `${model.name}${readsOf(model)}${isRandom(model) ? " (random weights)" : ""}`;

// What a model reads, for its option, unless it is texts.
function readsOf(model) {
  if (model.reads_text) return "";
  return Object.values(model.graphs).every((graph) => graph.layout === "image") ? " (pictures)" : " (token ids)";
}

export function ModelChoice({ models, chosen, onChoose, label = "Model" }) {
  return html`<label class="field">
    <span>${label}</span>
    <${Choice} value=${chosen} options=${models.map((model) => [model.name, `${titleOf(model)}${model.default ? " (default)" : ""}`])} onChoose=${onChoose} />
  </label>`;
}
