// Paths over a landscape; see paths.py for the data.

const paths = (stage, data) => {
  const shown = data.tracks.map(() => true);
  const svg = draw(stage, "svg", { role: "img", "aria-label": `${data.x_label}, ${data.y_label}` });
  const steps = slider(stage, "iteration", () => reveal());
  const last = Math.max(...data.tracks.flatMap((t) => t.iterations));
  filled(steps.input, { max: last });
  steps.input.value = last;
  const write = legend(stage, data.tracks, shown, (colour) => colour, () => reveal());
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
    const inside = draw(svg, "svg", frame);
    place = (point) => [x.at(point[0]) - box.left, y.at(point[1]) - box.top];
    nodes = data.tracks.map((track) => {
      const look = { stroke: track.colour, "stroke-dasharray": DASHES[track.dash] };
      const curve = draw(inside, "path", { class: "curve", "data-name": track.name, ...look });
      const head = draw(inside, "circle", { r: 3.6, fill: track.colour, stroke: "#ffffff" });
      return { curve, head };
    });
    for (const [name, point] of Object.entries(data.markers)) {
      const [cx, cy] = place(point);
      draw(inside, "circle", { class: "marker", cx, cy, r: 5 });
      const before = cx > 0.75 * box.width; // there is no room after it
      const at = { x: cx + (before ? -9 : 9), y: cy + 4, "text-anchor": before ? "end" : "start" };
      draw(inside, "text", { class: "name", ...at }, name);
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
