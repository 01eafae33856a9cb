/* The softmax of a block of rows and its gradient, in place, in one sweep each; kernel.py's other half.

   A block is (heads, examples, rows, width) floats, contiguous. Row i of example b sees its first
   counts[b, i] columns, or the first `seen`; a table (heads, rows, width) and offsets (heads, width) are shared by the
   examples, and places[b, i] says which row of the table is read. What is NULL is not there. */

#include <stdint.h>
#include <string.h>

#define LANES 16
#define LOWEST (-__builtin_inff())

typedef struct {
    int64_t heads, examples, rows, width, seen;
    int64_t table_head, table_row, offsets_head; /* strides */
    int64_t counts_example, places_example;
    const int32_t *counts, *places;
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

/* out = softmax(out + table + offsets) over count columns, 0 in the others. */
static void soften_row(float *restrict out, const float *restrict table,
                       const float *restrict offsets, int fresh, int64_t count, int64_t width)
{
    float top = LOWEST, sum = 0.0f;
    int64_t whole = (count + LANES - 1) / LANES * LANES; /* no odd lanes for the costly loop */
    if (whole > width)
        whole = width;
    #pragma omp simd reduction(max : top)
    for (int64_t j = 0; j < count; j++) {
        float logit = fresh ? 0.0f : out[j];
        if (table)
            logit += table[j];
        if (offsets)
            logit += offsets[j];
        out[j] = logit;
        top = logit > top ? logit : top;
    }
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

/* down = weights (down - sum of weights down), added to the gradients of what the logits hold. */
static void soften_row_back(float *restrict down, const float *restrict weights,
                            float *restrict table, float *restrict offsets, int64_t count,
                            int64_t width)
{
    float mean = 0.0f;
    #pragma omp simd reduction(+ : mean)
    for (int64_t j = 0; j < count; j++)
        mean += down[j] * weights[j];
    #pragma omp simd
    for (int64_t j = 0; j < count; j++) {
        const float grad = weights[j] * (down[j] - mean);
        down[j] = grad;
        if (table)
            table[j] += grad;
        if (offsets)
            offsets[j] += grad;
    }
    memset(down + count, 0, (width - count) * sizeof(float));
}

static int64_t count_of(const Block *block, int64_t b, int64_t i)
{
    return block->counts ? block->counts[b * block->counts_example + i] : block->seen;
}

static int64_t table_at(const Block *block, int64_t h, int64_t b, int64_t i)
{
    const int64_t row = block->places ? block->places[b * block->places_example + i] : i;
    return h * block->table_head + row * block->table_row;
}

void soften(float *out, const float *table, const float *offsets, int fresh, const Block *block)
{
    for (int64_t h = 0; h < block->heads; h++)
        for (int64_t b = 0; b < block->examples; b++)
            for (int64_t i = 0; i < block->rows; i++, out += block->width)
                soften_row(out, table ? table + table_at(block, h, b, i) : 0,
                           offsets ? offsets + h * block->offsets_head : 0, fresh,
                           count_of(block, b, i), block->width);
}

void soften_back(float *down, const float *weights, float *table, float *offsets,
                 const Block *block)
{
    for (int64_t h = 0; h < block->heads; h++)
        for (int64_t b = 0; b < block->examples; b++)
            for (int64_t i = 0; i < block->rows; i++, down += block->width, weights += block->width)
                soften_row_back(down, weights, table ? table + table_at(block, h, b, i) : 0,
                                offsets ? offsets + h * block->offsets_head : 0,
                                count_of(block, b, i), block->width);
}
