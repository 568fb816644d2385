// Elements, numbers, colours, packed fields, scales and axes.

const template = document.createElement("template");
template.innerHTML = "<svg></svg>";
const NAMESPACE = template.content.firstChild.namespaceURI;
const DASHES = { "-": "", "--": "7 4", ":": "2 3", "-.": "8 3 2 3" };
const LETTER = 6.9; // width of a digit in the labels, in pixels
const SHADES = 254; // the byte of the largest value; the next stands for one that is not finite

const filled = (made, attributes, text) => {
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
};

const add = (parent, name, attributes = {}, text) =>
  parent.appendChild(filled(document.createElement(name), attributes, text));

const draw = (parent, name, attributes = {}, text) =>
  parent.appendChild(filled(document.createElementNS(NAMESPACE, name), attributes, text));

// --- numbers -------------------------------------------------------------------------------------

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

const written = (value, digits, least, most, significant) => {
  const size = Math.abs(value);
  if (size === 0 || (size >= least && size < most)) {
    return String(Number(value.toPrecision(significant))).replace("-", "−");
  }
  const text = value.toExponential(digits).replace(/\.?0*e/, "e");
  return text.replace("e+", "e").replaceAll("-", "−");
};

const told = (value) => (isNumber(value) ? written(value, 3, 1e-3, 1e6, 6) : "–");
const tickLabel = (value) => written(value, 2, 1e-3, 1e5, 10);

// --- colours -------------------------------------------------------------------------------------

const dark = matchMedia("(prefers-color-scheme: dark)");

// Lines in lighter colours on a dark page; black is the colour of text.
const ink = (colour) => {
  if (colour.toLowerCase() === "#000000") return "currentColor";
  if (!dark.matches) return colour;
  const parts = [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
  const share = 0.2 + 0.7 * (1 - Math.max(...parts) / 255) ** 2;
  return `rgb(${parts.map((part) => Math.round(part + share * (255 - part))).join(",")})`;
};

const canvasOf = (width, height) => {
  const canvas = filled(document.createElement("canvas"), { width, height });
  return { canvas, context: canvas.getContext("2d", { willReadFrequently: true }) };
};

// Colours whose lightness rises evenly (OKLCH): violet to yellow, or away from the paper to either
// side. As red, green and blue of every shade.
const palette = (kind) => {
  const { context } = canvasOf(SHADES + 1, 1);
  const [middle, end] = dark.matches ? [0.24, 0.8] : [0.97, 0.45];
  for (let shade = 0; shade <= SHADES; shade++) {
    const [t, side] = [shade / SHADES, (2 * shade) / SHADES - 1];
    const far = Math.abs(side);
    context.fillStyle =
      kind === "diverging"
        ? `oklch(${middle + (end - middle) * far} ${0.14 * far} ${side < 0 ? 255 : 35})`
        : `oklch(${0.27 + 0.65 * t} ${0.11 + 0.05 * side * side} ${300 - 195 * t})`;
    context.fillRect(shade, 0, 1, 1);
  }
  return context.getImageData(0, 0, SHADES + 1, 1).data;
};

// The address of an image; `colourAt(column, row)` gives [red, green, blue, opacity].
const picture = (width, height, colourAt) => {
  const { canvas, context } = canvasOf(width, height);
  const image = context.createImageData(width, height);
  for (let row = 0, at = 0; row < height; row++) {
    for (let column = 0; column < width; column++, at += 4) {
      image.data.set(colourAt(column, row), at);
    }
  }
  context.putImageData(image, 0, 0);
  return canvas.toDataURL();
};

const CLEAR = [0, 0, 0, 0];
const coloured = (shade, colours) =>
  shade > SHADES ? CLEAR : [...colours.subarray(4 * shade, 4 * shade + 3), 255];

// The images in `packed.pixels`, each an array of shades, row by row.
const unpack = async (packed) => {
  const bytes = Uint8Array.from(atob(packed.pixels), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const all = new Uint8Array(await new Response(stream).arrayBuffer());
  const [rows, columns] = packed.shape;
  for (let at = 0; at < all.length; at++) {
    if (at % columns) all[at] += all[at - 1]; // modulo 256
  }
  const size = rows * columns;
  return Array.from({ length: all.length / size }, (_, k) => all.subarray(k * size, (k + 1) * size));
};

// --- scales and axes -----------------------------------------------------------------------------

const linearTicks = (low, high, most) => {
  const rough = (high - low) / Math.max(most, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
  const ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++) {
    ticks.push(k * step);
  }
  return ticks;
};

const logTicks = (low, high, most) => {
  const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  const decades = Math.log10(high / low);
  const within = (ticks) => ticks.filter((t) => t >= low * 0.9999 && t <= high * 1.0001);
  if (decades < 0.7) return within(linearTicks(low, high, most));
  const every = Math.max(1, Math.ceil(decades / most));
  const parts = decades < 1.5 ? [1, 2, 5] : decades < 3 ? [1, 3] : [1];
  const ticks = [];
  for (let power = first; power <= last; power += 1) {
    if (power % every === 0) ticks.push(...parts.map((part) => Number(`${part}e${power}`)));
  }
  return within(ticks);
};

// Between values and pixels: `at` and its inverse `of`.
const scale = (low, high, from, to, log = false) => {
  const measure = log ? Math.log10 : (value) => value;
  const [a, b] = [measure(low), measure(high)];
  const [least, most] = low < high ? [low, high] : [high, low];
  const raw = (pixel) => a + ((b - a) * (pixel - from)) / (to - from);
  return {
    at: (value) => from + ((to - from) * (measure(value) - a)) / (b - a),
    of: (pixel) => (log ? 10 ** raw(pixel) : raw(pixel)),
    ticks: (count) => (log ? logTicks(least, most, count) : linearTicks(least, most, count)),
  };
};

const range = (values, log) => {
  const usable = values.filter((v) => isNumber(v) && (!log || v > 0));
  if (usable.length === 0) return null;
  const low = usable.reduce((a, b) => Math.min(a, b));
  const high = usable.reduce((a, b) => Math.max(a, b));
  if (log) {
    const room = low === high ? 2 : (high / low) ** 0.04;
    return [low / room, high * room];
  }
  const room = low === high ? Math.abs(low) / 2 || 1 : 0.04 * (high - low);
  return [low - room, high + room];
};

const marginFor = (labels) => Math.ceil(Math.max(...labels.map((l) => l.length), 2) * LETTER) + 12;

// A rectangle of the plot with the scales of its sides.
const boxOf = (left, top, width, height, [xLow, xHigh], [yLow, yHigh], logX, logY) => ({
  ...{ left, top, width, height, right: left + width, bottom: top + height },
  x: scale(xLow, xHigh, left, left + width, logX),
  y: scale(yLow, yHigh, top + height, top, logY),
});

const rectangle = (box) => ({ x: box.left, y: box.top, width: box.width, height: box.height });

// Ticks with their labels and, with a grid, lines across the box.
const ticksOf = (svg, box, grid, below = true, beside = true) => {
  for (const value of below ? box.x.ticks(Math.max(2, box.width / (grid ? 75 : 45))) : []) {
    const at = box.x.at(value);
    const y1 = grid ? box.top : box.bottom;
    draw(svg, "line", { class: "grid", x1: at, x2: at, y1, y2: box.bottom + 4 });
    const edge = grid ? "middle" : at < box.left + 9 ? "start" : at > box.right - 9 ? "end" : "middle";
    draw(svg, "text", { x: at, y: box.bottom + 17, "text-anchor": edge }, tickLabel(value));
  }
  for (const value of beside ? box.y.ticks(Math.max(2, box.height / 45)) : []) {
    const at = box.y.at(value);
    const x2 = grid ? box.right : box.left;
    draw(svg, "line", { class: "grid", x1: box.left - 4, x2, y1: at, y2: at });
    const place = { x: box.left - 7, y: at + 4, "text-anchor": "end" };
    draw(svg, "text", place, tickLabel(value));
  }
};

// What is drawn inside does not leave the box; its coordinates are those of the plot.
const clipped = (svg, box) =>
  draw(svg, "svg", {
    ...rectangle(box),
    viewBox: `${box.left} ${box.top} ${box.width} ${box.height}`,
  });
