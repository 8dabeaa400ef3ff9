// @langchain/cohere: documents, a query, a ranking; its address is that of the client it is given.
import { CohereEmbeddings, CohereRerank } from "@langchain/cohere";
import { CohereClient } from "cohere-ai";

const { url, model, texts, rankerUrl, ranker, query, documents } = JSON.parse(process.argv[2]);
const embeddings = new CohereEmbeddings({ model, client: new CohereClient({ token: "any", environment: url }) });
const client = new CohereClient({ token: "any", environment: rankerUrl });
const ranked = await new CohereRerank({ model: ranker, client, topN: 5 }).rerank(documents, query);

console.log(
  JSON.stringify({
    texts: await embeddings.embedDocuments(texts),
    query: await embeddings.embedQuery(texts[0]),
    ranking: ranked.map((result) => [result.index, result.relevanceScore]),
  }),
);
