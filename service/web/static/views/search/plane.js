// Principal components by subspace iteration, and groups by k-means; for workers.
import { dot, evenly } from "./nearest.js";

const TURNS = 12; // of both iterations: the picture no longer changes after them
const SPARE = 4; // directions beside those wanted, so that these converge
const TRIES = 4; // of k-means, of which the tightest is kept
const SAMPLE = 4000; // rows by which axes and centres are found, evenly spread; all rows are then placed by them

// Numbers that look random and are the same each time, so that the same texts give the same map.
export function numbers(seed) {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}

function sampled(vectors, width) {
  const count = vectors.length / width;
  if (count <= SAMPLE) return vectors;
  const sample = new Float32Array(SAMPLE * width);
  for (const [place, row] of evenly(count, SAMPLE).entries()) sample.set(vectors.subarray(row * width, (row + 1) * width), place * width);
  return sample;
}

// [rows, wanted]: places of the vectors along their principal axes.
export function coordinatesOf(vectors, width, wanted) {
  const count = vectors.length / width;
  const sample = sampled(vectors, width);
  const mean = new Float32Array(width);
  for (let at = 0; at < sample.length; at++) mean[at % width] += (sample[at] * width) / sample.length;
  const axes = principalAxes(sample, width, mean, wanted);
  const coordinates = new Float32Array(wanted * count);
  for (let axis = 0; axis < Math.min(wanted, axes.length); axis++) {
    const middle = dot(mean, 0, axes[axis], 0, width);
    for (let row = 0; row < count; row++) coordinates[row * wanted + axis] = dot(vectors, row * width, axes[axis], 0, width) - middle;
  }
  return coordinates;
}

function principalAxes(vectors, width, mean, wanted) {
  const random = numbers(1);
  let axes = Array.from({ length: Math.min(width, wanted + SPARE) }, () => Float32Array.from({ length: width }, () => random() - 0.5));
  for (let turn = 0; turn < TURNS; turn++) {
    const turned = axes.map(() => new Float32Array(width));
    for (const [index, axis] of axes.entries()) {
      const middle = dot(mean, 0, axis, 0, width);
      let sum = 0;
      for (let start = 0; start < vectors.length; start += width) {
        const weight = dot(vectors, start, axis, 0, width) - middle;
        sum += weight;
        for (let column = 0; column < width; column++) turned[index][column] += weight * vectors[start + column];
      }
      for (let column = 0; column < width; column++) turned[index][column] -= sum * mean[column];
    }
    axes = orthogonal(turned);
  }
  return axes;
}

// Gram-Schmidt, the longest first: vectors of unit length at right angles.
function orthogonal(rows) {
  const done = [];
  for (const row of rows) {
    for (const other of done) {
      const share = dot(row, 0, other, 0, row.length);
      for (let column = 0; column < row.length; column++) row[column] -= share * other[column];
    }
    const length = Math.sqrt(dot(row, 0, row, 0, row.length)) || 1;
    done.push(row.map((value) => value / length));
  }
  return done;
}

// The group of each vector of unit length, by cosine.
export function groupsOf(vectors, width, groups) {
  const random = numbers(7);
  const sample = sampled(vectors, width);
  let best = { score: -Infinity };
  for (let attempt = 0; attempt < TRIES; attempt++) {
    const found = settled(sample, width, firstCentres(sample, width, groups, random), TURNS);
    if (found.score > best.score) best = found;
  }
  return sample === vectors ? best.member : settled(vectors, width, best.centres, 1).member;
}

// k-means++: a row becomes a centre the likelier, the further it is from those before.
function firstCentres(vectors, width, groups, random) {
  const count = vectors.length / width;
  const first = Math.floor(random() * count);
  const centres = [vectors.slice(first * width, (first + 1) * width)];
  const far = new Float32Array(count).fill(4);
  while (centres.length < groups) {
    let sum = 0;
    for (let row = 0; row < count; row++) {
      far[row] = Math.min(far[row], Math.max(0, 2 - 2 * dot(vectors, row * width, centres.at(-1), 0, width)));
      sum += far[row];
    }
    let left = random() * sum;
    let row = 0;
    while (row < count - 1 && (left -= far[row]) > 0) row += 1;
    centres.push(vectors.slice(row * width, (row + 1) * width));
  }
  return centres;
}

// {member, score, centres}: the group of each row once the centres have moved, and the sum of the cosines with them.
function settled(vectors, width, centres, turns) {
  const count = vectors.length / width;
  const member = new Uint8Array(count);
  let score = 0;
  for (let turn = 0; turn < turns; turn++) {
    const sums = centres.map(() => new Float32Array(width));
    score = 0;
    for (let row = 0; row < count; row++) {
      let most = -Infinity;
      for (let group = 0; group < centres.length; group++) {
        const near = dot(vectors, row * width, centres[group], 0, width);
        if (near > most) [most, member[row]] = [near, group];
      }
      score += most;
      const sum = sums[member[row]];
      for (let column = 0; column < width; column++) sum[column] += vectors[row * width + column];
    }
    for (const [index, sum] of sums.entries()) {
      const length = Math.sqrt(dot(sum, 0, sum, 0, width));
      if (length) centres[index] = sum.map((value) => value / length);
    }
  }
  return { member, score, centres };
}

// Words that set nothing apart.
const COMMON = new Set(
  "about above after again against also although always among another because been before being below beside between both cannot could does doing down during each else even ever every from have having hers here into itself just like many more most much must neither never none nothing once only other ours over same should since some such than that their them then there these they this those three through under until upon very want were what when where whether which while whom whose will with within without would your yours".split(" "),
);

// Of each group the words that set its texts apart from the others, by weighted log odds; shorter texts have fewer words, none is cut.
export function labelsOf(texts, member, groups) {
  const everywhere = new Map();
  const within = Array.from({ length: groups }, () => new Map());
  const sizes = new Array(groups).fill(0);
  for (const [row, text] of texts.entries()) {
    sizes[member[row]] += 1;
    for (const word of new Set(text.toLowerCase().match(/\p{L}{4,}/gu))) {
      if (COMMON.has(word)) continue;
      everywhere.set(word, (everywhere.get(word) ?? 0) + 1);
      within[member[row]].set(word, (within[member[row]].get(word) ?? 0) + 1);
    }
  }
  const names = new Set();
  return within.map((words, group) => {
    const expected = sizes[group] / texts.length;
    const told = ([word, times]) => times * Math.log(times / (everywhere.get(word) * expected)) * (1 + Math.log(word.length));
    const best = [...words].sort((a, b) => told(b) - told(a) || a[0].localeCompare(b[0])).slice(0, 3);
    const name = best.map(([word]) => word).join(", ") || `group ${group + 1}`;
    const own = names.has(name) ? `${name} (${group + 1})` : name;
    names.add(own);
    return own;
  });
}
