// The page: a text box, a card for each model, and a panel for one attention map.

const byId = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg", LEVELS = 24, GUESSES = 5;

function make(tag, attributes = {}, ...children) {
  const node = Object.assign(document.createElement(tag), attributes);
  node.append(...children);
  return node;
}

function shape(tag, attributes, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/** A button that says whether it is on. */
function toggle(label, on, action, attributes = {}) {
  return make("button", { ariaPressed: String(on), onclick: action, ...attributes }, label);
}

/** White to blue; the square root of a weight, as in the report's maps, so that small ones show. */
function colour(weight) {
  const depth = Math.sqrt(Math.min(1, Math.max(0, weight)));
  return [255 - 247 * depth, 255 - 207 * depth, 255 - 148 * depth].map(Math.round);
}

const groups = JSON.parse(byId("models").textContent);
for (const group of groups) {
  group.coder = new Tokenizer(group.tokenizer);
  const labels = group.models.map((entry) => entry.label);
  for (const entry of group.models)
    if (labels.filter((label) => label === entry.label).length > 1) entry.label += ` (${entry.run})`;
}

/** What the URL keeps: the task, the text, the chosen map, query and swapped heads. */
const state = { task: 0, text: null, entry: 0, map: 0, head: 0, query: null, swaps: new Set() };
const group = () => groups[state.task];
const chosen = () => group().models[state.entry];
const swapKey = (entry, layer, head) => `${group().models.indexOf(entry)}/${layer.key}/${head}`;

function readUrl() {
  const given = new URLSearchParams(location.hash.slice(1));
  const number = (name, limit) => {
    const value = Number(given.get(name));
    return Number.isInteger(value) && value >= 0 && value < limit ? value : 0;
  };
  state.task = number("task", groups.length);
  state.text = given.get("text");
  state.entry = number("model", group().models.length);
  state.map = number("map", Infinity);
  state.head = number("head", chosen().config.num_heads);
  state.query = given.has("query") ? number("query", Infinity) : null;
  state.swaps = new Set((given.get("swap") || "").split(" ").filter(Boolean));
}

function writeUrl() {
  const kept = { task: state.task, text: state.text, model: state.entry, map: state.map,
    head: state.head };
  if (state.query !== null) kept.query = state.query;
  if (state.swaps.size) kept.swap = [...state.swaps].join(" ");
  history.replaceState(null, "", `#${new URLSearchParams(kept)}`);
}

/** The heads of a model that take their mean: {key of a layer: [heads]}. */
function swapsOf(entry) {
  const found = {};
  for (const key of state.swaps) {
    const [index, layer, head] = key.split("/");
    if (group().models[index] === entry) (found[layer] ??= []).push(Number(head));
  }
  return found;
}

/** The ids of the text as this task reads it: [{id, bytes}], and how many tokens were cut off. */
function tokensOf(text) {
  const { coder, kind, prefix, tokenizer, models } = group();
  const special = (id) => ({ id, bytes: new Uint8Array() });
  const opening = tokenizer.opening.map(special);
  const { end } = models[0].config;
  let closing = kind === "decoder" ? [] : tokenizer.closing.map(special);
  if (kind === "encoder_decoder" && !tokenizer.closing.includes(end)) closing = [...closing, special(end)];
  const inner = coder.encode(prefix + text);
  const limit = Math.min(...models.map((entry) => entry.config.max_len));
  const room = Math.max(0, limit - opening.length - closing.length);
  const kept = kind === "decoder" ? inner.slice(Math.max(0, inner.length - room)) : inner.slice(0, room);
  return { tokens: [...opening, ...kept, ...closing], cut: inner.length - kept.length };
}

/** A token as the page writes it: spaces and line ends seen, bytes that are no text in hex. */
function shown(id, bytes) {
  const { coder, tokenizer } = group();
  if (tokenizer.special.includes(id)) return coder.pieces[id];
  const given = bytes ?? new TextEncoder().encode(coder.decode([id]));
  const plain = coder.kind === "word" ? coder.decode([id]) : new TextDecoder().decode(given);
  if (plain.includes("\ufffd")) return [...given].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  return plain.replace(/ /g, "\u2423").replace(/\n/g, "\u21b5").replace(/\r/g, "\u240d")
    .replace(/\t/g, "\u21e5");
}

/** Bits of targets under logits (T, V): row t predicts targets[t]. */
function bitsOf({ logits, V }, targets) {
  return targets.reduce((sum, id, t) => sum - logProbabilities(logits, t * V, V)[id] / Math.LN2, 0);
}

/** Run one model: its answer, a number that says how well it does, and what each head did. */
function run(entry, tokens, swaps) {
  const { kind, continues } = group(), ids = tokens.map((token) => token.id), { model } = entry;
  const out = model.forward(ids, null, swaps);
  if (kind === "encoder_decoder") return { ...out, written: out.rows.slice(1) };
  if (kind === "encoder") return { ...out, score: logProbabilities(out.logits, 0, out.V) };
  const bytes = tokens.slice(1).reduce((sum, token) => sum + token.bytes.length, 0);
  const bits = continues && bytes ? bitsOf(out, ids.slice(1)) / bytes : null;
  return { ...out, bits, bytes };
}

/** What swapping costs, in words: the same measure with and without. */
function costOf(entry, tokens, swaps) {
  const { kind, labels } = group(), own = run(entry, tokens, {}), now = entry.out;
  if (kind === "encoder_decoder") {
    const { start, end } = entry.config, ids = tokens.map((token) => token.id);
    const given = [start, ...own.written], targets = [...own.written, end];
    const bits = [{}, swaps].map((heads) => bitsOf(entry.model.forward(ids, given, heads), targets));
    const [before, after] = bits.map((sum) => sum / targets.length);
    return `${before.toFixed(2)} \u2192 ${after.toFixed(2)} bits per token of its own answer`
      + ` (\u201c${group().coder.decode(own.written, group().tokenizer.special)}\u201d)`;
  }
  if (kind === "encoder") {
    const best = own.score.indexOf(Math.max(...own.score));
    const [before, after] = [own, now].map((out) => (100 * Math.exp(out.score[best])).toFixed(1));
    return `${labels[best]}: ${before} \u2192 ${after} %`;
  }
  if (own.bits !== null) {
    const change = now.bits - own.bits;
    return `${own.bits.toFixed(3)} \u2192 ${now.bits.toFixed(3)} bits per byte`
      + ` (${change < 0 ? "\u2212" : "+"}${Math.abs(change).toFixed(3)})`;
  }
  const last = (out) => logProbabilities(out.logits, out.logits.length - out.V, out.V);
  const best = last(own).indexOf(Math.max(...last(own)));
  const [before, after] = [own, now].map((out) => (100 * Math.exp(last(out)[best])).toFixed(1));
  return `${shown(best)}: ${before} \u2192 ${after} %`;
}

/** Everything again: after a new text, task or swap. */
function update() {
  state.text = byId("text").value;
  const began = performance.now(), { tokens, cut } = tokensOf(state.text), { models } = group();
  if (!tokens.length) {
    byId("status").textContent = "Type a text.";
    return;
  }
  state.tokens = tokens;
  for (const entry of models) {
    const swaps = swapsOf(entry);
    entry.out = run(entry, tokens, swaps);
    entry.cost = Object.keys(swaps).length ? costOf(entry, tokens, swaps) : null;
  }
  const spent = performance.now() - began;
  byId("cards").replaceChildren(...models.map(card));
  drawPanel();
  paint();
  const lost = cut ? `; ${cut} more were cut off, the models take no longer text` : "";
  byId("status").textContent = `${tokens.length} tokens${lost}; ${models.length} `
    + `model${models.length > 1 ? "s" : ""} in ${spent.toFixed(0)} ms.`;
  writeUrl();
}

function guesses(entry) {
  const { kind, labels, coder } = group(), { logits, V } = entry.out;
  const scores = logProbabilities(logits, logits.length - V, V);
  const best = Array.from(scores, (score, id) => [id, Math.exp(score)])
    .sort((a, b) => b[1] - a[1]).slice(0, GUESSES);
  return make("div", { className: "guesses" }, ...best.map(([id, share]) => {
    const bar = make("i"), name = kind === "encoder" ? labels[id] : shown(id);
    bar.style.width = `${100 * share}%`;
    const line = make("span", {}, `${name}  ${(100 * share).toFixed(1)} %`);
    if (kind === "encoder") return make("button", { disabled: true }, bar, line);
    const write = () => {
      const space = coder.kind === "word" && state.text ? " " : "";
      byId("text").value += space + coder.decode([id], group().tokenizer.special);
      update();
    };
    return make("button", { title: "append it to the text", onclick: write }, bar, line);
  }));
}

function card(entry, index) {
  const { kind, coder, tokenizer } = group(), { out } = entry;
  const facts = `${entry.score}; ${entry.parameters.toLocaleString("en")} parameters`;
  const node = make("section", { ariaLabel: entry.label },
    make("h2", {}, entry.label), make("p", { className: "note" }, facts));
  if (entry.differs.length)
    node.append(make("p", { className: "note cost" },
      `Not only the synthesis differs from ${group().models[0].label}: ${entry.differs.join("; ")}`));
  if (kind === "encoder_decoder")
    node.append(make("p", { className: "answer" }, coder.decode(out.written, tokenizer.special) || "\u2205"));
  else node.append(guesses(entry));
  if (out.bits) node.append(make("p", {}, `${out.bits.toFixed(3)} bits per byte on your text`));
  if (entry.cost) node.append(make("p", { className: "cost" }, `Swapped for the mean: ${entry.cost}`));
  entry.canvases = [];
  const swapped = swapsOf(entry);
  out.kept.forEach(({ layer, H }, map) => {
    const row = make("div", { className: "maps" });
    for (let head = 0; head < H; head++) {
      const canvas = make("canvas");
      const on = (swapped[layer.key] || []).includes(head);
      entry.canvases.push({ canvas, map, head });
      row.append(toggle(canvas, false, () => choose(index, map, head), {
        className: on ? "swapped" : "", ariaLabel: `${titleOf(layer)}, head ${head + 1}`,
      }));
    }
    node.append(make("h3", {}, titleOf(layer)), row);
  });
  if (!out.kept.length) node.append(make("p", { className: "note" }, "No attention: no maps."));
  return node;
}

function titleOf(layer) {
  return `${layer.title}: ${layer.label}`;
}

function choose(entry, map, head) {
  if (entry !== state.entry || map !== state.map) state.query = null;
  Object.assign(state, { entry, map, head });
  drawPanel();
  paint();
  writeUrl();
  byId("panel").scrollIntoView({ block: "nearest" });
}

/** The small maps: the chosen one is framed, and the row of the chosen query stands out. */
function paint() {
  group().models.forEach((entry, index) => entry.canvases.forEach(({ canvas, map, head }) => {
    const { weights, layer, T, S } = entry.out.kept[map], image = new ImageData(S, T);
    const on = index === state.entry && map === state.map && head === state.head;
    canvas.parentNode.ariaPressed = String(on);
    const here = chosen().out.kept[state.map], sameRows = here && here.layer.stack === layer.stack
      && (group().kind !== "encoder_decoder" || layer.stack === "encoder" || index === state.entry);
    for (let i = 0; i < T; i++) {
      const dim = sameRows && state.query !== null && state.query !== i ? 0.35 : 1;
      for (let j = 0; j < S; j++) {
        const at = (i * S + j) * 4, rgb = colour(weights[(head * T + i) * S + j]);
        for (let k = 0; k < 3; k++) image.data[at + k] = 255 - (255 - rgb[k]) * dim;
        image.data[at + 3] = 255;
      }
    }
    [canvas.width, canvas.height] = [S, T];
    canvas.getContext("2d").putImageData(image, 0, 0);
  }));
}

/** The names of a map's rows and columns. */
function namesOf(entry, kept) {
  const input = state.tokens.map(({ id, bytes }) => shown(id, bytes));
  const output = entry.out.rows.map((id) => shown(id));
  const ofRows = group().kind === "encoder_decoder" && kept.layer.stack === "decoder";
  const rows = ofRows ? output : input;
  if (kept.layer.kind === "linformer")
    return { rows, columns: Array.from({ length: kept.S }, (_, r) => `k${r + 1}`) };
  return { rows, columns: ofRows && !kept.layer.at.endsWith("cross") ? output : input };
}

/** A map as SVG, one path for each shade: weights (T, S) from `from` on. */
function drawMap(weights, from, names, title) {
  const { rows, columns } = names, [T, S] = [rows.length, columns.length];
  const margin = 12 + 6 * Math.min(8, Math.max(...[...rows, ...columns].map((name) => name.length)));
  const paths = new Map();
  for (let i = 0; i < T; i++)
    for (let j = 0; j < S; j++) {
      const level = Math.round(Math.sqrt(weights[from + i * S + j]) * LEVELS);
      if (level) paths.set(level, `${paths.get(level) || ""}M${margin + j * 10} ${margin + i * 10}h10v10h-10z`);
    }
  const label = (name, place) => shape("text", place, name.length > 8 ? `${name.slice(0, 7)}\u2026` : name);
  const size = { width: margin + S * 10, height: margin + T * 10 };
  const svg = shape("svg", { viewBox: `0 0 ${size.width} ${size.height}`, role: "img",
    "font-family": "monospace", "font-size": 9, "data-margin": margin }, shape("title", {}, title),
    shape("rect", { ...size, fill: "#fff" }));
  for (const [level, d] of paths)
    svg.append(shape("path", { d, fill: `rgb(${colour((level / LEVELS) ** 2)})`,
      "shape-rendering": "crispEdges" }));
  rows.forEach((name, i) => svg.append(label(name,
    { x: margin - 3, y: margin + i * 10 + 8, "text-anchor": "end", fill: "#222" })));
  columns.forEach((name, j) => svg.append(label(name,
    { transform: `translate(${margin + j * 10 + 8} ${margin - 3}) rotate(-90)`, fill: "#222" })));
  const frame = { x: margin, y: margin, width: S * 10, height: T * 10 };
  svg.append(shape("rect", { ...frame, fill: "none", stroke: "#999", "stroke-width": 0.5 }));
  return svg;
}

function save(svg, name) {
  const copy = svg.cloneNode(true);
  copy.querySelector(".row")?.remove();
  const [, , width, height] = svg.getAttribute("viewBox").split(" ");
  for (const [key, value] of Object.entries({ xmlns: SVG, width, height })) copy.setAttribute(key, value);
  const url = URL.createObjectURL(new Blob([new XMLSerializer().serializeToString(copy)],
    { type: "image/svg+xml" }));
  make("a", { href: url, download: `${name.replace(/[^\w.+-]+/g, "-")}.svg` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

/** One head of one layer of one model: its map with tokens, its parts, its swap. */
function drawPanel() {
  const entry = chosen(), panel = byId("panel");
  state.map = Math.min(state.map, Math.max(0, entry.out.kept.length - 1));
  const kept = entry.out.kept[state.map];
  panel.hidden = !kept;
  if (!kept) return;
  const { layer, weights, terms, sees, T, S, hasMean } = kept, { head } = state;
  if (state.query !== null && state.query >= T) state.query = null;
  const names = namesOf(entry, kept), title = `${entry.label}, ${titleOf(layer)}, head ${head + 1}`;
  const figure = (values, from, caption) => {
    const svg = drawMap(values, from, names, `${title}: ${caption}`);
    const point = (event) => {
      const box = svg.getBoundingClientRect(), scale = (svg.dataset.margin * 1 + S * 10) / box.width;
      const [j, i] = [event.clientX - box.left, event.clientY - box.top]
        .map((place) => Math.floor((place * scale - svg.dataset.margin) / 10));
      if (i >= 0 && j >= 0 && i < T && j < S) ask(i, j, values[from + i * S + j]);
    };
    svg.onpointermove = point;
    svg.onpointerdown = point;
    const button = make("button", { onclick: () => save(svg, `${title} ${caption}`) }, "Save as SVG");
    return make("figure", {}, svg, make("figcaption", {}, `${caption} `, button));
  };
  const swap = swapKey(entry, layer, head), isSwapped = state.swaps.has(swap);
  const parts = make("div", { className: "parts" }), figures = make("div", { className: "figures" },
    figure(weights, head * T * S, isSwapped ? "mean over train text" : "attention weights"), parts);
  const own = terms.filter(({ first, heads }) => head >= first && head < first + heads);
  if (own.length > 1) for (const { name, first, shares, values } of own) {
    const alpha = shares ? `, \u03b1 ${shares[head - first].toFixed(2)}` : "";
    const logits = values.subarray((head - first) * T * S, (head - first + 1) * T * S);
    parts.append(figure(maskedSoftmax(logits, T, S, sees), 0, `${name}${alpha}`));
  }
  const readout = make("p", { id: "readout", role: "status" });
  const strip = (id, label, all, action) => make("div", { id, className: "strip", ariaLabel: label, role: "group" },
    ...all.map((name, t) => {
      const token = toggle(name || "\u2205", false, () => action(t));
      token.onpointerenter = token.onfocus = () => action(t);
      return token;
    }));
  const queries = strip("queries", "queries", names.rows, (t) => ask(t));
  const keys = strip("keys", "keys", names.columns, (t) => state.query !== null && ask(state.query, t));
  const buttons = make("div", { className: "buttons" });
  if (hasMean) buttons.append(toggle("Swap this head for its mean over train text", isSwapped, () => {
    if (!state.swaps.delete(swap)) state.swaps.add(swap);
    update();
  }, { id: "swap" }));
  const isFixed = layer.kind === "attention" && !layer.at.endsWith("cross");
  const reason = isFixed ? "This head reads no tokens: its map is its mean." : "";
  const notes = [hasMean ? `The mean is over ${entry.mean_tokens.toLocaleString("en")} tokens.` : reason,
    own.length > 1 ? "Its own map is the product of its parts, each row scaled to sum to one." : ""];
  panel.replaceChildren(make("h2", {}, title), buttons, make("p", { className: "note" }, notes.join(" ")),
    make("h3", {}, "Query: point at a token"), queries,
    make("h3", {}, "Keys: how much it attends to each"), keys, readout, figures);
  if (state.query !== null) ask(state.query);

  /** Show the row of query i; with a key, its weight too. No node is made: no endless hovering. */
  function ask(i, j = null, weight = null) {
    const row = weights.subarray((head * T + i) * S, (head * T + i + 1) * S);
    const changed = state.query !== i;
    state.query = i;
    [...queries.children].forEach((node, t) => (node.ariaPressed = String(t === i)));
    [...keys.children].forEach((node, t) => {
      node.style.background = `rgb(${colour(row[t])})`;
      node.style.color = row[t] > 0.2 ? "#fff" : "#111";
    });
    const most = [...row].map((share, t) => [t, share]).sort((a, b) => b[1] - a[1]).slice(0, 4)
      .filter(([, share]) => share > 0);
    const said = ([t, share]) => `${names.columns[t]} (${t + 1}) ${share.toFixed(3)}`;
    const asked = j === null ? most.map(said).join(", ") : said([j, weight ?? row[j]]);
    readout.textContent = `${names.rows[i]} (${i + 1}) \u2192 ${asked}`;
    for (const svg of figures.querySelectorAll("svg")) {
      svg.querySelector(".row")?.remove();
      const margin = Number(svg.dataset.margin);
      svg.append(shape("rect", { class: "row", x: margin, y: margin + i * 10, width: S * 10, height: 10,
        fill: "none", stroke: "#c44e00", "stroke-width": 1.5 }));
    }
    if (changed) { paint(); writeUrl(); }
  }
}

function chooseTask(task) {
  if (task !== state.task) Object.assign(state, { task, text: null, entry: 0, map: 0, head: 0,
    query: null, swaps: new Set() });
  byId("tabs").replaceChildren(...(groups.length > 1 ? groups : []).map(({ title }, index) =>
    toggle(title, index === task, () => chooseTask(index))));
  const { examples, title } = group();
  document.title = `${title} - play`;
  byId("examples").replaceChildren("Try:", ...examples.map((text) => make("button", {
    onclick: () => { byId("text").value = text; update(); },
  }, text.length > 60 ? `${text.slice(0, 59)}\u2026` : text)));
  byId("text").value = state.text ?? examples[0] ?? "";
  update();
}

function follow() {
  readUrl();
  chooseTask(state.task);
}

/** Unpack the weights, then show the page as the URL says. */
async function start() {
  byId("status").textContent = "Unpacking the models.";
  if (typeof DecompressionStream === "undefined") {
    byId("status").textContent = "This browser has no DecompressionStream, which unpacks the models; "
      + "use a newer one.";
    return;
  }
  await Promise.all(groups.flatMap((group) => group.models).map(async (entry) => {
    entry.model = new Model(entry.config, await readTensors(entry.tensors));
  }));
  byId("text").oninput = update;
  window.onhashchange = follow;  // a link pasted into the open page
  follow();
}

const started = start();
