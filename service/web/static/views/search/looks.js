// How points look: a colour and a shape for each group, the largest groups first; what is beyond them is grey.
export const COLORS = 6; // series of the style sheet
export const SHAPES = ["disc", "square", "triangle"];
export const OTHER = COLORS * SHAPES.length;

// {look: Uint8Array, legend: [{name, size, look}]} of the group's name of each point; names in the given order, else by size.
export function looksOf(values, order) {
  const sizes = new Map();
  for (const value of values) sizes.set(value, (sizes.get(value) ?? 0) + 1);
  const names = order?.filter((name) => sizes.has(name)) ?? [...sizes.keys()].sort((a, b) => sizes.get(b) - sizes.get(a) || String(a).localeCompare(String(b)));
  const looks = new Map(names.map((name, place) => [name, Math.min(place, OTHER)]));
  const legend = names.slice(0, OTHER).map((name) => ({ name, size: sizes.get(name), look: looks.get(name) }));
  const rest = names.slice(OTHER);
  if (rest.length) legend.push({ name: `${rest.length} others`, size: rest.reduce((sum, name) => sum + sizes.get(name), 0), look: OTHER });
  return { look: Uint8Array.from(values, (value) => looks.get(value)), legend };
}

export function colorName(look) {
  return look === OTHER ? "--strong-line" : `--series-${(look % COLORS) + 1}`;
}

export function shapeName(look) {
  return look === OTHER ? "disc" : SHAPES[Math.floor(look / COLORS)];
}
