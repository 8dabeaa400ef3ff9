// Reads Prometheus' text format, and computes rates and quantiles between two scrapes as PromQL does.

// Returns [{name, labels, value}] of every sample.
export function parseMetrics(text) {
  const samples = [];
  for (const line of text.split("\n")) {
    if (!line || line.startsWith("#")) continue;
    const match = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)/.exec(line);
    if (match) samples.push({ name: match[1], labels: parseLabels(match[2] ?? ""), value: number(match[3]) });
  }
  return samples;
}

function parseLabels(text) {
  const labels = {};
  for (const [, name, value] of text.matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g))
    labels[name] = value.replace(/\\(.)/g, (_, escaped) => (escaped === "n" ? "\n" : escaped));
  return labels;
}

function number(text) {
  return text === "+Inf" ? Infinity : text === "-Inf" ? -Infinity : Number(text);
}

// One scrape: when it was made, in seconds since 1970, and its samples by name.
export class Scrape {
  constructor(seconds, samples) {
    this.seconds = seconds;
    this.byName = Map.groupBy ? Map.groupBy(samples, (sample) => sample.name) : grouped(samples);
  }

  samples(name) {
    return this.byName.get(name) ?? [];
  }

  // The sum of a metric's samples, by the value of a label, or of all under "".
  sums(name, label = null, where = () => true) {
    const sums = new Map();
    for (const { labels, value } of this.samples(name)) {
      if (!where(labels)) continue;
      const key = label ? (labels[label] ?? "") : "";
      sums.set(key, (sums.get(key) ?? 0) + value);
    }
    return sums;
  }

  sum(name, where) {
    return this.sums(name, null, where).get("") ?? 0;
  }
}

function grouped(samples) {
  const groups = new Map();
  for (const sample of samples) groups.set(sample.name, [...(groups.get(sample.name) ?? []), sample]);
  return groups;
}

// What a counter rose by; after a restart it counts from zero.
function increase(before, after) {
  return after >= before ? after - before : after;
}

// The increase a second of a counter between two scrapes, by a label's value.
export function rates(before, after, name, label = null, where = undefined) {
  const seconds = after.seconds - before.seconds;
  const old = before.sums(name, label, where);
  return new Map([...after.sums(name, label, where)].map(([key, value]) => [key, increase(old.get(key) ?? 0, value) / seconds]));
}

export function rate(before, after, name, where) {
  return rates(before, after, name, null, where).get("") ?? 0;
}

// The mean of what a histogram observed between two scrapes; null: nothing.
export function mean(before, after, name, where) {
  const count = increase(before.sum(`${name}_count`, where), after.sum(`${name}_count`, where));
  return count ? increase(before.sum(`${name}_sum`, where), after.sum(`${name}_sum`, where)) / count : null;
}

// A quantile of what a histogram observed between two scrapes, interpolated inside its bucket as histogram_quantile does; null: nothing.
export function quantile(share, before, after, name, where) {
  const old = before.sums(`${name}_bucket`, "le", where);
  const buckets = [...after.sums(`${name}_bucket`, "le", where)]
    .map(([bound, count]) => [number(bound), increase(old.get(bound) ?? 0, count)])
    .sort((a, b) => a[0] - b[0]);
  const total = buckets.at(-1)?.[1] ?? 0;
  if (!total) return null;
  const wanted = share * total;
  const index = buckets.findIndex(([, count]) => count >= wanted);
  const [bound, count] = buckets[index];
  const [lower, below] = index ? buckets[index - 1] : [0, 0];
  if (bound === Infinity) return lower; // as histogram_quantile: the last finite bound
  return lower + ((bound - lower) * (wanted - below)) / (count - below || 1);
}
