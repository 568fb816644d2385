// What plots share: a bar of buttons, one SVG with a tooltip and zoom, and files to save.

const button = (parent, text, pressed, clicked) => {
  const made = add(parent, "button", { type: "button" }, text);
  if (pressed !== null) made.setAttribute("aria-pressed", String(pressed));
  made.addEventListener("click", () => clicked(made));
  return made;
};

const toggled = (made) => {
  const now = made.getAttribute("aria-pressed") !== "true";
  made.setAttribute("aria-pressed", String(now));
  return now;
};

const choices = (parent, label, names, chosen, choose) => {
  const group = add(parent, "span", { class: "choices", role: "group", "aria-label": label });
  add(group, "span", {}, label);
  const buttons = names.map((name) =>
    button(group, name, name === chosen, (made) => {
      buttons.forEach((other) => other.setAttribute("aria-pressed", String(other === made)));
      choose(name);
    }),
  );
};

// Buttons that switch lines on and off; returns a function that writes a value beside each.
const legend = (parent, lines, shown, changed) => {
  const group = add(parent, "div", { class: "legend", role: "group", "aria-label": "legend" });
  const values = lines.map((line, i) => {
    const made = button(group, "", true, () => {
      shown[i] = toggled(made);
      changed();
    });
    const sample = draw(made, "svg", { viewBox: "0 0 26 10", "aria-hidden": "true" });
    const look = { "stroke-width": 2.4, "stroke-dasharray": DASHES[line.dash] };
    const mark = draw(sample, "line", { x1: 1, x2: 25, y1: 5, y2: 5, ...look });
    onTheme(() => filled(mark, { stroke: ink(line.colour) }));
    add(made, "span", { class: "name" }, line.name);
    return add(made, "span", { class: "value" });
  });
  return (texts) => texts.forEach((text, i) => (values[i].textContent = text));
};

// A slider with a play button; `moved(k)` shows step k of 0 … last.
const slider = (parent, label, last, moved) => {
  const row = add(parent, "div", { class: "slider" });
  let timer = 0;
  const play = button(row, "", null, () => {
    if (timer) return stop();
    go(at() < last ? at() : 0);
    const pause = Math.min(500, Math.max(50, 5000 / last));
    timer = setInterval(() => (at() < last ? go(at() + 1) : stop()), pause);
    filled(play, { "aria-label": "pause" }, "❚❚");
  });
  const input = add(row, "input", { type: "range", min: 0, max: last, "aria-label": label });
  const output = add(row, "output");
  const at = () => Number(input.value);
  const go = (k) => {
    input.value = k;
    output.textContent = moved(k);
    input.setAttribute("aria-valuetext", output.textContent);
  };
  const stop = () => {
    clearInterval(timer);
    timer = 0;
    filled(play, { "aria-label": "play" }, "▶\ufe0e");
  };
  stop();
  input.addEventListener("input", () => {
    stop();
    go(at());
  });
  input.value = last;
  return { at, again: () => go(at()) };
};

const onTheme = (act) => {
  act();
  dark.addEventListener("change", act);
};

// --- files ---------------------------------------------------------------------------------------

const save = (stage, ending, content) => {
  const name = `${document.title} ${stage.id}`.replace(/[^\p{L}\p{N}]+/gu, "-");
  const link = document.createElement("a");
  const href = URL.createObjectURL(content);
  filled(link, { download: `${name}.${ending}`, href }).click();
  setTimeout(() => URL.revokeObjectURL(href), 10000);
};

// Text that a spreadsheet would run as a formula gets an apostrophe.
const cell = (value) => {
  if (typeof value !== "string") return isNumber(value) ? String(value) : "";
  const safe = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
};

const saveTable = (stage) => {
  const text = stage.rows().map((row) => row.map(cell).join(",")).join("\n");
  save(stage, "csv", new Blob([`\ufeff${text}\n`], { type: "text/csv" }));
};

const LOOK = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "opacity"];
LOOK.push("font-size", "font-family", "font-weight", "text-anchor", "paint-order", "image-rendering");

// The plot with its styles in it, its legend below and the paper behind.
const snapshot = (stage) => {
  const copy = stage.svg.cloneNode(true);
  const [from, to] = [stage.svg, copy].map((svg) => svg.querySelectorAll("*"));
  from.forEach((element, i) => {
    const style = getComputedStyle(element);
    for (const key of LOOK) to[i].setAttribute(key, style.getPropertyValue(key));
    if (style.display === "none") to[i].setAttribute("display", "none");
  });
  copy.querySelectorAll(".cursor").forEach((cursor) => cursor.remove());
  let { width, height } = stage.svg.viewBox.baseVal;
  const style = getComputedStyle(stage.root);
  const font = { fill: style.color, "font-size": 12, "font-family": style.fontFamily };
  let left = 12;
  for (const entry of stage.root.querySelectorAll('.legend [aria-pressed="true"]')) {
    const text = entry.querySelector(".name").textContent;
    const space = 48 + LETTER * text.length;
    if (left > 12 && left + space > width) [left, height] = [12, height + 18];
    const stroke = getComputedStyle(entry.querySelector("line")).stroke;
    const line = { x1: left, x2: left + 24, y1: height + 6, y2: height + 6, "stroke-width": 2 };
    const dash = entry.querySelector("line").getAttribute("stroke-dasharray");
    draw(copy, "line", { ...line, stroke, "stroke-dasharray": dash });
    draw(copy, "text", { x: left + 30, y: height + 10, ...font }, text);
    left += space;
  }
  height += left > 12 ? 24 : 0;
  const paper = getComputedStyle(document.body).backgroundColor;
  [width, height] = [width + 20, height + 16];
  copy.prepend(draw(copy, "rect", { x: -10, y: -8, width, height, fill: paper }));
  filled(copy, { width, height, viewBox: `-10 -8 ${width} ${height}` });
  return { width, height, text: new XMLSerializer().serializeToString(copy) };
};

const saveVector = (stage) =>
  save(stage, "svg", new Blob([snapshot(stage).text], { type: "image/svg+xml" }));

const saveImage = async (stage) => {
  const { width, height, text } = snapshot(stage);
  const image = new Image();
  image.src = `data:image/svg+xml,${encodeURIComponent(text)}`;
  await image.decode();
  const { canvas, context } = canvasOf(2 * width, 2 * height);
  context.drawImage(image, 0, 0, 2 * width, 2 * height);
  canvas.toBlob((blob) => save(stage, "png", blob));
};

// --- the stage -----------------------------------------------------------------------------------

// A plot sets `paint(width)`, which fills the SVG and `boxes`; `point(x, y)`, which returns lines for
// the tooltip at a pixel; and `rows()`, the table to save. `view` is the part that is zoomed to.
const stageFor = (figure, label) => {
  const root = document.createElement("div");
  figure.prepend(root);
  const bar = add(root, "div", { class: "bar" });
  const holder = add(root, "div", { class: "holder" });
  const svg = draw(holder, "svg", { role: "img", tabindex: 0, "aria-label": label });
  const tip = add(holder, "div", { class: "tip", role: "status", hidden: "" });
  const foot = document.createElement("div");
  const stage = { root, bar, svg, foot, id: figure.id, view: null, boxes: [], width: 0 };

  stage.clear = (height) => {
    filled(svg, { viewBox: `0 0 ${stage.width} ${height}`, height }).replaceChildren();
    stage.boxes = [];
    tip.hidden = true;
  };
  stage.again = () => stage.width && stage.paint(stage.width);
  stage.tell = (x, y, lines) => {
    tip.hidden = !lines;
    if (!lines) return;
    tip.replaceChildren();
    lines.forEach((line) => add(tip, "div", {}, line));
    const before = x > stage.width / 2 ? x - tip.offsetWidth - 14 : x + 14;
    const left = Math.max(0, Math.min(before, stage.width - tip.offsetWidth));
    Object.assign(tip.style, { left: `${left}px`, top: `${y - tip.offsetHeight - 10}px` });
  };
  const zoom = (view) => {
    stage.view = view;
    whole.hidden = !view;
    stage.again();
  };
  stage.whole = () => zoom(null);
  const files = add(foot, "div", { class: "files", role: "group", "aria-label": "save" });
  const whole = button(files, "whole view", null, stage.whole);
  whole.hidden = true;
  button(files, "CSV", null, () => saveTable(stage));
  button(files, "SVG", null, () => saveVector(stage));
  button(files, "PNG", null, () => saveImage(stage));

  // Zoom: a rectangle that is drawn with the pointer; a flat or narrow one keeps the other axis.
  let start = null;
  let band = null;
  const place = (event) => {
    const frame = svg.getBoundingClientRect();
    return { x: event.clientX - frame.left, y: event.clientY - frame.top };
  };
  const inside = ({ x, y }) =>
    stage.boxes.find((b) => x >= b.left && x <= b.right && y >= b.top && y <= b.bottom);
  const ends = (at) => {
    const { box, x, y } = start;
    const span = (from, to, low, high) => {
      const [a, b] = [from, Math.min(high, Math.max(low, to))].sort((p, q) => p - q);
      return b - a < 14 ? [low, high, false] : [a, b, true];
    };
    return [span(x, at.x, box.left, box.right), span(y, at.y, box.top, box.bottom)];
  };
  const drop = () => {
    band?.remove();
    start = band = null;
  };
  svg.addEventListener("pointerdown", (event) => {
    const at = place(event);
    const box = inside(at);
    if (box && event.button === 0) start = { box, ...at };
    stage.tell(at.x, at.y, stage.point(at.x, at.y));
  });
  svg.addEventListener("pointermove", (event) => {
    const at = place(event);
    const [xs, ys] = start ? ends(at) : [];
    if (xs?.[2] || ys?.[2]) {
      svg.setPointerCapture(event.pointerId);
      band ??= draw(svg, "rect", { class: "band cursor" });
      filled(band, { x: xs[0], y: ys[0], width: xs[1] - xs[0], height: ys[1] - ys[0] });
      return stage.tell();
    }
    stage.tell(at.x, at.y, stage.point(at.x, at.y));
  });
  svg.addEventListener("pointerup", (event) => {
    if (band) {
      const [[x0, x1], [y0, y1]] = ends(place(event));
      const { x, y } = start.box;
      zoom({ x: [x.of(x0), x.of(x1)], y: [y.of(y1), y.of(y0)] });
    }
    drop();
  });
  svg.addEventListener("pointercancel", drop);
  svg.addEventListener("pointerleave", () => band || stage.tell());
  svg.addEventListener("dblclick", stage.whole);
  svg.addEventListener("keydown", (event) => event.key === "Escape" && stage.whole());
  return stage;
};

// Paints the stage now, and whenever its width or the theme changes.
const show = (stage) => {
  filled(stage.root.appendChild(stage.foot), { class: "foot" });
  const check = () => {
    const now = Math.floor(stage.root.clientWidth);
    if (now > 0 && now !== stage.width) stage.paint((stage.width = now));
  };
  check();
  new ResizeObserver(() => requestAnimationFrame(check)).observe(stage.root);
  dark.addEventListener("change", stage.again);
};
