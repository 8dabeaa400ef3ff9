// The state of a request that a view made: waiting, answered, failed.
import { html, useEffect, useState } from "../lib/dom.js";
import { ask, emit } from "../lib/api.js";

// Sends `request` whenever it changes (compared as JSON); a newer one aborts the one before. null: nothing to ask.
// Returns {answer, error, waiting}; `answer` (as of `ask`, with the request it answers) stays until the next one has come and while
// the server is busy or stopped, so that nothing jumps.
export function useAnswer(request) {
  const [result, setResult] = useState({ answer: null, error: null, waiting: false });
  const [attempt, setAttempt] = useState(0);
  const text = request === null ? null : JSON.stringify(request);
  useEffect(() => {
    const again = () => setAttempt((before) => before + 1);
    addEventListener("apikeychange", again);
    return () => removeEventListener("apikeychange", again);
  }, []);
  useEffect(() => {
    if (text === null) {
      setResult({ answer: null, error: null, waiting: false });
      return undefined;
    }
    const controller = new AbortController();
    let timer;
    setResult((before) => ({ ...before, waiting: true }));
    ask(request, { signal: controller.signal }).then(
      (answer) => setResult({ answer: { ...answer, request }, error: null, waiting: false }),
      (error) => {
        if (error.name === "AbortError") return;
        setResult((before) => ({ answer: error.passing ? before.answer : null, error, waiting: false }));
        if (error.passing) timer = setTimeout(() => setAttempt((before) => before + 1), 1000 * error.retryAfter);
      },
    );
    return () => {
      controller.abort();
      clearTimeout(timer);
    };
  }, [text, attempt]);
  return result;
}

// What went wrong, as the server says it: its message names what came, what is allowed and what to do.
export function ErrorLine({ error }) {
  const facts = factsOf(error);
  return html`<div class="refusal">
    <p class="error" role="alert">
      ${error.message} ${error.code && html`<code>${error.status} ${error.code}</code>`}
      ${error.passing && error.status > 0 && html` It is asked again in ${error.retryAfter} s.`}
      ${error.status === 401 && html` <button type="button" class="quiet" onClick=${() => emit("wantsKey")}>Enter a key</button>`}
    </p>
    ${facts.length > 0 &&
    html`<details>
      <summary>What the server answered</summary>
      <dl class="facts">${facts.map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl>
    </details>`}
  </div>`;
}

// Members of the problem document, but for those that repeat another, and the request's id, which the server's log has too.
function factsOf({ status, document, requestId }) {
  if (!document?.code) return [];
  const members = [
    ["problem", document.title],
    ["code", document.code],
    ["HTTP status", status],
    ["detail", document.detail],
    ["input", document.index === undefined ? undefined : `number ${document.index}, counted from 0`],
    ["request id", requestId && `${requestId}, also in the server's log`],
  ];
  return members.filter(([, value]) => typeof value === "string" || typeof value === "number").filter(([, value]) => value !== "");
}
