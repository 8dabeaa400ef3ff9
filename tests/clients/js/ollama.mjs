// ollama: vectors of both routes, models, errors.
import { Ollama } from "ollama";

const { url, model, texts } = JSON.parse(process.argv[2]);
const client = new Ollama({ host: url });
const shortened = await client.embed({ model, input: texts, dimensions: 128 });
const error = await client.embed({ model: "nobody", input: texts }).catch((caught) => caught);

console.log(
  JSON.stringify({
    texts: (await client.embed({ model: `${model}:latest`, input: texts, keep_alive: "5m" })).embeddings,
    query: (await client.embeddings({ model, prompt: texts[0] })).embedding,
    shortened: shortened.embeddings,
    models: (await client.list()).models.map((each) => each.name),
    running: (await client.ps()).models.map((each) => each.name),
    capabilities: (await client.show({ model })).capabilities,
    missing: error.status_code,
  }),
);
