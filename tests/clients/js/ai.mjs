// Vercel's ai with three of its providers: vectors, and a ranking.
import { createCohere } from "@ai-sdk/cohere";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embed, embedMany, rerank } from "ai";

const { url, model, texts, rankerUrl, ranker, query, documents } = JSON.parse(process.argv[2]);
const compatible = createOpenAICompatible({ name: "inlay", baseURL: `${url}/v1` }).embeddingModel(model);
const openai = createOpenAI({ baseURL: `${url}/v1`, apiKey: "any" }).embeddingModel(model);
const cohere = createCohere({ baseURL: `${url}/v2`, apiKey: "any" }).embeddingModel(model);
const many = async (of, providerOptions) => (await embedMany({ model: of, values: texts, providerOptions })).embeddings;
const reranking = createCohere({ baseURL: `${rankerUrl}/v2`, apiKey: "any" }).reranking(ranker);
const { ranking } = await rerank({ model: reranking, query, documents, topN: 5 });

console.log(
  JSON.stringify({
    texts: await many(compatible),
    openai: await many(openai),
    cohere: await many(cohere),
    query: (await embed({ model: compatible, value: texts[0] })).embedding,
    shortened: await many(compatible, { inlay: { dimensions: 128 } }),
    count: (await embedMany({ model: compatible, values: Array(2000).fill(texts[0]) })).embeddings.length,
    ranking: ranking.map((result) => [result.originalIndex, result.score]),
  }),
);
