// Sparse vectors: products, the ids that make a product, and dense sketches of them for the map.
export const SKETCH = 256;

// Dense vectors of unit length, one after another, whose products are near those of the sparse ones: each id adds its weight to a place, with a sign.
export function sketch(rows) {
  const values = new Float32Array(rows.length * SKETCH);
  for (const [row, { indices, values: weights }] of rows.entries()) {
    for (const [at, id] of indices.entries()) {
      const hash = Math.imul(id + 1, 2654435761) >>> 0;
      values[row * SKETCH + (hash >>> 8) % SKETCH] += hash >>> 31 ? weights[at] : -weights[at];
    }
    const own = values.subarray(row * SKETCH, (row + 1) * SKETCH);
    const length = Math.hypot(...own) || 1;
    for (let column = 0; column < SKETCH; column++) own[column] /= length;
  }
  return values;
}

// [[id, part]]: what each id adds to the product of a query {indices, values} with a row, the largest first.
export function partsOf(query, row) {
  const weights = new Map(Array.from(query.indices, (id, at) => [id, query.values[at]]));
  const parts = [];
  for (const [at, id] of row.indices.entries()) if (weights.has(id)) parts.push([id, weights.get(id) * row.values[at]]);
  return parts.sort((a, b) => b[1] - a[1]);
}
