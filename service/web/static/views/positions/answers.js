// The answers to several requests at once, which change while somebody drags.
import { useEffect, useRef, useState } from "../../lib/dom.js";
import { ask, target } from "../../lib/api.js";

const PAUSE = 60; // milliseconds between two requests of one place
const PATIENCE = 400; // a request under way for longer is aborted when a newer one is wanted
const KEPT = 24; // answers to go back to

// Args: requests: one a place, null where there is nothing to ask.
// Returns {answer, error, waiting} for each: `answer` stays until the next one has come, also while the server is busy or stopped.
// A place has one request under way; of the newer ones only the newest is sent, as soon as that is answered.
export function useAnswers(requests) {
  const [results, setResults] = useState([]);
  const board = useRef(null);
  board.current ??= new Board((at, result) => setResults((before) => replaced(before, at, result)));
  const wanted = JSON.stringify(requests);
  useEffect(() => board.current.want(requests), [wanted]);
  useEffect(() => {
    const again = () => board.current.askAgain();
    addEventListener("apikeychange", again);
    return () => {
      removeEventListener("apikeychange", again);
      board.current.stop();
    };
  }, []);
  return requests.map((request, at) => (request ? (results[at] ?? EMPTY) : EMPTY));
}

const EMPTY = { answer: null, error: null, waiting: true };

function replaced(results, at, change) {
  const next = [...results];
  next[at] = { ...(next[at] ?? EMPTY), ...change };
  return next;
}

class Board {
  constructor(report) {
    this.report = report;
    this.places = [];
    this.kept = new Map(); // target -> answer, oldest first
  }

  want(requests) {
    requests.forEach((request, at) => {
      if (!this.places[at]) this.report(at, EMPTY);
      const place = (this.places[at] ??= { wanted: null, key: null, under: null, sentAt: 0, timer: 0 });
      const key = request && target(request);
      if (key === place.key) return;
      Object.assign(place, { wanted: request, key });
      this.go(at);
    });
    this.places.splice(requests.length).forEach(end);
  }

  go(at) {
    const place = this.places[at];
    if (!place) return;
    clearTimeout(place.timer);
    if (!place.wanted) return end(place);
    const kept = this.kept.get(place.key);
    if (kept) {
      end(place);
      return this.report(at, { answer: kept, error: null, waiting: false });
    }
    const now = performance.now();
    if (place.under && now - place.sentAt < PATIENCE) {
      place.timer = setTimeout(() => this.go(at), PATIENCE);
      return this.report(at, { waiting: true });
    }
    if (now - place.sentAt < PAUSE) {
      place.timer = setTimeout(() => this.go(at), PAUSE - (now - place.sentAt));
      return this.report(at, { waiting: true });
    }
    end(place);
    return this.send(at, place);
  }

  async send(at, place) {
    const [request, key, under] = [place.wanted, place.key, new AbortController()];
    Object.assign(place, { under, sentAt: performance.now() });
    this.report(at, { waiting: true });
    let result;
    try {
      const answer = { ...(await ask(request, { signal: under.signal })), request };
      this.keep(key, answer);
      result = { answer, error: null };
    } catch (error) {
      if (error.name === "AbortError") return;
      result = { error };
    }
    if (this.places[at] !== place || place.under !== under) return;
    place.under = null;
    const isNewest = place.key === key;
    this.report(at, { ...result, waiting: !isNewest });
    if (!isNewest) this.go(at);
    else if (result.error?.passing) place.timer = setTimeout(() => this.go(at), 1000 * result.error.retryAfter);
  }

  keep(key, answer) {
    this.kept.set(key, answer);
    if (this.kept.size > KEPT) this.kept.delete(this.kept.keys().next().value);
  }

  askAgain() {
    this.kept.clear();
    this.places.forEach((_, at) => this.go(at));
  }

  stop() {
    this.places.forEach(end);
    this.places = [];
  }
}

function end(place) {
  clearTimeout(place.timer);
  place.under?.abort();
  place.under = null;
}
