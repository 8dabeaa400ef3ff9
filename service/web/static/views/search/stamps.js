// Shapes pressed into the pixels of a picture: a point costs some dozens of additions, and no call of the canvas.

const WHOLE = 256; // of a pixel that a shape covers

// The pixels around a point that its shape covers, of 4 × 4 samples each: {reach, inner, edge, shares}, as offsets in a picture `wide` pixels wide.
export function stampOf(shape, radius, wide) {
  const reach = Math.ceil(1.3 * radius);
  const covers = {
    disc: (x, y) => x * x + y * y <= radius * radius,
    square: (x, y) => Math.abs(x) <= 0.9 * radius && Math.abs(y) <= 0.9 * radius,
    triangle: (x, y) => y <= 0.8 * radius && y >= -1.2 * radius && Math.abs(x) <= 0.6 * (y + 1.2 * radius),
  }[shape];
  const [inner, edge, shares] = [[], [], []];
  for (let dy = -reach; dy <= reach; dy++) {
    for (let dx = -reach; dx <= reach; dx++) {
      let share = 0;
      for (let sample = 0; sample < 16; sample++) share += (covers(dx + (sample % 4) / 4 - 0.375, dy + (sample >> 2) / 4 - 0.375) * WHOLE) / 16;
      if (share === WHOLE) inner.push(dy * wide + dx);
      else if (share) edge.push(dy * wide + dx), shares.push(share);
    }
  }
  return { reach, inner: Int32Array.from(inner), edge: Int32Array.from(edge), shares: Int32Array.from(shares) };
}

// Presses a stamp of a colour [red, green, blue] at a place of a picture's words of four bytes.
export function press(words, at, { inner, edge, shares }, [red, green, blue], whole) {
  for (let step = 0; step < inner.length; step++) words[at + inner[step]] = whole;
  for (let step = 0; step < edge.length; step++) {
    const share = shares[step];
    const word = words[at + edge[step]];
    const [r, g, b] = [word & 255, (word >> 8) & 255, (word >> 16) & 255];
    words[at + edge[step]] = (255 << 24) | ((b + (((blue - b) * share) >> 8)) << 16) | ((g + (((green - g) * share) >> 8)) << 8) | (r + (((red - r) * share) >> 8));
  }
}

const known = new Map();

// [red, green, blue] of a CSS colour.
export function rgbOf(context, color) {
  if (!known.has(color)) {
    context.fillStyle = color;
    const hex = context.fillStyle;
    known.set(color, [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)));
  }
  return known.get(color);
}

export function wordOf([red, green, blue]) {
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}
