// Encodings to start from, one click each. The first is what the view shows when it is opened.
const LLAMA = { theta: 500000, head_dim: 128, length: 256 };
const BASE = { theta: 10000, head_dim: 128, length: 512 };
const SCALED = { factor: 4, original_max_position_embeddings: 4096, max_position_embeddings: 4096 };
const LLAMA3 = { factor: 8, low_freq_factor: 1, high_freq_factor: 4, original_max_position_embeddings: 8192 };

const rope = (n, p) => ({ s: "rope", n, p });

export const EXAMPLES = [
  {
    title: "Llama 3.1 and linear ×8 vs unscaled",
    f: "spectrum",
    e: [
      rope("Llama 3, unscaled", { ...LLAMA, max_position_embeddings: 8192 }),
      rope("Llama 3.1", { ...LLAMA, rope_type: "llama3", ...LLAMA3 }),
      rope("Linear ×8", { ...LLAMA, rope_type: "linear", factor: 8 }),
    ],
  },
  {
    title: "YaRN and NTK vs unscaled",
    f: "decay",
    e: [
      rope("YaRN ×4", { ...BASE, length: 2048, rope_type: "yarn", ...SCALED }),
      rope("NTK ×4", { ...BASE, length: 2048, rope_type: "ntk", ...SCALED }),
      rope("Unscaled", { ...BASE, length: 2048, max_position_embeddings: 4096 }),
    ],
  },
  {
    title: "ALiBi vs T5 buckets",
    f: "heatmap",
    e: [
      { s: "alibi", n: "ALiBi, 8 heads", p: { heads: 8, query_length: 64 } },
      { s: "t5", n: "T5 decoder", p: { query_length: 64, bidirectional: false } },
      { s: "t5", n: "T5 encoder", p: { query_length: 64, bidirectional: true } },
    ],
  },
  {
    title: "Sliding window mask",
    f: "heatmap",
    e: [
      { s: "mask", n: "Causal", p: { query_length: 64, causal: true } },
      { s: "mask", n: "Sliding window of 16", p: { query_length: 64, causal: true, window: 16 } },
      { s: "mask", n: "Chunks of 16", p: { query_length: 64, causal: true, chunk: 16 } },
    ],
  },
  {
    title: "Sinusoids alike and apart",
    f: "similarity",
    e: [
      { s: "sinusoidal", n: "θ 10 000", p: { dim: 128, length: 256, theta: 10000 } },
      { s: "sinusoidal", n: "θ 100", p: { dim: 128, length: 256, theta: 100 } },
    ],
  },
  {
    title: "Error of float32",
    f: "error",
    e: [
      rope("θ 10 000", { ...BASE, length: 131072 }),
      rope("θ 500 000", { ...LLAMA, length: 131072 }),
    ],
  },
];
