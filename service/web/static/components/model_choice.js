// The models of this server, and a select of those that can do what a view needs.
import { html, useEffect, useState } from "../lib/dom.js";
import { askOnce } from "../lib/api.js";

// {models, error}: the rows of GET /models, null until they have come.
export function useModels() {
  const [result, setResult] = useState({ models: null, error: null });
  useEffect(() => {
    let current = true;
    const load = () =>
      askOnce({ path: "/models" }).then(
        ({ models }) => current && setResult({ models, error: null }),
        (error) => current && setResult((before) => ({ ...before, error })),
      );
    load();
    const again = setInterval(() => setResult((before) => (before.models || load(), before)), 5000);
    addEventListener("apikeychange", load);
    return () => {
      current = false;
      clearInterval(again);
      removeEventListener("apikeychange", load);
    };
  }, []);
  return result;
}

// The model that requests without a name go to, or the first.
export function usualModel(models) {
  return models.find((model) => model.default) ?? models[0];
}

export function ModelChoice({ models, chosen, onChoose, label = "Model" }) {
  return html`<label class="field">
    <span>${label}</span>
    <select value=${chosen} onChange=${(event) => onChoose(event.target.value)}>
      ${models.map((model) => html`<option value=${model.name}>${model.name}${model.default ? " (default)" : ""}</option>`)}
    </select>
  </label>`;
}
