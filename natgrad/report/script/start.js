// Draws every figure of the class "plot", which holds its data as JSON.

const KINDS = { curves, paths, frames };
for (const figure of document.querySelectorAll("figure.plot")) {
  const stage = document.createElement("div");
  figure.prepend(stage);
  KINDS[figure.dataset.kind](stage, JSON.parse(figure.querySelector("script").textContent));
}
