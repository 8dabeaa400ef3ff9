// The tokens of each text, as they were cut: special ones marked, ids under the pointer or the arrow keys.
import { html, useState } from "../../lib/dom.js";
import { Snippets } from "../../components/snippets.js";
import { Downloads, csvBlob } from "../../components/downloads.js";
import { useAnswer } from "../../components/result.js";
import { Panel } from "./panel.js";

const MOST_SHOWN = 400; // tokens of one text

export function tokenizeRequest(model, texts, state) {
  const json = { model: model.name, inputs: texts };
  if (model.prompts.includes(state.prompt)) json.prompt_name = state.prompt;
  return { path: "/tokenize", json };
}

// Args: result of tokenizeRequest, as useAnswer gives it.
export function Tokens({ model, state, change, request, result }) {
  const { answer } = result;
  const texts = answer?.request.json.inputs ?? [];
  const rows = answer?.body ?? [];
  const first = request.json.inputs[0] ?? "";
  const whole = rows.reduce((sum, tokens) => sum + tokens.length, 0);
  const [said, setSaid] = useState("");
  const room = Math.min(15, 2 + 2.2 * request.json.inputs.length); // em; longer lists scroll
  const foot = html`${answer &&
    html`<${Downloads} name="tokens" files=${{
      csv: () => csvBlob([["text", "token", "id", "piece", "special", "start", "stop"], ...rows.flatMap((tokens, text) => tokens.map((token, index) => [text, index, token.id, token.text, token.special, token.start ?? "", token.stop ?? ""]))]),
    }} />`}
    <${Snippets} label="Tokens" request=${request}
      grpc=${model.default
        ? { service: "tei.v1.Tokenize", method: "Tokenize", message: { inputs: first, add_special_tokens: true, ...(request.json.prompt_name ? { prompt_name: request.json.prompt_name } : {}) } }
        : { missing: "Over gRPC tokens come from tei.v1.Tokenize, which asks the server's default model alone." }} />`;
  return html`<${Panel} id="tokens" title="Tokens" result=${result} height=${17 + room} wide foot=${foot}>
    <p class="note">
      ${answer ? `${rows.length} ${rows.length === 1 ? "text" : "texts"}, ${whole} tokens; ${Math.round(answer.milliseconds)} ms.` : "\u00a0"}
      ${model.max_tokens ? ` The model reads at most ${model.max_tokens} tokens of a text.` : ""}
    </p>
    <label class="check"><input type="checkbox" checked=${state.ids === true} onChange=${(event) => change({ ids: event.target.checked || undefined })} /> Show ids</label>
    <div class="token-texts scroll" style=${{ minHeight: answer ? 0 : `${room}em` }} tabindex="0" role="group" aria-label="Tokens of each text">
      ${rows.map((tokens, index) => html`<${TextTokens} key=${index} number=${index + 1} text=${texts[index]} tokens=${tokens} most=${model.max_tokens} cut=${state.cut} ids=${state.ids === true} say=${setSaid} />`)}
    </div>
    <p class="note readout" aria-live="polite">${said || "Point at a token, or move to it with the arrow keys, for its id and place."}</p>
  <//>`;
}

function TextTokens({ number, text, tokens, most, cut, ids, say }) {
  const [at, setPlace] = useState(null);
  const unread = unreadOf(tokens, most, cut);
  const shown = tokens.slice(0, MOST_SHOWN);
  const moved = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (!step) return;
    event.preventDefault();
    setAt(Math.min(shown.length - 1, Math.max(0, (at ?? -1) + step)));
  };
  const setAt = (place) => {
    const token = shown[place];
    setPlace(token ? place : null);
    say(token ? `Text ${number}, token ${place}: ${JSON.stringify(token.text)}, id ${token.id}, ${token.special ? "special" : `bytes ${token.start} to ${token.stop}`}` : "");
  };
  return html`<div class="token-text">
    <p class="note">${number}. ${tokens.length} tokens${unread.size ? `, ${unread.size} of them not read: the text is too long` : ""}</p>
    <div class="tokens" tabindex="0" role="group" aria-label=${`Text ${number}, ${tokens.length} tokens. Arrow keys read single tokens.`} onKeyDown=${moved}
      onBlur=${() => setAt(null)} onPointerLeave=${() => setAt(null)} title=${text}>
      ${shown.map((each, index) => html`<span class=${classOf(each, unread.has(index), index === at)} onPointerEnter=${() => setAt(index)}>
        ${each.text === "" ? "␣" : each.text}${ids && html`<small>${each.id}</small>`}
      </span>`)}
      ${tokens.length > MOST_SHOWN && html`<span class="note">and ${tokens.length - MOST_SHOWN} more</span>`}
    </div>
  </div>`;
}

function classOf(token, unread, current) {
  return ["token", token.special && "special", unread && "unread", current && "current"].filter(Boolean).join(" ");
}

// Places of the tokens that a model of `most` tokens does not read: special ones are kept, others cut at the end or the beginning.
export function unreadOf(tokens, most, cut) {
  if (!most || tokens.length <= most) return new Set();
  const places = tokens.map((token, index) => (token.special ? -1 : index)).filter((index) => index >= 0);
  const over = tokens.length - most;
  return new Set(cut === "beginning" ? places.slice(0, over) : places.slice(-over));
}
