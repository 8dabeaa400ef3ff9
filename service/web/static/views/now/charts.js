// The charts of the view: what each shows of a sample of GET /metrics/history, and the query that shows the same in Prometheus.
export const MOST_CURVES = 6;
export const STAGES = ["tokenize", "queue", "run", "encode"];
const MIB = 2 ** 20;
const IDLE = "A gap: no request was answered in that time.";

const mapped = (object, value) => Object.fromEntries(Object.entries(object ?? {}).map(([name, each]) => [name, value(each)]));

// The figures of the models that were asked in a sample, or of the one that was chosen; health checks run every model now and then.
export function asked(sample, model) {
  return Object.fromEntries(Object.entries(sample.models).filter(([name, each]) => each.requests > 0 && (!model || name === model)));
}

// Mean milliseconds of a request in each stage.
function stagesOf(sample, model) {
  const each = Object.values(asked(sample, model));
  const requests = each.reduce((sum, { requests }) => sum + requests, 0);
  if (!requests) return null;
  return Object.fromEntries(STAGES.map((stage) => [stage, (1000 * each.reduce((sum, own) => sum + (own[stage] ?? 0), 0)) / requests]));
}

// curves: (sample, model) -> {curve: value}, or null; absent: the value of a curve that is missing in a sample; fixed: curves in their own order.
export const CHARTS = [
  {
    title: "Requests",
    unit: "requests/s",
    absent: 0,
    query: "sum by (method) (rate(inlay_requests_total[1m])) > 0",
    curves: (sample) => mapped(sample.routes, ({ requests }) => requests / sample.seconds),
  },
  {
    title: "Latency of successful requests",
    unit: "ms",
    fixed: true,
    gap: IDLE,
    query: "histogram_quantile(0.99, sum by (le) (rate(inlay_request_seconds_bucket[1m])))",
    curves: (sample) => sample.latency && mapped(sample.latency, (seconds) => 1000 * seconds),
  },
  {
    title: "Where the time goes",
    unit: "ms of a request",
    fixed: true,
    ofModel: true,
    gap: IDLE,
    query: "sum by (model, stage) (rate(inlay_stage_seconds_sum[1m])) / sum by (model, stage) (rate(inlay_stage_seconds_count[1m]))",
    slots: { run: 0, queue: 1, tokenize: 2, encode: 3 }, // the colours that the bars of the slowest requests have
    curves: stagesOf,
  },
  {
    title: "Tokens",
    unit: "tokens/s",
    absent: 0,
    ofModel: true,
    query: "sum by (model) (rate(inlay_batch_tokens_sum[1m]))",
    curves: (sample, model) => mapped(asked(sample, model), ({ tokens }) => (tokens ?? 0) / sample.seconds),
  },
  {
    title: "Batch size",
    unit: "inputs a run",
    ofModel: true,
    gap: IDLE,
    query: "sum by (model) (rate(inlay_batch_items_sum[1m])) / sum by (model) (rate(inlay_batch_items_count[1m]))",
    curves: (sample, model) => mapped(asked(sample, model), ({ inputs, batches }) => (batches ? inputs / batches : null)),
  },
  {
    title: "Queue",
    unit: "waiting",
    absent: 0,
    fixed: true,
    query: "sum by (model, graph) (inlay_queue_tokens)",
    curves: (sample) => ({ tokens: sample.queue_tokens, inputs: sample.queue_items }),
  },
  {
    title: "Refusals and errors",
    unit: "a minute",
    absent: 0,
    query: "60 * sum by (reason) (rate(inlay_refusals_total[1m])) > 0",
    curves: (sample) => mapped(sample.refusals, (number) => (60 * number) / sample.seconds),
  },
  {
    title: "In flight",
    unit: "requests",
    absent: 0,
    query: "sum(inlay_requests_in_flight)",
    curves: (sample) => ({ requests: sample.requests_in_flight }),
  },
  {
    title: "Memory",
    unit: "MiB",
    query: "sum(inlay_worker_private_bytes)",
    curves: (sample) => ({ "all workers": sample.worker_private_bytes / MIB }),
  },
];

// The curves of a chart: [{name, values, slot}], the largest first; `names`: the order that gives each model its colour in every chart.
export function curvesOf(chart, samples, model, names) {
  const points = samples.map((sample) => chart.curves(sample, model));
  const peaks = new Map();
  for (const point of points)
    for (const [name, value] of Object.entries(point ?? {})) if (value !== null) peaks.set(name, Math.max(peaks.get(name) ?? 0, value));
  const order = [...peaks.keys()];
  if (!chart.fixed) order.sort((a, b) => peaks.get(b) - peaks.get(a));
  const shown = order.slice(0, MOST_CURVES);
  return shown.map((name) => ({
    name,
    slot: chart.slots?.[name] ?? (chart.ofModel && names.includes(name) ? names.indexOf(name) : undefined),
    values: points.map((point) => point?.[name] ?? chart.absent ?? null),
  }));
}
