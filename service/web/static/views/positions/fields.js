// How parameters are shown: which first, with what range of a slider, and which values a new encoding starts from. What is allowed
// says the server (GET /positions); a number field takes values beyond its slider.
const log = (low, high) => ({ low, high, log: true });
const linear = (low, high, step = 1) => ({ low, high, step });

const SLIDERS = {
  theta: log(100, 1e8),
  head_dim: linear(4, 256, 4),
  rotary_dim: linear(2, 256, 2),
  dim: linear(4, 1024, 4),
  max_position_embeddings: log(128, 2 ** 20),
  original_max_position_embeddings: log(128, 2 ** 20),
  seq_len: log(128, 2 ** 20),
  partial_rotary_factor: linear(0.05, 1, 0.05),
  factor: log(1, 64),
  alpha: log(1, 64),
  low_freq_factor: log(0.25, 16),
  high_freq_factor: log(0.5, 64),
  beta_fast: log(1, 128),
  beta_slow: log(0.1, 16),
  attention_factor: linear(0.5, 2, 0.01),
  mscale: linear(0, 2, 0.01),
  mscale_all_dim: linear(0, 2, 0.01),
  short_mscale: linear(0.5, 2, 0.01),
  long_mscale: linear(0.5, 2, 0.01),
  start: linear(0, 131072, 64),
  length: log(8, 131072),
  stretch_to: log(8, 131072),
  query_length: linear(1, 256),
  key_length: linear(1, 256),
  past: linear(0, 256),
  heads: linear(1, 64),
  max_bias: linear(1, 32, 0.5),
  num_buckets: linear(2, 128, 2),
  max_distance: log(2, 4096),
  position_buckets: linear(-1, 512),
  max_relative_positions: linear(-1, 1024),
  window: linear(0, 128),
  chunk: linear(1, 128),
  offset: linear(0, 64),
  zero_row: linear(0, 64),
  cls_rows: linear(0, 16),
  merge: linear(1, 8),
  layer: linear(0, 64),
  norm_eps: log(1e-12, 1e-3),
};

export function sliderOf(name, field) {
  const low = field.minimum ?? field.exclusiveMinimum ?? 0;
  return SLIDERS[name] ?? linear(low, field.maximum !== undefined && field.maximum <= 1000 ? field.maximum : low + 100);
}

const FIRST = new Set(["kind", "theta", "head_dim", "dim", "factor", "length", "heads", "form", "query_length", "bidirectional", "num_buckets", "max_distance", "causal", "window", "chunk", "grid", "position_buckets", "config", "positions", "order"]);

// Whether a field is shown at once, not under "More parameters".
export function isFirst(name, field, encoding) {
  const type = encoding.p.rope_type ?? "default";
  return FIRST.has(name) || field.required || (field.required_by ?? []).includes(type) || (name in encoding.p && name !== "rotary_dim");
}

// ---- starting values

const STARTS = {
  rope: { head_dim: 64, theta: 10000, length: 512 },
  sinusoidal: { dim: 128, length: 256 },
  "sinusoidal-2d": { dim: 64, grid: "14x14" },
  axial: { kind: "pixtral", head_dim: 64, grid: "14x14" },
  mrope: { theta: 1000000, head_dim: 128, sections: "16,24,24", positions: "0,1,2,2,2,2,4;0,1,2,2,3,3,4;0,1,2,3,2,3,4" },
  alibi: { heads: 8, query_length: 64 },
  t5: { query_length: 64 },
  deberta: { query_length: 64, max_position_embeddings: 512 },
  mask: { query_length: 64, causal: true, window: 16 },
};
const MODEL_LENGTHS = { query_length: 64, grid: "14x14" };

export function startValues(scheme) {
  return { ...(STARTS[scheme.name] ?? scheme.example) };
}

// Parameters of a model's own encoding that it cannot do without.
export function modelStartValues(scheme) {
  const lengths = Object.fromEntries(Object.entries(MODEL_LENGTHS).filter(([name]) => name in scheme.model_fields));
  return "length" in scheme.model_fields ? { ...lengths, length: 256 } : lengths;
}

// The parameters with another rope type: what it needs and lacks is filled from its example.
export function withRopeType(scheme, parameters, type) {
  const row = scheme.rope_types.find((each) => each.name === type);
  const next = { ...parameters, rope_type: type };
  for (const name of Object.keys(row.example)) if (!(name in next)) next[name] = row.example[name];
  const pairs = Math.floor((next.rotary_dim ?? next.head_dim ?? 64) / 2);
  for (const name of ["short_factor", "long_factor"])
    if (row.required.includes(name) && next[name].length !== pairs && Array.isArray(next[name])) next[name] = resampled(next[name], pairs);
  return next;
}

// A list stretched to another length; its ends stay.
function resampled(list, length) {
  return Array.from({ length }, (_, index) => {
    const place = length > 1 ? (index * (list.length - 1)) / (length - 1) : 0;
    const below = Math.floor(place);
    const above = Math.min(list.length - 1, below + 1);
    return Number((list[below] + (list[above] - list[below]) * (place - below)).toPrecision(4));
  });
}

// ---- presets

const KEPT = ["start", "length", "positions", "table", "arithmetic"];

// One choice for each kind of layer of each preset that a scheme can take.
export function presetChoices(presets, scheme) {
  const several = "sections" in scheme.fields;
  return presets.flatMap((preset) =>
    preset.layers
      .filter((layer) => !several || layer.sections)
      .map((layer) => ({
        key: layer.layer_type ? `${preset.name}/${layer.layer_type}` : preset.name,
        title: layer.layer_type ? `${preset.title}, ${layer.layer_type.replaceAll("_", " ")}` : preset.title,
        layer,
      })),
  );
}

export function withPreset(encoding, scheme, { key, title, layer }) {
  const kept = Object.fromEntries(Object.entries(encoding.p).filter(([name]) => KEPT.includes(name)));
  const sections = layer.sections && "sections" in scheme.fields ? { sections: layer.sections, axes: layer.axes ?? undefined } : {};
  const layout = "layout" in scheme.fields && layer.layout && layer.layout !== "half" ? { layout: layer.layout } : {};
  return { ...encoding, t: key, n: title, p: { ...kept, ...layer.parameters, ...sections, ...layout } };
}
