// @langchain/ollama: documents and a query.
import { OllamaEmbeddings } from "@langchain/ollama";

const { url, model, texts } = JSON.parse(process.argv[2]);
const embeddings = new OllamaEmbeddings({ model, baseUrl: url, requestOptions: { numCtx: 256 }, keepAlive: "5m" });

console.log(JSON.stringify({ texts: await embeddings.embedDocuments(texts), query: await embeddings.embedQuery(texts[0]) }));
