// What a model reads: texts, or lists of token ids where it has no tokenizer.
import { usualModel } from "../../components/model_choice.js";
import { count } from "../models/units.js";
import { linesOf } from "./examples.js";

const EXAMPLE_IDS = [
  [464, 3797, 3332, 319, 262, 2603],
  [464, 3290, 4966],
];

// Whether a model reads texts or token ids: one that reads images alone does not.
export function canRun(model) {
  return model.reads_text || Object.values(model.graphs).some((graph) => graph.layout !== "image");
}

// The model of that name, else the server's default if it can be run, else the first that reads texts, else any.
export function chosenModel(runnable, name) {
  const readers = runnable.filter((model) => model.reads_text);
  return runnable.find((model) => model.name === String(name)) ?? runnable.find((model) => model.default) ?? usualModel(readers.length ? readers : runnable);
}

// Two sequences of ids that the model's vocabulary has.
export function exampleIds(model) {
  return EXAMPLE_IDS.map((ids) => ids.map((id) => (model.vocab_size ? id % model.vocab_size : id)));
}

// An input as one line: the text, or its ids.
export function lineOf(input) {
  return Array.isArray(input) ? input.join(" ") : String(input);
}

// {inputs, problems} of lines of ids, which are separated by spaces or commas; a line with anything else is not sent.
export function readIds(text, model) {
  const inputs = [];
  const problems = [];
  for (const [index, line] of linesOf(text).entries()) {
    const words = line.split(/[\s,;[\]]+/).filter(Boolean);
    const wrong = words.find((word) => !/^\d{1,15}$/.test(word) || (model.vocab_size > 0 && Number(word) >= model.vocab_size));
    if (wrong !== undefined) problems.push(`Line ${index + 1} is not sent: “${wrong.slice(0, 30)}” is not a token id. ${idsAllowed(model)}`);
    else if (words.length) inputs.push(words.map(Number));
  }
  return { inputs, problems };
}

export function idsAllowed(model) {
  return model.vocab_size > 0 ? `Ids of ${model.name} are whole numbers from 0 to ${count(model.vocab_size - 1)}.` : "Ids are whole numbers from 0.";
}
