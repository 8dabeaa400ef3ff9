// @llamaindex/openai: documents and a query.
import { OpenAIEmbedding } from "@llamaindex/openai";

const { url, model, texts } = JSON.parse(process.argv[2]);
const embedding = new OpenAIEmbedding({ model, apiKey: "any", baseURL: `${url}/v1` });

console.log(JSON.stringify({ texts: await embedding.getTextEmbeddings(texts), query: await embedding.getTextEmbedding(texts[0]) }));
