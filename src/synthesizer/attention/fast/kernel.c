/* Attention of any sum of terms, and its gradient: kernel.py's other half.

       S = queries keys^T + weight table + offsets + outer, outer[i, j] = A[i, j mod a] B[i, j div a]
       P = softmax(S) over the keys that a row sees, Y = P values
       dP = dY values^T,  dS = P (dP - sum over keys of P dP)
       d values = P^T dY,  d queries = dS keys,  d keys = dS^T queries
       d table = weight dS,  d weight = sum of table dS,  d offsets = sum over rows of dS
       d A[i, c] = sum of dS B over j mod a = c,  d B[i, m] = sum of dS A over j div a = m

   Some rows of one head of one example at a time, so that P and dS never leave the cache; backward
   makes P again. Where S does not depend on the example, many examples are one whose values stand
   side by side. Matrices are multiplied by the BLAS that torch itself carries, and threads are those
   of the OpenMP runtime that torch carries: inside them that BLAS starts none of its own.

   Threads share heads; where heads do not divide evenly among them, all threads share the rows of
   each head, and their sums over rows are added in the order of the threads: for a given number of
   threads, results are the same to the bit.

   Row i of example b sees the keys starts[b, i] to stops[b, i] - 1 and reads row table_rows[b, i] of
   the table. What is NULL is not there; a shared tensor has a stride of 0. Letters as in terms.py:
   T queries, S keys, W width. */

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

typedef struct { /* of torch's OpenMP runtime; NULL: one thread */
    void (*parallel)(void (*body)(void *), void *data, unsigned threads, unsigned flags);
    void (*barrier)(void);
    int (*thread)(void), (*num_threads)(void);
} Runtime;

typedef struct {
    Gemm *gemm;
    Runtime runtime;
    int64_t threads, heads, batch, beside, queries, keys, width, value_width, rows;
    int64_t a, b;  /* the sides of an outer product */
    int64_t ready; /* whether the table holds weights, not logits */
    Strided q, k, v, table, weight, offsets, tiled, repeated; /* the last two: A and B */
    Strided y; /* the output, or its gradient on the way back */
    Strided dq, dk, dv, dtable, dweight, doffsets, dtiled, drepeated;
    Numbers starts, stops, table_rows;
    float *room; /* workspace(call) numbers per thread */
} Call;

typedef struct { /* thread `member` of the `team` that shares the rows of a head */
    int64_t member, team;
    float *room;
} Worker;

typedef struct { /* some rows of one head of one example, and where they are worked on */
    int64_t head, example, beside, first, rows, n;
    int64_t from, seen;    /* the first key that some row sees, and how many keys from there on */
    float *weights, *down; /* (rows, seen) */
    float *k, *v;          /* (keys, width), (keys, n): copied where many rows read them */
    int64_t k_row, v_row, y_row;
    float *sum_k, *sum_v;  /* (width, keys), (n, keys) */
    float *sum_offsets;    /* (keys) */
    float *sum_weight;     /* one number */
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
    union { uint32_t bits; float value; } power = { ((uint32_t)(int32_t)n + 127) << 23 };
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

/* out = softmax(out) over the columns begin to end - 1, 0 in the others. */
static void soften(float *restrict out, int64_t begin, int64_t end, int64_t width)
{
    float top = LOWEST, sum = 0.0f;
    int64_t whole = begin + (end - begin + LANES - 1) / LANES * LANES; /* no odd lanes below */
    if (whole > width)
        whole = width;
    #pragma omp simd reduction(max : top)
    for (int64_t j = begin; j < end; j++)
        top = out[j] > top ? out[j] : top;
    for (int64_t j = end; j < whole; j++)
        out[j] = LOWEST;
    #pragma omp simd reduction(+ : sum)
    for (int64_t j = begin; j < whole; j++) {
        out[j] = exponential(out[j] - top);
        sum += out[j];
    }
    const float share = 1.0f / sum;
    #pragma omp simd
    for (int64_t j = begin; j < whole; j++)
        out[j] *= share;
    memset(out, 0, begin * sizeof(float));
    memset(out + whole, 0, (width - whole) * sizeof(float));
}

/* down = weights (down - sum of weights down) over these columns, 0 in the others. */
static void soften_back(float *restrict down, const float *restrict weights, int64_t begin,
                        int64_t end, int64_t width)
{
    const float mean = dot(down + begin, weights + begin, end - begin);
    #pragma omp simd
    for (int64_t j = begin; j < end; j++)
        down[j] = weights[j] * (down[j] - mean);
    memset(down, 0, begin * sizeof(float));
    memset(down + end, 0, (width - end) * sizeof(float));
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

/* Cut a thread's room into the parts of a block; with no room, only count it. */
static int64_t lay_out(const Call *call, float *room, Block *block)
{
    const int64_t most = call->beside * call->value_width, keys = call->keys;
    const int64_t sizes[] = { call->rows * keys, call->rows * keys, call->width * keys,
                              call->width * keys, most * keys, most * keys, keys, 1,
                              call->rows * most };
    float **parts[] = { &block->weights, &block->down, &block->k, &block->sum_k, &block->v,
                        &block->sum_v, &block->sum_offsets, &block->sum_weight, &block->y };
    int64_t size = 0;
    for (int i = 0; i < 9; i++) {
        *parts[i] = room ? room + size : 0;
        size += (sizes[i] + LANES - 1) / LANES * LANES;
    }
    return size;
}

/* How many numbers of room each thread wants. */
int64_t workspace(const Call *call)
{
    Block block;
    return lay_out(call, 0, &block);
}

/* Whether one block of rows is all: then nothing is copied, and gradients are written at once. */
static int is_direct(const Call *call, const Worker *worker)
{
    return call->queries <= call->rows && call->beside == 1 && worker->team == 1;
}

static Block open_example(const Call *call, const Worker *worker, int64_t head, int64_t example)
{
    const int64_t left = call->batch - example;
    Block block = { .head = head, .example = example };
    block.beside = left < call->beside ? left : call->beside;
    block.n = block.beside * call->value_width;
    lay_out(call, worker->room, &block);
    if (is_direct(call, worker)) {
        block.k = at(&call->k, &block, 0);
        block.v = at(&call->v, &block, 0);
        block.k_row = call->k.row;
        block.v_row = call->v.row;
        block.y_row = call->y.row;
        return block;
    }
    block.k_row = call->width;
    block.v_row = block.y_row = block.n;
    if (call->q.data)
        move(&call->k, &block, 0, call->keys, call->width, 1, block.k, 0);
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
    block->seen = to - block->from;
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

/* Write the weights of a block. */
static void weigh(const Call *call, const Block *block)
{
    const int64_t seen = block->seen;
    const float *weight = at(&call->weight, block, 0), *offsets = at(&call->offsets, block, 0);
    if (call->q.data)
        multiply(call, 'N', 'T', block->rows, seen, call->width, at(&call->q, block, block->first),
                 call->q.row, block->k + block->from * block->k_row, block->k_row, 0.0f,
                 block->weights, seen);
    for (int64_t i = 0; i < block->rows; i++) {
        float *out = block->weights + i * seen;
        const int64_t row = block->first + i;
        const float *table = at(&call->table, block, number(&call->table_rows, block, row, row));
        int64_t begin, end;
        columns(call, block, i, &begin, &end);
        if (!call->q.data)
            memset(out, 0, end * sizeof(float));
        if (table)
            add(out + begin, weight ? *weight : 1.0f, table + block->from + begin, end - begin);
        if (offsets)
            add(out + begin, 1.0f, offsets + block->from + begin, end - begin);
        if (call->tiled.data)
            add_outer(call, block, row, begin, end, out);
        soften(out, begin, end, seen);
    }
}

static void look(const Call *call, const Worker *worker, Block *block)
{
    const int direct = is_direct(call, worker);
    const float *weights = block->weights;
    int64_t step = block->seen;
    if (call->ready) {
        weights = at(&call->table, block, block->first) + block->from;
        step = call->table.row;
    } else
        weigh(call, block);
    if (direct)
        block->y = at(&call->y, block, block->first);
    multiply(call, 'N', 'N', block->rows, block->n, block->seen, weights, step,
             block->v + block->from * block->v_row, block->v_row, 0.0f, block->y, block->y_row);
    if (!direct)
        move(&call->y, block, block->first, block->rows, call->value_width, block->beside, block->y,
             1);
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
    const Worker worker = { rows_shared ? thread : 0, rows_shared ? threads : 1,
                            call->room + thread * workspace(call) };
    for (int64_t item = rows_shared ? 0 : thread; item < call->heads * groups;
         item += rows_shared ? 1 : threads) {
        Block block = open_example(call, &worker, item / groups, item % groups * call->beside);
        for (int64_t first = worker.member * call->rows; first < call->queries;
             first += worker.team * call->rows) {
            move_to(call, &block, first);
            look(call, &worker, &block);
        }
    }
}

/* dS of a block, and what it says of the table, its weight and the offsets. */
static void look_back_at_logits(const Call *call, const Block *block)
{
    const int64_t seen = block->seen;
    const float *weight = at(&call->weight, block, 0);
    double sum = 0.0;
    multiply(call, 'N', 'T', block->rows, seen, block->n, block->y, block->y_row,
             block->v + block->from * block->v_row, block->v_row, 0.0f, block->down, seen);
    for (int64_t i = 0; i < block->rows; i++) {
        float *down = block->down + i * seen;
        const int64_t row = block->first + i;
        const int64_t place = number(&call->table_rows, block, row, row);
        float *dtable = at(&call->dtable, block, place);
        int64_t begin, end;
        columns(call, block, i, &begin, &end);
        soften_back(down, block->weights + i * seen, begin, end, seen);
        if (dtable)
            add(dtable + block->from + begin, weight ? *weight : 1.0f, down + begin, end - begin);
        if (call->dweight.data)
            sum += dot(down + begin, at(&call->table, block, place) + block->from + begin,
                       end - begin);
        if (call->doffsets.data)
            add(block->sum_offsets + block->from + begin, 1.0f, down + begin, end - begin);
        if (call->tiled.data)
            look_back_at_outer(call, block, row, begin, end, down);
    }
    *block->sum_weight += sum;
}

/* out = weights^T rows for the keys that a block sees, 0 for the others; or added to what is there. */
static void write_keys(const Call *call, const Block *block, const float *weights,
                       const float *rows, int64_t row_step, int64_t n, int added, float *out,
                       int64_t out_row)
{
    for (int64_t j = 0; !added && j < call->keys; j++)
        if (j < block->from || j >= block->from + block->seen)
            memset(out + j * out_row, 0, n * sizeof(float));
    multiply(call, 'T', 'N', block->seen, n, block->rows, weights, block->seen, rows, row_step,
             added ? 1.0f : 0.0f, out + block->from * out_row, out_row);
}

static void look_back(const Call *call, const Worker *worker, Block *block)
{
    const int64_t rows = block->rows, seen = block->seen, width = call->width, from = block->from;
    const float *q = at(&call->q, block, block->first);
    const int direct = is_direct(call, worker);
    weigh(call, block);
    if (direct)
        block->y = at(&call->y, block, block->first);
    else
        move(&call->y, block, block->first, rows, call->value_width, block->beside, block->y, 0);
    if (call->dv.data && direct)
        write_keys(call, block, block->weights, block->y, block->y_row, block->n, 0,
                   at(&call->dv, block, 0), call->dv.row);
    else if (call->dv.data)
        multiply(call, 'T', 'N', block->n, seen, rows, block->y, block->y_row, block->weights, seen,
                 1.0f, block->sum_v + from, call->keys);
    if (!call->dq.data && !call->dk.data && !call->dtable.data && !call->dweight.data
        && !call->doffsets.data && !call->dtiled.data && !call->drepeated.data)
        return;
    look_back_at_logits(call, block);
    if (call->dq.data)
        multiply(call, 'N', 'N', rows, width, seen, block->down, seen, block->k + from * block->k_row,
                 block->k_row, block->example && !call->dq.example ? 1.0f : 0.0f,
                 at(&call->dq, block, block->first), call->dq.row);
    if (call->dk.data && direct)
        write_keys(call, block, block->down, q, call->q.row, width,
                   block->example && !call->dk.example, at(&call->dk, block, 0), call->dk.row);
    else if (call->dk.data)
        multiply(call, 'T', 'N', width, seen, rows, q, call->q.row, block->down, seen, 1.0f,
                 block->sum_k + from, call->keys);
}

/* Write (n, keys), summed up with the long axis last, as (keys, n): this worker its part of the
   keys, the sums of all threads of the team added in their order. */
static void write_sums(const Call *call, const Worker *worker, const float *sums, int64_t n,
                       float *out, int64_t out_row)
{
    const int64_t step = workspace(call), begin = call->keys * worker->member / worker->team;
    const int64_t end = call->keys * (worker->member + 1) / worker->team;
    sums -= worker->member * step;
    for (int64_t j = begin; j < end; j++)
        for (int64_t i = 0; i < n; i++) {
            float sum = sums[i * call->keys + j];
            for (int64_t other = 1; other < worker->team; other++)
                sum += sums[other * step + i * call->keys + j];
            out[j * out_row + i] = sum;
        }
}

static void wait_for(const Call *call, const Worker *worker)
{
    if (worker->team > 1)
        call->runtime.barrier();
}

static void look_back_at_head(const Call *call, const Worker *worker, int64_t head)
{
    const int shared = call->k.example == 0;
    Block block;
    for (int64_t b = 0; b < call->batch; b += call->beside) {
        const int last = b + call->beside >= call->batch;
        const int direct = is_direct(call, worker);
        block = open_example(call, worker, head, b);
        if (b == 0) {
            memset(block.sum_offsets, 0, call->keys * sizeof(float));
            *block.sum_weight = 0.0f;
        }
        if (!direct && (b == 0 || !shared))
            memset(block.sum_k, 0, call->width * call->keys * sizeof(float));
        if (!direct)
            memset(block.sum_v, 0, block.n * call->keys * sizeof(float));
        for (int64_t first = worker->member * call->rows; first < call->queries;
             first += worker->team * call->rows) {
            move_to(call, &block, first);
            look_back(call, worker, &block);
        }
        wait_for(call, worker);
        for (int64_t i = 0; call->dv.data && !direct && i < block.beside; i++)
            write_sums(call, worker, block.sum_v + i * call->value_width * call->keys,
                       call->value_width, at(&call->dv, &block, 0) + i * call->dv.example,
                       call->dv.row);
        if (call->dk.data && !direct && (last || !shared))
            write_sums(call, worker, block.sum_k, call->width, at(&call->dk, &block, 0),
                       call->dk.row);
        if (call->doffsets.data && last)
            write_sums(call, worker, block.sum_offsets, 1, at(&call->doffsets, &block, 0), 1);
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
    const Worker worker = { rows_shared ? thread : 0, rows_shared ? threads : 1,
                            call->room + thread * workspace(call) };
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
