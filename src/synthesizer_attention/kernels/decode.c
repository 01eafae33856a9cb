/* Decoding: a token through all layers, decoding.py's other half.

   Each weight is read once, so memory decides; of a small model nothing but calls would be left,
   so that all layers are one call. Rows of x are B sequences, each of one token.

       x = x + positions;  of every layer:
       h = norm(x),  value and keys of h go to the caches,  y = softmax(logits) values
       x = r + y output^T;  h = norm(x);  x = r + act(h widen^T) narrow^T;  at last x = norm(x)

   where r is x before a norm (norms come first) or behind it (they come last). The logits of a head
   are a sum of parts, each of its own weight in the mixture. A part is a sum of terms (terms.py), of
   which what depends on the token is made here; p is the token's own position, N the longest:

       table[p, j]              table (H, N, N)
       queries[p] keys[j]       both (H, N, W)
       offsets[j]               offsets (H, N)
       distances[j - p]         distances (H, M), its ends for what is farther; first (H, 1) for j = 0
       q k[j] / sqrt K          q = h query, and k = h key is kept; both (H, D, K)
       u columns[j]             columns (H, K, N), u = relu(h hidden + hidden_bias), hidden (H, D, K)
       f[j mod a] g[j div a]    f = u tiled + tiled_bias, tiled (H, K, a); g so of repeated (H, K, b)

   NULL is not in the sum. A part has a query or hidden units, not both. A sequence with padding on
   its left begins at slot starts[b] and has position 0 there. Threads share heads, and the outputs
   of every product. */

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

typedef struct { /* (B, H, S, width), the last without gaps */
    float *data;
    int64_t example, head, row;
} Kept;

typedef struct {
    int64_t n, w, m, a, b; /* N, W, M and the sides of the outer product */
    int64_t from_key;      /* where its own keys begin in a kept row */
    const float *table, *queries, *keys, *offsets, *distances, *first, *query, *key;
    const float *hidden, *hidden_bias, *columns, *tiled, *tiled_bias, *repeated, *repeated_bias;
} Part;

typedef struct {
    Norm before, between; /* the attention; it and the feed-forward */
    Linear value, output, widen, narrow;
    int64_t inner, is_gelu; /* the width of the feed-forward; its activation, else relu */
    int64_t num_parts, is_shared; /* whether the logits do not depend on the input */
    Part parts[MOST_PARTS];
    const float *mix;   /* (H, parts): the weights of parts before their softmax; NULL: one part */
    const float *ready; /* (H, N, N): probabilities; NULL: there are logits */
    int64_t num_ready;  /* N */
    Kept keys, values;  /* with a slot for this token */
} Layer;

typedef struct {
    Runtime runtime;
    int64_t threads, batch, width, heads, head_width, keys, num_layers;
    int64_t norms_first, positions;
    const float *places;   /* of LEARNED (N, D), of SINUSOIDAL the D / 2 angles of position 1 */
    const int64_t *starts; /* (B); NULL: no padding */
    Layer *layers;
    Norm last;
    float *x;    /* (B, D): the embeddings, then the states */
    float *room; /* decode_workspace(call) numbers */
} Step;

typedef struct { /* one thread and its room */
    int64_t thread, threads;
    float *y, *inner; /* (B, D), (B, inner): of all threads */
    float *h;         /* (B, D) */
    float *row;       /* (B, K) */
    float *units;     /* (parts, B, K): queries or hidden units */
    float *logits, *factors;
} Worker;

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Cut the room into the parts of a thread; with no room, only count it. */
static int64_t lay_out(const Step *step, int64_t thread, int64_t threads, Worker *worker)
{
    const int64_t width = step->batch * whole_vectors(step->width);
    const int64_t head = step->batch * whole_vectors(step->head_width);
    int64_t inner = 0, factors = 0;
    for (int64_t i = 0; i < step->num_layers; i++) {
        const Layer *layer = step->layers + i;
        inner = most(inner, layer->inner);
        for (int64_t part = 0; part < layer->num_parts; part++)
            factors = most(factors, layer->parts[part].a + layer->parts[part].b);
    }
    inner = step->batch * whole_vectors(inner);
    const int64_t sizes[] = { width, head, MOST_PARTS * head, whole_vectors(step->keys),
                              whole_vectors(factors) };
    float **parts[] = { &worker->h, &worker->row, &worker->units, &worker->logits,
                        &worker->factors };
    int64_t own = 0;
    for (int i = 0; i < 5; i++)
        own += sizes[i];
    float *room = step->room + width + inner + thread * own;
    *worker = (Worker){ thread, threads, step->room, step->room + width };
    for (int i = 0; i < 5; room += sizes[i++])
        *parts[i] = room;
    return width + inner + threads * own;
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

static void add_positions(const Step *step)
{
    const int64_t d = step->width;
    for (int64_t b = 0; b < step->batch && step->positions != NONE; b++) {
        const int64_t place = step->keys - 1 - start_of(step, b);
        float *x = step->x + b * d;
        if (step->positions == LEARNED)
            add(x, 1.0f, step->places + place * d, d);
        for (int64_t i = 0; step->positions == SINUSOIDAL && i < d; i++) {
            const float angle = (float)place * step->places[i / 2];
            x[i] += i % 2 ? cosf(angle) : sinf(angle);
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

/* Copy one row (n) per sequence to the slot of this token. */
static void keep(const Step *step, const Kept *kept, int64_t head, int64_t from, const float *rows,
                 int64_t n)
{
    for (int64_t b = 0; b < step->batch; b++)
        memcpy(kept->data + b * kept->example + head * kept->head + (step->keys - 1) * kept->row + from,
               rows + b * n, n * sizeof(float));
}

/* What a part makes of each token, (B, K): queries times the part's weight, or hidden units. */
static void make_units(const Step *step, const Worker *worker, const Layer *layer, const Part *part,
                       int64_t head, float weight, float *units)
{
    const int64_t k = step->head_width, count = step->batch * k, size = step->width * k;
    const float *made_by = part->query ? part->query : part->hidden;
    if (!made_by)
        return;
    if (part->query) {
        multiply_head(step->batch, k, step->width, worker->h, part->key + head * size, worker->row, k);
        keep(step, &layer->keys, head, part->from_key, worker->row, k);
        weight /= sqrtf(k);
    }
    multiply_head(step->batch, k, step->width, worker->h, made_by + head * size, units, k);
    for (int64_t i = 0; i < count; i++)
        if (part->query)
            units[i] *= weight;
        else {
            const float unit = units[i] + part->hidden_bias[head * k + i % k];
            units[i] = unit < 0.0f ? 0.0f : unit;
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

/* Add one part's logits of a sequence of so many tokens, the last of which is asked. */
static void add_logits(const Step *step, const Worker *worker, const Layer *layer, const Part *part,
                       const float *units, int64_t head, int64_t b, float weight, int64_t keys)
{
    const int64_t k = step->head_width, n = part->n, w = part->w, place = keys - 1;
    const float *u = units + b * k;
    float *logits = worker->logits;
    if (part->table)
        add(logits, weight, part->table + (head * n + place) * n, keys);
    for (int64_t j = 0; part->queries && j < keys; j++)
        logits[j] += weight * dot(part->queries + (head * n + place) * w,
                                  part->keys + (head * n + j) * w, w);
    if (part->distances)
        add_distances(part, head, weight, keys, logits);
    if (part->query) {
        const Kept *kept = &layer->keys;
        const float *first = kept->data + b * kept->example + head * kept->head
                             + (step->keys - keys) * kept->row + part->from_key;
        const Product of = { 1, k, kept->row, u, first, 0, logits, 0, 1 };
        multiply_outputs(&of, 0, keys);
    }
    for (int64_t l = 0; part->columns && l < k; l++)
        add(logits, weight * u[l], part->columns + (head * k + l) * n, keys);
    if (part->offsets)
        add(logits, weight, part->offsets + head * n, keys);
    if (part->tiled)
        add_outer(part, u, k, head, weight, keys, worker->factors, logits);
}

/* One head of all sequences, from h to its columns of y. */
static void attend_head(const Step *step, const Worker *worker, const Layer *layer, int64_t head)
{
    const int64_t k = step->head_width, d = step->width, all = step->batch * k;
    const int64_t count = layer->num_parts;
    const float *bias = layer->value.bias ? layer->value.bias + head * k : 0;
    const Product of = { step->batch, d, d, worker->h, layer->value.weight + head * k * d, bias,
                         worker->row, k, 0 };
    float weights[LANES] = { 1.0f };
    multiply_outputs(&of, 0, k);
    keep(step, &layer->values, head, 0, worker->row, k);
    if (layer->mix) {
        memcpy(weights, layer->mix + head * count, count * sizeof(float));
        soften(weights, 0, count, LANES);
    }
    for (int64_t part = 0; part < count; part++)
        make_units(step, worker, layer, layer->parts + part, head, weights[part],
                   worker->units + part * all);
    for (int64_t b = 0; b < step->batch; b++) {
        const int64_t start = start_of(step, b), keys = step->keys - start;
        const float *chances = worker->logits;
        const float *value = layer->values.data + b * layer->values.example
                             + head * layer->values.head + start * layer->values.row;
        float *y = worker->y + b * d + head * k;
        if (layer->ready)
            chances = layer->ready + (head * layer->num_ready + keys - 1) * layer->num_ready;
        else if (b == 0 || step->starts || !layer->is_shared) {
            memset(worker->logits, 0, whole_vectors(keys) * sizeof(float));
            for (int64_t part = 0; part < count; part++)
                add_logits(step, worker, layer, layer->parts + part, worker->units + part * all,
                           head, b, weights[part], keys);
            soften(worker->logits, 0, keys, whole_vectors(keys));
        }
        if (k % LANES == 0) {
            multiply_strip(1, k, keys, chances, 0, 1, value, layer->values.row, 0, y, k);
            continue;
        }
        memset(y, 0, k * sizeof(float));
        for (int64_t j = 0; j < keys; j++)
            add(y, chances[j], value + j * layer->values.row, k);
    }
}

static void activate(const Step *step, const Layer *layer, float *hidden, int64_t begin, int64_t end)
{
    const int64_t inner = layer->inner;
    for (int64_t b = 0; b < step->batch; b++)
        for (int64_t j = begin; j < end; j++) {
            const float x = hidden[b * inner + j];
            hidden[b * inner + j] = layer->is_gelu ? 0.5f * x * (1.0f + erff(x * 0.707106781f))
                                    : x < 0.0f    ? 0.0f
                                                  : x;
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
    if (thread == 0)
        add_positions(step);
    wait_for_all(step);
    for (int64_t i = 0; i < step->num_layers; i++) {
        const Layer *layer = step->layers + i;
        normalize(&layer->before, step->x, step->batch, step->width, worker.h);
        for (int64_t head = thread; head < step->heads; head += threads)
            attend_head(step, &worker, layer, head);
        wait_for_all(step);
        add_to_residual(step, &worker, &layer->output, worker.y, step->width);
        normalize(&layer->between, step->x, step->batch, step->width, worker.h);
        multiply_share(step, &worker, &layer->widen, worker.h, step->width, layer->inner, 0,
                       worker.inner, &begin, &end);
        activate(step, layer, worker.inner, begin, end);
        wait_for_all(step);
        add_to_residual(step, &worker, &layer->narrow, worker.inner, layer->inner);
    }
    if (thread == 0)
        normalize(&step->last, step->x, step->batch, step->width, step->x);
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
