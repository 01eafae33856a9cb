// A click on a heading sorts by it, words after numbers.
const sizes = {k: 1e3, M: 1e6, G: 1e9, T: 1e12};
const value = (row, at) => {
  const shown = row.children[at].firstChild?.textContent ?? "";
  const text = shown.replace("−", "-").replace(/,/g, "");
  const number = text.match(/^[+-]?[\d.]+(e[+-]?\d+)?/)?.[0];
  return number ? number * (sizes[text[number.length]] ?? 1) : text;
};
for (const button of document.querySelectorAll("th button")) button.onclick = () => {
  const head = button.parentNode, body = head.closest("table").tBodies[0];
  const order = head.ariaSort === "descending" ? 1 : -1, at = head.cellIndex;
  for (const other of head.parentNode.children) other.ariaSort = null;
  head.ariaSort = order === 1 ? "ascending" : "descending";
  body.append(...[...body.rows].sort((a, b) => {
    const x = value(a, at), y = value(b, at);
    const words = (typeof x === "string") - (typeof y === "string");
    return words || order * (x > y ? 1 : x < y ? -1 : 0);
  }));
};
