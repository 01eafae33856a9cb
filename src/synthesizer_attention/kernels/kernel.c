/* Attention of any sum of terms, and its gradient: kernel.py's other half.

       S = queries keys^T (one or two such products) + weight table + offsets + outer + relative,
       outer[i, j] = A[i, j mod a] B[i, j div a],
       relative[i, j] = r[T - i + j] for j > 0, relative[i, 0] = r[0]
       P = softmax(S) over the keys that a row sees, Y = P values
       dP = dY values^T,  dS = P (dP - sum over keys of P dP)
       d values = P^T dY,  d queries = dS keys,  d keys = dS^T queries
       d table = weight dS,  d weight = sum of table dS,  d offsets = sum over rows of dS
       d A[i, c] = sum of dS B over j mod a = c,  d B[i, m] = sum of dS A over j div a = m
       d r[n] = sum of dS over T - i + j = n, j > 0,  d r[0] = sum of dS over j = 0

   Some rows of one head of one example at a time, so that P and dS never leave the cache; backward
   makes P again. Where S does not depend on the example, many examples are one whose values stand
   side by side. Matrices are multiplied by the BLAS that torch itself carries, and threads are those
   of the OpenMP runtime that torch carries: inside them that BLAS starts none of its own. Where one
   block holds all rows of an example its matrices are too small for a BLAS, which would pack each of
   them anew and knows nothing of causality: they are multiplied here, in strips of a few rows, from
   the first to the last key that a row of the strip sees.

   Threads share heads; where heads do not divide evenly among them, all threads share the rows of
   each head, and their sums over rows are added in the order of the threads: for a given number of
   threads, results are the same to the bit.

   Row i of example b sees the keys starts[b, i] to stops[b, i] - 1 and reads row table_rows[b, i] of
   the table. What is NULL is not there; a shared tensor has a stride of 0. Letters as in terms.py:
   T queries, S keys, W width. */

#include "bfloat.h"

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
    Runtime runtime;
    int64_t threads, heads, batch, beside, queries, keys, width, value_width, rows;
    int64_t a, b;  /* the sides of an outer product */
    int64_t ready; /* whether the table holds weights, not logits */
    int64_t small; /* up to so many keys, products are small */
    int64_t first_width; /* what of the width is that of q and k, not of other_q and other_k */
    int64_t half; /* whether v, q, k, y, the other q and k and their gradients are bfloat16; the
                     gradient of queries that examples share is not */
    Strided v, q, k, table, weight, offsets, tiled, repeated, distances; /* the last: A, B, r */
    Strided other_q, other_k;
    Strided y; /* the output, or its gradient on the way back */
    Strided dv, dq, dk, dtable, dweight, doffsets, dtiled, drepeated, ddistances;
    Strided dother_q, dother_k;
    Numbers starts, stops, table_rows;
    float *room; /* workspace(call) numbers per thread */
} Call;

typedef struct { /* thread `member` of the `team` that shares the rows of a head */
    int64_t member, team;
    float *room;
    int64_t head; /* whose keys are in the room, transposed, where all examples share them; or -1 */
} Worker;

typedef struct { /* some rows of one head of one example, and where they are worked on */
    int64_t head, example, beside, first, rows, n;
    int small;             /* whether this is all of the example, and few keys */
    int64_t from, seen;    /* the first key that some row sees, and how many keys from there on */
    int64_t step;          /* from row to row of weights and down */
    int64_t wide;          /* from row to row of sum_k and sum_v */
    float *weights, *down; /* (rows, seen) */
    float *k, *v;          /* (keys, width), (keys, n): copied where many rows read them; of a small
                              product their transposes, rows filled up to whole vectors */
    float *sum_k, *sum_v;  /* (width, wide), (n, wide) */
    float *sum_offsets;    /* (keys) */
    float *sum_distances;  /* (queries + keys) */
    float *sum_weight;     /* one number */
    float *y;              /* (rows, n) */
    float *whole[4];       /* rows of k, v, q and y filled up to whole vectors */
    Half *half_rows, *half_q, *half_y;   /* rows of any matrix; of the queries, of dY */
    Two *paired;                         /* pairs of the rows of weights or down */
    Two *k_rows, *k_columns, *v_rows, *v_columns; /* pairs of keys, of numbers of a key; of values */
    Two *turned_q, *turned_y;            /* (width, pairs of rows), (n, pairs of rows) */
} Block;

typedef struct { /* (rows, n) */
    const float *data;
    int64_t row;
} Matrix;

typedef struct { /* one product of queries and keys: columns `from` to `from + width - 1` of them all */
    const Strided *q, *k, *dq, *dk;
    int64_t from, width;
} Pair;

/* down = weights (down - sum of weights down) over these columns, 0 in the others. */
static void soften_back(float *restrict down, const float *restrict weights, int64_t begin,
                        int64_t end, int64_t width)
{
    Vector sum = { 0 };
    for (int64_t j = 0; j < width; j += LANES) {
        const Vector x = choose(lanes(j, begin, end), load(down + j), (Vector){ 0 });
        store(down + j, x);
        sum += x * load(weights + j);
    }
    const float mean = sum_of(sum);
    for (int64_t j = 0; j < width; j += LANES)
        store(down + j, load(weights + j) * (load(down + j) - mean));
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

/* The products of queries and keys, and how many there are. */
static int pairs_of(const Call *call, Pair *pairs)
{
    const int64_t first = call->first_width;
    pairs[0] = (Pair){ &call->q, &call->k, &call->dq, &call->dk, 0, first };
    pairs[1] = (Pair){ &call->other_q, &call->other_k, &call->dother_q, &call->dother_k, first,
                       call->width - first };
    return !call->q.data ? 0 : !call->other_q.data ? 1 : 2;
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

/* Copy the rows of every product's queries or keys to where they are side by side, width by width. */
static void join(const Call *call, const Block *block, int of_keys, int64_t first, int64_t rows,
                 float *here)
{
    Pair pairs[2];
    const int count = pairs_of(call, pairs);
    for (int p = 0; p < count; p++)
        for (int64_t i = 0; i < rows; i++)
            memcpy(here + i * call->width + pairs[p].from,
                   at(of_keys ? pairs[p].k : pairs[p].q, block, first + i),
                   pairs[p].width * sizeof(float));
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

/* Cut a thread's room into the parts of a block; with no room, only count it. */
static int64_t lay_out(const Call *call, float *room, Block *block)
{
    const int64_t keys = whole_vectors(call->keys), width = whole_vectors(call->width);
    const int64_t most = whole_vectors(call->beside * call->value_width);
    const int64_t rows = call->rows + call->rows % 2, is_half = call->half != 0, is_float = !is_half;
    const int64_t widest = width > most ? width : most, pairs = whole_vectors(call->keys) / 2;
    const int64_t wide = block->wide = is_half ? keys + LANES : call->keys; /* past the last vector */
    const struct { void *part; int64_t size; } parts[] = {
        { &block->weights, rows * keys }, { &block->down, rows * keys },
        { &block->k, is_float * width * keys }, { &block->sum_k, width * (keys + LANES) },
        { &block->v, is_float * most * keys }, { &block->sum_v, most * (keys + LANES) },
        { &block->sum_offsets, keys }, { &block->sum_weight, LANES },
        { &block->y, rows * (is_half ? widest : most) },
        { &block->whole[2], is_float * rows * width },
        { &block->sum_distances, whole_vectors(call->queries + call->keys) },
        { &block->half_rows, is_half * pairs * (widest > rows ? widest : rows) },
        { &block->half_q, is_half * rows / 2 * width }, { &block->half_y, is_half * rows / 2 * most },
        { &block->paired, is_half * rows / 2 * keys },
        { &block->k_rows, is_half * pairs * width }, { &block->k_columns, is_half * width / 2 * wide },
        { &block->v_rows, is_half * pairs * most }, { &block->v_columns, is_half * most / 2 * wide },
        { &block->turned_q, is_half * rows / 2 * width },
        { &block->turned_y, is_half * rows / 2 * most },
    };
    int64_t size = 0;
    for (uint64_t i = 0; i < sizeof(parts) / sizeof(*parts); i++) {
        float *const here = room ? room + size : 0;
        memcpy(parts[i].part, &here, sizeof(here)); /* of any type */
        size += parts[i].size;
    }
    block->whole[0] = block->sum_k; /* small products sum nothing up */
    block->whole[1] = block->sum_v;
    block->whole[3] = block->y;
    return size;
}

/* Whether calls may be half: the processor multiplies bfloat16 numbers. */
int has_bfloat16(void)
{
    return HAS_BFLOAT16;
}

/* How many numbers of room each thread wants. */
int64_t workspace(const Call *call)
{
    Block block;
    return lay_out(call, 0, &block);
}

/* The n columns of one example's rows, filled up to whole vectors: where they lie, or copied. */
static Matrix whole_rows(const Strided *tensor, const Block *block, int64_t rows, int64_t n,
                         float *room)
{
    const int64_t step = whole_vectors(n);
    if (step == n)
        return (Matrix){ at(tensor, block, 0), tensor->row };
    for (int64_t i = 0; i < rows; i++) {
        memcpy(room + i * step, at(tensor, block, i), n * sizeof(float));
        memset(room + i * step + n, 0, (step - n) * sizeof(float));
    }
    return (Matrix){ room, step };
}

/* The (rows, n) of one example as (n, rows), rows filled up to whole vectors. */
static void transpose(const Strided *tensor, const Block *block, int64_t rows, int64_t n, float *out)
{
    const int64_t step = whole_vectors(rows);
    const float *from = at(tensor, block, 0);
    for (int64_t j = 0; j < n; j++) {
        for (int64_t i = 0; i < rows; i++)
            out[j * step + i] = from[i * tensor->row + j];
        for (int64_t i = rows; i < step; i++)
            out[j * step + i] = 0.0f;
    }
}

#if HAS_BFLOAT16
static Half *half_at(const Strided *tensor, const Block *block, int64_t row)
{
    return (Half *)tensor->data + block->head * tensor->head + block->example * tensor->example
           + row * tensor->row;
}

/* Copy bfloat16 rows as `join` and `move` copy float32 ones, filled up with zeros to whole vectors. */
static void copy_half(const Strided *tensor, const Block *block, int64_t first, int64_t rows,
                      int64_t n, int64_t beside, Half *here, int64_t row)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t b = 0; b < beside; b++)
            memcpy(here + i * row + b * n, half_at(tensor, block, first + i) + b * tensor->example,
                   n * sizeof(Half));
}

static void fill_up(int64_t rows, int64_t n, Half *here, int64_t row)
{
    for (int64_t i = 0; i < rows && n < row; i++)
        memset(here + i * row + n, 0, (row - n) * sizeof(Half));
}

static void copy_products(const Call *call, const Block *block, int of_keys, int64_t first,
                          int64_t rows, Half *here)
{
    const int64_t row = whole_vectors(call->width);
    Pair pairs[2];
    const int count = pairs_of(call, pairs);
    for (int p = 0; p < count; p++)
        copy_half(of_keys ? pairs[p].k : pairs[p].q, block, first, rows, pairs[p].width, 1,
                  here + pairs[p].from, row);
    fill_up(rows, call->width, here, row);
}

/* Lay out the keys and values of an example in pairs, as its products read them. */
static void open_half(const Call *call, Worker *worker, Block *block, int back)
{
    const int64_t width = whole_vectors(call->width), n = whole_vectors(block->n), keys = call->keys;
    const int is_new = worker->head != block->head || call->k.example || call->other_k.example;
    if (call->q.data && is_new) {
        copy_products(call, block, 1, 0, keys, block->half_rows);
        pair_columns(block->half_rows, width, keys, width, block->k_columns, block->wide);
        if (back)
            pair_rows(block->half_rows, width, keys, width, block->k_rows, width);
    }
    worker->head = block->head;
    copy_half(&call->v, block, 0, keys, call->value_width, block->beside, block->half_rows, n);
    fill_up(keys, block->n, block->half_rows, n);
    if (back)
        pair_columns(block->half_rows, n, keys, n, block->v_columns, block->wide);
    else
        pair_rows(block->half_rows, n, keys, n, block->v_rows, n);
}
#endif

static Block open_example(const Call *call, Worker *worker, int64_t head, int64_t example, int back)
{
    const int64_t left = call->batch - example;
    Block block = { .head = head, .example = example };
    Pair pairs[2];
    const int count = pairs_of(call, pairs);
    block.beside = left < call->beside ? left : call->beside;
    block.n = block.beside * call->value_width;
    lay_out(call, worker->room, &block);
    block.small = call->queries <= call->rows && call->keys <= call->small && call->beside == 1
                  && worker->team == 1 && !call->half;
#if HAS_BFLOAT16
    if (call->half) {
        open_half(call, worker, &block, back);
        return block;
    }
#endif
    if (block.small) {
        block.rows = call->queries;
        block.seen = call->keys;
        block.step = whole_vectors(call->keys);
        for (int p = 0; p < count; p++)
            if (pairs[p].k->example || worker->head != head)
                transpose(pairs[p].k, &block, call->keys, pairs[p].width,
                          block.k + pairs[p].from * block.step);
        worker->head = head;
        return block;
    }
    join(call, &block, 1, 0, call->keys, block.k);
    move(&call->v, &block, 0, call->keys, call->value_width, block.beside, block.v, 0);
    return block;
}

/* The same example's rows from `first` on, as many as there is room for. */
static void move_to(const Call *call, Block *block, int64_t first)
{
    const int64_t left = call->queries - first;
    int64_t from = call->keys - 1, to = 1;
    block->first = first;
    block->rows = left < call->rows ? left : call->rows;
    for (int64_t i = first; i < first + block->rows; i++) {
        const int64_t start = number(&call->starts, block, i, 0);
        const int64_t stop = number(&call->stops, block, i, call->keys);
        from = start < from ? start : from;
        to = stop > to ? stop : to;
    }
    block->from = from < to ? from : to - 1; /* at least one key is computed */
    block->from -= call->half ? block->from % 2 : 0; /* whole pairs of keys */
    block->seen = to - block->from;
    block->step = whole_vectors(block->seen);
}

/* The columns of a block that row i of it sees. */
static void columns(const Call *call, const Block *block, int64_t i, int64_t *begin, int64_t *end)
{
    *begin = number(&call->starts, block, block->first + i, 0) - block->from;
    *end = number(&call->stops, block, block->first + i, call->keys) - block->from;
    if (*begin < 0) /* without starts every row sees the first key of the block */
        *begin = 0;
    if (*end < *begin)
        *end = *begin;
}

/* How many columns from `column` on belong to one number of B, before `end`; that number's index. */
static int64_t same_repeated(const Call *call, const Block *block, int64_t column, int64_t end,
                             int64_t *index)
{
    const int64_t key = block->from + column, left = end - column;
    *index = key / call->a;
    return (*index + 1) * call->a - key < left ? (*index + 1) * call->a - key : left;
}

static void add_outer(const Call *call, const Block *block, int64_t row, int64_t begin, int64_t end,
                      float *out)
{
    const float *tiled = at(&call->tiled, block, row), *repeated = at(&call->repeated, block, row);
    for (int64_t j = begin, count, m; j < end; j += count) {
        count = same_repeated(call, block, j, end, &m);
        add(out + j, repeated[m], tiled + block->from + j - m * call->a, count);
    }
}

static void look_back_at_outer(const Call *call, const Block *block, int64_t row, int64_t begin,
                               int64_t end, const float *down)
{
    const float *tiled = at(&call->tiled, block, row), *repeated = at(&call->repeated, block, row);
    float *dtiled = at(&call->dtiled, block, row), *drepeated = at(&call->drepeated, block, row);
    if (dtiled)
        memset(dtiled, 0, call->a * sizeof(float));
    if (drepeated)
        memset(drepeated, 0, call->b * sizeof(float));
    for (int64_t j = begin, count, m; j < end; j += count) {
        count = same_repeated(call, block, j, end, &m);
        const int64_t column = block->from + j - m * call->a;
        if (dtiled)
            add(dtiled + column, repeated[m], down + j, count);
        if (drepeated)
            drepeated[m] = dot(down + j, tiled + column, count);
    }
}

static void add_relative(const Call *call, const Block *block, int64_t place, int64_t begin,
                         int64_t end, float *out)
{
    const float *r = at(&call->distances, block, 0);
    if (block->from + begin == 0 && begin < end)
        out[begin++] += r[0];
    add(out + begin, 1.0f, r + call->queries - place + block->from + begin, end - begin);
}

static void look_back_at_relative(const Call *call, const Block *block, int64_t place, int64_t begin,
                                  int64_t end, const float *down)
{
    float *dr = block->sum_distances;
    if (block->from + begin == 0 && begin < end)
        dr[0] += down[begin++];
    add(dr + call->queries - place + block->from + begin, 1.0f, down + begin, end - begin);
}

/* The first rows of a small block's strip that begins at row i, and the keys that they see: starts
   and stops never fall from one row to the next. */
static int64_t open_strip(const Call *call, const Block *block, int64_t i, int64_t *from, int64_t *to)
{
    const int64_t rows = block->rows - i < STRIP ? block->rows - i : STRIP;
    *from = number(&call->starts, block, i, 0);
    *to = number(&call->stops, block, i + rows - 1, call->keys);
    if (*from > *to)
        *from = *to;
    return rows;
}

/* The whole vectors that hold what a row of a block, or of its strip, sees. */
static void vectors(const Call *call, const Block *block, int64_t i, int64_t *from, int64_t *to)
{
    *from = 0;
    *to = block->step;
    if (!block->small)
        return;
    open_strip(call, block, i / STRIP * STRIP, from, to);
    *from = *from / LANES * LANES;
    *to = whole_vectors(*to);
}

/* out = left right^T where rows see keys, whose vectors are columns of `right`: (rows, keys). */
static void multiply_pairs(const Call *call, const Block *block, const float *left, int64_t left_row,
                           int64_t n, const float *right, float *out)
{
    for (int64_t i = 0, rows, from, to; i < block->rows; i += rows) {
        rows = open_strip(call, block, i, &from, &to);
        from = from / LANES * LANES;
        multiply_strip(rows, whole_vectors(to - from), n, left + i * left_row, left_row, 1,
                       right + from, block->step, 0, out + i * block->step + from, block->step);
    }
}

/* out = pairs right, each row over the keys that it sees: (rows, n). */
static void multiply_rows(const Call *call, const Block *block, const float *pairs, Matrix right,
                          int64_t n, int added, float *out, int64_t out_row)
{
    for (int64_t i = 0, rows, from, to; i < block->rows; i += rows) {
        rows = open_strip(call, block, i, &from, &to);
        multiply_strip(rows, n, to - from, pairs + i * block->step + from, block->step, 1,
                       right.data + from * right.row, right.row, added, out + i * out_row, out_row);
    }
}

/* out = pairs^T right, each key over the rows that see it: (keys, n). */
static void multiply_keys(const Call *call, const Block *block, const float *pairs, Matrix right,
                          int64_t n, int added, float *out, int64_t out_row)
{
    for (int64_t j = 0; j < call->keys; j += STRIP) {
        const int64_t keys = call->keys - j < STRIP ? call->keys - j : STRIP;
        int64_t first = block->rows, last = block->rows;
        for (int64_t i = 0, rows, from, to; i < block->rows; i += rows) {
            rows = open_strip(call, block, i, &from, &to);
            if (first == block->rows && to > j)
                first = i;
            if (from >= j + keys) {
                last = i;
                break;
            }
        }
        if (first > last)
            first = last;
        multiply_strip(keys, n, last - first, pairs + first * block->step + j, 1, block->step,
                       right.data + first * right.row, right.row, added, out + j * out_row, out_row);
    }
}

/* A block's queries: where they lie or, of two products, side by side. */
static Matrix queries_of(const Call *call, const Block *block)
{
    if (!call->other_q.data)
        return (Matrix){ at(&call->q, block, block->first), call->q.row };
    join(call, block, 0, block->first, block->rows, block->whole[2]);
    return (Matrix){ block->whole[2], call->width };
}

/* Make weights of a block's products of queries and keys: add all other terms, take the softmax. */
static void soften_rows(const Call *call, const Block *block)
{
    const float *weight = at(&call->weight, block, 0), *offsets = at(&call->offsets, block, 0);
    for (int64_t i = 0; i < block->rows; i++) {
        float *out = block->weights + i * block->step;
        const int64_t row = block->first + i;
        const int64_t place = number(&call->table_rows, block, row, row);
        const float *table = at(&call->table, block, place);
        int64_t begin, end, lo, hi;
        columns(call, block, i, &begin, &end);
        if (!call->q.data)
            memset(out, 0, end * sizeof(float));
        if (table)
            add(out + begin, weight ? *weight : 1.0f, table + block->from + begin, end - begin);
        if (offsets)
            add(out + begin, 1.0f, offsets + block->from + begin, end - begin);
        if (call->tiled.data)
            add_outer(call, block, row, begin, end, out);
        if (call->distances.data)
            add_relative(call, block, place, begin, end, out);
        vectors(call, block, i, &lo, &hi);
        soften(out + lo, begin - lo, end - lo, hi - lo);
    }
}

/* Write the weights of a block. */
static void weigh(const Call *call, const Block *block, Matrix q)
{
    if (q.data && block->small)
        multiply_pairs(call, block, q.data, q.row, call->width, block->k, block->weights);
    else if (q.data)
        multiply(call, 'N', 'T', block->rows, block->seen, call->width, q.data, q.row,
                 block->k + block->from * call->width, call->width, 0.0f, block->weights,
                 block->step);
    soften_rows(call, block);
}

#if HAS_BFLOAT16
static void weigh_half(const Call *call, const Block *block)
{
    const int64_t width = whole_vectors(call->width) / 2; /* in pairs */
    if (call->q.data) {
        copy_products(call, block, 0, block->first, block->rows, block->half_q);
        multiply_two(block->rows, block->step, width, (Two *)block->half_q, width,
                     block->k_columns + block->from, block->wide, 0, block->weights, block->step);
    }
    soften_rows(call, block);
}

/* Write n columns of float32 rows as bfloat16. */
static void write_half(const float *from, int64_t row, int64_t rows, int64_t n, Half *to,
                       int64_t to_row)
{
    const int64_t whole = n / LANES * LANES;
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < whole; j += LANES)
            round_to(to + i * to_row + j, from + i * row + j);
        for (int64_t j = whole; j < n; j++)
            to[i * to_row + j] = rounded(from[i * row + j]);
    }
}

static void look_half(const Call *call, Block *block)
{
    const int64_t n = whole_vectors(block->n);
    weigh_half(call, block);
    round_rows(block->weights, block->step, block->rows, block->step, block->half_rows);
    multiply_two(block->rows, n, (block->seen + 1) / 2, (Two *)block->half_rows, block->step / 2,
                 block->v_rows + block->from / 2 * n, n, 0, block->y, n);
    for (int64_t b = 0; b < block->beside; b++)
        write_half(block->y + b * call->value_width, n, block->rows, call->value_width,
                   half_at(&call->y, block, block->first) + b * call->y.example, call->y.row);
}
#endif

static void look(const Call *call, Block *block)
{
#if HAS_BFLOAT16
    if (call->half) {
        look_half(call, block);
        return;
    }
#endif
    const float *weights = block->weights;
    int64_t step = block->step;
    if (call->ready) {
        weights = at(&call->table, block, block->first) + block->from;
        step = call->table.row;
    } else
        weigh(call, block, queries_of(call, block));
    if (block->small) {
        const Matrix v = whole_rows(&call->v, block, call->keys, block->n, block->whole[1]);
        block->step = step;
        multiply_rows(call, block, weights, v, block->n, 0, at(&call->y, block, 0), call->y.row);
        return;
    }
    multiply(call, 'N', 'N', block->rows, block->n, block->seen, weights, step,
             block->v + block->from * block->n, block->n, 0.0f, block->y, block->n);
    move(&call->y, block, block->first, block->rows, call->value_width, block->beside, block->y, 1);
}

/* Whether all threads share the rows of each of these items, not the items themselves. */
static int shares_rows(int64_t items, int64_t threads)
{
    return items % threads != 0 && items < 4 * threads;
}

static void attend_shared(const Call *call, int64_t thread, int64_t threads)
{
    const int64_t groups = (call->batch + call->beside - 1) / call->beside;
    const int rows_shared = shares_rows(call->heads * groups, threads);
    Worker worker = { rows_shared ? thread : 0, rows_shared ? threads : 1,
                      call->room + thread * workspace(call), -1 };
    for (int64_t item = rows_shared ? 0 : thread; item < call->heads * groups;
         item += rows_shared ? 1 : threads) {
        Block block = open_example(call, &worker, item / groups, item % groups * call->beside, 0);
        for (int64_t first = worker.member * call->rows; first < call->queries;
             first += worker.team * call->rows) {
            if (!block.small)
                move_to(call, &block, first);
            look(call, &block);
        }
    }
}

/* dS of a block, given dP, and what it says of the table, its weight and the offsets. */
static void look_back_at_logits(const Call *call, const Block *block)
{
    const float *weight = at(&call->weight, block, 0);
    double sum = 0.0;
    for (int64_t i = 0; i < block->rows; i++) {
        float *down = block->down + i * block->step;
        const int64_t row = block->first + i;
        const int64_t place = number(&call->table_rows, block, row, row);
        float *dtable = at(&call->dtable, block, place);
        int64_t begin, end, lo, hi;
        columns(call, block, i, &begin, &end);
        vectors(call, block, i, &lo, &hi);
        soften_back(down + lo, block->weights + i * block->step + lo, begin - lo, end - lo, hi - lo);
        if (dtable)
            add(dtable + block->from + begin, weight ? *weight : 1.0f, down + begin, end - begin);
        if (call->dweight.data)
            sum += dot(down + begin, at(&call->table, block, place) + block->from + begin,
                       end - begin);
        if (call->doffsets.data)
            add(block->sum_offsets + block->from + begin, 1.0f, down + begin, end - begin);
        if (call->tiled.data)
            look_back_at_outer(call, block, row, begin, end, down);
        if (call->ddistances.data)
            look_back_at_relative(call, block, place, begin, end, down);
    }
    *block->sum_weight += sum;
}

/* Whether any gradient but that of the values is wanted. */
static int wants_logits(const Call *call)
{
    return call->dq.data || call->dk.data || call->dother_q.data || call->dother_k.data
           || call->dtable.data || call->dweight.data || call->doffsets.data || call->dtiled.data || call->drepeated.data
           || call->ddistances.data;
}

static void look_back_small(const Call *call, Block *block)
{
    const int64_t n = block->n;
    Pair pairs[2];
    const int count = pairs_of(call, pairs);
    weigh(call, block, queries_of(call, block));
    if (call->dv.data)
        multiply_keys(call, block, block->weights,
                      whole_rows(&call->y, block, call->queries, n, block->whole[3]), n, 0,
                      at(&call->dv, block, 0), call->dv.row);
    if (!wants_logits(call))
        return;
    transpose(&call->v, block, call->keys, n, block->v);
    multiply_pairs(call, block, at(&call->y, block, 0), call->y.row, n, block->v, block->down);
    look_back_at_logits(call, block);
    for (int p = 0; p < count; p++) {
        const Strided *q = pairs[p].q, *k = pairs[p].k, *dq = pairs[p].dq, *dk = pairs[p].dk;
        const int64_t width = pairs[p].width;
        /* a shared gradient is written by the first example and added to by the others */
        if (dq->data)
            multiply_rows(call, block, block->down,
                          whole_rows(k, block, call->keys, width, block->whole[0]), width,
                          block->example && !dq->example, at(dq, block, 0), dq->row);
        if (dk->data)
            multiply_keys(call, block, block->down,
                          whole_rows(q, block, call->queries, width, block->whole[2]), width,
                          block->example && !dk->example, at(dk, block, 0), dk->row);
    }
}

#if HAS_BFLOAT16
static void look_back_half(const Call *call, Block *block)
{
    const int64_t rows = block->rows, seen = block->seen, from = block->from, step = block->step;
    const int64_t n = whole_vectors(block->n), width = whole_vectors(call->width);
    const int64_t pairs = (rows + 1) / 2;
    Pair each[2];
    const int count = pairs_of(call, each);
    weigh_half(call, block);
    copy_half(&call->y, block, block->first, rows, call->value_width, block->beside, block->half_y,
              n);
    fill_up(rows, block->n, block->half_y, n);
    round_rows(block->weights, step, rows, step, block->half_rows);
    if (call->dv.data) {
        pair_rows(block->half_rows, step, rows, step, block->paired, step);
        pair_transposed(block->half_y, n, rows, n, block->turned_y, pairs);
        multiply_two(block->n, step, pairs, block->turned_y, pairs, block->paired, step, 1,
                     block->sum_v + from, block->wide);
    }
    if (!wants_logits(call))
        return;
    multiply_two(rows, step, n / 2, (Two *)block->half_y, n / 2, block->v_columns + from,
                 block->wide, 0, block->down, step);
    look_back_at_logits(call, block);
    if (!count)
        return;
    round_rows(block->down, step, rows, step, block->half_rows);
    if (call->dq.data || call->dother_q.data)
        multiply_two(rows, width, (seen + 1) / 2, (Two *)block->half_rows, step / 2,
                     block->k_rows + from / 2 * width, width, 0, block->y, width);
    for (int p = 0; p < count; p++) {
        const Strided *dq = each[p].dq;
        const float *sums = block->y + each[p].from;
        if (dq->data && dq->example)
            write_half(sums, width, rows, each[p].width, half_at(dq, block, block->first), dq->row);
        for (int64_t i = 0; dq->data && !dq->example && i < rows; i++) {
            float *out = at(dq, block, block->first + i);
            if (!block->example)
                memset(out, 0, each[p].width * sizeof(float));
            add(out, 1.0f, sums + i * width, each[p].width);
        }
    }
    if (call->dk.data || call->dother_k.data) {
        pair_rows(block->half_rows, step, rows, step, block->paired, step);
        pair_transposed(block->half_q, width, rows, width, block->turned_q, pairs);
        multiply_two(call->width, step, pairs, block->turned_q, pairs, block->paired, step, 1,
                     block->sum_k + from, block->wide);
    }
}
#endif

static void look_back(const Call *call, Block *block)
{
#if HAS_BFLOAT16
    if (call->half) {
        look_back_half(call, block);
        return;
    }
#endif
    const int64_t rows = block->rows, seen = block->seen, width = call->width, from = block->from;
    const int64_t n = block->n, step = block->step;
    const Matrix q = queries_of(call, block);
    Pair pairs[2];
    const int count = pairs_of(call, pairs);
    weigh(call, block, q);
    move(&call->y, block, block->first, rows, call->value_width, block->beside, block->y, 0);
    if (call->dv.data)
        multiply(call, 'T', 'N', n, seen, rows, block->y, n, block->weights, step, 1.0f,
                 block->sum_v + from, block->wide);
    if (!wants_logits(call))
        return;
    multiply(call, 'N', 'T', rows, seen, n, block->y, n, block->v + from * n, n, 0.0f, block->down,
             step);
    look_back_at_logits(call, block);
    for (int p = 0; p < count; p++) {
        const Strided *dq = pairs[p].dq;
        if (dq->data)
            multiply(call, 'N', 'N', rows, pairs[p].width, seen, block->down, step,
                     block->k + from * width + pairs[p].from, width,
                     block->example && !dq->example ? 1.0f : 0.0f, at(dq, block, block->first),
                     dq->row);
    }
    if (call->dk.data || call->dother_k.data)
        multiply(call, 'T', 'N', width, seen, rows, q.data, q.row, block->down, step, 1.0f,
                 block->sum_k + from, block->wide);
}

/* Write (n, count), rows `row` apart, summed up with the long axis last, as (count, n): this worker its
   part of the count, the sums of all threads of the team added in their order. */
static void write_sums(const Call *call, const Worker *worker, const float *sums, int64_t row,
                       int64_t n, int64_t count, void *out, int64_t out_row, int half)
{
    const int64_t step = workspace(call), begin = count * worker->member / worker->team;
    const int64_t end = count * (worker->member + 1) / worker->team;
    sums -= worker->member * step;
    for (int64_t first = begin; first < end; first += LANES)
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = first; j < end && j < first + LANES; j++) {
                float sum = sums[i * row + j];
                for (int64_t other = 1; other < worker->team; other++)
                    sum += sums[other * step + i * row + j];
                if (half)
                    ((Half *)out)[j * out_row + i] = rounded(sum);
                else
                    ((float *)out)[j * out_row + i] = sum;
            }
}

/* Where the numbers of a tensor of tokens lie, of either type. */
static void *tokens_at(const Call *call, const Strided *tensor, const Block *block, int64_t example)
{
    const int64_t place = block->head * tensor->head + (block->example + example) * tensor->example;
    return call->half ? (void *)((Half *)tensor->data + place) : (void *)(tensor->data + place);
}

static void wait_for(const Call *call, const Worker *worker)
{
    if (worker->team > 1)
        call->runtime.barrier();
}

static void look_back_at_head(const Call *call, Worker *worker, int64_t head)
{
    Pair pairs[2];
    const int count = pairs_of(call, pairs);
    Block block;
    for (int64_t b = 0; b < call->batch; b += call->beside) {
        const int last = b + call->beside >= call->batch;
        block = open_example(call, worker, head, b, 1);
        if (b == 0) {
            memset(block.sum_offsets, 0, call->keys * sizeof(float));
            memset(block.sum_distances, 0, (call->queries + call->keys) * sizeof(float));
            *block.sum_weight = 0.0f;
        }
        for (int p = 0; p < count && !block.small; p++)
            if (b == 0 || pairs[p].k->example)
                memset(block.sum_k + pairs[p].from * block.wide, 0,
                       pairs[p].width * block.wide * sizeof(float));
        if (!block.small)
            memset(block.sum_v, 0, block.n * block.wide * sizeof(float));
        for (int64_t first = worker->member * call->rows; first < call->queries;
             first += worker->team * call->rows) {
            if (block.small) {
                look_back_small(call, &block);
                continue;
            }
            move_to(call, &block, first);
            look_back(call, &block);
        }
        wait_for(call, worker);
        for (int64_t i = 0; call->dv.data && !block.small && i < block.beside; i++)
            write_sums(call, worker, block.sum_v + i * call->value_width * block.wide, block.wide,
                       call->value_width, call->keys, tokens_at(call, &call->dv, &block, i),
                       call->dv.row, call->half);
        for (int p = 0; p < count && !block.small; p++)
            if (pairs[p].dk->data && (last || pairs[p].k->example))
                write_sums(call, worker, block.sum_k + pairs[p].from * block.wide, block.wide,
                           pairs[p].width, call->keys, tokens_at(call, pairs[p].dk, &block, 0),
                           pairs[p].dk->row, call->half);
        if (call->doffsets.data && last)
            write_sums(call, worker, block.sum_offsets, 0, 1, call->keys,
                       at(&call->doffsets, &block, 0), 1, 0);
        if (call->ddistances.data && last)
            write_sums(call, worker, block.sum_distances, 0, 1, call->queries + call->keys,
                       at(&call->ddistances, &block, 0), 1, 0);
        if (call->dweight.data && last && worker->member == 0) {
            double sum = 0.0;
            for (int64_t other = 0; other < worker->team; other++)
                sum += block.sum_weight[other * workspace(call)];
            *at(&call->dweight, &block, 0) = sum;
        }
        wait_for(call, worker); /* before anybody's sums are cleared */
    }
}

static void attend_back_shared(const Call *call, int64_t thread, int64_t threads)
{
    /* Rows that read one row of the table must not add to its gradient at the same time. */
    const int rows_shared = !call->table_rows.data && shares_rows(call->heads, threads);
    Worker worker = { rows_shared ? thread : 0, rows_shared ? threads : 1,
                      call->room + thread * workspace(call), -1 };
    for (int64_t head = rows_shared ? 0 : thread; head < call->heads;
         head += rows_shared ? 1 : threads)
        look_back_at_head(call, &worker, head);
}

static void attend_body(void *call)
{
    const Runtime *runtime = &((const Call *)call)->runtime;
    attend_shared(call, runtime->thread(), runtime->num_threads());
}

static void attend_back_body(void *call)
{
    const Runtime *runtime = &((const Call *)call)->runtime;
    attend_back_shared(call, runtime->thread(), runtime->num_threads());
}

void attend(Call *call)
{
    if (call->threads > 1)
        call->runtime.parallel(attend_body, call, call->threads, 0);
    else
        attend_shared(call, 0, 1);
}

void attend_back(Call *call)
{
    if (call->threads > 1)
        call->runtime.parallel(attend_back_body, call, call->threads, 0);
    else
        attend_back_shared(call, 0, 1);
}
