// Shapes pressed into the pixels of a picture: a point costs some dozens of additions, and no call of the canvas.

// How much of each pixel around a point its shape covers: [{dx, dy, share}], of 4 × 4 samples a pixel.
export function stampOf(shape, radius) {
  const reach = Math.ceil(1.3 * radius);
  const covers = {
    disc: (x, y) => x * x + y * y <= radius * radius,
    square: (x, y) => Math.abs(x) <= 0.9 * radius && Math.abs(y) <= 0.9 * radius,
    triangle: (x, y) => y <= 0.8 * radius && y >= -1.2 * radius && Math.abs(x) <= (0.6 * (y + 1.2 * radius)),
  }[shape];
  const stamp = [];
  for (let dy = -reach; dy <= reach; dy++) {
    for (let dx = -reach; dx <= reach; dx++) {
      let share = 0;
      for (let sample = 0; sample < 16; sample++) share += covers(dx + (sample % 4) / 4 - 0.375, dy + (sample >> 2) / 4 - 0.375) / 16;
      if (share) stamp.push(dx, dy, share * 0.85);
    }
  }
  return Float32Array.from(stamp);
}

// Presses a stamp of a colour on a picture's words of four bytes.
export function press(words, wide, high, stamp, x, y, [red, green, blue]) {
  for (let at = 0; at < stamp.length; at += 3) {
    const [left, top, share] = [x + stamp[at], y + stamp[at + 1], stamp[at + 2]];
    if (left < 0 || top < 0 || left >= wide || top >= high) continue;
    const word = words[top * wide + left];
    const [r, g, b] = [word & 255, (word >> 8) & 255, (word >> 16) & 255];
    words[top * wide + left] = (255 << 24) | ((b + (blue - b) * share) << 16) | ((g + (green - g) * share) << 8) | (r + (red - r) * share);
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
