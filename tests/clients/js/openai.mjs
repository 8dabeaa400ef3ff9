// openai: vectors (base64 is its default), models, errors.
import OpenAI from "openai";

const { url, model, texts } = JSON.parse(process.argv[2]);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "any", maxRetries: 0 });
const vectors = async (options) =>
  (await client.embeddings.create({ model, input: texts, ...options })).data.map((item) => item.embedding);
const error = await client.embeddings.create({ model: "nobody", input: texts }).catch((caught) => caught);

console.log(
  JSON.stringify({
    texts: await vectors({}),
    floats: await vectors({ encoding_format: "float" }),
    shortened: await vectors({ dimensions: 128 }),
    query: (await client.embeddings.create({ model, input: texts[0] })).data[0].embedding,
    models: (await client.models.list()).data.map((each) => each.id).slice(0, 1), // its aliases follow
    missing: error.status,
  }),
);
