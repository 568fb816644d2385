// Fields over iterations; see frames.py for the data.

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
