// voyageai: vectors.
import { VoyageAIClient } from "voyageai";

const { url, model, texts } = JSON.parse(process.argv[2]);
const client = new VoyageAIClient({ apiKey: "any", environment: `${url}/v1` });
const vectors = async (options) => (await client.embed({ model, input: texts, ...options })).data.map((item) => item.embedding);

console.log(
  JSON.stringify({
    texts: await vectors({ inputType: "document", truncation: true }),
    shortened: await vectors({ outputDimension: 128 }),
  }),
);
