"use strict";
// Draws the plots of a natgrad page. Each <figure class="plot"> holds its numbers as JSON.
(() => {
  const template = document.createElement("template");
  template.innerHTML = "<svg></svg>";
  const NAMESPACE = template.content.firstChild.namespaceURI;
  const PNG = "data:image/png;base64";
  const DASHES = { "-": "", "--": "7 4", ":": "2 3", "-.": "8 3 2 3" };
  const LETTER = 6.9; // width of a digit in the labels, in pixels

  // --- small tools -----------------------------------------------------------------------------

  const filled = (made, attributes, text) => {
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  };

  const add = (parent, name, attributes = {}, text) =>
    parent.appendChild(filled(document.createElement(name), attributes, text));

  const draw = (parent, name, attributes = {}, text) =>
    parent.appendChild(filled(document.createElementNS(NAMESPACE, name), attributes, text));

  const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

  // Black lines turn light on a dark page; those over an image stay as they are.
  const ink = (colour) => (colour.toLowerCase() === "#000000" ? "currentColor" : colour);

  const told = (value) => {
    if (!isNumber(value)) return "–";
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e6)) return exponent(value.toExponential(3));
    return String(Number(value.toPrecision(6))).replace("-", "−");
  };

  const exponent = (text) =>
    text.replace(/\.?0*e/, "e").replace("e+", "e").replaceAll("-", "−");

  const tickLabel = (value) => {
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e5)) return exponent(value.toExponential(2));
    return String(Number(value.toPrecision(10))).replace("-", "−");
  };

  // --- scales ----------------------------------------------------------------------------------

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

  // --- controls --------------------------------------------------------------------------------

  const choices = (parent, label, names, chosen, choose) => {
    const group = add(parent, "span", { class: "choices", role: "group", "aria-label": label });
    add(group, "span", {}, label);
    const buttons = names.map((name) => add(group, "button", { type: "button" }, name));
    const mark = (current) =>
      buttons.forEach((b, i) => b.setAttribute("aria-pressed", String(names[i] === current)));
    buttons.forEach((button, i) =>
      button.addEventListener("click", () => {
        mark(names[i]);
        choose(names[i]);
      }),
    );
    mark(chosen);
  };

  // Buttons that switch lines on and off; returns a function that writes a value beside each.
  const legend = (parent, lines, shown, changed) => {
    const group = add(parent, "div", { class: "legend", role: "group", "aria-label": "legend" });
    const values = lines.map((line, i) => {
      const button = add(group, "button", { type: "button", "aria-pressed": "true" });
      const sample = draw(button, "svg", { viewBox: "0 0 26 10", "aria-hidden": "true" });
      const look = { stroke: ink(line.colour), "stroke-dasharray": DASHES[line.dash] };
      draw(sample, "line", { x1: 1, x2: 25, y1: 5, y2: 5, "stroke-width": 2.4, ...look });
      add(button, "span", {}, line.name);
      button.addEventListener("click", () => {
        shown[i] = !shown[i];
        button.setAttribute("aria-pressed", String(shown[i]));
        changed();
      });
      return add(button, "span", { class: "value" });
    });
    return (texts) => texts.forEach((text, i) => (values[i].textContent = text));
  };

  const slider = (parent, label, moved) => {
    const row = add(parent, "div", { class: "slider" });
    const input = add(row, "input", { type: "range", min: 0, step: 1, "aria-label": label });
    const output = add(row, "output");
    input.addEventListener("input", moved);
    return { input, output, at: () => Number(input.value) };
  };

  // Calls `paint(width)` now and whenever the width of the element changes.
  const whenResized = (element, paint) => {
    let width = 0;
    const check = () => {
      const now = Math.floor(element.clientWidth);
      if (now > 0 && now !== width) paint((width = now));
    };
    check();
    new ResizeObserver(() => requestAnimationFrame(check)).observe(element);
  };

  // --- curves ----------------------------------------------------------------------------------

  const curves = (stage, data) => {
    const abscissae = [...new Set(data.series.flatMap((s) => Object.keys(s.x)))];
    const shown = data.series.map(() => true);
    const state = { x: abscissae[0], logX: data.log_x, logY: data.log, width: 0 };
    let points = []; // of the visible series: {series, index, x, y} in pixels
    let current = null;

    const again = (change) => () => {
      Object.assign(state, change());
      paint(state.width);
    };
    const set = (key) => (value) => again(() => ({ [key]: value === "log" }))();
    const bar = add(stage, "div", { class: "bar" });
    if (abscissae.length > 1) {
      choices(bar, "against", abscissae, state.x, (x) => again(() => ({ x }))());
    }
    const kinds = ["log", "linear"];
    choices(bar, "vertical", kinds, state.logY ? "log" : "linear", set("logY"));
    choices(bar, "horizontal", kinds, state.logX ? "log" : "linear", set("logX"));
    const name = `${data.y_label}; arrow keys step through the points`;
    const svg = draw(stage, "svg", { role: "img", tabindex: 0, "aria-label": name });
    const readout = add(stage, "p", { class: "readout", "aria-live": "polite" });
    legend(stage, data.series, shown, again(() => ({})));

    const usable = (value, log) => isNumber(value) && (!log || value > 0);

    const paint = (width) => {
      state.width = width;
      const visible = data.series.filter((s, i) => shown[i] && s.x[state.x]);
      const drawable = visible.map((s) =>
        s.y.map((y, i) => usable(y, state.logY) && usable(s.x[state.x][i], state.logX)),
      );
      const pick = (of) =>
        visible.flatMap((s, k) => of(s).filter((_, i) => drawable[k][i]));
      const levels = Object.entries(data.levels);
      const xRange = range(pick((s) => s.x[state.x]), state.logX);
      const yRange = range([...pick((s) => s.y), ...levels.map((l) => l[1])], state.logY);
      const height = Math.max(210, Math.min(400, 0.52 * width));
      points = [];
      current = null;
      readout.textContent = "";
      if (!xRange || !yRange) {
        boxFor(svg, width, [], height);
        draw(svg, "text", { x: 12, y: 40 }, "Nothing to draw with these choices.");
        return;
      }
      const ticks = scale(...yRange, 0, 1, state.logY).ticks(height / 45).map(tickLabel);
      const box = boxFor(svg, width, ticks, height);
      const x = scale(...xRange, box.left, box.right, state.logX);
      const y = scale(...yRange, box.bottom, box.top, state.logY);
      axes(svg, box, x, y, state.x, data.y_label, true);
      for (const [label, value] of levels.filter((l) => usable(l[1], state.logY))) {
        const at = y.at(value);
        draw(svg, "line", { class: "level", x1: box.left, x2: box.right, y1: at, y2: at });
        draw(svg, "text", { x: box.right, y: at - 4, "text-anchor": "end" }, label);
      }
      visible.forEach((series, k) => line(series, drawable[k], x, y));
      svg.cursor = draw(svg, "circle", { r: 5, fill: "none", "stroke-width": 2 });
      svg.cursor.style.visibility = "hidden";
    };

    const line = (series, drawable, x, y) => {
      const abscissa = series.x[state.x];
      const dots = drawable.filter(Boolean).length <= 25;
      const stroke = ink(series.colour);
      let path = "";
      let pen = false;
      series.y.forEach((value, index) => {
        if (!drawable[index]) return void (pen = false);
        const point = { series, index, x: x.at(abscissa[index]), y: y.at(value) };
        path += `${pen ? "L" : "M"}${point.x.toFixed(2)} ${point.y.toFixed(2)}`;
        pen = true;
        points.push(point);
        if (dots) draw(svg, "circle", { cx: point.x, cy: point.y, r: 2.6, fill: stroke });
      });
      const look = { stroke, "stroke-dasharray": DASHES[series.dash] };
      if (path) draw(svg, "path", { class: "curve", d: path, "data-name": series.name, ...look });
    };

    const read = (point) => {
      current = point;
      const { series, index } = point;
      const look = { cx: point.x, cy: point.y, stroke: ink(series.colour) };
      filled(svg.cursor, look).style.visibility = "visible";
      const places = Object.entries(series.x).map(([key, xs]) => `${key} ${told(xs[index])}`);
      readout.textContent =
        `${series.name}: ${data.y_label} ${told(series.y[index])} at ${places.join(", ")}`;
    };

    const nearest = (event) => {
      if (points.length === 0) return;
      const frame = svg.getBoundingClientRect();
      const [x, y] = [event.clientX - frame.left, event.clientY - frame.top];
      const distance = (p) => (p.x - x) ** 2 + (p.y - y) ** 2;
      read(points.reduce((best, p) => (distance(p) < distance(best) ? p : best)));
    };
    svg.addEventListener("pointermove", nearest);
    svg.addEventListener("pointerdown", nearest);
    svg.addEventListener("keydown", (event) => {
      const along = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      const across = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if ((!along && !across) || points.length === 0) return;
      event.preventDefault();
      const place = points.indexOf(current);
      if (place < 0) return read(points[0]);
      const other = (p) => (along ? true : p.series !== current.series);
      for (let i = place + (along || across); points[i]; i += along || across) {
        if (other(points[i])) return read(points[i]);
      }
    });
    whenResized(stage, paint);
  };

  // --- paths over a landscape ------------------------------------------------------------------

  const paths = (stage, data) => {
    const shown = data.tracks.map(() => true);
    const svg = draw(stage, "svg", { role: "img", "aria-label": `${data.x_label}, ${data.y_label}` });
    const steps = slider(stage, "iteration", () => reveal());
    const last = Math.max(...data.tracks.flatMap((t) => t.iterations));
    filled(steps.input, { max: last });
    steps.input.value = last;
    const write = legend(stage, data.tracks, shown, () => reveal());
    let nodes = [];
    let place = null; // from a point to pixels

    const extent = () => {
      if (data.extent) return data.extent;
      const all = [...data.tracks.flatMap((t) => t.points), ...Object.values(data.markers)];
      return [0, 1].flatMap((axis) => range(all.map((p) => p[axis]), false) ?? [0, 1]);
    };

    const paint = (width) => {
      const [left, right, bottom, top] = extent();
      const shape = data.extent ? Math.min(1.2, Math.abs((top - bottom) / (right - left))) : 0.7;
      const ticks = scale(bottom, top, 0, 1).ticks(8).map(tickLabel);
      const room = Math.min(width, 640);
      const box = boxFor(svg, width, ticks, (w) => shape * Math.min(w, room), 14);
      box.width = Math.min(box.width, room);
      box.right = box.left + box.width;
      const x = scale(left, right, box.left, box.right);
      const y = scale(bottom, top, box.bottom, box.top);
      const frame = { x: box.left, y: box.top, width: box.width, height: box.height };
      draw(svg, "rect", { ...frame, fill: "#ffffff" });
      if (data.image) {
        const look = { href: `${PNG},${data.image}`, preserveAspectRatio: "none" };
        draw(svg, "image", { ...frame, ...look });
      }
      axes(svg, box, x, y, data.x_label, data.y_label, false);
      const inside = draw(svg, "svg", { ...frame, style: "overflow: hidden; width: auto" });
      place = (point) => [x.at(point[0]) - box.left, y.at(point[1]) - box.top];
      nodes = data.tracks.map((track) => {
        const look = { stroke: track.colour, "stroke-dasharray": DASHES[track.dash] };
        const curve = draw(inside, "path", { class: "curve", "data-name": track.name, ...look });
        const head = draw(inside, "circle", { r: 3.6, fill: track.colour, stroke: "#ffffff" });
        return { curve, head };
      });
      for (const [name, point] of Object.entries(data.markers)) {
        const [cx, cy] = place(point);
        draw(inside, "circle", { cx, cy, r: 5, fill: "#ffffff", stroke: "#000000", "stroke-width": 1.5 });
        const text = { x: cx + 9, y: cy + 4, style: "fill: #000; stroke: #fff; stroke-width: 3; paint-order: stroke" };
        draw(inside, "text", text, name);
      }
      draw(svg, "rect", { ...frame, class: "edge" });
      reveal();
    };

    const reveal = () => {
      const now = steps.at();
      steps.output.textContent = `iteration ${now} of ${last}`;
      const losses = data.tracks.map((track, i) => {
        const count = track.iterations.filter((k) => k <= now).length;
        const seen = track.points.slice(0, count).filter((p) => p.every(isNumber)).map(place);
        const d = seen.map(([x, y], k) => `${k ? "L" : "M"}${x.toFixed(2)} ${y.toFixed(2)}`);
        const { curve, head } = nodes[i];
        filled(curve, { d: d.join("") });
        for (const node of [curve, head]) {
          node.style.display = shown[i] && seen.length ? "" : "none";
        }
        if (seen.length) filled(head, { cx: seen.at(-1)[0], cy: seen.at(-1)[1] });
        return track.losses && count ? told(track.losses[count - 1]) : "";
      });
      write(losses);
    };
    whenResized(stage, paint);
  };

  // --- fields over iterations ------------------------------------------------------------------

  const frames = (stage, data) => {
    const names = Object.keys(data.runs);
    let run = names[0];
    if (names.length > 1) {
      const bar = add(stage, "div", { class: "bar" });
      choices(bar, "run", names, run, (name) => {
        run = name;
        fit();
        show();
      });
    }
    const panels = add(stage, "div", { class: "panels" });
    const panel = (title) => {
      const holder = add(panels, "div");
      const heading = add(holder, "h4", {}, title);
      return { holder, heading, svg: draw(holder, "svg", { role: "img", "aria-label": title }) };
    };
    const moving = panel(run);
    const fixed = data.reference && panel(data.reference.label);
    const steps = slider(stage, "frame", () => show());
    const colourBar = draw(stage, "svg", { role: "img", "aria-label": `colours: ${data.unit}` });

    // Another run may have fewer frames; the slider keeps its end at the end.
    const fit = () => {
      const count = data.runs[run].length;
      const atEnd = steps.input.max === "" || steps.at() === Number(steps.input.max);
      const before = steps.at();
      filled(steps.input, { max: count - 1 });
      steps.input.value = atEnd ? count - 1 : Math.min(before, count - 1);
    };

    const paintPanel = (svg, image, width) => {
      const [left, right, bottom, top] = data.extent;
      const ticks = scale(bottom, top, 0, 1).ticks(6).map(tickLabel);
      const shape = Math.abs((top - bottom) / (right - left));
      const box = boxFor(svg, width, ticks, (w) => Math.max(70, Math.min(w, shape * w)));
      const frame = { x: box.left, y: box.top, width: box.width, height: box.height };
      const look = { class: "field", preserveAspectRatio: "none", href: `${PNG},${image}` };
      const field = draw(svg, "image", { ...frame, ...look });
      const x = scale(left, right, box.left, box.right);
      axes(svg, box, x, scale(bottom, top, box.bottom, box.top), data.x_label, data.y_label, false);
      draw(svg, "rect", { ...frame, class: "edge" });
      return field;
    };

    const paintBar = (width) => {
      const [left, right] = [12, Math.min(width - 12, 420)];
      filled(colourBar, { viewBox: `0 0 ${width} 52`, height: 52 }).replaceChildren();
      const frame = { x: left, y: 8, width: right - left, height: 12 };
      const look = { preserveAspectRatio: "none", href: `${PNG},${data.bar}` };
      draw(colourBar, "image", { ...frame, ...look });
      const x = scale(...data.limits, left, right);
      for (const value of x.ticks(5)) {
        const at = x.at(value);
        draw(colourBar, "line", { class: "grid", x1: at, x2: at, y1: 20, y2: 24 });
        draw(colourBar, "text", { x: at, y: 36, "text-anchor": "middle" }, tickLabel(value));
      }
      draw(colourBar, "text", { x: left, y: 50 }, data.unit);
    };

    let field = null;
    const show = () => {
      const frame = data.runs[run][steps.at()];
      moving.heading.textContent = names.length > 1 ? `${run}, ${frame.label}` : frame.label;
      steps.output.textContent = frame.label;
      steps.input.setAttribute("aria-valuetext", frame.label);
      filled(field, { href: `${PNG},${frame.image}` });
    };
    fit();
    whenResized(stage, () => {
      field = paintPanel(moving.svg, data.runs[run][steps.at()].image, moving.holder.clientWidth);
      if (fixed) paintPanel(fixed.svg, data.reference.image, fixed.holder.clientWidth);
      paintBar(stage.clientWidth);
      show();
    });
  };

  const KINDS = { curves, paths, frames };
  for (const figure of document.querySelectorAll("figure.plot")) {
    const stage = document.createElement("div");
    figure.prepend(stage);
    KINDS[figure.dataset.kind](stage, JSON.parse(figure.querySelector("script").textContent));
  }
})();
