// A worker: the plane of a map (principal components by subspace iteration) and the groups of its points (k-means).
const TURNS = 12; // of both iterations: the picture no longer changes after them
const SPARE = 4; // directions beside the two, so that these two converge

onmessage = ({ data: { vectors, width, texts, groups } }) => {
  const count = vectors.length / width;
  const mean = new Float32Array(width);
  for (let at = 0; at < vectors.length; at++) mean[at % width] += vectors[at] / count;
  const axes = principalAxes(vectors, width, mean);
  const points = new Float32Array(2 * count);
  for (let row = 0; row < count; row++) for (const axis of [0, 1]) points[2 * row + axis] = along(vectors, row * width, mean, axes[axis]);
  const member = groupsOf(vectors, width, Math.min(groups, count));
  postMessage({ points, mean, axes: axes.slice(0, 2), member, labels: labelsOf(texts, member, Math.min(groups, count)) });
};

// Numbers that look random and are the same each time, so that the same texts give the same map.
function numbers(seed) {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}

function along(vectors, start, mean, axis) {
  let sum = 0;
  for (let column = 0; column < axis.length; column++) sum += (vectors[start + column] - mean[column]) * axis[column];
  return sum;
}

function principalAxes(vectors, width, mean) {
  const random = numbers(1);
  let axes = Array.from({ length: Math.min(width, 2 + SPARE) }, () => Float32Array.from({ length: width }, () => random() - 0.5));
  for (let turn = 0; turn < TURNS; turn++) {
    const turned = axes.map(() => new Float32Array(width));
    for (let start = 0; start < vectors.length; start += width) {
      for (const [index, axis] of axes.entries()) {
        const weight = along(vectors, start, mean, axis);
        for (let column = 0; column < width; column++) turned[index][column] += weight * (vectors[start + column] - mean[column]);
      }
    }
    axes = orthogonal(turned);
  }
  while (axes.length < 2) axes.push(new Float32Array(width));
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

function dot(a, from, b, start, width) {
  let sum = 0;
  for (let column = 0; column < width; column++) sum += a[from + column] * b[start + column];
  return sum;
}

// The group of each vector of unit length, by cosine; first centres are far from one another.
function groupsOf(vectors, width, groups) {
  const count = vectors.length / width;
  const centres = [vectors.slice(0, width)];
  const closest = new Float32Array(count).fill(-2);
  const member = new Uint8Array(count);
  while (centres.length < groups) {
    let farthest = 0;
    for (let row = 0; row < count; row++) {
      closest[row] = Math.max(closest[row], dot(vectors, row * width, centres.at(-1), 0, width));
      if (closest[row] < closest[farthest]) farthest = row;
    }
    centres.push(vectors.slice(farthest * width, (farthest + 1) * width));
  }
  for (let turn = 0; turn < TURNS; turn++) {
    const sums = centres.map(() => new Float32Array(width));
    for (let row = 0; row < count; row++) {
      const scores = centres.map((centre) => dot(vectors, row * width, centre, 0, width));
      member[row] = scores.indexOf(Math.max(...scores));
      for (let column = 0; column < width; column++) sums[member[row]][column] += vectors[row * width + column];
    }
    for (const [index, sum] of sums.entries()) {
      const length = Math.sqrt(dot(sum, 0, sum, 0, width));
      if (length) centres[index] = sum.map((value) => value / length);
    }
  }
  return member;
}

// Of each group the words that its texts have more often than all texts do.
function labelsOf(texts, member, groups) {
  const everywhere = new Map();
  const within = Array.from({ length: groups }, () => new Map());
  const sizes = new Array(groups).fill(0);
  for (const [row, text] of texts.entries()) {
    sizes[member[row]] += 1;
    for (const word of new Set(text.toLowerCase().match(/\p{L}{4,}/gu))) {
      everywhere.set(word, (everywhere.get(word) ?? 0) + 1);
      within[member[row]].set(word, (within[member[row]].get(word) ?? 0) + 1);
    }
  }
  return within.map((words, group) => {
    const expected = sizes[group] / texts.length;
    const told = ([word, times]) => times * Math.log(times / (everywhere.get(word) * expected)) * (1 + Math.log(word.length));
    const best = [...words].sort((a, b) => told(b) - told(a)).slice(0, 3);
    return { size: sizes[group], words: best.map(([word]) => word) };
  });
}
