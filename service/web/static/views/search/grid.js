// Where points lie: a grid that finds those near a place, and polygons.
const CELL = 24; // points of a cell, about

// Points by the cells of a grid over their bounds: near(u, v, reach, visit) calls with each that may lie within reach.
export function gridOf(points, bounds) {
  const count = points.length / 2;
  const side = Math.max(1, Math.floor(Math.sqrt(count / CELL)));
  const [[left, right], [top, bottom]] = bounds;
  const column = (u) => Math.min(side - 1, Math.max(0, Math.floor(((u - left) / (right - left || 1)) * side)));
  const row = (v) => Math.min(side - 1, Math.max(0, Math.floor(((v - top) / (bottom - top || 1)) * side)));
  const starts = new Uint32Array(side * side + 1);
  const cell = (index) => row(points[2 * index + 1]) * side + column(points[2 * index]);
  for (let index = 0; index < count; index++) starts[cell(index) + 1] += 1;
  for (let at = 0; at < side * side; at++) starts[at + 1] += starts[at];
  const filled = starts.slice();
  const items = new Uint32Array(count);
  for (let index = 0; index < count; index++) items[filled[cell(index)]++] = index;
  return {
    near(u, v, reach, visit) {
      for (let y = row(v - reach); y <= row(v + reach); y++) {
        for (let x = column(u - reach); x <= column(u + reach); x++) {
          for (let at = starts[y * side + x]; at < starts[y * side + x + 1]; at++) visit(items[at]);
        }
      }
    },
  };
}

// Whether a point lies inside a polygon [[x, y]].
export function isInside(polygon, x, y) {
  let inside = false;
  for (let at = 0, before = polygon.length - 1; at < polygon.length; before = at++) {
    const [[ax, ay], [bx, by]] = [polygon[at], polygon[before]];
    if (ay > y !== by > y && x < ((bx - ax) * (y - ay)) / (by - ay) + ax) inside = !inside;
  }
  return inside;
}
