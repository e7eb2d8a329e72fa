// Shared helpers: elements, and formats of numbers.
// Every text from the cluster becomes a text node, which is never parsed as HTML.

export const $ = (id) => document.getElementById(id);

export function element(tag, text, name) {
  const made = document.createElement(tag);
  if (text) made.textContent = text;
  if (name) made.className = name;
  return made;
}

// Makes `kept` equal to `wanted` and changes only what differs, so that a screen reader keeps its
// place.
export function settle(kept, wanted) {
  for (const { name, value } of wanted.attributes) {
    if (name !== "style" && kept.getAttribute(name) !== value) kept.setAttribute(name, value);
  }
  if (kept.style.cssText !== wanted.style.cssText) kept.style.cssText = wanted.style.cssText;
  settleChildren(kept, [...wanted.childNodes]);
}

export function settleChildren(kept, wanted) {
  wanted.forEach((node, index) => {
    const known = kept.childNodes[index];
    if (known?.nodeName !== node.nodeName || known.className !== node.className) {
      if (known) known.replaceWith(node);
      else kept.append(node);
    } else if (node.nodeType === Node.TEXT_NODE) {
      if (known.data !== node.data) known.data = node.data;
    } else {
      settle(known, node);
    }
  });
  while (kept.childNodes.length > wanted.length) kept.lastChild.remove();
}

// Sets only a new text: a screen reader reads an alert each time that its text is set.
export function say(id, text) {
  if ($(id).textContent !== text) $(id).textContent = text;
}

export function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = Math.floor(sorted.length / 2);
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

export function quantile(values, level) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.ceil(level * sorted.length) - 1)];
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  return value < 0.9995 ? `${Math.round(1000 * value)} ms` : `${value.toPrecision(3)} s`;
}

export function row(cells, header) {
  const made = element("tr");
  cells.forEach((cell, index) => {
    const box = element(index === 0 && header ? "th" : "td");
    if (index === 0 && header) box.scope = "row";
    box.append(cell);
    made.append(box);
  });
  return made;
}

export function table(titles, rows) {
  const made = element("table");
  const head = element("thead");
  head.append(element("tr"));
  for (const title of titles) {
    const cell = element("th", title);
    cell.scope = "col";
    head.firstChild.append(cell);
  }
  const body = element("tbody");
  body.append(...rows);
  made.append(head, body);
  return made;
}

// A box for content that may be wider than the screen; it takes keyboard focus, to scroll.
export function wide(name, content) {
  const box = element("div", "", "wide");
  box.setAttribute("role", "group");
  box.setAttribute("aria-label", name);
  box.tabIndex = 0;
  box.append(content);
  return box;
}
