// voyageai: vectors, and a ranking.
import { VoyageAIClient } from "voyageai";

const { url, model, texts, rankerUrl, ranker, query, documents } = JSON.parse(process.argv[2]);
const client = new VoyageAIClient({ apiKey: "any", environment: `${url}/v1` });
const scorer = new VoyageAIClient({ apiKey: "any", environment: `${rankerUrl}/v1` });
const ranked = await scorer.rerank({ model: ranker, query, documents, topK: 5 });
const vectors = async (options) => (await client.embed({ model, input: texts, ...options })).data.map((item) => item.embedding);

console.log(
  JSON.stringify({
    texts: await vectors({ inputType: "document", truncation: true }),
    shortened: await vectors({ outputDimension: 128 }),
    ranking: ranked.data.map((result) => [result.index, result.relevanceScore]),
  }),
);
