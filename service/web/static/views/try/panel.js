// What the parts of the view share: a panel with its state, a draft that is written when typing pauses, costs of an answer.
import { html, useEffect, useRef, useState } from "../../lib/dom.js";
import { ErrorLine } from "../../components/result.js";

// Args: result: {answer, error, waiting} as of useAnswer; height: room that is kept until the first answer, in em; foot: what stands
// below once the server has said something, so that nothing moves when it does.
export function Panel({ id, title, result, height = 12, wide = false, foot, children }) {
  return html`<section class=${wide ? "panel wide" : "panel"} aria-labelledby=${`${id}-title`} aria-busy=${result?.waiting ?? false} style=${{ minHeight: result && !result.answer && !result.error ? `${height}em` : 0 }}>
    <div class="row between">
      <h2 id=${`${id}-title`}>${title}</h2>
      <span class="note">${result?.waiting ? "asking…" : ""}</span>
    </div>
    ${result?.error && html`<${ErrorLine} error=${result.error} />`}
    ${children} ${(!result || result.answer || result.error) && foot}
  </section>`;
}

// [draft, setDraft]: `value`, changed at once here and written by `write` once typing has paused or the view is left; follows `value` when a link changes it.
export function useDraft(value, write, milliseconds = 250) {
  const [draft, setDraft] = useState(value);
  const written = useRef(value);
  useEffect(() => {
    if (value === written.current) return;
    written.current = value;
    setDraft(value);
  }, [value]);
  useEffect(() => {
    if (draft === written.current) return undefined;
    const timer = setTimeout(() => {
      written.current = draft;
      write(draft);
    }, milliseconds);
    return () => clearTimeout(timer);
  }, [draft]);
  const latest = useRef(null);
  latest.current = { draft, write };
  useEffect(
    () => () => {
      if (latest.current.draft !== written.current) latest.current.write(latest.current.draft);
    },
    [],
  );
  return [draft, setDraft];
}

// What an answer cost, from its headers: tokens, and milliseconds in the server and on the way.
export function Cost({ answer }) {
  if (!answer) return null;
  const headers = answer.response.headers;
  const [tokens, total, cutting, queue, run] = ["x-compute-tokens", "x-total-time", "x-tokenization-time", "x-queue-time", "x-inference-time"].map((name) => headers.get(name));
  if (tokens === null) return null;
  return html`<p class="note">
    ${tokens} ${tokens === "1" ? "token" : "tokens"}; ${total} ms in the server (tokenising ${cutting}, queue ${queue}, model ${run}); ${Math.round(answer.milliseconds)} ms
    with the way there and back.
  </p>`;
}

// Numbers of the inputs of an answer that were cut, from 0.
export function cutInputs(answer) {
  const named = answer?.response.headers.get("inlay-truncated-inputs");
  return named ? named.split(",").map(Number) : [];
}
