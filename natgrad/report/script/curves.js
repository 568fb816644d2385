// Curves with a choice of abscissa; see curves.py for the data.

const HINT = "Point at a curve, or tap it, to read its values.";

const curves = (stage, data) => {
  const abscissae = [...new Set(data.series.flatMap((s) => Object.keys(s.x)))];
  const shown = data.series.map(() => true);
  const state = { x: abscissae[0], logX: data.log_x, logY: data.log, width: 0 };
  let points = []; // of the visible series: {series, index, x, y} in pixels
  let current = null;
  let cursor = null;

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
  legend(stage, data.series, shown, ink, again(() => ({})));

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
    readout.textContent = HINT;
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
    cursor = draw(svg, "circle", { r: 5, fill: "none", "stroke-width": 2 });
    cursor.style.visibility = "hidden";
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
    filled(cursor, look).style.visibility = "visible";
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
