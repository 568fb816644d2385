// Elements, and numbers as text.

const template = document.createElement("template");
template.innerHTML = "<svg></svg>";
const NAMESPACE = template.content.firstChild.namespaceURI;
const PNG = "data:image/png;base64";
const DASHES = { "-": "", "--": "7 4", ":": "2 3", "-.": "8 3 2 3" };
const LETTER = 6.9; // width of a digit in the labels, in pixels

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
