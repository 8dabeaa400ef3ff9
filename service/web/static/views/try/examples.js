// Texts to start with. The first set is what the page shows before anybody types.
export const EXAMPLES = {
  topics: {
    title: "Six sentences, three topics",
    query: "password reset",
    texts: [
      "How do I reset my password?",
      "I cannot remember my login details.",
      "Bake the cake for forty minutes.",
      "The dough needs two eggs and a cup of flour.",
      "Rain is expected in the mountains tomorrow.",
      "The forecast says it will be wet on the hills.",
    ],
  },
  answers: {
    title: "A question and its candidates",
    query: "What do pandas eat?",
    texts: [
      "What do pandas eat?",
      "A panda spends half of the day eating bamboo.",
      "Pandas is a Python library for tables.",
      "Polar bears hunt seals on the ice.",
      "Bamboo grows up to a metre a day.",
    ],
  },
  words: {
    title: "Words that are cut into pieces",
    query: "tokenization",
    texts: [
      "unbelievable antidisestablishmentarianism",
      "Größe, naïve, 東京, 🙂",
      "3.14159 and 1,000,000",
      "def embed(texts): return model(texts)",
      "hello Hello HELLO",
    ],
  },
};

export const MOST_TEXTS = 200;
export const MOST_CHARACTERS = 60_000;

// The texts of the box: one a line, without empty lines.
export function linesOf(text) {
  return text
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean);
}
