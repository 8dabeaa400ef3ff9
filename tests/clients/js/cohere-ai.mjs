// cohere-ai: embed and rerank of both versions, errors.
import { CohereClient, CohereClientV2, CohereError } from "cohere-ai";

const { url, model, texts, rankerUrl, ranker, query, documents } = JSON.parse(process.argv[2]);
const [v1, v2] = [CohereClient, CohereClientV2].map((client) => new client({ token: "any", environment: url }));
const [rank1, rank2] = [CohereClient, CohereClientV2].map((client) => new client({ token: "any", environment: rankerUrl }));
const pairs = ({ results }) => results.map((result) => [result.index, result.relevanceScore]);
const fields = { model, texts, inputType: "search_document" };
const typed = await v2.embed({ ...fields, embeddingTypes: ["float", "ubinary", "base64"] });
const error = await v2.embed({ ...fields, model: "nobody", embeddingTypes: ["float"] }).catch((caught) => caught);

console.log(
  JSON.stringify({
    texts: typed.embeddings.float,
    v1: (await v1.embed(fields)).embeddings,
    shortened: (await v2.embed({ ...fields, embeddingTypes: ["float"], outputDimension: 128 })).embeddings.float,
    signs: typed.embeddings.ubinary,
    ranking: pairs(await rank2.rerank({ model: ranker, query, documents, topN: 5 })),
    ranking_v1: pairs(await rank1.rerank({ model: ranker, query, documents: documents.map((text) => ({ text })) })),
    missing: error instanceof CohereError && error.statusCode,
  }),
);
