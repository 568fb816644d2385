// Buttons, legends and sliders.

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
// `colour` maps a line's colour to that of its sample.
const legend = (parent, lines, shown, colour, changed) => {
  const group = add(parent, "div", { class: "legend", role: "group", "aria-label": "legend" });
  const values = lines.map((line, i) => {
    const button = add(group, "button", { type: "button", "aria-pressed": "true" });
    const sample = draw(button, "svg", { viewBox: "0 0 26 10", "aria-hidden": "true" });
    const look = { stroke: colour(line.colour), "stroke-dasharray": DASHES[line.dash] };
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
