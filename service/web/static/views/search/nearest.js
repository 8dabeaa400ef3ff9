// Nearest vectors by their products, in the page and in its workers.

export function dot(a, from, b, start, width) {
  let [first, second, third, fourth, column] = [0, 0, 0, 0, 0];
  for (; column + 3 < width; column += 4) {
    first += a[from + column] * b[start + column];
    second += a[from + column + 1] * b[start + column + 1];
    third += a[from + column + 2] * b[start + column + 2];
    fourth += a[from + column + 3] * b[start + column + 3];
  }
  for (; column < width; column++) first += a[from + column] * b[start + column];
  return first + second + third + fourth;
}

// For a worker: tell(share done, function that returns the result so far), which sends a message five times a second at most.
export function progress() {
  let told = -Infinity;
  return (share, made) => {
    if (performance.now() - told < 200) return;
    told = performance.now();
    postMessage({ progress: share, data: made?.() });
  };
}

// The largest of some scores: [{index, score}], best first; equal scores by index.
export class Best {
  constructor(most) {
    Object.assign(this, { most, rows: [], least: -Infinity });
  }

  offer(index, score) {
    if (score <= this.least) return;
    let place = this.rows.length;
    while (place && this.rows[place - 1].score < score) place -= 1;
    this.rows.splice(place, 0, { index, score });
    if (this.rows.length > this.most) this.rows.pop();
    if (this.rows.length === this.most) this.least = this.rows.at(-1).score;
  }
}

// Of `count` rows: `most` numbers of rows, evenly spread.
export function evenly(count, most) {
  return Uint32Array.from({ length: Math.min(count, most) }, (_, place) => Math.floor((place * count) / Math.min(count, most)));
}

// The k rows nearest to each row of `asked`, itself left out: {neighbours: Uint32Array [asked, k], scores}; tell(share done) is called on the way.
export function neighboursOf(vectors, width, asked, k, tell) {
  const count = vectors.length / width;
  const neighbours = new Uint32Array(asked.length * k);
  const scores = new Float32Array(asked.length * k);
  for (const [place, row] of asked.entries()) {
    tell(place / asked.length);
    const best = new Best(k);
    for (let other = 0; other < count; other++) if (other !== row) best.offer(other, dot(vectors, row * width, vectors, other * width, width));
    for (const [at, { index, score }] of best.rows.entries()) {
      neighbours[place * k + at] = index;
      scores[place * k + at] = score;
    }
  }
  return { neighbours, scores };
}

// Pairs of rows of unit length whose product is at least `threshold`: {pairs: [{a, b, score}], best first, more: whether there are others}.
// Rows further apart along an axis than the product allows are never multiplied; coordinates: [rows, axes] of principalAxes;
// tell(share done, function that returns the pairs so far) is called on the way.
export function duplicatesOf(vectors, width, coordinates, axes, threshold, most, tell) {
  const count = vectors.length / width;
  const reach = Math.sqrt(Math.max(0, 2 - 2 * threshold)) + 1e-4;
  const order = Uint32Array.from({ length: count }, (_, row) => row).sort((a, b) => coordinates[a * axes] - coordinates[b * axes]);
  const pairs = [];
  for (let place = 0; place < count; place++) {
    tell(1 - (1 - place / count) ** 2, () => ({ pairs: sorted(pairs.slice()), more: false })); // the first rows are compared with most others
    const a = order[place];
    for (let next = place + 1; next < count; next++) {
      const b = order[next];
      if (coordinates[b * axes] - coordinates[a * axes] > reach) break;
      if (!isNear(coordinates, a * axes, b * axes, axes, reach * reach)) continue;
      const score = dot(vectors, a * width, vectors, b * width, width);
      if (score < threshold - 1e-6) continue;
      if (pairs.length === most) return { pairs: sorted(pairs), more: true };
      pairs.push({ a: Math.min(a, b), b: Math.max(a, b), score });
    }
  }
  return { pairs: sorted(pairs), more: false };
}

function sorted(pairs) {
  return pairs.sort((one, other) => other.score - one.score || one.a - other.a);
}

function isNear(coordinates, a, b, axes, most) {
  let sum = 0;
  for (let axis = 0; axis < axes && sum <= most; axis++) sum += (coordinates[a + axis] - coordinates[b + axis]) ** 2;
  return sum <= most;
}
