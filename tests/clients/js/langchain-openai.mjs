// @langchain/openai: documents and a query; it sends texts, never token ids.
import { OpenAIEmbeddings } from "@langchain/openai";

const { url, model, texts } = JSON.parse(process.argv[2]);
const fields = { model, apiKey: "any", configuration: { baseURL: `${url}/v1` } };
const embeddings = new OpenAIEmbeddings(fields);

console.log(
  JSON.stringify({
    texts: await embeddings.embedDocuments(texts),
    query: await embeddings.embedQuery(texts[0]),
    shortened: await new OpenAIEmbeddings({ ...fields, dimensions: 128 }).embedDocuments(texts),
  }),
);
