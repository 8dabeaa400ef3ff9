// One model: its card in full, its word table's norms and spectrum, the nearest tokens.
import { html } from "../../lib/dom.js";
import { writeLink } from "../../lib/link.js";
import { Snippets } from "../../components/snippets.js";
import { Analysis } from "./analysis.js";
import { Nearest } from "./nearest.js";
import { embedRequest } from "../try/vectors.js";
import { canRun, exampleIds } from "../try/inputs.js";
import { abilitiesOf, grpcOf, openaiOf, outputOf } from "../try/options.js";
import { bytes, count, flops, held } from "./units.js";

export function Detail({ model, tokens }) {
  const path = `/models/${encodeURIComponent(model.name)}`;
  return html`<section aria-labelledby="detail">
    <h2 id="detail">${model.name} in detail</h2>
    <div class="cards">
      <section class="panel" aria-label="What it gives">
        <h3>What it gives</h3>
        <${Facts} facts=${abilities(model)} />
      </section>
      <section class="panel" aria-label="Numbers">
        <h3>Numbers</h3>
        <${Facts} facts=${numbers(model, tokens)} />
      </section>
      <section class="panel" aria-label="Positions it was trained with">
        <h3>Positions it was trained with</h3>
        <${Encodings} model=${model} />
      </section>
    </div>
    <${Analysis} model=${model} />
    ${model.vocab_size > 0 && html`<${Nearest} model=${model} />`}
    <${Files} model=${model} />
    ${canRun(model) && html`<${EmbedCode} model=${model} />`}
    <${Snippets}
      label=${`GET ${path}`}
      request=${{ path }}
      openai=${`print(client.models.retrieve(${JSON.stringify(model.name)}))`}
      grpc=${{ service: "inlay.v1.Embedder", method: "GetModel", message: { name: model.name } }}
    />
  </section>`;
}

// A request that this model answers, ready to copy.
function EmbedCode({ model }) {
  const inputs = model.reads_text ? ["hello world"] : exampleIds(model);
  const output = outputOf(model, {});
  if (!output) return null;
  const openai = abilitiesOf(model).sentence ? openaiOf(model, inputs, {}) : undefined;
  return html`<${Snippets} label="POST /embed" request=${embedRequest(model, inputs, {}, output)} grpc=${grpcOf(model, inputs, {}, output)} openai=${openai} />`;
}

function Facts({ facts }) {
  return html`<dl class="facts">
    ${facts.filter(([, value]) => value !== null && value !== undefined && value !== "").map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}
  </dl>`;
}

function abilities(model) {
  const prompts = model.prompts.map((prompt) => (typeof prompt === "string" ? prompt : prompt.name));
  return [
    ["outputs", model.outputs.join(", ")],
    ["pooling", model.pooling ? `${model.pooling.mode}${model.pooling.normalize ? ", unit length" : ""}` : "none"],
    ["modules after pooling", model.modules.map((module) => module.type ?? module).join(", ") || null],
    ["similarity", model.similarity_function],
    ["prompts", prompts.length ? `${prompts.join(", ")}; default: ${model.default_prompt ?? "none"}` : null],
    ["tasks", model.tasks.length ? `${model.tasks.join(", ")}; default: ${model.default_task ?? "none"}` : null],
    ["output head", model.head
        ? html`logits of the vocabulary, of hidden states that a request holds: <code>POST /models/${model.name}/logits</code>. It is no output of <code>POST /embed</code>.`
        : `none: ${model.no_head_reason ?? "not exported"}`],
    ["classes", model.classifier ? model.classifier.labels?.join(", ") ?? "yes" : model.no_classifier_reason],
    ["transformer blocks", model.no_blocks_reason ? `not here, the input layer alone: ${model.no_blocks_reason}` : null],
    ["reads", model.reads_text ? "texts and token ids" : canRun(model) ? "token ids alone: no tokenizer was exported with it" : null],
    ["reads images", model.image ? "yes" : null],
    ["prompt_embeds for vLLM, SGLang", model.prompt_embeds_output ? `${model.prompt_embeds_output}: what such an engine takes in place of token ids` : null],
    ["closeness to float32", model.closeness],
  ];
}

function typesOf(model) {
  if (!model.type_rows) return "none";
  if (model.type_rows === model.vocab_size) return `${count(model.type_rows)}: its token_type_ids index the word table, so every id is a type too`;
  return count(model.type_rows);
}

function numbers(model, tokens) {
  const differences = Object.entries(model.largest_difference ?? {}).map(([name, value]) => `${name.replaceAll("_", " ")} ${Number(value).toExponential(1)}`);
  return [
    ["vocabulary", count(model.vocab_size)],
    ["hidden width", count(model.hidden_size)],
    ["sentence width", count(model.sentence_width)],
    ["token types", typesOf(model)],
    ["parameters", count(model.parameters)],
    ["weights", bytes(model.bytes)],
    ["files", held(model.memory)],
    ["computation per token", Object.entries(model.flops_per_token).map(([part, value]) => `${part} ${flops(value ?? 0)}`).join(", ")],
    ["attention, per pair of tokens", model.flops_per_token_and_key ? flops(model.flops_per_token_and_key) : null],
    [`attention of a text of ${count(tokens)} tokens`, model.flops_per_token_and_key ? flops(tokens * tokens * model.flops_per_token_and_key) : null],
    ["largest difference to float64", `${differences.join(", ")} (allowed ${model.tolerance})`],
    ["quantised", model.quantized ? JSON.stringify(model.quantized) : null],
    ["made by", model.tool],
  ];
}

// What `encodings` of a card says, a line each, with links to the view Positions.
function Encodings({ model }) {
  const { ropes, layers, alibi, buckets, masks, refused } = model.encodings;
  const rows = [
    ...Object.keys(ropes ?? {}).map((layer) => [`RoPE${layer === "all" ? "" : `, ${layer}`}`, ropes[layer], "rope", layer]),
    ...(alibi ? [["ALiBi", alibi, "alibi"]] : []),
    ...(buckets ? [["relative buckets", buckets, buckets.kind]] : []),
    ...Object.entries(masks ?? {}).map(([layer, mask]) => [`attention mask${layer === "all" ? "" : `, ${layer}`}`, mask, "mask", layer]),
  ];
  const learned = model.outputs.includes("position_embeddings");
  const tables = ["learned", "sinusoidal"].filter((scheme) => model.positions.includes(scheme));
  return html`
    <dl class="facts">
      ${learned && html`<dt>${tables.join(" and ") || "a row per position"}</dt><dd>a vector for each position is added, up to ${count(model.max_tokens)} tokens; output position_embeddings${" "}
        ${tables.map((scheme) => html`<${Shown} ...${{ model, scheme }} />`)}</dd>`}
      ${rows.map(([title, value, scheme, layer]) => html`<dt>${title}</dt><dd>
        ${scheme === "mask" ? maskText(value) : described(value)}${" "}
        <${Shown} ...${{ model, scheme, layer }} />
      </dd>`)}
      ${Object.entries(refused ?? {}).map(([what, why]) => html`<dt>${what}</dt><dd>${why}</dd>`)}
    </dl>
    ${layers?.length > 0 && html`<p class="note">Layers: ${layers.join(", ")}</p>`}
    ${!rows.length && !learned && html`<p class="note">None that its card names.</p>`}
  `;
}

// A link to a model's encoding in the view Positions, where the model has it, of one kind of its layers where they differ.
function Shown({ model, scheme, layer = "all" }) {
  if (!model.positions.includes(scheme)) return null;
  const encoding = { s: scheme, m: model.name, ...(layer === "all" ? {} : { p: { layer_type: layer } }) };
  return html`<a href=${writeLink({ view: "positions", state: { e: [encoding] } })} aria-label=${`Show ${scheme} of ${model.name}`}>show</a>`;
}

function maskText({ causal, window, chunk }) {
  const seen = causal ? "causal: a token sees itself and those before it" : "every token sees every token";
  return [seen, window && `a sliding window of ${count(window)} tokens`, chunk && `chunks of ${count(chunk)} tokens`].filter(Boolean).join(", ");
}

function described(value) {
  const parts = Object.entries(value).filter(([, each]) => each !== null && each !== undefined && each !== false);
  return parts.map(([name, each]) => `${name.replaceAll("_", " ")} ${typeof each === "object" ? JSON.stringify(each) : each}`).join(", ");
}

function Files({ model }) {
  return html`<details>
    <summary>Graphs and files</summary>
    <div class="scroll" tabindex="0" role="region" aria-label="Graphs and files">
      <table>
        <tr>
          <th>graph</th>
          <th>file</th>
          <th>reads</th>
          <th>gives</th>
        </tr>
        ${Object.entries(model.graphs).map(([name, graph]) => html`<tr>
          <td>${name}</td>
          <td>${graph.file}</td>
          <td>${graph.inputs.join(", ")}</td>
          <td>${graph.outputs.join(", ")}</td>
        </tr>`)}
      </table>
      <table>
        <tr>
          <th>file</th>
          <th class="number">bytes</th>
          <th>SHA-256</th>
        </tr>
        ${Object.entries(model.files).map(([name, file]) => html`<tr>
          <td>${name}</td>
          <td class="number">${count(file.bytes)}</td>
          <td><code>${file.sha256}</code></td>
        </tr>`)}
      </table>
      <p class="note">Version <code>${model.version}</code></p>
    </div>
  </details>`;
}
