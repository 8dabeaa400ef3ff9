// The models of this server: one row each, which opens; search; loading and unloading where the operator allows it.
import { html, useEffect, useState } from "../lib/dom.js";
import { ask, emit } from "../lib/api.js";
import { writeLink } from "../lib/link.js";
import { isRandom, useModels, usualModel } from "../components/model_choice.js";
import { ErrorLine } from "../components/result.js";
import { Snippets } from "../components/snippets.js";
import { Detail } from "./models/detail.js";
import { canRun } from "./try/inputs.js";
import { bytes, count, flops, flopsOfText, short } from "./models/units.js";

const LENGTHS = [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192];
const REPOSITORY = "/v2/repository";

export default function Models({ state, setState }) {
  const { models, error } = useModels();
  const { stored, allowed, again } = useStore(models);
  const [sought, setSought] = useState("");
  const tokens = LENGTHS.includes(state.tokens) ? state.tokens : 128;
  if (error && !models) return html`<${ErrorLine} error=${error} />`;
  if (!models) return html`<p class="note" role="status">Asking for the models.</p>`;
  const unloaded = stored.filter(({ name, state: is }) => is !== "READY" && !models.some((model) => model.name === name));
  if (!models.length && !unloaded.length)
    return html`<p role="status">This server holds no model. Export one into its store: <code>inlay export CHECKPOINT</code>.</p>`;
  const wanted = state.model === undefined ? null : (models.find((model) => model.name === String(state.model)) ?? usualModel(models));
  const open = wanted?.name ?? (models.length === 1 ? models[0].name : null);
  const words = sought.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = (text) => words.every((word) => text.toLowerCase().includes(word));
  const found = models.filter((model) => fits(searchedText(model)));
  const others = unloaded.filter(({ name }) => fits(name));
  return html`
    ${error && html`<${ErrorLine} error=${error} />`}
    ${wanted && wanted.name !== String(state.model) && html`<p class="error" role="alert">There is no model ${String(state.model)} here; ${wanted.name} is shown.</p>`}
    <div class="row controls-row">
      <label>Find <input type="search" value=${sought} placeholder="name, family, what it gives" onInput=${(event) => setSought(event.target.value)} /></label>
      <${Length} tokens=${tokens} onChange=${(each) => setState({ ...state, tokens: each })} />
      <span class="note" role="status">${found.length + others.length} of ${models.length + unloaded.length} models; ${bytes(models.reduce((sum, model) => sum + (model.memory?.mapped ?? model.bytes ?? 0), 0))} mapped</span>
    </div>
    <div class="models">
      <div class="model-heads note" aria-hidden="true"><span>model</span><span>gives</span><span>longest input</span><span>parameters</span><span>memory</span><span>work for ${count(tokens)} tokens</span></div>
      ${found.map((model) => html`<${Row} key=${model.name} ...${{ model, tokens, allowed, again }} open=${model.name === open} onOpen=${(opens) => setState({ ...state, model: opens ? model.name : undefined })} />`)}
      ${others.map((each) => html`<${Unloaded} key=${each.name} ...${{ ...each, allowed, again }} />`)}
      ${!found.length && !others.length && html`<p class="note">None is named so. <button type="button" class="quiet" onClick=${() => setSought("")}>Show all</button></p>`}
    </div>
    <${Snippets}
      label="GET /models"
      request=${{ path: "/models" }}
      openai=${"for model in client.models.list():\n    print(model.id)"}
      grpc=${{ service: "inlay.v1.Embedder", method: "ListModels", message: {} }}
    />
  `;
}

const searchedText = (model) => [model.name, model.family, ...model.outputs, gives(model), isRandom(model) ? "random" : "trained"].join(" ");

// {stored, allowed, again}: the models of the store where the operator lets callers load and unload them (INLAY_MODEL_CONTROL=explicit).
function useStore(models) {
  const [store, setStore] = useState({ stored: [], allowed: false });
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    const controller = new AbortController();
    const { signal } = controller;
    const load = async () => {
      const { body } = await ask({ path: "/v2" }, { signal });
      if (!body.extensions.includes("model_repository")) return;
      const listed = await ask({ path: `${REPOSITORY}/index`, json: {} }, { signal });
      setStore({ stored: listed.body, allowed: true });
    };
    load().catch(() => {}); // on another port, or behind a key: the models are shown without
    return () => controller.abort();
  }, [models, turn]);
  return { ...store, again: () => setTurn((before) => before + 1) };
}

function Length({ tokens, onChange }) {
  return html`<label>Tokens of a text, for the estimates: ${count(tokens)}${" "}
    <input type="range" min="0" max=${LENGTHS.length - 1} step="1" value=${LENGTHS.indexOf(tokens)} aria-valuetext=${`${tokens} tokens`}
      onInput=${(event) => onChange(LENGTHS[Number(event.target.value)])} />
  </label>`;
}

function gives(model) {
  const able = [
    model.default_output === "sentence_embedding" && "sentence vectors",
    model.outputs.includes("sparse_embedding") && "sparse weights",
    model.multi_vector && "late interaction",
    model.classifier && (model.classifier.ranks ? "rankings" : "labels"),
    model.image && "image vectors",
    model.head && "logits",
  ].filter(Boolean);
  return able.join(", ") || model.default_output.replaceAll("_", " ");
}

function Row({ model, tokens, allowed, again, open, onOpen }) {
  return html`<section class="model" aria-label=${model.name}>
    <div class="model-row">
      <span class="model-name">
        <button type="button" class="opens" aria-expanded=${open} onClick=${() => onOpen(!open)}>${model.name}</button>
        ${model.default && html`<small class="badge">default</small>`}
        ${model.loaded === false && html`<small class="badge" title="The first request for it loads it">loads when asked</small>`}
        ${isRandom(model) && html`<small class="badge warn" title="Made by inlay create: what it answers means nothing">random weights</small>`}
        ${canRun(model) && html`<a href=${writeLink({ view: "try", state: { model: model.name } })} aria-label=${`Try it: ${model.name}`}>Try it</a>`}
      </span>
      <span>${gives(model)}, ${count(model.default_width)} wide <small class="note">${model.family}${model.adopted ? ", adopted ONNX" : ""}${readsOf(model)}</small></span>
      <span class="number" data-label="longest input">${model.max_tokens ? `${count(model.max_tokens)} tokens` : "–"}</span>
      <span class="number" data-label="parameters" title=${count(model.parameters)}>${short(model.parameters)} <small class="note">${model.dtype}${model.quantized ? ", quantised" : ""}</small></span>
      <span class="number" data-label="memory" title=${`${count(model.bytes)} bytes of weights`}>${bytes(model.memory?.mapped ?? model.bytes)} <small class="note">${model.memory ? `${bytes(model.memory.resident)} in RAM` : ""}</small></span>
      <span class="number" data-label=${`work for ${count(tokens)} tokens`} title=${`Computation for a text of ${count(tokens)} tokens`}>${flops(flopsOfText(model, tokens))} <small class="note">${model.engine}, ${model.precision}, ${model.device}</small></span>
    </div>
    ${open &&
    html`<div class="model-open">
      ${isRandom(model) && html`<p class="note warn">Its weights are random, made by <code>inlay create</code>: what it answers means nothing.</p>`}
      ${model.loaded && model.unloaded_in_seconds !== null && html`<p class="note">It is unloaded in ${Math.ceil(model.unloaded_in_seconds)} s, unless it is asked before; the next request loads it again.</p>`}
      ${allowed && html`<${Change} verb=${model.loaded === false ? "load" : "unload"} name=${model.name} done=${again} />`}
      <${Detail} key=${model.name} model=${model} tokens=${tokens} />
    </div>`}
  </section>`;
}

function readsOf(model) {
  return model.reads_text ? "" : canRun(model) ? ", token ids" : ", images";
}

function Unloaded({ name, reason, allowed, again }) {
  return html`<section class="model unloaded" aria-label=${name}>
    <div class="model-row"><span class="model-name">${name} <small class="badge">not loaded</small></span><span class="note">${reason}</span></div>
    ${allowed && html`<${Change} verb="load" name=${name} done=${again} />`}
  </section>`;
}

// Loads a model, or unloads it at the second click.
function Change({ verb, name, done }) {
  const [error, setError] = useState(null);
  const [step, setStep] = useState("");
  const change = async () => {
    if (verb === "unload" && step !== "sure") {
      setStep("sure");
      return;
    }
    setStep("waiting");
    try {
      await ask({ path: `${REPOSITORY}/models/${encodeURIComponent(name)}/${verb}`, json: {} });
      emit("models");
      done();
    } catch (failure) {
      setError(failure);
    }
    setStep("");
  };
  const words = { load: "Load", unload: "Unload" }[verb];
  return html`<div class="row">
    <button type="button" class="quiet" disabled=${step === "waiting"} onClick=${change}>${step === "waiting" ? `${words}ing…` : step === "sure" ? `Really unload ${name}? Its callers get 404` : words}</button>
    ${step === "sure" && html`<button type="button" class="quiet" onClick=${() => setStep("")}>Keep it</button>`}
    ${error && html`<${ErrorLine} error=${error} />`}
  </div>`;
}
