// The texts ranked for a query: by a cross-encoder or a late-interaction model, or by the cosine of sentence vectors.
import { html } from "../../lib/dom.js";
import { Choice } from "../../components/choice.js";
import { isRandom, titleOf } from "../../components/model_choice.js";
import { Bars, scaleOf } from "../../components/bars.js";
import { barsSvg, pictureFiles } from "../../components/picture.js";
import { Downloads, csvBlob } from "../../components/downloads.js";
import { Snippets } from "../../components/snippets.js";
import { useAnswer } from "../../components/result.js";
import { Cost, Panel, useDraft } from "./panel.js";
import { abilitiesOf, truncationOf } from "./options.js";
import { WIDE } from "./similarity.js";

export function rankersOf(models) {
  return models.filter((model) => model.reads_text && (abilitiesOf(model).ranks || abilitiesOf(model).sentence));
}

export const EMPTY_QUERY = " "; // in the link: a query that somebody emptied

export function queryOf(state, usual) {
  if (state.query === undefined) return usual;
  return state.query === EMPTY_QUERY ? "" : String(state.query);
}

// The model that ranks: what the link names, the chosen model if it ranks, the first that does, else one of sentence vectors; one of
// random weights only where the link or the choice of the model says so.
function rankerOf(model, models, state) {
  const able = rankersOf(models);
  const ranking = able.filter((each) => abilitiesOf(each).ranks);
  return able.find((each) => each.name === state.ranker) ?? ranking.find((each) => each.name === model.name) ?? ranking.find((each) => !isRandom(each)) ?? able.find((each) => each.name === model.name) ?? able[0];
}

function requestOf(ranker, query, texts, state) {
  if (abilitiesOf(ranker).ranks) return { path: "/rerank", json: { model: ranker.name, query, texts, ...truncationOf(state) } };
  return { path: "/v2/rerank", json: { model: ranker.name, query, documents: texts } };
}

const base64 = (text) => btoa(String.fromCharCode(...new TextEncoder().encode(text)));

// tei.v1.Rerank asks the default model; every other one is reached over the Open Inference Protocol, with texts in base64.
function grpcOf(ranker, query, texts) {
  if (!abilitiesOf(ranker).ranks) return { missing: "Over gRPC ask inlay.v1.Embedder/Embed for the vectors, and compare them." };
  if (ranker.default) return { service: "tei.v1.Rerank", method: "Rerank", message: { query, texts, truncate: true } };
  if (!ranker.classifier?.ranks) return { missing: "Over gRPC a late-interaction model ranks where it is the server's default (tei.v1.Rerank)." };
  const tensor = (name, values) => ({ name, datatype: "BYTES", shape: [values.length], contents: { bytes_contents: values.map(base64) } });
  const message = { model_name: ranker.name, inputs: [tensor("text", [query]), tensor("text_pair", texts)], outputs: [{ name: "scores" }] };
  return { service: "inference.GRPCInferenceService", method: "ModelInfer", message };
}

// Cohere's route takes every model that ranks, and cosines.
function cohereOf(ranker, query, texts, state) {
  if ("truncate" in truncationOf(state)) return { missing: "Cohere's route cuts long texts its own way: choose “as the server is set”, or ask /rerank." };
  const documents = texts.map((text) => `        ${JSON.stringify(text)},\n`).join("");
  return `answer = client.rerank(\n    model=${JSON.stringify(ranker.name)},\n    query=${JSON.stringify(query)},\n    documents=[\n${documents}    ],\n)\nfor each in answer.results:\n    print(each.index, each.relevance_score)`;
}

// [{index, score}] of both routes, best first.
const ranksOf = (body) => (Array.isArray(body) ? body : body.results.map((each) => ({ index: each.index, score: each.relevance_score })));

export function Rank({ model, models, texts, state, change, usual }) {
  const written = queryOf(state, usual);
  const [query, setQuery] = useDraft(written, (value) => change({ query: value === usual ? undefined : value || EMPTY_QUERY }));
  const ranker = rankerOf(model, models, state);
  const given = written.trim();
  const request = ranker && given ? requestOf(ranker, given, texts, state) : null;
  const result = useAnswer(request);
  const { answer } = result;
  const shown = answer ? (answer.request.json.texts ?? answer.request.json.documents) : [];
  const ranks = answer ? ranksOf(answer.body) : [];
  const real = models.some((each) => abilitiesOf(each).ranks);
  const cosine = ranker && !abilitiesOf(ranker).ranks;
  const scale = scaleOf(ranks.map(({ score }) => score), answer?.request.json.documents ? "cosine" : "score");
  const bars = ranks.map(({ index, score }) => ({ label: `${index + 1}. ${shown[index]}`, value: score }));
  const foot = html`${answer && request && html`<${Cost} answer=${answer} />
      <${Downloads} name="ranking" files=${{
        ...pictureFiles(() => barsSvg({ groups: [{ name: `Query: ${answer.request.json.query}`, bars }], title: `Ranked by ${answer.request.json.model}. ${scale.says}`, most: scale.most })),
        csv: () => csvBlob([["rank", "text", "score", "number"], ...ranks.map(({ index, score }, place) => [place + 1, shown[index], score, index + 1])]),
      }} />`}
    ${request && html`<${Snippets} label="Ranking" request=${request} grpc=${grpcOf(ranker, given, texts)} cohere=${cohereOf(ranker, given, texts, state)} />`}
    ${cosine &&
    html`<p class="note">
      ${ranker.name} is no reranker: the texts are ranked by the cosine of their vectors with the query's. The request is <code>POST /v2/rerank</code>, Cohere's route, because
      ${" "}<code>POST /rerank</code> with texts takes rerankers alone.
    </p>`}`;
  return html`<${Panel} id="rank" title="Rank" result=${request ? result : null} height=${26 + Math.min(24, 3.4 * texts.length)} wide=${texts.length > WIDE} foot=${foot}>
    <label class="field"><span>Query</span><input type="text" maxlength="2000" value=${query} onInput=${(event) => setQuery(event.target.value)} /></label>
    ${ranker &&
    html`<label class="field"><span>Ranked by</span>
      <${Choice} value=${ranker.name} options=${rankersOf(models).map((each) => [each.name, `${titleOf(each)}${abilitiesOf(each).ranks ? "" : " (cosine of its vectors)"}`])} onChoose=${(name) => change({ ranker: name })} />
    </label>`}
    ${ranker && isRandom(ranker) && html`<p class="note warn">The weights of ${ranker.name} are random: its order means nothing.</p>`}
    ${!real &&
    html`<p class="note">
      No model of this server is a reranker${ranker ? ": the cosine stands in" : ""}. <code>make reranker</code> makes one of random weights to try;${" "}
      <code>inlay export CHECKPOINT</code> exports a cross-encoder or a ColBERT model of your own. Then restart the server.
    </p>`}
    ${!given && html`<p class="note">Type a query.</p>`}
    <p class="note">${answer && request ? scale.says : "\u00a0"}</p>
    <div class="scroll ranking" tabindex="0" role="group" aria-label="Ranking">
      ${answer && request && html`<${Bars} bars=${bars} most=${scale.most} ordered title="Texts, the best first" />`}
    </div>
  <//>`;
}
