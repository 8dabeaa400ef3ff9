// Points on a canvas: all of them written into one picture a frame, marks drawn over it; a grid finds the point under the pointer.
import { shortened } from "../../components/heatmap.js";
import { gridOf, isInside } from "./grid.js";
import { COLORS, OTHER, SHAPES, colorName } from "./looks.js";
import { press, rgbOf, stampOf, wordOf } from "./stamps.js";

const MARGIN = 28;
const REACH = 14; // CSS pixels from the pointer to the point that it means
const MOST_ZOOM = 200;
const STRETCH = 1.7;
const FAINT = 0.22; // how much of its colour a point keeps that is not asked for
const MOST_TOLD = 60; // points in sight whose texts are written beside them
const TOLD = 32; // characters of each
const FONT = "system-ui, sans-serif";

export class Scene {
  // Fields that others set before draw(): lit (Uint8Array or null: which points are asked for), hits, links ([[from, to]]), over, star ([x, y] in
  // the plane), outline ([[x, y]] in CSS pixels), captions ([{text, look}]), texts, pictures ([ImageBitmap] or null).
  constructor(canvas) {
    Object.assign(this, { canvas, width: 0, height: 0, ratio: 1, lit: null, hits: [], links: [], over: null, star: null, outline: null, captions: [], texts: [], pictures: null, frame: 0 });
    this.home();
  }

  setPoints(points) {
    this.points = points;
    this.count = points.length / 2;
    this.bounds = [0, 1].map((axis) => {
      let [least, most] = [Infinity, -Infinity];
      for (let at = axis; at < points.length; at += 2) [least, most] = [Math.min(least, points[at]), Math.max(most, points[at])];
      return [least, most];
    });
    this.grid = gridOf(points, this.bounds);
  }

  setLook(look) {
    this.look = look;
    this.order = Uint32Array.from({ length: look.length }, (_, index) => index).sort((a, b) => look[b] - look[a]); // large groups last: they do not hide others less
  }

  home() {
    this.view = { zoom: 1, x: 0, y: 0 };
  }

  // Zooms around a place of the canvas, its middle if none is given.
  zoom(factor, x = this.width / 2, y = this.height / 2) {
    const { view } = this;
    const next = Math.min(MOST_ZOOM, Math.max(1, view.zoom * factor));
    if (next === 1) return this.home();
    const own = next / view.zoom;
    const [fromX, fromY] = [x - this.width / 2, y - this.height / 2];
    this.view = { zoom: next, x: fromX - (fromX - view.x) * own, y: fromY - (fromY - view.y) * own };
  }

  // Shows what a rectangle between two corners of the canvas holds.
  enlarge([[left, top], , [right, bottom]]) {
    this.move((this.width - left - right) / 2, (this.height - top - bottom) / 2);
    this.zoom(Math.min(this.width / Math.abs(right - left), this.height / Math.abs(bottom - top)));
  }

  move(dx, dy) {
    this.view = { ...this.view, x: this.view.x + dx, y: this.view.y + dy };
  }

  // {across, down, left, top}: x * across + left and y * down + top are CSS pixels; a wide cloud is stretched to a high canvas a little.
  get place() {
    const rooms = [this.width - 2 * MARGIN, this.height - 2 * MARGIN];
    const fits = this.bounds.map(([least, most], axis) => rooms[axis] / (most - least || 1));
    const { zoom, x, y } = this.view;
    const [across, down] = fits.map((fit) => zoom * Math.min(fit, STRETCH * Math.min(...fits)));
    const [[left, right], [top, bottom]] = this.bounds;
    return { across, down, left: this.width / 2 + x - (across * (left + right)) / 2, top: this.height / 2 + y - (down * (top + bottom)) / 2 };
  }

  at(index, place = this.place) {
    return [this.points[2 * index] * place.across + place.left, this.points[2 * index + 1] * place.down + place.top];
  }

  // The point that a place of the canvas means, null if none is near.
  find(x, y) {
    const { across, down, left, top } = this.place;
    let [best, least] = [null, REACH * REACH];
    this.grid.near((x - left) / across, (y - top) / down, REACH / Math.min(across, down), (index) => {
      const distance = (this.points[2 * index] * across + left - x) ** 2 + (this.points[2 * index + 1] * down + top - y) ** 2;
      if (distance < least || (distance === least && index < best)) [best, least] = [index, distance];
    });
    return best;
  }

  // The points inside a polygon of the canvas.
  inside(polygon) {
    const place = this.place;
    const found = [];
    for (let index = 0; index < this.count; index++) if (isInside(polygon, ...this.at(index, place))) found.push(index);
    return found;
  }

  // Draws before the next frame, once however often it is called.
  request() {
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.draw());
  }

  draw() {
    if (!this.points || !this.look || !this.width) return;
    const { canvas, ratio } = this;
    const [wide, high] = [Math.round(this.width * ratio), Math.round(this.height * ratio)];
    if (canvas.width !== wide || canvas.height !== high) [canvas.width, canvas.height] = [wide, high];
    const context = canvas.getContext("2d");
    const style = getComputedStyle(canvas);
    const tone = (name) => style.getPropertyValue(name).trim();
    const place = this.place;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.putImageData(this.dots(context, wide, high, place, tone), 0, 0);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    if (this.pictures) this.drawPictures(context, place, tone);
    this.drawCaptions(context, place, tone);
    this.drawMarks(context, place, tone);
  }

  // The radius of a point in CSS pixels: smaller where there are many, larger where the map is near.
  get radius() {
    const room = Math.min(1, this.width / 500);
    const usual = room * (this.count > 8000 ? 1.5 : this.count > 2000 ? 2 : this.count > 500 ? 3 : 4);
    return Math.min(2 * usual, usual * this.view.zoom ** 0.25);
  }

  // Width and height of a picture in CSS pixels, 0 where there is none.
  sizeOf(index) {
    const picture = this.pictures?.[index];
    if (!picture) return [0, 0];
    const share = Math.min(96, 32 * this.view.zoom ** 0.5) / Math.max(picture.width, picture.height);
    return [picture.width * share, picture.height * share];
  }

  dots(context, wide, high, place, tone) {
    if (this.image?.width !== wide || this.image.height !== high) {
      this.image = context.createImageData(wide, high);
      this.words = new Uint32Array(this.image.data.buffer);
    }
    const paper = rgbOf(context, tone("--panel"));
    this.words.fill(wordOf(paper));
    const full = Array.from({ length: OTHER + 1 }, (_, look) => rgbOf(context, tone(colorName(look))));
    const faint = full.map((color) => color.map((value, channel) => Math.round(paper[channel] + (value - paper[channel]) * FAINT)));
    const stamps = SHAPES.map((shape) => stampOf(shape, this.radius * this.ratio, wide));
    const { points, look, lit } = this;
    const [across, down, left, top] = [place.across, place.down, place.left, place.top].map((each) => each * this.ratio);
    for (const asked of lit ? [0, 1] : [1]) {
      const colors = asked ? full : faint;
      const inks = colors.map(wordOf);
      for (const index of this.order) {
        if (lit && lit[index] !== asked) continue;
        const x = Math.round(points[2 * index] * across + left);
        const y = Math.round(points[2 * index + 1] * down + top);
        const stamp = stamps[look[index] === OTHER ? 0 : Math.floor(look[index] / COLORS)];
        if (x < stamp.reach || y < stamp.reach || x >= wide - stamp.reach || y >= high - stamp.reach) continue;
        press(this.words, y * wide + x, stamp, colors[look[index]], inks[look[index]]);
      }
    }
    return this.image;
  }

  drawPictures(context, place, tone) {
    context.lineWidth = 1;
    for (let index = 0; index < this.count; index++) {
      const picture = this.pictures[index];
      if (!picture) continue;
      const [x, y] = this.at(index, place);
      const [w, h] = this.sizeOf(index);
      context.globalAlpha = this.lit && !this.lit[index] ? FAINT : 1;
      context.drawImage(picture, x - w / 2, y - h / 2, w, h);
      context.strokeStyle = tone("--strong-line");
      context.strokeRect(x - w / 2, y - h / 2, w, h);
    }
    context.globalAlpha = 1;
  }

  drawMarks(context, place, tone) {
    const [ink, panel] = [tone("--ink"), tone("--panel")];
    const star = this.star && this.shown(this.star, place);
    context.strokeStyle = ink;
    context.lineWidth = 1;
    context.globalAlpha = 0.6;
    context.beginPath();
    const lines = [...this.links.map(([from, to]) => [this.at(from, place), this.at(to, place)]), ...(star ? this.hits.map((index) => [star, this.at(index, place)]) : [])];
    for (const [from, to] of lines) {
      context.moveTo(...from);
      context.lineTo(...to);
    }
    context.stroke();
    context.globalAlpha = 1;
    const ringed = new Set([...this.hits, ...this.links.flat()]);
    for (const index of [...ringed, ...(this.over === null ? [] : [this.over])]) {
      const [x, y] = this.at(index, place);
      const [w, h] = this.sizeOf(index);
      context.lineWidth = index === this.over ? 3 : 1.5;
      context.beginPath();
      if (w) context.rect(x - w / 2 - 3, y - h / 2 - 3, w + 6, h + 6);
      else context.arc(x, y, this.radius + 3, 0, 7);
      context.stroke();
    }
    if (star) drawStar(context, ...star, ink, panel);
    if (this.outline?.length > 1) {
      context.setLineDash([5, 4]);
      context.lineWidth = 2;
      context.strokeStyle = tone("--accent");
      context.beginPath();
      for (const point of this.outline) context.lineTo(...point);
      context.closePath();
      context.stroke();
      context.setLineDash([]);
    }
  }

  // A place of the plane in CSS pixels, moved to the edge where it lies outside.
  shown([x, y], { across, down, left, top }) {
    const kept = (value, room) => Math.min(room - 14, Math.max(14, value));
    return [kept(x * across + left, this.width), kept(y * down + top, this.height)];
  }

  // A group's name at the middle of its points, and the texts of points where few are in sight; none over another or the star.
  drawCaptions(context, place, tone) {
    const star = this.star && this.shown(this.star, place);
    const taken = star ? [{ x: star[0], y: star[1], half: 12 }] : [];
    const size = parseFloat(getComputedStyle(this.canvas).fontSize) * 0.8;
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.lineJoin = "round";
    context.lineWidth = 4;
    context.strokeStyle = tone("--panel");
    const write = (text, [x, y], weight, color, tries) => {
      context.font = `${weight} ${size}px ${FONT}`;
      const half = context.measureText(text).width / 2 + 2;
      const free = (at) => x >= half && at >= size && x <= this.width - half && at <= this.height - size && !taken.some((other) => Math.abs(other.x - x) < other.half + half && Math.abs(other.y - at) < 1.3 * size);
      const own = tries.map((lines) => y + lines * size).find(free);
      if (own === undefined) return;
      taken.push({ x, y: own, half });
      context.strokeText(text, x, own);
      context.fillStyle = tone(color);
      context.fillText(text, x, own);
    };
    const placed = ([x, y]) => [x * place.across + place.left, y * place.down + place.top];
    for (const { text, look } of this.captions) if (this.middles?.[look]) write(text, placed(this.middles[look]), 600, "--ink", [0, 1.5, -1.5]);
    if (this.view.zoom === 1 || this.pictures) return;
    const seen = [];
    for (let index = 0; index < this.count && seen.length <= MOST_TOLD; index++) {
      const [x, y] = this.at(index, place);
      if (x > 0 && y > 0 && x < this.width && y < this.height) seen.push(index);
    }
    if (seen.length <= MOST_TOLD) for (const index of seen) write(shortened(this.texts[index], TOLD), this.at(index, place), 400, "--soft-ink", [1.2, -1.2]);
  }

  // Captions [{text, look}] at the median places of the points of that look.
  setCaptions(captions) {
    this.captions = captions;
    this.middles = {};
    for (const { look } of captions) {
      const own = Array.from(this.order).filter((index) => this.look[index] === look);
      this.middles[look] = [0, 1].map((axis) => own.map((index) => this.points[2 * index + axis]).sort((a, b) => a - b)[own.length >> 1]);
    }
  }
}

function drawStar(context, x, y, ink, panel) {
  context.beginPath();
  for (let corner = 0; corner < 10; corner++) {
    const [reach, angle] = [corner % 2 ? 5 : 12, (Math.PI * corner) / 5 - Math.PI / 2];
    context.lineTo(x + reach * Math.cos(angle), y + reach * Math.sin(angle));
  }
  context.closePath();
  context.fillStyle = ink;
  context.strokeStyle = panel;
  context.lineWidth = 3;
  context.stroke();
  context.fill();
}
