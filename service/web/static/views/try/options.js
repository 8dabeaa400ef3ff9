// How texts become vectors: controls for what the chosen model has, and the same as fields of a request.
import { html } from "../../lib/dom.js";
import { Choice, named } from "../../components/choice.js";
import { python } from "../../components/snippets.js";
import { useDraft } from "./panel.js";

export const SENTENCE = "sentence_embedding";
const NO_ROWS = ["class_logits", "sparse_embedding", "multi_vector_embedding", "logits"];
const POOLINGS = { cls: "first token", mean: "mean", max: "largest values", lasttoken: "last token", mean_sqrt_len_tokens: "mean times √length", weightedmean: "weighted mean" };
const PURPOSES = ["query", "document", "classification", "clustering"];

// What a model can do with texts.
export function abilitiesOf(model) {
  const has = (output) => model.outputs.includes(output);
  return {
    text: model.reads_text,
    sentence: has(SENTENCE),
    outputs: model.outputs.filter((output) => !NO_ROWS.includes(output) && !isTyped(model, output)),
    sparse: has("sparse_embedding"),
    several: Boolean(model.multi_vector),
    labels: Boolean(model.classifier && !model.classifier.ranks),
    ranks: Boolean(model.classifier?.ranks || model.multi_vector),
  };
}

// The rows that a model adds of token_type_ids where they are sent alone, as GPT-2 does: this view sends none.
function isTyped(model, output) {
  return output === "token_type_embeddings" && Boolean(model.graphs.components_typed) && !model.graphs.components?.outputs.includes(output);
}

// The output whose rows are drawn: what the link names, if the model has it.
export function outputOf(model, state) {
  const { outputs, sentence } = abilitiesOf(model);
  if (outputs.includes(state.output)) return state.output;
  if (sentence) return SENTENCE;
  return outputs.includes(model.default_output) ? model.default_output : outputs[0];
}

// Fields of /embed for the options of the link; those that the model has not are left out.
export function fieldsOf(model, state, output) {
  const fields = truncationOf(state);
  if (model.reads_text && model.prompts.includes(state.prompt)) fields.prompt_name = state.prompt;
  if (model.tasks.includes(state.task)) fields.task = state.task;
  if (model.reads_text && PURPOSES.includes(state.purpose)) fields.input_type = state.purpose;
  const dtypes = dtypesOf(model, output);
  if (dtypes.includes(state.dtype) && state.dtype !== "float32") fields.dtype = state.dtype;
  if (output !== SENTENCE) return fields;
  if (state.pooling in POOLINGS) fields.pooling = state.pooling;
  if (typeof state.normalize === "boolean") fields.normalize = state.normalize;
  const most = model.sentence_width;
  if (Number.isInteger(state.dimensions) && state.dimensions >= 1 && state.dimensions <= most) fields.dimensions = state.dimensions;
  return fields;
}

export function truncationOf(state) {
  if (state.cut === "refuse") return { truncate: false };
  if (state.cut === "beginning") return { truncate: true, truncation_direction: "Left" };
  if (state.cut === "end") return { truncate: true };
  return {};
}

function dtypesOf(model, output) {
  const floats = ["float32", "float16", "bfloat16"];
  if (output !== SENTENCE) return floats;
  return [...floats, ...(model.calibration ? ["int8", "uint8"] : []), "binary", "ubinary"];
}

function Option({ label, value, values, onChoose, note }) {
  return html`<label class="field">
    <span>${label}</span>
    <${Choice} value=${value} options=${values} onChoose=${onChoose} />
    ${note && html`<span class="note">${note}</span>`}
  </label>`;
}

export function Options({ model, state, change }) {
  const abilities = abilitiesOf(model);
  const output = outputOf(model, state);
  const own = model.pooling;
  const pooled = output === SENTENCE;
  const outputs = abilities.outputs;
  const inputs = model.reads_text ? "Texts" : "Sequences";
  return html`
    ${outputs.length > 1 &&
    html`<${Option} label="Output" value=${output} values=${named(outputs)} onChoose=${(value) => change({ output: value === SENTENCE ? undefined : value })}
      note=${pooled ? "" : `One row a token: drawn for one ${model.reads_text ? "text" : "sequence"} at a time.`} />`}
    ${pooled &&
    own &&
    html`<${Option} label="Pooling" value=${state.pooling in POOLINGS ? state.pooling : ""} onChoose=${(value) => change({ pooling: value || undefined })}
      values=${[["", `the model's own (${POOLINGS[own.mode] ?? own.mode})`], ...Object.entries(POOLINGS)]} />`}
    ${pooled &&
    html`<${Option} label="Scale to unit length" value=${typeof state.normalize === "boolean" ? String(state.normalize) : ""}
      onChoose=${(value) => change({ normalize: value === "" ? undefined : value === "true" })}
      values=${[["", `as the model's files say${own ? ` (${own.normalize ? "yes" : "no"})` : ""}`], ["true", "yes"], ["false", "no"]]} />`}
    ${pooled && html`<${NumberField} key=${model.name} label="Dimensions kept" value=${state.dimensions} most=${model.sentence_width} placeholder=${`all ${model.default_width}`}
      onChoose=${(dimensions) => change({ dimensions })} />`}
    ${outputs.length > 0 &&
    html`<${Option} label="Number format (dtype)" value=${dtypesOf(model, output).includes(state.dtype) ? state.dtype : "float32"} values=${named(dtypesOf(model, output))}
      onChoose=${(value) => change({ dtype: value === "float32" ? undefined : value })}
      note=${pooled && !model.calibration ? "int8 and uint8 need ranges: inlay calibrate finds them." : ""} />`}
    ${model.reads_text && model.prompts.length > 0 &&
    html`<${Option} label="Prompt" value=${model.prompts.includes(state.prompt) ? state.prompt : ""} onChoose=${(value) => change({ prompt: value || undefined })}
      values=${[["", model.default_prompt ? `the model's own (${model.default_prompt})` : "none"], ...named(model.prompts)]} />`}
    ${model.tasks.length > 0 &&
    html`<${Option} label="Task" value=${model.tasks.includes(state.task) ? state.task : ""} onChoose=${(value) => change({ task: value || undefined })}
      values=${[["", model.default_task ? `the model's own (${model.default_task})` : "none"], ...named(model.tasks)]} />`}
    ${model.reads_text && outputs.length > 0 &&
    html`<${Option} label="What the texts are for (input_type)" value=${PURPOSES.includes(state.purpose) ? state.purpose : ""}
      onChoose=${(value) => change({ purpose: value || undefined })} values=${[["", "not said"], ...named(PURPOSES)]}
      note=${model.prompts.length || model.tasks.length || model.multi_vector ? "Brings the model's prompt for it." : "This model has no prompts: it changes nothing."} />`}
    <${Option} label=${model.max_tokens ? `${inputs} of more than ${model.max_tokens} tokens` : `${inputs} that are too long`} value=${["end", "beginning", "refuse"].includes(state.cut) ? state.cut : ""}
      onChoose=${(value) => change({ cut: value || undefined })}
      values=${[["", "as the server is set"], ["end", "lose their end"], ["beginning", "lose their beginning"], ["refuse", "are refused"]]} />
  `;
}

// A whole number from 1 that may be left out; one that is not allowed is not sent.
export function NumberField({ label, value, most, placeholder, onChoose }) {
  const isGood = (text) => text === "" || (/^\d+$/.test(text) && Number(text) >= 1 && Number(text) <= (most ?? Number.MAX_SAFE_INTEGER));
  const [draft, setDraft] = useDraft(String(value ?? ""), (text) => isGood(text.trim()) && onChoose(text.trim() ? Number(text) : undefined));
  const good = isGood(draft.trim());
  return html`<label class="field">
    <span>${label}</span>
    <input type="text" inputmode="numeric" autocomplete="off" placeholder=${placeholder} value=${draft} aria-invalid=${!good} onInput=${(event) => setDraft(event.target.value)} />
    <span class=${good ? "note" : "error"} role="status">${good ? `1 to ${most ?? "any number"}, or empty for all` : `Not sent: a whole number from 1${most ? ` to ${most}` : ""} is needed.`}</span>
  </label>`;
}

// A request's options as OpenAI's client takes them, or why it does not.
export function openaiOf(model, texts, fields) {
  const untold = ["pooling", "dtype", "prompt_name", "truncate"].filter((name) => name in fields && !(name === "truncate" && fields.truncate));
  if (untold.length) return { missing: `OpenAI's route has no ${untold.join(", ")}: leave that as it is, or ask /embed.` };
  const extra = {};
  for (const name of ["normalize", "task", "input_type"]) if (name in fields) extra[name] = fields[name];
  if (fields.truncate) extra.truncate_prompt_tokens = -1;
  if (fields.truncation_direction === "Left") extra.truncation_side = "left";
  const given = [`model=${JSON.stringify(model.name)}`, `input=[\n${texts.map((text) => `        ${JSON.stringify(text)},\n`).join("")}    ]`, `encoding_format="float"`];
  if ("dimensions" in fields) given.push(`dimensions=${fields.dimensions}`);
  if (Object.keys(extra).length) given.push(`extra_body=${python(extra)}`);
  return `answer = client.embeddings.create(\n    ${given.join(",\n    ")},\n)\nprint(len(answer.data), "vectors of", len(answer.data[0].embedding), "numbers; the first 4 of each:")\nfor each in answer.data:\n    print(each.index, each.embedding[:4])\nprint("tokens read:", answer.usage.total_tokens)`;
}

// The same for the client of text-embeddings-inference, which asks the default model and takes few options.
export function teiOf(model, texts, fields) {
  if (!model.default || !model.reads_text) return undefined;
  const untold = ["pooling", "dtype", "task", "input_type", "dimensions"].filter((name) => name in fields);
  if (untold.length) return { missing: `This client has no ${untold.join(", ")}: leave that as it is, or ask /embed.` };
  const given = Object.entries({ normalize: fields.normalize, prompt_name: fields.prompt_name, truncate: fields.truncate, truncation_direction: fields.truncation_direction });
  const options = given.filter(([, value]) => value !== undefined).map(([name, value]) => `    ${name}=${python(value)},\n`);
  const inputs = texts.map((text) => `        ${JSON.stringify(text)},\n`).join("");
  return `rows = client.feature_extraction(\n    [\n${inputs}    ],\n${options.join("")})\nprint(rows.shape)\nprint(rows[:, :4])`;
}

const DTYPES = { float16: "FLOAT16", bfloat16: "BFLOAT16", int8: "INT8", uint8: "UINT8", binary: "BINARY", ubinary: "UBINARY" };
const POOLING_NUMBERS = { cls: "CLS", mean: "MEAN", max: "MAX", lasttoken: "LAST_TOKEN", mean_sqrt_len_tokens: "MEAN_SQRT_LEN", weightedmean: "WEIGHTED_MEAN" };

// The same request for inlay.v1.Embedder/Embed; the vectors come as bytes, which grpcurl prints in base64.
export function grpcOf(model, texts, fields, output) {
  const message = { model: model.name, inputs: texts.map((text) => (Array.isArray(text) ? { ids: { input_ids: text } } : { text })), outputs: [output] };
  const plain = ["truncate", "normalize", "dimensions", "prompt_name", "task", "input_type", "max_active_dims"];
  for (const name of plain) if (name in fields) message[name] = fields[name];
  if (fields.truncation_direction === "Left") message.truncation_direction = "LEFT";
  if (fields.dtype) message.dtype = DTYPES[fields.dtype];
  if (fields.pooling) message.pooling = POOLING_NUMBERS[fields.pooling];
  return { service: "inlay.v1.Embedder", method: "Embed", message };
}
