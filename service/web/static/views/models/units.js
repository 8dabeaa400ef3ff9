// Numbers with units, and the computation for a text.

export function count(value) {
  return value === null || value === undefined ? "–" : value.toLocaleString("en");
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = Math.min(units.length - 1, Math.floor(Math.log2(Math.max(1, value)) / 10));
  return `${Number((value / 1024 ** power).toPrecision(3))} ${units[power]}`;
}

// What of a model's files is in memory: they are mapped, and the system keeps in RAM what is read of them.
export function held(memory) {
  return memory ? `${bytes(memory.mapped)} mapped, ${bytes(memory.resident)} of them in RAM now` : "not known";
}

export function flops(value) {
  const units = ["FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"];
  const power = Math.min(units.length - 1, Math.floor(Math.log10(Math.max(1, value)) / 3));
  return `${Number((value / 1000 ** power).toPrecision(3))} ${units[power]}`;
}

// Floating-point operations of one text: every token, every pair of a token and a key in attention, and what is done once; not
// those of the output head, which POST /embed does not compute.
export function flopsOfText(model, tokens) {
  const parts = Object.entries(model.flops_per_token).filter(([part]) => part !== "head");
  const perToken = parts.reduce((sum, [, each]) => sum + (each ?? 0), 0);
  return tokens * perToken + tokens * tokens * (model.flops_per_token_and_key ?? 0) + (model.flops_per_text ?? 0);
}

// A large number in short: 22.6 M.
export function short(value) {
  if (value === null || value === undefined) return "–";
  const units = ["", " k", " M", " G", " T"];
  const power = Math.min(units.length - 1, Math.floor(Math.log10(Math.max(1, value)) / 3));
  return `${Number((value / 1000 ** power).toPrecision(3))}${units[power]}`;
}
