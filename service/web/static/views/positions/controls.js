// The controls of one encoding: where it comes from, its preset, and a control for each parameter.
import { html, useEffect, useState } from "../../lib/dom.js";
import { chosenGroups, fieldsOf, given, textOf } from "./encodings.js";
import { isFirst, modelStartValues, presetChoices, sliderOf, startValues, withPreset, withRopeType } from "./fields.js";

const STEPS = 1000; // of a logarithmic slider
const GROUP_TITLES = { config: "a config.json", theta: "parameters", start: "start and length", positions: "a list of positions", grid: "a grid" };

// Args: encoding; schemes; presets; models; onChange(encoding, name of the changed parameter); errorOf(name): message or nothing.
export function Controls({ encoding, schemes, presets, models, onChange, errorOf }) {
  const scheme = schemes.find((row) => row.name === encoding.s);
  const fields = fieldsOf(scheme, encoding);
  const names = Object.keys(fields).filter((name) => name !== "rope_type");
  const first = names.filter((name) => isFirst(name, fields[name], encoding));
  const more = names.filter((name) => !first.includes(name));
  const change = (name, value) => {
    const { t: _, ...rest } = encoding;
    const p = { ...encoding.p, [name]: value };
    if (value === undefined) delete p[name];
    onChange(["start", "length", "positions"].includes(name) ? { ...encoding, p } : { ...rest, p }, name);
  };
  const control = (name) =>
    html`<${Field} key=${`${encoding.s}.${name}`} name=${name} field=${fields[name]} value=${encoding.p[name]} error=${errorOf(name)} onChange=${(value) => change(name, value)} />`;
  return html`<div class="controls">
    <${Source} ...${{ encoding, scheme, schemes, models, onChange }} />
    ${!encoding.m && scheme.rope_types.length > 0 && html`<${Presets} ...${{ encoding, scheme, presets, onChange }} />`}
    ${"rope_type" in fields &&
    html`<label class="field">
      <span>rope_type <small>how the frequencies are scaled</small></span>
      <select
        value=${encoding.p.rope_type ?? "default"}
        onChange=${(event) => onChange({ ...encoding, t: undefined, p: withRopeType(scheme, encoding.p, event.target.value) }, "rope_type")}
      >
        ${scheme.rope_types.map((row) => html`<option value=${row.name}>${row.name}</option>`)}
      </select>
    </label>`}
    ${scheme.exclusive.map((groups, at) => html`<${Groups} ...${{ groups, at, encoding, scheme, onChange }} />`)} ${first.map(control)}
    ${more.length > 0 &&
    html`<details open=${more.some((name) => errorOf(name)) || undefined}>
      <summary>More parameters (${more.length})</summary>
      ${more.map(control)}
    </details>`}
  </div>`;
}

// ---- where an encoding comes from

function Source({ encoding, scheme, schemes, models, onChange }) {
  const owners = models.filter((model) => (model.positions ?? []).length);
  const model = owners.find((each) => each.name === encoding.m);
  const offered = encoding.m ? schemes.filter((row) => (model?.positions ?? [encoding.s]).includes(row.name)) : schemes.filter((row) => row.figures.length);
  const setScheme = (name) => {
    const row = schemes.find((each) => each.name === name);
    onChange({ s: name, m: encoding.m, n: "", c: encoding.c, p: encoding.m ? modelStartValues(row) : startValues(row) });
  };
  const setOwner = (name) => {
    if (!name) return onChange({ s: scheme.figures.length ? encoding.s : "rope", n: "", c: encoding.c, p: startValues(scheme.figures.length ? scheme : schemes[0]) });
    const has = owners.find((each) => each.name === name).positions;
    const row = schemes.find((each) => each.name === (has.includes(encoding.s) ? encoding.s : has[0]));
    return onChange({ s: row.name, m: name, n: "", c: encoding.c, p: modelStartValues(row) });
  };
  return html`<label class="field">
      <span>From</span>
      <select value=${encoding.m ?? ""} onChange=${(event) => setOwner(event.target.value)}>
        <option value="">parameters below</option>
        ${encoding.m && !model && html`<option value=${encoding.m}>the model ${encoding.m} (not on this server)</option>`}
        ${owners.map((each) => html`<option value=${each.name}>the model ${each.name}</option>`)}
      </select>
    </label>
    <label class="field">
      <span>Scheme</span>
      <select value=${encoding.s} onChange=${(event) => setScheme(event.target.value)}>
        ${offered.map((row) => html`<option value=${row.name}>${row.name}: ${row.summary}</option>`)}
      </select>
    </label>`;
}

function Presets({ encoding, scheme, presets, onChange }) {
  const choices = presetChoices(presets, scheme);
  const choose = (key) => {
    const choice = choices.find((each) => each.key === key);
    if (choice) onChange(withPreset(encoding, scheme, choice), "preset");
  };
  return html`<label class="field">
    <span>Preset <small>fills the parameters below</small></span>
    <select value=${encoding.t ?? ""} onChange=${(event) => choose(event.target.value)}>
      <option value="">${choices.length} published models</option>
      ${choices.map((each) => html`<option value=${each.key}>${each.title}</option>`)}
    </select>
  </label>`;
}

// Which of several groups of parameters is used: those of the others are dropped.
function Groups({ groups, at, encoding, scheme, onChange }) {
  const fields = encoding.m ? scheme.model_fields : scheme.fields;
  const offered = groups.map((group, index) => ({ group, index })).filter(({ group }) => group[0] !== "preset" && group[0] in fields);
  if (offered.length < 2) return null;
  const choose = (index) => {
    const p = Object.fromEntries(Object.entries(encoding.p).filter(([name]) => !groups.flat().includes(name)));
    const start = encoding.m ? modelStartValues(scheme) : startValues(scheme);
    for (const name of groups[index]) p[name] = start[name] ?? (name in p ? p[name] : undefined);
    if (groups[index].includes("positions")) p.positions = fields.positions.examples?.[0] ?? "";
    if (groups[index].includes("config")) p.config = '{"head_dim": 64, "rope_theta": 10000, "max_position_embeddings": 4096}';
    for (const name of Object.keys(p)) if (p[name] === undefined) delete p[name];
    onChange({ ...encoding, t: undefined, p });
  };
  return html`<label class="field">
    <span>${groups[0].includes("preset") ? "Rope" : "Positions"} given as</span>
    <select value=${chosenGroups(scheme, encoding.p)[at]} onChange=${(event) => choose(Number(event.target.value))}>
      ${offered.map(({ group, index }) => html`<option value=${index}>${GROUP_TITLES[group[0]] ?? group[0]}</option>`)}
    </select>
  </label>`;
}

// ---- one parameter

function Field({ name, field, value, error, onChange }) {
  const id = `field-${name}`;
  const described = [meaning(field) && `${id}-about`, error && `${id}-error`].filter(Boolean).join(" ") || undefined;
  const shared = { id, name, field, value, described, invalid: Boolean(error), onChange };
  return html`<div class=${`field${error ? " invalid" : ""}`}>
    <span><label for=${id}>${name}</label> <small id=${`${id}-about`}>${meaning(field)}</small></span>
    <${kindOf(field)} ...${shared} />
    ${error && html`<p class="error" role="alert" id=${`${id}-error`}>${error}</p>`}
  </div>`;
}

function kindOf(field) {
  if (field.enum) return Select;
  if (field.type === "boolean") return Checkbox;
  if (field.type === "integer" || field.type === "number") return NumberField;
  return TextField;
}

// What a description says in parentheses: the part that is not the type.
function meaning(field) {
  const inside = /^[^(]*\((.*?)\)(?:;.*)?$/.exec(field.description ?? "");
  return (inside ? inside[1] : (field.description ?? "")).replace(/; of [a-z0-9_, ()]*$/, "");
}

function Select({ id, field, value, described, invalid, onChange }) {
  return html`<select id=${id} value=${value ?? field.default ?? ""} aria-describedby=${described} aria-invalid=${invalid} onChange=${(event) => onChange(event.target.value || undefined)}>
    ${field.default === undefined && html`<option value="">left out</option>`} ${field.enum.map((each) => html`<option value=${each}>${each}</option>`)}
  </select>`;
}

function Checkbox({ id, field, value, described, onChange }) {
  return html`<input type="checkbox" id=${id} checked=${value ?? field.default ?? false} aria-describedby=${described} onChange=${(event) => onChange(event.target.checked)} />`;
}

function TextField({ id, name, field, value, described, invalid, onChange }) {
  const shared = {
    id,
    value: given(value) ? textOf(value) : "",
    "aria-describedby": described,
    "aria-invalid": invalid,
    spellcheck: false,
    placeholder: field.examples ? textOf(field.examples[0]).slice(0, 60) : "left out",
    onInput: (event) => onChange(event.target.value || undefined),
  };
  const isLong = name === "config" || /weight|bias|factor|positions/.test(name) || [].concat(field.type).includes("object");
  return isLong ? html`<textarea class="code" rows="3" ...${shared}></textarea>` : html`<input type="text" autocomplete="off" ...${shared} />`;
}

// A slider and a field of a number; the field alone takes values beyond the slider, and may be empty where the parameter may.
function NumberField({ id, name, field, value, described, invalid, onChange }) {
  const slider = sliderOf(name, field);
  const usual = given(value) ? Number(value) : (field.default ?? field.examples?.[0] ?? slider.low);
  const unit = field.multipleOf ?? (field.type === "integer" ? 1 : 0);
  const rounded = (number) => (unit ? Math.round(number / unit) * unit : Number(number.toPrecision(3)));
  const place = placeOf(slider, usual);
  const slid = (event) => {
    const next = Number(event.target.value);
    let number = rounded(valueAt(slider, next));
    if (number === usual && next !== place) number = rounded(usual + Math.sign(next - place) * (unit || usual / 100));
    onChange(Math.min(slider.high, Math.max(slider.low, number)));
  };
  return html`<div class="number">
    <input
      type="range"
      aria-label=${`${name} slider`}
      aria-valuetext=${given(value) ? String(value) : `left out, ${field.default ?? "no value"}`}
      min=${slider.log ? 0 : slider.low}
      max=${slider.log ? STEPS : slider.high}
      step=${slider.log ? 1 : slider.step}
      value=${place}
      onInput=${slid}
    />
    <${NumberText} ...${{ id, value, field, described, invalid, onChange }} />
  </div>`;
}

// The text that is typed stays as it is ("1e", "0.") while it is no number yet.
function NumberText({ id, value, field, described, invalid, onChange }) {
  const [text, setText] = useState(given(value) ? String(value) : "");
  useEffect(() => {
    setText((before) => (given(value) ? (before !== "" && Number(before) === Number(value) ? before : String(value)) : ""));
  }, [value]);
  const typed = (event) => {
    const next = event.target.value;
    setText(next);
    if (next.trim() === "") onChange(undefined);
    else onChange(Number.isFinite(Number(next)) ? Number(next) : next);
  };
  return html`<input
    type="text"
    inputmode="decimal"
    id=${id}
    value=${text}
    placeholder=${field.default ?? "left out"}
    autocomplete="off"
    aria-describedby=${described}
    aria-invalid=${invalid}
    onInput=${typed}
  />`;
}

function placeOf(slider, value) {
  const within = Math.min(slider.high, Math.max(slider.low, Number.isFinite(value) ? value : slider.low));
  return slider.log ? Math.round((STEPS * Math.log(within / slider.low)) / Math.log(slider.high / slider.low)) : within;
}

function valueAt(slider, place) {
  return slider.log ? slider.low * (slider.high / slider.low) ** (place / STEPS) : place;
}
