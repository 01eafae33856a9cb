/* Attention of a bilinear term, a table and offsets, and its gradient: kernel.py's other half.

       S = queries keys^T + weight table + offsets
       P = softmax(S) over the keys that a row sees, Y = P values
       dP = dY values^T,  dS = P (dP - sum over keys of P dP)
       d values = P^T dY,  d queries = dS keys,  d keys = dS^T queries
       d table = weight dS,  d weight = sum of table dS,  d offsets = sum over rows of dS

   Some rows of one head of one example at a time, so that P and dS never leave the cache; backward
   makes P again. Where S does not depend on the input, many examples are one whose values stand side
   by side. Matrices are multiplied by the BLAS that torch itself carries. Row i of example b sees its
   first stops[b, i] keys and reads row table_rows[b, i] of the table. What is NULL is not there; a
   shared tensor has a stride of 0. Letters as in terms.py: T queries, S keys, W width. */

#include <stdint.h>
#include <string.h>

#define LANES 16
#define LOWEST (-__builtin_inff())

typedef void Gemm(const char *, const char *, const int *, const int *, const int *, const float *,
                  const float *, const int *, const float *, const int *, const float *, float *,
                  const int *);

typedef struct { /* (heads, examples, rows, n): strides of the first three, the last has none */
    float *data;
    int64_t head, example, row;
} Strided;

typedef struct {
    int32_t *data;
    int64_t example;
} Numbers;

typedef struct {
    Gemm *gemm;
    int64_t heads, batch, beside, queries, keys, width, value_width, rows;
    int64_t ready; /* whether the table holds weights, not logits */
    Strided q, k, v, table, weight, offsets, y; /* y: the output, or its gradient on the way back */
    Strided dq, dk, dv, dtable, dweight, doffsets;
    Numbers stops, table_rows;
    float *room; /* 2 (rows + width + n) keys + rows n numbers, n = beside value_width */
} Call;

typedef struct { /* some rows of one head of one example, and where they are worked on */
    int64_t head, example, beside, first, rows, seen, n;
    float *weights, *down; /* (rows, seen) */
    float *k, *v;          /* (keys, width), (keys, n) */
    float *sum_k, *sum_v;  /* (width, keys), (n, keys) */
    float *y;              /* (rows, n) */
} Block;

/* e^x for x <= 0 to about 1e-7 of its value; 0 below -87, where floats end; NaN stays NaN.
   x = n log 2 + r, and e^r is a polynomial through the Chebyshev points of |r| <= log(2) / 2. */
static inline float exponential(float x)
{
    float n = x * 1.44269504f + 12582912.0f; /* 1.5 * 2^23: the sum has no room for a fraction */
    n -= 12582912.0f;
    float r = x - n * 0.693145752f;
    r -= n * 1.42860677e-6f;
    float p = 0.00139411189f;
    p = p * r + 0.00837513477f;
    p = p * r + 0.0416663528f;
    p = p * r + 0.166664154f;
    p = p * r + 0.5f;
    p = p * r + 1.00000004f;
    p = p * r + 1.0f;
    union { int32_t bits; float value; } power = { ((int32_t)n + 127) << 23 };
    return x < -87.0f ? 0.0f : p * power.value;
}

static void add(float *restrict out, float weight, const float *restrict row, int64_t count)
{
    #pragma omp simd
    for (int64_t j = 0; j < count; j++)
        out[j] += weight * row[j];
}

static float dot(const float *left, const float *right, int64_t count)
{
    float sum = 0.0f;
    #pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < count; j++)
        sum += left[j] * right[j];
    return sum;
}

/* out = softmax(out) over count columns, 0 in the others. */
static void soften(float *restrict out, int64_t count, int64_t width)
{
    float top = LOWEST, sum = 0.0f;
    int64_t whole = (count + LANES - 1) / LANES * LANES; /* no odd lanes in the costly loop */
    if (whole > width)
        whole = width;
    #pragma omp simd reduction(max : top)
    for (int64_t j = 0; j < count; j++)
        top = out[j] > top ? out[j] : top;
    for (int64_t j = count; j < whole; j++)
        out[j] = LOWEST;
    #pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < whole; j++) {
        out[j] = exponential(out[j] - top);
        sum += out[j];
    }
    const float share = 1.0f / sum;
    #pragma omp simd
    for (int64_t j = 0; j < whole; j++)
        out[j] *= share;
    memset(out + whole, 0, (width - whole) * sizeof(float));
}

/* down = weights (down - sum of weights down) over count columns, 0 in the others. */
static void soften_back(float *restrict down, const float *restrict weights, int64_t count,
                        int64_t width)
{
    const float mean = dot(down, weights, count);
    #pragma omp simd
    for (int64_t j = 0; j < count; j++)
        down[j] = weights[j] * (down[j] - mean);
    memset(down + count, 0, (width - count) * sizeof(float));
}

/* out = beta out + left right, (m, n) = (m, k) (k, n), rows of memory; 'T' reads one transposed.
   BLAS thinks in columns, so the factors change places. */
static void multiply(const Call *call, char left_is, char right_is, int m, int n, int k,
                     const float *left, int64_t left_row, const float *right, int64_t right_row,
                     float beta, float *out, int64_t out_row)
{
    const float one = 1.0f;
    const int left_step = left_row, right_step = right_row, out_step = out_row;
    call->gemm(&right_is, &left_is, &n, &m, &k, &one, right, &right_step, left, &left_step, &beta,
               out, &out_step);
}

static float *at(const Strided *tensor, const Block *block, int64_t row)
{
    if (!tensor->data)
        return 0;
    return tensor->data + block->head * tensor->head + block->example * tensor->example
           + row * tensor->row;
}

static int64_t number(const Numbers *numbers, const Block *block, int64_t row, int64_t otherwise)
{
    return numbers->data ? numbers->data[block->example * numbers->example + row] : otherwise;
}

/* Copy (rows, n) numbers of `beside` examples from where they lie to where they are side by side,
   or back: a row then holds those of all. */
static void move(const Strided *tensor, const Block *block, int64_t first, int64_t rows, int64_t n,
                 int64_t beside, float *here, int back)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t b = 0; b < beside; b++, here += n) {
            float *there = at(tensor, block, first + i) + b * tensor->example;
            memcpy(back ? there : here, back ? here : there, n * sizeof(float));
        }
}

static Block open_example(const Call *call, int64_t head, int64_t example)
{
    const int64_t left = call->batch - example;
    Block block = { .head = head, .example = example };
    block.beside = left < call->beside ? left : call->beside;
    block.n = block.beside * call->value_width;
    block.weights = call->room;
    block.down = block.weights + call->rows * call->keys;
    block.k = block.down + call->rows * call->keys;
    block.sum_k = block.k + call->width * call->keys; /* stays where it is for all examples */
    block.v = block.sum_k + call->width * call->keys;
    block.sum_v = block.v + block.n * call->keys;
    block.y = block.sum_v + block.n * call->keys;
    if (call->q.data)
        move(&call->k, &block, 0, call->keys, call->width, 1, block.k, 0);
    move(&call->v, &block, 0, call->keys, call->value_width, block.beside, block.v, 0);
    return block;
}

/* The same example's rows from `first` on, as many as there is room for. */
static void move_to(const Call *call, Block *block, int64_t first)
{
    const int64_t left = call->queries - first;
    block->first = first;
    block->rows = left < call->rows ? left : call->rows;
    block->seen = 1;
    for (int64_t i = first; i < first + block->rows; i++) {
        const int64_t count = number(&call->stops, block, i, call->keys);
        block->seen = count > block->seen ? count : block->seen;
    }
}

/* Write the weights of a block. */
static void weigh(const Call *call, const Block *block)
{
    const int64_t seen = block->seen;
    const float *weight = at(&call->weight, block, 0), *offsets = at(&call->offsets, block, 0);
    if (call->q.data)
        multiply(call, 'N', 'T', block->rows, seen, call->width, at(&call->q, block, block->first),
                 call->q.row, block->k, call->width, 0.0f, block->weights, seen);
    for (int64_t i = 0; i < block->rows; i++) {
        float *out = block->weights + i * seen;
        const int64_t row = block->first + i, count = number(&call->stops, block, row, seen);
        const float *table = at(&call->table, block, number(&call->table_rows, block, row, row));
        if (!call->q.data)
            memset(out, 0, count * sizeof(float));
        if (table)
            add(out, weight ? *weight : 1.0f, table, count);
        if (offsets)
            add(out, 1.0f, offsets, count);
        soften(out, count, seen);
    }
}

static void look(const Call *call, const Block *block)
{
    const float *weights = block->weights;
    int64_t step = block->seen;
    if (call->ready) {
        weights = at(&call->table, block, block->first);
        step = call->table.row;
    } else
        weigh(call, block);
    multiply(call, 'N', 'N', block->rows, block->n, block->seen, weights, step, block->v, block->n,
             0.0f, block->y, block->n);
    move(&call->y, block, block->first, block->rows, call->value_width, block->beside, block->y, 1);
}

void attend(const Call *call)
{
    for (int64_t h = 0; h < call->heads; h++)
        for (int64_t b = 0; b < call->batch; b += call->beside) {
            Block block = open_example(call, h, b);
            for (int64_t first = 0; first < call->queries; first += call->rows) {
                move_to(call, &block, first);
                look(call, &block);
            }
        }
}

/* Write (n, keys), summed up with the long axis last, as (keys, n). */
static void write_transposed(const Call *call, const float *sums, int64_t n, float *out,
                             int64_t out_row)
{
    for (int64_t j = 0; j < call->keys; j++)
        for (int64_t i = 0; i < n; i++)
            out[j * out_row + i] = sums[i * call->keys + j];
}

/* dS of a block, and what it says of the table, its weight and the offsets. */
static void look_back_at_logits(const Call *call, const Block *block)
{
    const int64_t seen = block->seen;
    const float *weight = at(&call->weight, block, 0);
    float *dweight = at(&call->dweight, block, 0), *doffsets = at(&call->doffsets, block, 0);
    double sum = 0.0;
    multiply(call, 'N', 'T', block->rows, seen, block->n, block->y, block->n, block->v, block->n,
             0.0f, block->down, seen);
    for (int64_t i = 0; i < block->rows; i++) {
        float *down = block->down + i * seen;
        const int64_t row = block->first + i, count = number(&call->stops, block, row, seen);
        const int64_t place = number(&call->table_rows, block, row, row);
        float *dtable = at(&call->dtable, block, place);
        soften_back(down, block->weights + i * seen, count, seen);
        if (dtable)
            add(dtable, weight ? *weight : 1.0f, down, count);
        if (dweight)
            sum += dot(down, at(&call->table, block, place), count);
        if (doffsets)
            add(doffsets, 1.0f, down, count);
    }
    if (dweight)
        *dweight += sum;
}

static void look_back(const Call *call, const Block *block)
{
    const int64_t rows = block->rows, seen = block->seen, width = call->width;
    weigh(call, block);
    move(&call->y, block, block->first, rows, call->value_width, block->beside, block->y, 0);
    if (call->dv.data)
        multiply(call, 'T', 'N', block->n, seen, rows, block->y, block->n, block->weights, seen,
                 1.0f, block->sum_v, call->keys);
    if (!call->dq.data && !call->dk.data && !call->dtable.data && !call->dweight.data
        && !call->doffsets.data)
        return;
    look_back_at_logits(call, block);
    if (call->dq.data)
        multiply(call, 'N', 'N', rows, width, seen, block->down, seen, block->k, width,
                 block->example && !call->dq.example ? 1.0f : 0.0f, at(&call->dq, block, block->first), call->dq.row);
    if (call->dk.data)
        multiply(call, 'T', 'N', width, seen, rows, at(&call->q, block, block->first), call->q.row,
                 block->down, seen, 1.0f, block->sum_k, call->keys);
}

void attend_back(const Call *call)
{
    const int shared = call->k.example == 0;
    for (int64_t h = 0; h < call->heads; h++)
        for (int64_t b = 0; b < call->batch; b += call->beside) {
            Block block = open_example(call, h, b);
            if (b == 0 || !shared)
                memset(block.sum_k, 0, call->width * call->keys * sizeof(float));
            memset(block.sum_v, 0, block.n * call->keys * sizeof(float));
            for (int64_t first = 0; first < call->queries; first += call->rows) {
                move_to(call, &block, first);
                look_back(call, &block);
            }
            for (int64_t i = 0; call->dv.data && i < block.beside; i++)
                write_transposed(call, block.sum_v + i * call->value_width * call->keys,
                                 call->value_width,
                                 at(&call->dv, &block, 0) + i * call->dv.example, call->dv.row);
            if (call->dk.data && (b + call->beside >= call->batch || !shared))
                write_transposed(call, block.sum_k, call->width, at(&call->dk, &block, 0),
                                 call->dk.row);
        }
}
