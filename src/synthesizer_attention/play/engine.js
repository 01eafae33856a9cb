// Trained models in plain JavaScript: tokenizers and forward passes, one text at a time.
// Arithmetic is float64, what is kept between layers float32. Tensors have the names and shapes of
// PyTorch's state dict. Letters: T queries, S keys, D model, H heads, K head width, N max_len.
"use strict";

/** Every float16, by its bits. */
const HALVES = Float32Array.from({ length: 65536 }, (_, bits) => {
  const sign = bits & 32768 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
});

/** {shapes, dtype, data}, as export.py packs tensors -> {name: {shape, values}}. */
async function readTensors({ shapes, dtype, data }) {
  const letters = atob(data), packed = new Uint8Array(letters.length);
  for (let n = 0; n < packed.length; n++) packed[n] = letters.charCodeAt(n);
  const inflated = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const planes = new Uint8Array(await new Response(inflated).arrayBuffer());
  const width = dtype === "float32" ? 4 : 2, count = planes.length / width;
  const all = new Float32Array(count);  // the first bytes of all numbers stood first
  if (width === 2)
    for (let n = 0; n < count; n++) all[n] = HALVES[planes[n] | (planes[count + n] << 8)];
  else {
    const bytes = new Uint8Array(all.buffer);
    planes.forEach((byte, n) => (bytes[(n % count) * 4 + Math.floor(n / count)] = byte));
  }
  const tensors = {};
  let at = 0;
  for (const [name, shape] of Object.entries(shapes)) {
    const size = shape.reduce((a, b) => a * b, 1);
    tensors[name] = { shape, values: all.subarray(at, at + size) };
    at += size;
  }
  return tensors;
}

/** x (T, D) times the transpose of weight (E, D), plus bias (E): (T, E).
 *
 * Two rows and four columns at once, so that a number is read once for several products; the
 * weights as float64, so that none is converted in the loop. An x with a Map `made` keeps what was
 * made of it, and of a longer one only the new rows are made: a memory, and the tokens written. */
function linear(x, weight, bias) {
  const [E, D] = weight.shape, T = x.length / D;
  if (x.made) {
    const old = x.made.get(weight) || new Float32Array(0), from = (old.length / E) * D;
    if (from < x.length) x.made.set(weight, joined(old, linear(x.subarray(from), weight, bias)));
    return x.made.get(weight);
  }
  const y = new Float32Array(T * E);
  const w = (weight.wide ??= Float64Array.from(weight.values)), rows = Float64Array.from(x);
  const one = (t, e) => {
    let sum = 0;
    for (let d = 0, i = t * D, j = e * D; d < D; d++) sum += rows[i + d] * w[j + d];
    y[t * E + e] = sum;
  };
  let t = 0;
  for (; t + 2 <= T; t += 2) {
    let e = 0;
    for (; e + 4 <= E; e += 4) {
      let a = 0, b = 0, c = 0, d = 0, f = 0, g = 0, h = 0, k = 0;
      for (let i = t * D, j = e * D, end = i + D; i < end; i++, j++) {
        const p = rows[i], q = rows[i + D], m = w[j], n = w[j + D], r = w[j + 2 * D], s = w[j + 3 * D];
        a += p * m; b += p * n; c += p * r; d += p * s;
        f += q * m; g += q * n; h += q * r; k += q * s;
      }
      const at = t * E + e;
      y[at] = a; y[at + 1] = b; y[at + 2] = c; y[at + 3] = d;
      y[at + E] = f; y[at + E + 1] = g; y[at + E + 2] = h; y[at + E + 3] = k;
    }
    for (; e < E; e++) { one(t, e); one(t + 1, e); }
  }
  if (t < T) for (let e = 0; e < E; e++) one(t, e);
  if (bias) for (let row = 0, n = 0; row < T; row++)
    for (let e = 0; e < E; e++, n++) y[n] += bias.values[e];
  return y;
}

function joined(first, second) {
  const both = new Float32Array(first.length + second.length);
  both.set(first);
  both.set(second, first.length);
  return both;
}

/** x (T, D) times weight (H, D, K), plus bias (H, K): (H, T, K). */
function projectHeads(x, weight, bias) {
  const [H, D, K] = weight.shape, T = x.length / D, w = weight.values;
  weight.rows ??= {  // the same weight as (H K, D), made once
    shape: [H * K, D],
    values: each(H, K, D, (h, k, d) => w[(h * D + d) * K + k]),
  };
  const y = linear(x, weight.rows, bias);
  return each(H, T, K, (h, t, k) => y[(t * H + h) * K + k]);
}

/** a (H, T, K) times the transpose of b (H, S, K): (H, T, S). */
function products(a, b, H, T, S) {
  const K = a.length / (H * T);
  return each(H, T, S, (h, i, j) => {
    let sum = 0;
    for (let k = 0, p = (h * T + i) * K, q = (h * S + j) * K; k < K; k++) sum += a[p + k] * b[q + k];
    return sum;
  });
}

function each(H, T, S, value) {
  const y = new Float32Array(H * T * S);
  for (let h = 0, n = 0; h < H; h++)
    for (let i = 0; i < T; i++) for (let j = 0; j < S; j++) y[n++] = value(h, i, j);
  return y;
}

/** relu(x W1 + b1) per head: (H, T, K). W1 (H, K, K) reads of x the slice of each head. */
function hiddenUnits(get, x, T, first) {
  const w1 = get("w1"), b1 = get("b1"), [H, wide, K] = w1.shape, D = x.length / T;
  if (wide === D) return projectHeads(x, w1, b1).map((value) => Math.max(0, value));
  return each(H, T, K, (h, t, k) => {
    let sum = b1.values[h * K + k];
    for (let d = 0, at = t * D + (first + h) * wide; d < wide; d++)
      sum += x[at + d] * w1.values[(h * wide + d) * K + k];
    return Math.max(0, sum);
  });
}

/** Hidden units (H, T, K) times weight (H or 1, K, N), plus bias (H or 1, N): a function of head,
 * row, column. */
function columnsOf(hidden, weight, bias, T) {
  const [G, K, N] = weight.shape;
  return (h, i, j) => {
    const own = h % G;  // 0 where all heads share it
    let sum = bias.values[own * N + j];
    for (let k = 0, at = (h * T + i) * K; k < K; k++)
      sum += hidden[at + k] * weight.values[(own * K + k) * N + j];
    return sum;
  };
}

/** Turn x (H, T, K) to rotary positions from `past` on: feature n with feature n + width/2. */
function turn(x, T, K, { base, width }, past) {
  const middle = width / 2;
  for (let row = 0; row < x.length / K; row++)
    for (let n = 0; n < middle; n++) {
      const angle = Math.fround((past + (row % T)) * Math.fround(base ** ((-2 * n) / width)));
      const cos = Math.cos(angle), sin = Math.sin(angle), at = row * K + n;
      const first = x[at], second = x[at + middle];
      x[at] = first * cos - second * sin;
      x[at + middle] = first * sin + second * cos;
    }
  return x;
}

/** Each synthesizing function: the logits (H, T, S) of x (T, D), whose keys are the tokens z (S, D).
 * Its heads are those of the layer from `first` on; row i is the query at position past + i. */
const SYNTHESES = {
  dot(get, x, z, T, S, { rotary, past }) {
    const [H, , K] = get("wq").shape;
    const queries = projectHeads(x, get("wq")), keys = projectHeads(z, get("wk"));
    if (rotary) [turn(queries, T, K, rotary, past), turn(keys, S, K, rotary, 0)];
    return products(queries.map((value) => value * K ** -0.5), keys, H, T, S);
  },
  random(get, x, z, T, S, { past }) {
    const { shape: [H, N], values } = get("table");
    return each(H, T, S, (h, i, j) => values[(h * N + past + i) * N + j]);
  },
  factorized_random(get, x, z, T, S, { past }) {
    const { shape: [H, N, R], values } = get("rows"), columns = get("columns").values;
    const rows = each(H, T, R, (h, i, r) => values[(h * N + past + i) * R + r]);
    return products(rows, each(H, S, R, (h, j, r) => columns[(h * N + j) * R + r]), H, T, S);
  },
  dense(get, x, z, T, S, { first }) {
    const hidden = hiddenUnits(get, x, T, first);
    return each(get("w1").shape[0], T, S, columnsOf(hidden, get("w2"), get("b2"), T));
  },
  factorized_dense(get, x, z, T, S, { first }) {
    const hidden = hiddenUnits(get, x, T, first), [H] = get("w1").shape;
    const a = get("wa").shape[2], b = get("wb").shape[2];
    const tiled = each(H, T, a, columnsOf(hidden, get("wa"), get("ba"), T));
    const repeated = each(H, T, b, columnsOf(hidden, get("wb"), get("bb"), T));
    return each(H, T, S, (h, i, j) =>
      tiled[(h * T + i) * a + (j % a)] * repeated[(h * T + i) * b + Math.floor(j / a)]);
  },
  relative(get, x, z, T, S, { past }) {
    const { shape: [H, width], values } = get("offsets"), reach = (width - 1) / 2;
    const first = get("first").values, last = get("last");
    return each(H, T, S, (h, i, j) => {
      if (last && j === S - 1) return last.values[h];
      return j === 0 ? first[h] : values[h * width + j - past - i + reach];
    });
  },
};
SYNTHESES.fixed_random = SYNTHESES.random;

/** Softmax of logits (H, T, S) over the keys that a query sees; the others get exactly zero. */
function maskedSoftmax(logits, T, S, sees) {
  const y = new Float32Array(logits.length);
  for (let row = 0; row < logits.length / S; row++) {
    const at = row * S, [start, stop] = sees(row % T, S);
    let top = -Infinity, sum = 0;
    for (let j = start; j < stop; j++) top = Math.max(top, logits[at + j]);
    for (let j = start; j < stop; j++) sum += Math.exp(logits[at + j] - top);
    for (let j = start; j < stop; j++) y[at + j] = Math.exp(logits[at + j] - top) / sum;
  }
  return y;
}

/** Log-probabilities of one row of V logits, from `at` on. */
function logProbabilities(logits, at, V) {
  let top = -Infinity, sum = 0;
  for (let i = 0; i < V; i++) top = Math.max(top, logits[at + i]);
  for (let i = 0; i < V; i++) sum += Math.exp(logits[at + i] - top);
  return Float64Array.from({ length: V }, (_, i) => logits[at + i] - top - Math.log(sum));
}

/** GELU by an approximation of erf (Abramowitz and Stegun 7.1.26), off by 1.5e-7 at most. */
function gelu(x) {
  const z = Math.abs(x) / Math.SQRT2, t = 1 / (1 + 0.3275911 * z);
  const series = [1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592];
  const tail = series.reduce((sum, factor) => (sum + factor) * t, 0) * Math.exp(-z * z);
  return x > 0 ? x * (1 - tail / 2) : (x * tail) / 2;
}

const plus = (x, y) => x.map((value, i) => value + y[i]);

class Model {
  /** config and tensors as export.py describes them. */
  constructor(config, tensors) {
    this.config = config;
    this.tensors = tensors;
  }

  get(name) { return this.tensors[name]; }

  normed(x, at) {
    const { norm, eps } = this.config, { values: weight } = this.get(`${at}.weight`);
    const D = weight.length, bias = this.get(`${at}.bias`), y = new Float32Array(x.length);
    for (let from = 0; from < x.length; from += D) {
      let mean = 0, square = 0;
      if (norm === "layer") for (let d = 0; d < D; d++) mean += x[from + d] / D;
      for (let d = 0; d < D; d++) square += (x[from + d] - mean) ** 2 / D;
      for (let d = 0; d < D; d++)
        y[from + d] = ((x[from + d] - mean) / Math.sqrt(square + eps)) * weight[d]
          + (bias ? bias.values[d] : 0);
    }
    return y;
  }

  /** The embeddings of ids: (T, D). */
  embed(ids) {
    const { shape: [, D], values } = this.get("model.embedding.weight");
    const x = new Float32Array(ids.length * D);
    ids.forEach((id, t) => {
      for (let d = 0; d < D; d++) x[t * D + d] = values[id * D + d] * Math.sqrt(D);
    });
    return x;
  }

  /** The terms of a layer's logits: for some heads each a name, a share and (heads, T, S) numbers. */
  terms(layer, x, z, T, S, past) {
    const found = [], bias = this.get(`bias.${layer.stack}`);
    let first = 0;
    for (const { heads, biased, mix, parts } of layer.groups) {
      const shares = mix && this.shares(mix);
      parts.forEach(({ name, at }, part) => {
        const get = (tensor) => this.get(`${at}.${tensor}`);
        const values = SYNTHESES[name](get, x, z, T, S, { rotary: layer.rotary, first, past });
        if (shares) values.forEach((_, i) => (values[i] *= shares[Math.floor(i / (T * S))][part]));
        found.push({ name, first, heads, values, shares: shares && shares.map((s) => s[part]) });
      });
      if (bias && biased) {
        const { shape: [, width], values } = bias, middle = (width - 1) / 2;
        const offset = (h, i, j) => values[(first + h) * width + j - past - i + middle];
        found.push({ name: "positions", first, heads, values: each(heads, T, S, offset) });
      }
      first += heads;
    }
    return found;
  }

  /** The alphas of a mixture: of each head the shares of its parts, which sum to one. */
  shares(name) {
    const { shape: [H, parts], values } = this.get(name);
    return Array.from({ length: H }, (_, h) =>
      [...logProbabilities(values, h * parts, parts).map(Math.exp)]);
  }

  /** The weights (H, T, S) of a layer, its values (S, D), and what the page shows of both. */
  weigh(layer, x, z, T, S, past) {
    const { at } = layer, H = this.config.num_heads;
    if (layer.kind === "convolution") return this.convolve(layer, z, T, S);
    if (layer.kind === "linformer") return this.shorten(layer, x, T);
    const sees = (i, count) => [
      layer.window ? Math.max(0, past + i - layer.window + 1) : 0,
      Math.min(count, layer.causal ? past + i + 1 : count,
        layer.window ? past + i + layer.window : count),
    ];
    const terms = this.terms(layer, x, z, T, S, past), logits = new Float32Array(H * T * S);
    for (const { first, values } of terms)
      values.forEach((value, i) => (logits[first * T * S + i] += value));
    const weights = maskedSoftmax(logits, T, S, sees), y = linear(z, this.get(`${at}.value.weight`));
    return { weights, S, y, terms, sees };
  }

  /** A convolution as weights: kernels (H, W) of all tokens, or of each, moved along the text; the
   * queries are the last T of S tokens. */
  convolve({ at, before }, z, T, S) {
    const D = z.length / S, H = this.config.num_heads, table = this.get(`${at}.synthesis.table`);
    const wide = linear(z, this.get(`${at}.value.weight`)), y = new Float32Array(S * D);
    for (let t = 0; t < S; t++)
      for (let d = 0; d < D; d++)
        y[t * D + d] = wide[2 * t * D + d] / (1 + Math.exp(-wide[(2 * t + 1) * D + d]));
    const written = y.subarray((S - T) * D);
    const logits = table ? table.values : linear(written, this.get(`${at}.synthesis.write.weight`));
    const W = logits.length / (table ? H : T * H);
    const kernels = maskedSoftmax(logits, 1, W, () => [0, W]);
    const weights = each(H, T, S, (h, i, j) => {
      const place = j - (S - T) - i + before;
      return place < 0 || place >= W ? 0 : kernels[((table ? 0 : i * H) + h) * W + place];
    });
    return { weights, S, y, terms: [] };
  }

  /** Linformer: keys and values are R sums over the text. */
  shorten({ at }, x, T) {
    const D = x.length / T, H = this.config.num_heads, K = D / H;
    const ofKeys = this.get(`${at}.project_key`);
    const { shape: [groups, N, R] } = ofKeys;
    const short = (name, { values }) => {
      const mapped = linear(x, this.get(`${at}.${name}.weight`)), y = new Float32Array(R * D);
      for (let d = 0; d < D; d++)
        for (let t = 0, from = groups === 1 ? 0 : Math.floor(d / K) * N * R; t < T; t++)
          for (let r = 0; r < R; r++) y[r * D + d] += values[from + t * R + r] * mapped[t * D + d];
      return y;
    };
    const byHead = (all, count) => each(H, count, K, (h, t, k) => all[t * D + h * K + k]);
    const queries = linear(x, this.get(`${at}.query.weight`)).map((value) => value * K ** -0.5);
    const logits = products(byHead(queries, T), byHead(short("key", ofKeys), R), H, T, R);
    const y = short("value", this.get(`${at}.project_value`) || ofKeys);
    return { weights: maskedSoftmax(logits, T, R, () => [0, R]), S: R, y, terms: [] };
  }

  /** One token mixer; heads in `swapped` take their mean over train text for their own weights.
   * Row 0 is the query at position `past`. */
  attend(layer, x, z, kept, swapped, past = 0) {
    const H = this.config.num_heads, D = this.get("model.embedding.weight").shape[1], K = D / H;
    const T = x.length / D;
    const { weights, S, y, terms, sees } = this.weigh(layer, x, z, T, z.length / D, past);
    const mean = this.get(`mean.${layer.key}`);
    for (const h of (mean && swapped) || []) {
      const { shape: [, N], values } = mean;
      for (let i = 0; i < T; i++) {
        const [start, stop] = sees(i, S), at = (h * N + past + i) * N;
        let sum = 0;
        for (let j = start; j < stop; j++) sum += values[at + j];
        for (let j = start; j < stop; j++)  // no train text was as long: all tokens alike
          weights[(h * T + i) * S + j] = sum ? values[at + j] / sum : 1 / (stop - start);
      }
    }
    kept.push({ layer, weights, terms, sees, H, T, S, hasMean: Boolean(mean) });
    const mixed = new Float32Array(T * D);
    for (let h = 0; h < H; h++)
      for (let i = 0; i < T; i++)
        for (let j = 0; j < S; j++) {
          const weight = weights[(h * T + i) * S + j];
          if (weight) for (let k = 0, to = i * D + h * K, from = j * D + h * K; k < K; k++)
            mixed[to + k] += weight * y[from + k];
        }
    return linear(mixed, this.get(`${layer.at}.output.weight`));
  }

  /** Attention, attention to a memory, feed-forward: states (T, D) -> (T, D). `written` holds what
   * the attention of each layer read at earlier tokens. */
  runLayer({ at, attention, cross }, x, memory, kept, swapped, written) {
    const { pre, activation } = this.config, D = this.get("model.embedding.weight").shape[1];
    const act = activation === "gelu" ? gelu : (value) => Math.max(0, value);
    const add = (norm, sublayer) => {
      x = plus(x, sublayer(pre ? this.normed(x, norm) : x));
      if (!pre) x = this.normed(x, norm);
    };
    if (attention) add(`${at}.attention_norm`, (y) => {
      if (!written) return this.attend(attention, y, y, kept, swapped[attention.key]);
      const earlier = written.get(attention.key) || new Float32Array(0), z = joined(earlier, y);
      z.made = earlier.made || new Map();
      written.set(attention.key, z);
      return this.attend(attention, y, z, kept, swapped[attention.key], earlier.length / D);
    });
    if (cross) add(`${at}.cross_norm`, (y) => this.attend(cross, y, memory, kept));
    add(`${at}.feed_forward_norm`, (y) => {
      const weight = (name) => [`${at}.feed_forward.${name}.weight`, `${at}.feed_forward.${name}.bias`]
        .map((tensor) => this.get(tensor));
      return linear(linear(y, ...weight("widen")).map(act), ...weight("narrow"));
    });
    return x;
  }

  /** All layers of a stack: ids -> states (T, D); `kept` gets what each attention did.
   *
   * With `written`, the ids follow `past` earlier ones, which it remembers.
   * A universal stack adds positions and a signal before each step. Where tokens halt, one stops
   * when its probabilities reach halt_at, and its output is the mean of its states by them. */
  run(stack, ids, memory, kept, swapped = {}, written = null, past = 0) {
    const { layers, pre, halt_at } = this.config, T = ids.length, steps = layers[stack];
    const added = this.get(`added.${stack}`), signals = this.get(`model.${stack}.signals.weight`);
    const halt = this.get(`model.${stack}.halting.weight`);
    const D = this.get("model.embedding.weight").shape[1];
    const located = (x) => (added ? x.map((value, n) => value + added.values[past * D + n]) : x);
    let x = signals ? this.embed(ids) : located(this.embed(ids));
    const reached = new Float64Array(T), running = new Uint8Array(T).fill(1);
    const mean = new Float32Array(halt ? x.length : 0);
    steps.forEach((layer, step) => {
      const signal = (value, n) => value + signals.values[step * D + (n % D)];
      const from = signals ? located(x).map(signal) : x;
      const next = this.runLayer(layer, from, memory, kept, swapped, written);
      if (!halt) {
        x = next;
        return;
      }
      for (let t = 0; t < T; t++) {
        if (!running[t]) continue;
        x.set(next.subarray(t * D, (t + 1) * D), t * D);
        let sum = this.get(`model.${stack}.halting.bias`).values[0];
        for (let d = 0; d < D; d++) sum += x[t * D + d] * halt.values[d];
        const p = 1 / (1 + Math.exp(-sum));
        const stops = step === steps.length - 1 || reached[t] + p >= halt_at;
        const weight = stops ? 1 - reached[t] : p;
        for (let d = 0; d < D; d++) mean[t * D + d] += weight * x[t * D + d];
        reached[t] += weight;
        running[t] = !stops;
      }
    });
    if (halt) x = mean;
    return pre ? this.normed(x, `model.${stack}.${signals ? "stack." : ""}norm`) : x;
  }

  /** Logits (T, V) of a language model, (1, V) of a classifier, or (T, V) of an encoder-decoder's
   * targets, where none are given of its own answer; `rows` are the tokens of these logits. */
  forward(ids, targets, swapped) {
    const kept = [], { kind, start } = this.config;
    let rows = ids, x, head = this.get("lm_head.weight") || this.get("model.embedding.weight"), bias;
    if (kind === "decoder") x = this.run("decoder", ids, null, kept, swapped);
    else x = this.run("encoder", ids, null, kept, swapped);
    if (kind === "encoder_decoder") {
      x.made = new Map();
      rows = targets || [start, ...this.answer(x, swapped)];
      x = this.run("decoder", rows, x, kept, swapped);
    }
    if (kind === "encoder") {
      const D = x.length / ids.length, pooled = x.slice(0, D);
      if (this.config.pooling === "mean") for (let d = 0; d < D; d++) {
        let sum = 0;
        for (let t = 0; t < ids.length; t++) sum += x[t * D + d];
        pooled[d] = sum / ids.length;
      }
      [x, head, bias] = [pooled, this.get("score.weight"), this.get("score.bias")];
    }
    return { logits: linear(x, head, bias), V: head.shape[0], kept, rows };
  }

  /** The greedy answer of an encoder-decoder to a memory: ids, without start and end. */
  answer(memory, swapped) {
    const { start, end, answer_len: most } = this.config, answer = [], written = new Map();
    const head = this.get("lm_head.weight") || this.get("model.embedding.weight");
    while (answer.length < most) {
      const last = [answer.at(-1) ?? start];
      const x = this.run("decoder", last, memory, [], swapped, written, answer.length);
      const logits = linear(x, head), best = logits.indexOf(logits.reduce((a, b) => Math.max(a, b)));
      if (best === end) break;
      answer.push(best);
    }
    return answer;
  }
}

/** Words between spaces, bytes, or byte-level BPE, as Hugging Face's tokenizers make them. */
class Tokenizer {
  constructor({ kind, vocab, merges, marks, unknown, regex }) {
    const printable = (byte) => (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
    let next = 256;
    this.letters = Array.from({ length: 256 }, (_, byte) =>
      String.fromCharCode(printable(byte) ? byte : next++));
    this.bytes = new Map(this.letters.map((letter, byte) => [letter, byte]));
    Object.assign(this, { kind, regex, unknown });
    this.vocab = new Map(Object.entries(vocab));
    this.marks = new Map(Object.entries(marks));
    this.pieces = [];
    for (const [piece, id] of [...this.vocab, ...this.marks]) this.pieces[id] = piece;
    this.ranks = new Map(merges.map((pair, rank) => [pair.join(" "), rank]));
  }

  /** [{id, bytes}]: the tokens of a text, and the UTF-8 bytes that each stands for. */
  encode(text) {
    const utf8 = (part) => new TextEncoder().encode(part);
    const names = [...this.marks.keys()].sort((a, b) => b.length - a.length)
      .map((name) => name.replace(/[^\p{L}\p{N}]/gu, (letter) => `\\u{${letter.codePointAt().toString(16)}}`));
    const parts = names.length ? text.split(new RegExp(`(${names.join("|")})`, "u")) : [text];
    return parts.flatMap((part, place) => {
      if (place % 2) return [{ id: this.marks.get(part), bytes: utf8(part) }];
      if (this.kind === "word") {
        const words = part.match(/\p{White_Space}*\P{White_Space}+(\p{White_Space}+$)?/gu) || [];
        return words.map((word) => {
          const id = this.vocab.get(word.replace(/\p{White_Space}/gu, ""));
          return { id: id === undefined ? this.unknown : id, bytes: utf8(word) };
        });
      }
      const pattern = /'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+/gu;
      const words = this.regex ? part.match(pattern) || [] : [part];
      return words.flatMap((word) => this.merge([...utf8(word)].map((byte) => this.letters[byte])))
        .map((piece) => ({
          id: this.vocab.get(piece),
          bytes: Uint8Array.from(piece, (letter) => this.bytes.get(letter)),
        }));
    });
  }

  /** Byte-level BPE: join the pair of the lowest rank, the leftmost first, while there is one. */
  merge(pieces) {
    while (this.ranks.size) {
      let best = Infinity, at = -1;
      for (let i = 0; i + 1 < pieces.length; i++) {
        const rank = this.ranks.get(`${pieces[i]} ${pieces[i + 1]}`);
        if (rank < best) [best, at] = [rank, i];
      }
      if (at < 0) break;
      pieces.splice(at, 2, pieces[at] + pieces[at + 1]);
    }
    return pieces;
  }

  /** The text of some ids; `special` ones are left out. */
  decode(ids, special = []) {
    const kept = ids.filter((id) => !special.includes(id)).map((id) => this.pieces[id]);
    if (this.kind === "word") return kept.join(" ");
    const bytes = kept.flatMap((piece) => [...piece].map((letter) => this.bytes.get(letter)));
    return new TextDecoder().decode(Uint8Array.from(bytes));
  }
}

if (typeof module !== "undefined")
  module.exports = { readTensors, Model, Tokenizer };
