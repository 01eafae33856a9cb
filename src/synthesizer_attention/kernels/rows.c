/* A few rows times a weight, as in decoding: rows.py's other half. Each weight is read once, so that
   memory decides. */

#include "vectors.h"

typedef struct { /* y = x w^T + bias, w (outputs, inputs); or, of heads, w (heads, inputs, outputs) */
    Runtime runtime;
    int64_t threads, rows, inputs, outputs, heads;
    const float *x, *weight, *bias;
    float *y;
} Rows;

static void project_shared(const Rows *call, int64_t thread, int64_t threads)
{
    const int64_t count = call->heads ? call->heads : (call->outputs + 2 * FEW - 1) / (2 * FEW);
    const int64_t begin = count * thread / threads, end = count * (thread + 1) / threads;
    const Product of = { call->rows, call->inputs, call->inputs, call->x, call->weight, call->bias,
                         call->y, call->outputs, 0 };
    for (int64_t h = begin; call->heads && h < end; h++)
        multiply_head(call->rows, call->outputs, call->inputs, call->x,
                      call->weight + h * call->inputs * call->outputs, call->y + h * call->outputs,
                      call->heads * call->outputs);
    if (!call->heads)
        multiply_outputs(&of, begin * 2 * FEW,
                         end * 2 * FEW < call->outputs ? end * 2 * FEW : call->outputs);
}

static void project_body(void *call)
{
    const Runtime *runtime = &((const Rows *)call)->runtime;
    project_shared(call, runtime->thread(), runtime->num_threads());
}

void project(Rows *call)
{
    if (call->threads > 1)
        call->runtime.parallel(project_body, call, call->threads, 0);
    else
        project_shared(call, 0, 1);
}
