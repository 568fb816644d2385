// Scales with their ticks, and the axes of a plot.

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

const scale = (low, high, from, to, log = false) => {
  const measure = log ? Math.log10 : (value) => value;
  const [a, b] = [measure(low), measure(high)];
  const [least, most] = low < high ? [low, high] : [high, low];
  return {
    at: (value) => from + ((to - from) * (measure(value) - a)) / (b - a),
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

// Axes with their ticks: the y label above on the left, the x label below in the middle.
const axes = (svg, box, x, y, xLabel, yLabel, grid) => {
  for (const value of x.ticks(Math.max(2, box.width / 75))) {
    const at = x.at(value);
    const [top, bottom] = [grid ? box.top : box.bottom, box.bottom + 4];
    draw(svg, "line", { class: "grid", x1: at, x2: at, y1: top, y2: bottom });
    const place = { x: at, y: box.bottom + 17, "text-anchor": "middle" };
    draw(svg, "text", place, tickLabel(value));
  }
  for (const value of y.ticks(Math.max(2, box.height / 45))) {
    const at = y.at(value);
    const [left, right] = [box.left - 4, grid ? box.right : box.left];
    draw(svg, "line", { class: "grid", x1: left, x2: right, y1: at, y2: at });
    const place = { x: box.left - 7, y: at + 4, "text-anchor": "end" };
    draw(svg, "text", place, tickLabel(value));
  }
  const middle = (box.left + box.right) / 2;
  draw(svg, "text", { x: middle, y: box.bottom + 35, "text-anchor": "middle" }, xLabel);
  draw(svg, "text", { x: 2, y: 13 }, yLabel);
};

const boxFor = (svg, width, labels, plotHeight, right = 14) => {
  const longest = Math.max(...labels.map((label) => label.length), 2);
  const left = Math.ceil(longest * LETTER) + 12;
  const [top, box] = [24, {}];
  Object.assign(box, { left, top, right: width - right, width: width - left - right });
  box.height = typeof plotHeight === "function" ? plotHeight(box.width) : plotHeight;
  box.bottom = top + box.height;
  const height = box.bottom + 42;
  filled(svg, { viewBox: `0 0 ${width} ${height}`, height });
  svg.replaceChildren();
  return box;
};
