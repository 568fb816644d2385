// The plots: curves, paths over a landscape, fields. Their data are written by plots.py.

const curves = (figure, data) => {
  const stage = stageFor(figure, `${data.y_label}; arrow keys step through the points`);
  const { svg } = stage;
  const abscissae = [...new Set(data.series.flatMap((s) => Object.keys(s.x)))];
  const shown = data.series.map(() => true);
  const state = { x: abscissae[0], logX: data.log_x, logY: data.log };
  let points = []; // of the visible series: {series, index, x, y} in pixels
  let current = null;
  let cursor = null;

  const change = (changed) => {
    Object.assign(state, changed);
    stage.whole();
  };
  if (abscissae.length > 1) choices(stage.bar, "against", abscissae, state.x, (x) => change({ x }));
  const scales = add(stage.bar, "span", { class: "choices" });
  button(scales, "log y", state.logY, (made) => change({ logY: toggled(made) }));
  button(scales, "log x", state.logX, (made) => change({ logX: toggled(made) }));
  legend(stage.foot, data.series, shown, stage.again);

  const usable = (value, log) => isNumber(value) && (!log || value > 0);

  stage.paint = (width) => {
    const visible = data.series.filter((s, i) => shown[i] && s.x[state.x]);
    const drawable = visible.map((s) =>
      s.y.map((y, i) => usable(y, state.logY) && usable(s.x[state.x][i], state.logX)),
    );
    const pick = (of) => visible.flatMap((s, k) => of(s).filter((_, i) => drawable[k][i]));
    const levels = Object.entries(data.levels).filter((l) => usable(l[1], state.logY));
    const all = [range(pick((s) => s.x[state.x]), state.logX)];
    all.push(range([...pick((s) => s.y), ...levels.map((l) => l[1])], state.logY));
    const height = Math.max(220, Math.min(400, 0.56 * width));
    points = [];
    current = null;
    stage.clear(height + 66);
    if (!all[0] || !all[1]) {
      draw(svg, "text", { x: 12, y: 40 }, "Nothing to draw with these choices.");
      return;
    }
    const view = stage.view ?? { x: all[0], y: all[1] };
    const labels = scale(...view.y, 0, 1, state.logY).ticks(height / 45).map(tickLabel);
    const left = marginFor(labels);
    const size = [width - left - 14, height];
    const box = boxOf(left, 24, ...size, view.x, view.y, state.logX, state.logY);
    stage.boxes = [box];
    ticksOf(svg, box, true);
    const middle = (box.left + box.right) / 2;
    draw(svg, "text", { x: middle, y: box.bottom + 35, "text-anchor": "middle" }, state.x);
    draw(svg, "text", { x: 2, y: 13 }, data.y_label);
    const area = clipped(svg, box);
    for (const [label, value] of levels) {
      const at = box.y.at(value);
      draw(area, "line", { class: "level", x1: box.left, x2: box.right, y1: at, y2: at });
      const y = at < box.top + 16 ? at + 14 : at - 4;
      draw(area, "text", { x: box.right - 3, y, "text-anchor": "end" }, label);
    }
    visible.forEach((series, k) => line(area, series, drawable[k], box));
    points = points.filter((p) => p.x > box.left - 1 && p.x < box.right + 1);
    points = points.filter((p) => p.y > box.top - 1 && p.y < box.bottom + 1);
    cursor = draw(svg, "circle", { class: "cursor", r: 5, fill: "none", "stroke-width": 2 });
    cursor.style.display = "none";
  };

  const line = (area, series, drawable, box) => {
    const abscissa = series.x[state.x];
    const dots = drawable.filter(Boolean).length <= 25;
    const stroke = ink(series.colour);
    let path = "";
    let pen = false;
    series.y.forEach((value, index) => {
      if (!drawable[index]) {
        const below = pen && isNumber(value) && usable(abscissa[index], state.logX);
        if (below) path += `L${box.x.at(abscissa[index]).toFixed(2)} ${box.bottom + 9}`;
        return void (pen = false);
      }
      const point = { series, index, x: box.x.at(abscissa[index]), y: box.y.at(value) };
      path += `${pen ? "L" : "M"}${point.x.toFixed(2)} ${point.y.toFixed(2)}`;
      pen = true;
      points.push(point);
      if (dots) draw(area, "circle", { cx: point.x, cy: point.y, r: 2.6, fill: stroke });
    });
    const look = { stroke, "stroke-dasharray": DASHES[series.dash] };
    if (path) draw(area, "path", { class: "curve", d: path, "data-name": series.name, ...look });
  };

  const read = (point) => {
    current = point;
    const { series, index } = point;
    const look = { cx: point.x, cy: point.y, stroke: ink(series.colour) };
    filled(cursor, look).style.display = "";
    const places = Object.entries(series.x).map(([key, xs]) => `${key} ${told(xs[index])}`);
    return [series.name, `${data.y_label} ${told(series.y[index])}`, ...places];
  };
  stage.point = (x, y) => {
    if (points.length === 0) return null;
    const distance = (p) => (p.x - x) ** 2 + (p.y - y) ** 2;
    return read(points.reduce((best, p) => (distance(p) < distance(best) ? p : best)));
  };
  svg.addEventListener("keydown", (event) => {
    const along = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const across = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if ((!along && !across) || points.length === 0) return;
    event.preventDefault();
    const other = (p) => (along ? true : p.series !== current.series);
    let place = points.indexOf(current);
    do place += along || across;
    while (current && points[place] && !other(points[place]));
    const point = points[place] ?? current ?? points[0];
    stage.tell(point.x, point.y, read(point));
  });
  stage.rows = () => [
    ["series", ...abscissae, data.y_label],
    ...data.series.flatMap((s) =>
      s.y.map((y, i) => [s.name, ...abscissae.map((key) => s.x[key]?.[i]), y]),
    ),
  ];
  show(stage);
};

// The value of a landscape at a share of its width and height, counted in levels from the lowest.
const bandAt = (land, shades, across, down) => {
  const [rows, columns] = land.shape;
  const [u, v] = [across * (columns - 1), down * (rows - 1)];
  if (!(u >= 0 && v >= 0 && u <= columns - 1 && v <= rows - 1)) return NaN;
  const [i, j] = [Math.min(Math.floor(v), rows - 2), Math.min(Math.floor(u), columns - 2)];
  const at = i * columns + j;
  const corners = [shades[at], shades[at + 1], shades[at + columns], shades[at + columns + 1]];
  const [s, t] = [u - j, v - i];
  const value =
    (1 - t) * ((1 - s) * corners[0] + s * corners[1]) + t * ((1 - s) * corners[2] + s * corners[3]);
  return (value / SHADES) * (land.levels.length - 1);
};

const paths = async (figure, data) => {
  const land = data.landscape;
  const [coarse, fine] = land ? await unpack(land) : [];
  const shades = land && Float32Array.from(coarse, (s, k) => (s > SHADES ? NaN : s + fine[k] / SHADES));
  const stage = stageFor(figure, `${data.x_label}, ${data.y_label}`);
  const { svg } = stage;
  const shown = data.tracks.map(() => true);
  const last = Math.max(...data.tracks.flatMap((t) => t.iterations));
  const steps = slider(stage.root, "iteration", last, (now) => {
    reveal(now);
    return `iteration ${now} of ${last}`;
  });
  const write = legend(stage.foot, data.tracks, shown, () => steps.again());
  const points = [...data.tracks.flatMap((t) => t.points), ...Object.values(data.markers)];
  const around = (axis) => range(points.map((p) => p[axis]), false) ?? [0, 1];
  const whole = land ? { x: land.extent.slice(0, 2), y: land.extent.slice(2) } : null;
  const full = whole ?? { x: around(0), y: around(1) };
  let nodes = [];
  let seen = []; // pixels of the points that are drawn, with what they are

  const bandOf = (x, y) => {
    const [left, right, bottom, top] = land.extent;
    return bandAt(land, shades, (x - left) / (right - left), (top - y) / (top - bottom));
  };
  // Shaded areas between levels, and the level lines.
  const ground = (box) => {
    const [width, height] = [Math.round(2 * box.width), Math.round(2 * box.height)];
    const bands = new Float32Array(width * height);
    const [x, y] = [(at) => box.x.of(box.left + at / 2), (at) => box.y.of(box.top + at / 2)];
    for (let row = 0, at = 0; row < height; row++) {
      for (let column = 0; column < width; column++, at++) {
        bands[at] = Math.floor(bandOf(x(column + 0.5), y(row + 0.5)));
      }
    }
    const [low, high, edge] = dark.matches ? [30, 74, 104] : [252, 190, 150];
    const most = Math.max(1, land.levels.length - 2);
    return picture(width, height, (column, row) => {
      const at = row * width + column;
      if (Number.isNaN(bands[at])) return CLEAR;
      const rest = column > 0 && row > 0 ? [bands[at - 1], bands[at - width]] : [bands[at]];
      const line = rest.some((band) => band !== bands[at] && !Number.isNaN(band));
      const grey = line ? edge : low + ((high - low) * Math.min(bands[at], most)) / most;
      return [grey, grey, grey + (line ? 6 : 2), 255];
    });
  };

  stage.paint = (width) => {
    const view = stage.view ?? full;
    const left = marginFor(scale(...view.y, 0, 1).ticks(8).map(tickLabel));
    const room = Math.min(width - left - 14, 600);
    const shape = land && Math.abs((full.y[1] - full.y[0]) / (full.x[1] - full.x[0]));
    const height = room * (land ? Math.max(0.3, Math.min(0.9, shape)) : 0.7);
    const wide = land && shape > 0.9 ? Math.max(height / shape, 0.6 * room) : room;
    stage.clear(height + 66);
    const box = boxOf(left, 24, wide, height, view.x, view.y);
    stage.boxes = [box];
    if (land) draw(svg, "image", { ...rectangle(box), preserveAspectRatio: "none", href: ground(box) });
    ticksOf(svg, box, !land);
    const middle = (box.left + box.right) / 2;
    draw(svg, "text", { x: middle, y: box.bottom + 35, "text-anchor": "middle" }, data.x_label);
    draw(svg, "text", { x: 2, y: 13 }, data.y_label);
    const area = clipped(svg, box);
    nodes = data.tracks.map((track) => {
      const stroke = ink(track.colour);
      const look = { stroke, "stroke-dasharray": DASHES[track.dash] };
      const curve = draw(area, "path", { class: "curve", "data-name": track.name, ...look });
      return { curve, head: draw(area, "circle", { class: "head", r: 3.8, fill: stroke }) };
    });
    for (const [name, point] of Object.entries(data.markers)) {
      const [cx, cy] = [box.x.at(point[0]), box.y.at(point[1])];
      draw(area, "circle", { class: "marker", cx, cy, r: 5 });
      const before = cx > box.left + 0.75 * box.width; // there is no room after it
      const at = { x: cx + (before ? -9 : 9), y: cy + 4, "text-anchor": before ? "end" : "start" };
      draw(area, "text", { class: "name", ...at }, name);
    }
    draw(svg, "rect", { ...rectangle(box), class: "edge" });
    steps.again();
  };

  const reveal = (now) => {
    seen = [];
    const [box] = stage.boxes;
    const losses = data.tracks.map((track, i) => {
      const count = track.iterations.filter((k) => k <= now).length;
      let path = "";
      let end = null;
      for (let k = 0, pen = false; k < count; k++) {
        if (!track.points[k].every(isNumber)) {
          pen = false;
          continue;
        }
        end = [box.x.at(track.points[k][0]), box.y.at(track.points[k][1])];
        path += `${pen ? "L" : "M"}${end[0].toFixed(2)} ${end[1].toFixed(2)}`;
        pen = true;
        if (shown[i]) seen.push({ track, k, x: end[0], y: end[1] });
      }
      const { curve, head } = nodes[i];
      filled(curve, { d: path });
      for (const node of [curve, head]) node.style.display = shown[i] && end ? "" : "none";
      if (end) filled(head, { cx: end[0], cy: end[1] });
      return track.losses && count ? told(track.losses[count - 1]) : "";
    });
    write(losses);
  };
  const levelAt = (x, y) => {
    const band = bandOf(x, y);
    const k = Math.min(Math.floor(band), land.levels.length - 2);
    if (Number.isNaN(band) || k < 0) return [];
    const value = land.levels[k] + (band - k) * (land.levels[k + 1] - land.levels[k]);
    return [`f ≈ ${written(value, 2, 1e-3, 1e6, 4)}`];
  };
  stage.point = (x, y) => {
    const distance = (p) => (p.x - x) ** 2 + (p.y - y) ** 2;
    const near = seen.reduce((best, p) => (distance(p) < Math.min(distance(best), 400) ? p : best), {
      x: Infinity,
    });
    const place = (px, py) => `${data.x_label} ${told(px)}, ${data.y_label} ${told(py)}`;
    if (near.track) {
      const { track, k } = near;
      const loss = track.losses ? [`loss ${told(track.losses[k])}`] : [];
      return [`${track.name}, iteration ${track.iterations[k]}`, place(...track.points[k]), ...loss];
    }
    const [box] = stage.boxes;
    if (!land || x < box.left || x > box.right || y < box.top || y > box.bottom) return null;
    const [px, py] = [box.x.of(x), box.y.of(y)].map((value) => Number(value.toPrecision(4)));
    return [place(px, py), ...levelAt(px, py)];
  };
  stage.rows = () => [
    ["path", "iteration", data.x_label, data.y_label, "loss"],
    ...data.tracks.flatMap((t) =>
      t.points.map((point, k) => [t.name, t.iterations[k], ...point, t.losses?.[k]]),
    ),
  ];
  show(stage);
};

const frames = async (figure, data) => {
  const images = await unpack(data);
  const [rows, columns] = data.shape;
  const [left, right, bottom, top] = data.extent;
  const [low, high] = data.limits;
  let used = 0;
  const panels = Object.entries(data.runs).map(([name, labels]) => ({
    name,
    labels,
    images: images.slice(used, (used += labels.length)),
  }));
  if (data.reference !== null) {
    panels.push({ name: data.reference, labels: [""], images: images.slice(used) });
  }
  const stage = stageFor(figure, `fields: ${panels.map((p) => p.name).join(", ")}`);
  const { svg } = stage;
  const last = Math.max(...panels.map((p) => p.labels.length)) - 1;
  const longest = panels.find((p) => p.labels.length === last + 1);
  const now = (panel, k) => Math.min(k, panel.labels.length - 1);
  let letters = 0; // that fit over a panel
  const frame = (k) => {
    panels.forEach((panel) => {
      const label = panel.labels[now(panel, k)];
      const texts = [`${panel.name}, ${label}`, panel.name, `${panel.name.slice(0, letters - 1)}…`];
      const fits = texts.slice(label ? 0 : 1).find((text) => text.length <= letters);
      panel.heading.textContent = fits ?? texts[2];
      filled(panel.picture, { href: address(panel, now(panel, k)) });
    });
    return longest.labels[k];
  };
  const steps = last ? slider(stage.root, "frame", last, frame) : { at: () => 0, again: () => frame(0) };
  let colours = null;
  onTheme(() => {
    colours = palette(data.colours);
    panels.forEach((panel) => (panel.made = []));
  });
  const address = (panel, k) =>
    (panel.made[k] ??= picture(columns, rows, (column, row) =>
      coloured(panel.images[k][row * columns + column], colours),
    ));

  // As few columns of panels as keep the plot low, and rows as full as each other.
  const layout = (width, view) => {
    const margin = marginFor(scale(...view.y, 0, 1).ticks(6).map(tickLabel));
    const shape = data.aspect ?? Math.abs((top - bottom) / (right - left));
    const most = Math.min(panels.length, Math.max(1, Math.floor(width / 150)));
    const sized = (count) => {
      const room = (width - margin - 6) / count - 12;
      const tall = Math.max(50, Math.min(shape * room, 1.2 * room, width < 450 ? 440 : 0.55 * width, 440));
      const lines = Math.ceil(panels.length / count);
      return { margin, count, lines, tall, wide: Math.min(room, tall / Math.min(shape, 1.2)) };
    };
    let count = 1;
    while (count < most && sized(count).lines * (sized(count).tall + 26) > (width < 600 ? 700 : 440)) {
      count++;
    }
    return sized(Math.ceil(panels.length / Math.ceil(panels.length / count)));
  };

  stage.paint = (width) => {
    const view = stage.view ?? { x: [left, right], y: [bottom, top] };
    const { margin, count, wide, tall, lines } = layout(width, view);
    const end = 18 + lines * (tall + 26);
    letters = Math.floor(wide / 6.6);
    stage.clear(end + 88);
    panels.forEach((panel, k) => {
      const [row, column] = [Math.floor(k / count), k % count];
      const place = [margin + column * (wide + 12), 40 + row * (tall + 26)];
      const box = boxOf(...place, wide, tall, view.x, view.y);
      stage.boxes.push(box);
      panel.heading = draw(svg, "text", { class: "title", x: box.left, y: box.top - 7 });
      const area = clipped(svg, box);
      const ends = [box.x.at(left), box.x.at(right), box.y.at(top), box.y.at(bottom)];
      const size = { x: ends[0], width: ends[1] - ends[0], y: ends[2], height: ends[3] - ends[2] };
      const look = { class: "field", preserveAspectRatio: "none" };
      panel.picture = draw(area, "image", { ...size, ...look });
      panel.cross = draw(area, "circle", { class: "cross cursor", r: 4 });
      panel.cross.style.display = "none";
      ticksOf(svg, box, false, k + count >= panels.length, column === 0);
      draw(svg, "rect", { ...rectangle(box), class: "edge" });
    });
    draw(svg, "text", { x: 2, y: 13 }, data.y_label);
    const across = { x: margin + wide / 2, y: end + 28, "text-anchor": "middle" };
    draw(svg, "text", across, data.x_label);
    paintBar(margin, Math.min(width - margin - 14, 380), end + 42);
    steps.again();
  };

  const paintBar = (from, length, y) => {
    const href = picture(SHADES + 1, 1, (shade) => coloured(shade, colours));
    const look = { preserveAspectRatio: "none", href, height: 10 };
    draw(svg, "image", { x: from, y, width: length, ...look });
    const x = scale(low, high, from, from + length);
    const named = Object.entries(data.names).map(([name, value]) => [value, name]);
    const marks = named.length ? named : x.ticks(5).map((value) => [value, tickLabel(value)]);
    for (const [value, label] of marks) {
      const at = x.at(value);
      const anchor = at < from + 30 ? "start" : at > from + length - 30 ? "end" : "middle";
      draw(svg, "line", { class: "grid", x1: at, x2: at, y1: y + 10, y2: y + 14 });
      draw(svg, "text", { x: at, y: y + 26, "text-anchor": anchor }, label);
    }
    draw(svg, "text", { x: from, y: y + 42 }, data.unit);
  };

  const shadeAt = (panel, x, y) => {
    const column = Math.floor(((x - left) / (right - left)) * columns);
    const row = Math.floor(((top - y) / (top - bottom)) * rows);
    if (column < 0 || row < 0 || column >= columns || row >= rows) return SHADES + 1;
    return panel.images[now(panel, steps.at())][row * columns + column];
  };
  const valueOf = (shade) => (shade > SHADES ? null : low + ((high - low) * shade) / SHADES);
  const worded = (value) => {
    if (value === null) return "–";
    const name = Object.entries(data.names).find(([, at]) => Math.abs(at - value) < (high - low) / 99);
    return name ? name[0] : written(value, 2, 1e-3, 1e6, 3);
  };
  stage.point = (px, py) => {
    const within = (b) => px >= b.left && px <= b.right && py >= b.top && py <= b.bottom;
    const box = stage.boxes.find(within);
    panels.forEach((panel) => (panel.cross.style.display = box ? "" : "none"));
    if (!box) return null;
    const [x, y] = [box.x.of(px), box.y.of(py)];
    panels.forEach((panel, k) => {
      const own = stage.boxes[k];
      filled(panel.cross, { cx: own.x.at(x), cy: own.y.at(y) });
    });
    const place = (label, value) => {
      const [name, unit] = label.split(", ");
      return [name, told(Number(value.toPrecision(3))), unit].filter(Boolean).join(" ");
    };
    return [
      `${place(data.x_label || "x", x)}, ${place(data.y_label || "y", y)}`,
      ...panels.map((panel) => `${panel.name}: ${worded(valueOf(shadeAt(panel, x, y)))}`),
    ];
  };
  // The centres of the cells of the frames on show; values are rounded to 1/254 of the limits.
  stage.rows = () => [
    ["field", "frame", data.x_label || "x", data.y_label || "y", data.unit || "value"],
    ...panels.flatMap((panel) => {
      const k = now(panel, steps.at());
      return Array.from(panel.images[k], (shade, at) => [
        panel.name,
        panel.labels[k],
        Number((left + ((at % columns) + 0.5) * ((right - left) / columns)).toPrecision(7)),
        Number((top - (Math.floor(at / columns) + 0.5) * ((top - bottom) / rows)).toPrecision(7)),
        shade > SHADES ? null : Number(valueOf(shade).toPrecision(4)),
      ]);
    }),
  ];
  show(stage);
};
