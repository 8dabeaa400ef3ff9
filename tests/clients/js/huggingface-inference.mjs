// @huggingface/inference: POST to the address itself for vectors, similarities and labels alike. It reads labels
// as a list of lists, which a text has where `parameters` are sent.
import { InferenceClient } from "@huggingface/inference";

const { url, texts, rankerUrl, query } = JSON.parse(process.argv[2]);
const client = new InferenceClient("any", { endpointUrl: url });
const parameters = { top_k: 1 };
const inputs = { source_sentence: texts[0], sentences: texts };
const labels = await new InferenceClient("any", { endpointUrl: rankerUrl }).textClassification({ inputs: query, parameters });
const error = await client.featureExtraction({ inputs: texts, prompt_name: "none" }).catch((caught) => caught);

console.log(
  JSON.stringify({
    texts: await client.featureExtraction({ inputs: texts }),
    query: (await client.featureExtraction({ inputs: texts[0], normalize: true, truncate: true }))[0],
    similarities: await client.sentenceSimilarity({ inputs }),
    labels: labels.map((each) => each.label),
    refused: error.httpResponse?.status,
  }),
);
