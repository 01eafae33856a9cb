/* Vectors of numbers, and small products of them: what kernel.c, rows.c and decode.c share. */

#include <stdint.h>
#include <string.h>

/* As many lanes as a register has: the compiler keeps wider vectors in memory, at a third of the speed.
   STRIP: rows of a small product, of which STRIP x 2 vectors of sums fit the registers. */
#if defined(__AVX512F__)
#define LANES 16
#define STRIP 8
#elif defined(__AVX__)
#define LANES 8
#define STRIP 4
#else
#define LANES 4
#define STRIP 4
#endif
#define INLINE static inline __attribute__((always_inline))

typedef float Vector __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef float Quad __attribute__((vector_size(16)));
typedef int32_t Lanes __attribute__((vector_size(4 * LANES)));

typedef struct { /* of torch's OpenMP runtime; NULL: one thread */
    void (*parallel)(void (*body)(void *), void *data, unsigned threads, unsigned flags);
    void (*barrier)(void);
    int (*thread)(void), (*num_threads)(void);
} Runtime;

INLINE Vector load(const float *from)
{
    return *(const Vector *)from;
}

INLINE void store(float *to, Vector x)
{
    *(Vector *)to = x;
}

/* x where the lane is chosen, y elsewhere. */
INLINE Vector choose(Lanes chosen, Vector x, Vector y)
{
    return (Vector)(((Lanes)x & chosen) | ((Lanes)y & ~chosen));
}

/* The lanes of the columns begin to end - 1, of a vector that stands at column j. */
INLINE Lanes lanes(int64_t j, int64_t begin, int64_t end)
{
    Lanes lane;
    for (int i = 0; i < LANES; i++)
        lane[i] = i;
    return (lane >= (int32_t)(begin - j)) & (lane < (int32_t)(end - j));
}

INLINE float highest_of(Vector x)
{
    float top = x[0];
    #pragma omp simd reduction(max : top)
    for (int i = 0; i < LANES; i++)
        top = x[i] > top ? x[i] : top;
    return top;
}

INLINE float sum_of(Vector x)
{
    union { Vector all; Quad quads[LANES / 4]; } parts = { x };
    for (int half = LANES / 8; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            parts.quads[i] += parts.quads[i + half];
    const Quad sum = parts.quads[0];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* e^x for x <= 0 to about 1e-7 of its value; 0 below -87, where floats end; NaN stays NaN.
   x = n log 2 + r, and e^r is a polynomial through the Chebyshev points of |r| <= log(2) / 2. */
INLINE Vector exponential(Vector x)
{
    const Vector n = (x * 1.44269504f + 12582912.0f) - 12582912.0f; /* 1.5 * 2^23: no fraction */
    const Vector r = (x - n * 0.693145752f) - n * 1.42860677e-6f;
    Vector p = r * 0.00139411189f + 0.00837513477f;
    p = p * r + 0.0416663528f;
    p = p * r + 0.166664154f;
    p = p * r + 0.5f;
    p = p * r + 1.00000004f;
    p = p * r + 1.0f;
    const Lanes power = (__builtin_convertvector(n, Lanes) + 127) << 23;
    return choose(x < -87.0f, (Vector){ 0 }, p * (Vector)power);
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

/* out = softmax(out) over the columns begin to end - 1, 0 in the others; width is whole vectors. */
static void soften(float *restrict out, int64_t begin, int64_t end, int64_t width)
{
    const Vector lowest = (Vector){ 0 } - __builtin_inff();
    Vector top = lowest, sum = { 0 };
    if (begin >= end) {
        memset(out, 0, width * sizeof(float));
        return;
    }
    for (int64_t j = 0; j < width; j += LANES) {
        const Vector x = choose(lanes(j, begin, end), load(out + j), lowest);
        store(out + j, x);
        top = choose(x > top, x, top);
    }
    const float highest = highest_of(top);
    for (int64_t j = 0; j < width; j += LANES) {
        const Vector x = exponential(load(out + j) - highest);
        store(out + j, x);
        sum += x;
    }
    const float share = 1.0f / sum_of(sum);
    for (int64_t j = 0; j < width; j += LANES)
        store(out + j, load(out + j) * share);
}

/* `rows` rows and `vectors` vectors of columns of out = left right, or added to it: a sum of k steps.
   Rows and vectors are constants wherever this is inlined, so the sums stay in registers. */
static inline __attribute__((always_inline)) void
multiply_tile(const int rows, const int vectors, int64_t k, const float *left, int64_t left_row,
              int64_t left_step, const float *right, int64_t right_row, int added, float *out,
              int64_t out_row, int64_t columns)
{
    Vector sum[STRIP][4];
    for (int i = 0; i < rows; i++)
        for (int v = 0; v < vectors; v++) {
            const int64_t here = columns - v * LANES < LANES ? columns - v * LANES : LANES;
            sum[i][v] = (Vector){ 0 };
            if (added)
                memcpy(&sum[i][v], out + i * out_row + v * LANES, here * sizeof(float));
        }
    for (int64_t l = 0; l < k; l++)
        for (int v = 0; v < vectors; v++) {
            const Vector row = *(const Vector *)(right + l * right_row + v * LANES);
            for (int i = 0; i < rows; i++)
                sum[i][v] += left[i * left_row + l * left_step] * row;
        }
    for (int i = 0; i < rows; i++)
        for (int v = 0; v < vectors; v++) {
            float *here = out + i * out_row + v * LANES;
            if (columns - v * LANES >= LANES)
                *(Vector *)here = sum[i][v];
            else
                memcpy(here, &sum[i][v], (columns - v * LANES) * sizeof(float));
        }
}

/* out = left right, or added to it: (m, n) = (m, k) (k, n) for m <= STRIP. The left is read by any two
   strides, and the rows of the right are filled up to whole vectors. */
static void multiply_strip(int64_t m, int64_t n, int64_t k, const float *left, int64_t left_row,
                           int64_t left_step, const float *right, int64_t right_row, int added,
                           float *out, int64_t out_row)
{
    for (int64_t j = 0, vectors; j < n; j += vectors * LANES) {
        const int64_t left_over = n - j;
        vectors = left_over <= LANES ? 1 : m < STRIP && left_over > 3 * LANES ? 4 : 2;
        #define TILE(rows, vectors, i) \
            multiply_tile(rows, vectors, k, left + (i) * left_row, left_row, left_step, right + j, \
                          right_row, added, out + (i) * out_row + j, out_row, left_over)
        if (m == STRIP && vectors == 2)
            TILE(STRIP, 2, 0);
        else if (m == STRIP)
            TILE(STRIP, 1, 0);
        else /* a row reads memory in the order in which it lies */
            for (int64_t i = 0; i < m; i++)
                if (vectors == 4)
                    TILE(1, 4, i);
                else if (vectors == 2)
                    TILE(1, 2, i);
                else
                    TILE(1, 1, i);
        #undef TILE
    }
}

static int64_t whole_vectors(int64_t n)
{
    return (n + LANES - 1) / LANES * LANES;
}

/* ---- a few rows times a weight ---- */

#define FEW (STRIP / 2) /* rows of x, beside FEW (of one row: 2 FEW) rows of a weight */

typedef struct { /* y = x w^T + bias, or added to y: w (outputs, inputs), its rows a step apart */
    int64_t rows, inputs, step;
    const float *x, *weight, *bias;
    float *y;
    int64_t y_row;
    int added;
} Product;

/* m rows of x and n rows of a weight, `gap` apart; m and n are constants wherever this is inlined. */
INLINE void dot_tile(const int m, const int n, const Product *of, int64_t i, int64_t j, int64_t gap)
{
    const int64_t k = of->inputs, whole = k / LANES * LANES, step = gap * of->step;
    const float *x = of->x + i * k, *w = of->weight + j * of->step;
    Vector sum[FEW][2 * FEW];
    for (int a = 0; a < m; a++)
        for (int b = 0; b < n; b++)
            sum[a][b] = (Vector){ 0 };
    for (int64_t l = 0; l < whole; l += LANES)
        for (int b = 0; b < n; b++) {
            const Vector row = load(w + b * step + l);
            for (int a = 0; a < m; a++)
                sum[a][b] += load(x + a * k + l) * row;
        }
    for (int a = 0; a < m; a++)
        for (int b = 0; b < n; b++) {
            const int64_t output = j + b * gap;
            float total = sum_of(sum[a][b]), *y = of->y + (i + a) * of->y_row + output;
            for (int64_t l = whole; l < k; l++)
                total += x[a * k + l] * w[b * step + l];
            total += of->bias ? of->bias[output] : 0.0f;
            *y = of->added ? *y + total : total;
        }
}

#define SLICE 1024 /* inputs that are read at a time, which stay in a cache */

/* packed[l][i] = x[i][l] for LANES rows; lanes behind the last row have it again. */
static void pack(const float *x, int64_t row, int64_t rows, int64_t count, float *packed)
{
    int64_t at[LANES];
    for (int i = 0; i < LANES; i++)
        at[i] = (i < rows ? i : rows - 1) * row;
    for (int64_t l = 0; l < count; l++)
        for (int i = 0; i < LANES; i++)
            packed[l * LANES + i] = x[at[i] + l];
}

/* A slice of the inputs of LANES rows of x from i on, and n rows of a weight, `gap` apart. */
INLINE void lane_tile(const int n, const Product *of, const float *packed, int64_t from,
                      int64_t count, int64_t i, int64_t j, int64_t gap)
{
    const int64_t step = gap * of->step;
    const float *w = of->weight + j * of->step + from;
    Vector sum[2 * FEW];
    for (int b = 0; b < n; b++)
        sum[b] = (Vector){ 0 };
    for (int64_t l = 0; l < count; l++)
        for (int b = 0; b < n; b++)
            sum[b] += w[b * step + l] * load(packed + l * LANES);
    for (int b = 0; b < n; b++) {
        const int64_t output = j + b * gap;
        sum[b] += of->bias && from == 0 ? of->bias[output] : 0.0f;
        for (int64_t a = 0; a < LANES && i + a < of->rows; a++) {
            float *y = of->y + (i + a) * of->y_row + output;
            *y = of->added || from ? *y + sum[b][a] : sum[b][a];
        }
    }
}

/* The outputs begin to end - 1: rows of a tile lie far apart, so that each of them is a sequence that
   the processor fetches ahead of time; adjacent rows share pages, and it then follows fewer. Of more
   than FEW rows of x, each lane has one: no sum crosses lanes. */
static void multiply_outputs(const Product *of, int64_t begin, int64_t end)
{
    const int64_t gap = (end - begin) / (2 * FEW), rest = begin + 2 * FEW * gap;
    float packed[SLICE * LANES];
    for (int64_t i = 0; i < of->rows && of->rows > FEW; i += LANES)
        for (int64_t from = 0; from < of->inputs; from += SLICE) {
            const int64_t count = of->inputs - from < SLICE ? of->inputs - from : SLICE;
            pack(of->x + i * of->inputs + from, of->inputs, of->rows - i, count, packed);
            for (int64_t j = begin; j < begin + gap; j++)
                lane_tile(2 * FEW, of, packed, from, count, i, j, gap);
            for (int64_t j = rest; j < end; j++)
                lane_tile(1, of, packed, from, count, i, j, 1);
        }
    for (int64_t j = begin; j < begin + gap && of->rows <= FEW; j++) {
        if (of->rows == FEW) {
            dot_tile(FEW, FEW, of, 0, j, gap);
            dot_tile(FEW, FEW, of, 0, j + FEW * gap, gap);
        }
        for (int64_t i = 0; i < of->rows && of->rows < FEW; i++)
            dot_tile(1, 2 * FEW, of, i, j, gap);
    }
    for (int64_t j = rest; j < end && of->rows <= FEW; j++)
        for (int64_t i = 0; i < of->rows; i++)
            dot_tile(1, 1, of, i, j, 1);
}

/* y = x w, (rows, n) = (rows, k) (k, n), as a head's weight lies. */
static void multiply_head(int64_t rows, int64_t n, int64_t k, const float *x, const float *w,
                          float *y, int64_t y_row)
{
    for (int64_t i = 0; i < rows; i += STRIP) {
        const int64_t left = rows - i;
        if (n % LANES == 0) {
            multiply_strip(left < STRIP ? left : STRIP, n, k, x + i * k, k, 1, w, n, 0,
                           y + i * y_row, y_row);
            continue;
        }
        for (int64_t a = i; a < rows && a < i + STRIP; a++) {
            memset(y + a * y_row, 0, n * sizeof(float));
            for (int64_t l = 0; l < k; l++)
                add(y + a * y_row, x[a * k + l], w + l * n, n);
        }
    }
}
