/* Decoding: a token through all layers, decoding.py's other half.

   Each weight is read once per LANES sequences, so memory decides; of a small model nothing but calls
   would be left, so that all layers are one call. Rows of x are B sequences, each of one token.

       x = x + positions;  of every layer:
       h = norm(x),  value and keys of h go to the caches,  y = softmax(logits) values
       x = r + y output^T;  where there is a memory:  h = norm(x),
       y = softmax(h query keys^T / sqrt K) values of the memory,  x = r + y output^T
       h = norm(x);  x = r + act(h widen^T) narrow^T;  at last x = norm(x)

   where r is x before a norm (norms come first) or behind it (they come last). The logits of a head
   are a sum of parts, each of its own weight in the mixture, and a bias by distance. A part is a sum of
   terms (terms.py), of which what depends on the token is made here; p is the token's own position, N
   the longest:

       table[p, j]              table (H, N, N)
       queries[p] keys[j]       both (H, N, W)
       offsets[j]               offsets (H, N)
       distances[j - p]         distances (H, M), its ends for what is farther; first (H, 1) for j = 0
       q k[j] / sqrt K          q = h query, and k = h key is kept; both (H, D, K), turned where asked
       u columns[j]             columns (H, K, N), u = relu(h hidden + hidden_bias), hidden (H, D, K)
       f[j mod a] g[j div a]    f = u tiled + tiled_bias, tiled (H, K, a); g so of repeated (H, K, b)

   NULL is not in the sum. A part has a query or hidden units, not both. A sequence with padding on
   its left begins at slot starts[b] and has position 0 there. Logits stand in columns of positions, of
   which a window softens some. Threads share heads, and the outputs of every product. */

#include <math.h>

#include "vectors.h"

#define MOST_PARTS 4
enum { NONE, SINUSOIDAL, LEARNED };

typedef struct { /* NULL: no norm */
    const float *weight, *bias;
    double eps;
    int64_t has_mean; /* whether the mean is taken off, as LayerNorm does and RMSNorm does not */
} Norm;

typedef struct {
    const float *weight, *bias;
} Linear;

typedef struct { /* (B, H, S, width), the last without gaps; of a window, S are the last slots */
    float *data;
    int64_t example, head, row, slots;
} Kept;

typedef struct {
    int64_t n, w, m, a, b; /* N, W, M and the sides of the outer product */
    int64_t from_key;      /* where its own keys begin in a kept row */
    int64_t turns;         /* whether rotary positions turn its queries and keys */
    const float *table, *queries, *keys, *offsets, *distances, *first, *query, *key;
    const float *hidden, *hidden_bias, *columns, *tiled, *tiled_bias, *repeated, *repeated_bias;
} Part;

typedef struct {
    Norm before, before_memory, between; /* the attentions; the last one and the feed-forward */
    Linear value, output, memory_output, widen, narrow;
    int64_t inner, is_gelu; /* the width of the feed-forward; its activation, else relu */
    int64_t num_parts, is_shared; /* whether the logits do not depend on the input */
    Part parts[MOST_PARTS];
    const float *mix;    /* (H, parts): the weights of parts before their softmax; NULL: one part */
    const float *ready;  /* (H, N, N): probabilities; NULL: there are logits */
    int64_t num_ready;   /* N */
    int64_t is_biased;   /* whether the bias by distance is added */
    const int64_t *seen; /* (B, 2): the first position that is seen and the end; NULL: all are */
    Kept keys, values;   /* with a slot for this token */
    const float *memory_query;          /* (H, D, K); NULL: no memory is read */
    Kept memory_keys, memory_values;
} Layer;

typedef struct {
    Runtime runtime;
    int64_t threads, batch, width, heads, head_width, keys, num_layers;
    int64_t norms_first, positions;
    const float *places;   /* of LEARNED (N, D), of SINUSOIDAL the D / 2 angles of position 1 */
    const int64_t *starts; /* (B); NULL: no padding */
    Layer *layers;
    const float *bias; /* (H, S), the last of distance 0; NULL: none */
    int64_t bias_row;
    const float *angles; /* of rotary positions, at position 1: as many as features that turn / 2 */
    int64_t num_angles;
    int64_t memory;          /* slots of the memory */
    const char *memory_mask; /* (B, memory); NULL: all are real */
    Norm last;
    float *x;    /* (B, D): the embeddings, then the states */
    float *room; /* decode_workspace(call) numbers */
} Step;

typedef struct { /* one thread and its room */
    int64_t thread, threads;
    float *y, *inner, *turns; /* (B, D), (B, inner), (B, 2, angles): of all threads */
    float *h;                 /* (B, D) */
    float *units;             /* (parts, B, K): queries or hidden units */
    float *base;              /* (S): the logits that no token has a say in */
    float *logits;            /* (STRIP, S) */
    float *factors;
} Worker;

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* The columns of logits, filled up to whole vectors. */
static int64_t columns_of(const Step *step)
{
    return whole_vectors(most(step->keys, step->memory));
}

/* Cut the room into the parts of a thread; with no room, only count it. */
static int64_t lay_out(const Step *step, int64_t thread, int64_t threads, Worker *worker)
{
    const int64_t batch = step->batch, row = columns_of(step);
    int64_t inner = 0, factors = 0;
    for (int64_t i = 0; i < step->num_layers; i++) {
        const Layer *layer = step->layers + i;
        inner = most(inner, layer->inner);
        for (int64_t part = 0; part < layer->num_parts; part++)
            factors = most(factors, layer->parts[part].a + layer->parts[part].b);
    }
    const int64_t sizes[] = { batch * step->width, batch * inner, batch * 2 * step->num_angles,
                              batch * step->width, MOST_PARTS * batch * step->head_width, row,
                              STRIP * row, factors };
    float **parts[] = { &worker->y, &worker->inner, &worker->turns, &worker->h, &worker->units,
                        &worker->base, &worker->logits, &worker->factors };
    int64_t shared = 0, own = 0;
    for (int i = 0; i < 8; i++)
        *(i < 3 ? &shared : &own) += whole_vectors(sizes[i]);
    float *room = step->room;
    *worker = (Worker){ thread, threads };
    for (int i = 0; i < 8; room += whole_vectors(sizes[i++])) {
        room += i == 3 ? thread * own : 0;
        *parts[i] = room;
    }
    return shared + threads * own;
}

/* How many numbers of room all threads want. */
int64_t decode_workspace(const Step *step)
{
    Worker worker;
    return lay_out(step, 0, step->threads, &worker);
}

/* The slot where each sequence begins behind zeros on its left: 0, or 1 where that is not the form of
   the mask (B, S), of bytes or of words of 8. */
int left_padding(const void *mask, int64_t is_bytes, int64_t batch, int64_t keys, int64_t *starts)
{
    for (int64_t b = 0; b < batch; b++) {
        int64_t j = 0;
        #define IS_REAL(j) \
            (is_bytes ? ((const char *)mask)[b * keys + (j)] : ((const int64_t *)mask)[b * keys + (j)])
        while (j < keys && !IS_REAL(j))
            j++;
        starts[b] = j;
        if (j == keys)
            return 1;
        while (j < keys && IS_REAL(j))
            j++;
        if (j < keys)
            return 1;
    }
    return 0;
}

static void wait_for_all(const Step *step)
{
    if (step->threads > 1)
        step->runtime.barrier();
}

static int64_t start_of(const Step *step, int64_t b)
{
    return step->starts ? step->starts[b] : 0;
}

static void add_positions(const Step *step, float *turns)
{
    const int64_t d = step->width, n = step->num_angles;
    for (int64_t b = 0; b < step->batch; b++) {
        const int64_t place = step->keys - 1 - start_of(step, b);
        float *x = step->x + b * d;
        if (step->positions == LEARNED)
            add(x, 1.0f, step->places + place * d, d);
        for (int64_t i = 0; step->positions == SINUSOIDAL && i < d; i++) {
            const float angle = (float)place * step->places[i / 2];
            x[i] += i % 2 ? cosf(angle) : sinf(angle);
        }
        for (int64_t i = 0; i < n; i++) {
            turns[2 * b * n + i] = cosf((float)place * step->angles[i]);
            turns[(2 * b + 1) * n + i] = sinf((float)place * step->angles[i]);
        }
    }
}

/* Turn features i and n + i of every sequence's row by its angle i. */
static void turn(const Step *step, const Worker *worker, float *rows, int64_t row)
{
    const int64_t n = step->num_angles;
    for (int64_t b = 0; b < step->batch; b++, rows += row) {
        const float *cosine = worker->turns + 2 * b * n, *sine = cosine + n;
        for (int64_t i = 0; i < n; i++) {
            const float x = rows[i], y = rows[n + i];
            rows[i] = x * cosine[i] - y * sine[i];
            rows[n + i] = x * sine[i] + y * cosine[i];
        }
    }
}

/* out = norm(x), rows of n: (x - mean) / sqrt(mean of its square + eps) weight + bias. */
static void normalize(const Norm *norm, const float *x, int64_t rows, int64_t n, float *out)
{
    for (int64_t i = 0; i < rows; i++, x += n, out += n) {
        const float share = 1.0f / n;
        float mean = 0.0f, square = 0.0f;
        if (!norm->weight) {
            memmove(out, x, n * sizeof(float));
            continue;
        }
        #pragma omp simd reduction(+ : mean)
        for (int64_t j = 0; j < n; j++)
            mean += x[j] * share; /* a sum of large numbers might not be one */
        mean = norm->has_mean ? mean : 0.0f;
        #pragma omp simd reduction(+ : square)
        for (int64_t j = 0; j < n; j++)
            square += (x[j] - mean) * (x[j] - mean);
        const float scale = 1.0f / sqrtf(square / n + (float)norm->eps);
        #pragma omp simd
        for (int64_t j = 0; j < n; j++)
            out[j] = (x[j] - mean) * scale * norm->weight[j] + (norm->bias ? norm->bias[j] : 0.0f);
    }
}

/* This thread's share of y = x linear^T, or of what is added to y. */
static void multiply_share(const Step *step, const Worker *worker, const Linear *linear,
                           const float *x, int64_t inputs, int64_t outputs, int added, float *y,
                           int64_t *begin, int64_t *end)
{
    const Product of = { step->batch, inputs, inputs, x, linear->weight, linear->bias,
                         y, outputs, added };
    *begin = outputs * worker->thread / worker->threads;
    *end = outputs * (worker->thread + 1) / worker->threads;
    multiply_outputs(&of, *begin, *end);
}

/* The slot of a token that so many others follow. */
static float *slot(const Kept *kept, int64_t head, int64_t b, int64_t others)
{
    return kept->data + b * kept->example + head * kept->head + (kept->slots - 1 - others) * kept->row;
}

/* What a part makes of each token, (B, K): queries or hidden units, times the part's weight where that
   makes its logits. */
static void make_units(const Step *step, const Worker *worker, const Layer *layer, const Part *part,
                       int64_t head, float weight, float *units)
{
    const int64_t k = step->head_width, count = step->batch * k, size = step->width * k;
    const float *made_by = part->query ? part->query : part->hidden;
    if (!made_by)
        return;
    multiply_head(step->batch, k, step->width, worker->h, made_by + head * size, units, k);
    if (part->query) {
        float *keys = slot(&layer->keys, head, 0, 0) + part->from_key;
        multiply_head(step->batch, k, step->width, worker->h, part->key + head * size, keys,
                      layer->keys.example);
        if (part->turns) {
            turn(step, worker, keys, layer->keys.example);
            turn(step, worker, units, k);
        }
        weight /= sqrtf(k);
    }
    for (int64_t i = 0; i < count; i++) {
        if (part->hidden) {
            const float unit = units[i] + part->hidden_bias[head * k + i % k];
            units[i] = unit < 0.0f ? 0.0f : unit;
        }
        units[i] *= part->tiled ? 1.0f : weight;
    }
}

/* f or g: u w + bias, (n) numbers. */
static void make_factor(const float *u, int64_t k, const float *w, const float *bias, int64_t n,
                        float *out)
{
    memcpy(out, bias, n * sizeof(float));
    for (int64_t l = 0; l < k; l++)
        add(out, u[l], w + l * n, n);
}

static void add_outer(const Part *part, const float *u, int64_t k, int64_t head, float weight,
                      int64_t keys, float *factors, float *logits)
{
    const int64_t a = part->a, b = part->b;
    float *f = factors, *g = factors + a;
    make_factor(u, k, part->tiled + head * k * a, part->tiled_bias + head * a, a, f);
    make_factor(u, k, part->repeated + head * k * b, part->repeated_bias + head * b, b, g);
    for (int64_t j = 0, m = 0; j < keys; j += a, m++)
        add(logits + j, weight * g[m], f, keys - j < a ? keys - j : a);
}

static void add_distances(const Part *part, int64_t head, float weight, int64_t keys, float *logits)
{
    const int64_t reach = part->m / 2, far = keys - 1 - reach; /* keys before `far` read the end of r */
    const float *r = part->distances + head * part->m;
    logits[0] += weight * part->first[head];
    for (int64_t j = 1; j < far; j++)
        logits[j] += weight * r[0];
    const int64_t near = most(1, far);
    if (near < keys)
        add(logits + near, weight, r + reach - (keys - 1) + near, keys - near);
}

/* The logits of all parts that depend on nothing but the position of the last of `count` tokens. */
static void make_base(const Step *step, const Layer *layer, int64_t head, const float *weights,
                      int64_t count, float *logits)
{
    memset(logits, 0, whole_vectors(count) * sizeof(float));
    for (int64_t i = 0; i < layer->num_parts; i++) {
        const Part *part = layer->parts + i;
        const int64_t n = part->n, w = part->w, place = count - 1;
        if (part->table)
            add(logits, weights[i], part->table + (head * n + place) * n, count);
        for (int64_t j = 0; part->queries && j < count; j++)
            logits[j] += weights[i] * dot(part->queries + (head * n + place) * w,
                                          part->keys + (head * n + j) * w, w);
        if (part->distances)
            add_distances(part, head, weights[i], count, logits);
        if (part->offsets)
            add(logits, weights[i], part->offsets + head * n, count);
    }
    if (step->bias && layer->is_biased)
        add(logits, 1.0f, step->bias + head * step->bias_row + step->keys - count, count);
}

/* Add u columns from column `first` to `end` - 1, for m sequences. The last rows of columns are not
   filled up to whole vectors, so that they are added one by one. */
static void add_columns(const Part *part, const float *u, int64_t k, int64_t head, int64_t m,
                        int64_t first, int64_t end, float *logits, int64_t row)
{
    const int64_t n = part->n;
    const float *columns = part->columns + head * k * n + first;
    int64_t rows = k;
    while (rows > 0 && (rows - 1) * n + first + whole_vectors(end - first) > k * n)
        rows--;
    multiply_strip(m, end - first, rows, u, k, 1, columns, n, 1, logits + first, row);
    for (int64_t l = rows; l < k; l++)
        for (int64_t i = 0; i < m; i++)
            add(logits + i * row + first, u[i * k + l], columns + l * n, end - first);
}

typedef struct { /* the tokens of a sequence, and those that are seen of them */
    int64_t count, first, end;
} Seen;

/* logits[j] += q keys[j] of what is seen. */
static void add_product(const Kept *kept, int64_t head, int64_t b, Seen seen, int64_t from_key,
                        const float *q, int64_t k, float *logits)
{
    const float *keys = slot(kept, head, b, seen.count - 1 - seen.first) + from_key;
    const Product of = { 1, k, kept->row, q, keys, 0, logits + seen.first, 0, 1 };
    multiply_outputs(&of, 0, seen.end - seen.first);
}

/* y = the sum of the values that are seen, by their chances. */
static void sum_values(const Kept *kept, int64_t head, int64_t b, Seen seen, const float *chances,
                       int64_t k, float *y)
{
    const float *values = slot(kept, head, b, seen.count - 1 - seen.first);
    if (k % LANES == 0) {
        multiply_strip(1, k, seen.end - seen.first, chances + seen.first, 0, 1, values, kept->row, 0, y,
                       k);
        return;
    }
    memset(y, 0, k * sizeof(float));
    for (int64_t j = seen.first; j < seen.end; j++, values += kept->row)
        add(y, chances[j], values, k);
}

static Seen seen_by(const Step *step, const Layer *layer, int64_t b)
{
    const int64_t count = step->keys - start_of(step, b);
    if (!layer->seen)
        return (Seen){ count, 0, count };
    return (Seen){ count, layer->seen[2 * b], layer->seen[2 * b + 1] };
}

/* One head of up to STRIP sequences, from units to its columns of y. */
static void attend_block(const Step *step, const Worker *worker, const Layer *layer, int64_t head,
                         const float *weights, int64_t from, int64_t m, int64_t *made)
{
    const int64_t k = step->head_width, row = columns_of(step), all = step->batch * k;
    const int is_ready = layer->ready || layer->is_shared;
    int64_t first = step->keys, end = 0;
    for (int64_t i = 0; i < m; i++) {
        const Seen seen = seen_by(step, layer, from + i);
        if (!layer->ready && seen.count != *made) {
            make_base(step, layer, head, weights, seen.count, worker->base);
            if (layer->is_shared)
                soften(worker->base, seen.first, seen.end, whole_vectors(seen.count));
            *made = seen.count;
        }
        if (is_ready) {
            const int64_t n = layer->num_ready;
            const float *chances = layer->ready ? layer->ready + (head * n + seen.count - 1) * n
                                                : worker->base;
            sum_values(&layer->values, head, from + i, seen, chances, k,
                       worker->y + (from + i) * step->width + head * k);
            continue;
        }
        memcpy(worker->logits + i * row, worker->base, whole_vectors(seen.count) * sizeof(float));
        first = seen.first < first ? seen.first : first;
        end = most(end, seen.end);
    }
    for (int64_t part = 0; !is_ready && part < layer->num_parts; part++)
        if (layer->parts[part].columns)
            add_columns(layer->parts + part, worker->units + part * all + from * k, k, head, m, first,
                        end, worker->logits, row);
    for (int64_t i = 0; !is_ready && i < m; i++) {
        const Seen seen = seen_by(step, layer, from + i);
        float *logits = worker->logits + i * row;
        for (int64_t index = 0; index < layer->num_parts; index++) {
            const Part *part = layer->parts + index;
            const float *u = worker->units + index * all + (from + i) * k;
            if (part->query)
                add_product(&layer->keys, head, from + i, seen, part->from_key, u, k, logits);
            if (part->tiled)
                add_outer(part, u, k, head, weights[index], seen.count, worker->factors, logits);
        }
        soften(logits, seen.first, seen.end, whole_vectors(seen.count));
        sum_values(&layer->values, head, from + i, seen, logits, k,
                   worker->y + (from + i) * step->width + head * k);
    }
}

/* One head of all sequences, from h, and its values in y, to its columns of y. */
static void attend_head(const Step *step, const Worker *worker, const Layer *layer, int64_t head)
{
    const int64_t k = step->head_width, count = layer->num_parts;
    float weights[LANES] = { 1.0f };
    int64_t made = 0;
    for (int64_t b = 0; b < step->batch; b++)
        memcpy(slot(&layer->values, head, b, 0), worker->y + b * step->width + head * k,
               k * sizeof(float));
    if (layer->mix) {
        memcpy(weights, layer->mix + head * count, count * sizeof(float));
        soften(weights, 0, count, LANES);
    }
    for (int64_t part = 0; part < count; part++)
        make_units(step, worker, layer, layer->parts + part, head, weights[part],
                   worker->units + part * step->batch * k);
    for (int64_t b = 0; b < step->batch; b += STRIP)
        attend_block(step, worker, layer, head, weights, b,
                     step->batch - b < STRIP ? step->batch - b : STRIP, &made);
}

/* The same of the memory: a dot product over what is real. */
static void attend_memory(const Step *step, const Worker *worker, const Layer *layer, int64_t head)
{
    const int64_t k = step->head_width, size = step->width * k, keys = step->memory;
    const float scale = 1.0f / sqrtf(k);
    multiply_head(step->batch, k, step->width, worker->h, layer->memory_query + head * size,
                  worker->units, k);
    for (int64_t b = 0; b < step->batch; b++) {
        const char *mask = step->memory_mask ? step->memory_mask + b * keys : 0;
        float *logits = worker->logits, *q = worker->units + b * k;
        Seen seen = { keys, 0, keys };
        while (mask && seen.first < seen.end && !mask[seen.first])
            seen.first++;
        while (mask && seen.first < seen.end && !mask[seen.end - 1])
            seen.end--;
        for (int64_t i = 0; i < k; i++)
            q[i] *= scale;
        memset(logits, 0, whole_vectors(keys) * sizeof(float));
        add_product(&layer->memory_keys, head, b, seen, 0, q, k, logits);
        for (int64_t j = seen.first; mask && j < seen.end; j++)
            logits[j] = mask[j] ? logits[j] : -__builtin_inff();
        soften(logits, seen.first, seen.end, whole_vectors(keys));
        sum_values(&layer->memory_values, head, b, seen, logits, k,
                   worker->y + b * step->width + head * k);
    }
}

/* x (1 + erf(x / sqrt 2)) / 2, of erf to 1.5e-7: Abramowitz and Stegun 7.1.26. */
INLINE Vector gelu(Vector x)
{
    const Vector z = choose(x < 0.0f, -x, x) * 0.707106781f, t = 1.0f / (1.0f + 0.3275911f * z);
    Vector p = t * 1.061405429f - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = (p * t + 0.254829592f) * t * exponential(-z * z); /* 1 - erf(z) */
    return 0.5f * x * choose(x < 0.0f, p, 2.0f - p);
}

static void activate(const Step *step, const Layer *layer, float *hidden, int64_t begin, int64_t end)
{
    for (int64_t b = 0; b < step->batch; b++)
        for (int64_t j = begin; j < end; j += LANES) {
            float *here = hidden + b * layer->inner + j;
            const int64_t count = end - j < LANES ? end - j : LANES;
            Vector x = { 0 };
            memcpy(&x, here, count * sizeof(float));
            x = layer->is_gelu ? gelu(x) : choose(x < 0.0f, (Vector){ 0 }, x);
            memcpy(here, &x, count * sizeof(float));
        }
}

/* x = r + input linear^T, this thread's columns of it. */
static void add_to_residual(const Step *step, const Worker *worker, const Linear *linear,
                            const float *input, int64_t inputs)
{
    int64_t begin, end;
    const int64_t d = step->width;
    for (int64_t b = 0; b < step->batch && !step->norms_first; b++)
        for (int64_t j = d * worker->thread / worker->threads;
             j < d * (worker->thread + 1) / worker->threads; j++)
            step->x[b * d + j] = worker->h[b * d + j];
    multiply_share(step, worker, linear, input, inputs, d, 1, step->x, &begin, &end);
    wait_for_all(step);
}

static void decode_shared(const Step *step, int64_t thread, int64_t threads)
{
    Worker worker;
    int64_t begin, end;
    lay_out(step, thread, threads, &worker);
    const int64_t d = step->width, from = step->heads * thread / threads,
                  to = step->heads * (thread + 1) / threads;
    if (thread == 0)
        add_positions(step, worker.turns);
    wait_for_all(step);
    for (int64_t i = 0; i < step->num_layers; i++) {
        const Layer *layer = step->layers + i;
        normalize(&layer->before, step->x, step->batch, d, worker.h);
        const Product values = { step->batch, d, d, worker.h, layer->value.weight, layer->value.bias,
                                 worker.y, d, 0 };
        multiply_outputs(&values, from * step->head_width, to * step->head_width);
        for (int64_t head = from; head < to; head++)
            attend_head(step, &worker, layer, head);
        wait_for_all(step);
        add_to_residual(step, &worker, &layer->output, worker.y, d);
        if (layer->memory_query) {
            normalize(&layer->before_memory, step->x, step->batch, d, worker.h);
            for (int64_t head = from; head < to; head++)
                attend_memory(step, &worker, layer, head);
            wait_for_all(step);
            add_to_residual(step, &worker, &layer->memory_output, worker.y, d);
        }
        normalize(&layer->between, step->x, step->batch, d, worker.h);
        multiply_share(step, &worker, &layer->widen, worker.h, d, layer->inner, 0, worker.inner, &begin,
                       &end);
        activate(step, layer, worker.inner, begin, end);
        wait_for_all(step);
        add_to_residual(step, &worker, &layer->narrow, worker.inner, layer->inner);
    }
    if (thread == 0)
        normalize(&step->last, step->x, step->batch, d, step->x);
}

static void decode_body(void *step)
{
    const Runtime *runtime = &((const Step *)step)->runtime;
    decode_shared(step, runtime->thread(), runtime->num_threads());
}

void decode(Step *step)
{
    if (step->threads > 1)
        step->runtime.parallel(decode_body, step, step->threads, 0);
    else
        decode_shared(step, 0, 1);
}
