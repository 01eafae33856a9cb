"""Attention of any sum of terms on a GPU: one fused Triton kernel forward, three for backward.

    logits[b,h,i,j] = queries[b,h,i]·keys[b,h,j] + weight[h] table[h,rows[b,i],j] + offsets[h,j]
                      + tiled[b,h,i,j mod a] repeated[b,h,i,j div a]
    output[b,h,i]   = softmax of logits over starts[b,i] <= j < stops[b,i], times values

triton.py launches these kernels and says what `given`, `up` and `TILE` hold. A program computes one
tile, in float32. Forward keeps the logarithm of each row's sum of exponentials; backward makes the
probabilities of a tile again from it. Sums are taken in a fixed order; only with `rows`, where
several queries of an example may read one row of the table, is its gradient added atomically.

The only file that imports triton: pip install "synthesizer-attention[gpu]". Triton's interpreter
runs the same code on CPU tensors (TRITON_INTERPRET=1). Letters as in terms.py.
"""
# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def _at(tensor, b, h, rows, columns):
    """The addresses of some rows and columns of one head of one example: (rows, columns)."""
    at = tensor.pointer + b.to(tl.int64) * tensor.strides[0] + h.to(tl.int64) * tensor.strides[1]
    return at + rows[:, None].to(tl.int64) * tensor.strides[2] + columns[None, :]


@triton.jit
def _load(tensor, b, h, rows, num_rows, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """Some rows of one head of one example, with zeros around them: (rows, PADDED)."""
    if tensor is None:
        return tl.zeros([rows.shape[0], PADDED], dtype=tl.float32)
    columns = tl.arange(0, PADDED)
    at = _at(tensor, b, h, rows, columns)
    inside = (rows < num_rows)[:, None] & (columns < WIDTH)[None, :]
    return tl.load(at, mask=inside, other=0.0)


@triton.jit
def _store(tensor, b, h, rows, num_rows, tile, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """What _load would read; nothing where this gradient is not wanted."""
    if tensor is not None:
        columns = tl.arange(0, PADDED)
        at = _at(tensor, b, h, rows, columns)
        inside = (rows < num_rows)[:, None] & (columns < WIDTH)[None, :]
        tl.store(at, tile.to(tensor.pointer.dtype.element_ty), mask=inside)


@triton.jit
def _load_range(given, b, rows):
    """The first key of each query, and the one behind its last; rows beyond the last see none."""
    inside = rows < given.num_queries
    first = tl.where(inside, 0, given.num_keys)
    last = tl.where(inside, given.num_keys, 0)
    if given.starts is not None:
        at = given.starts.pointer + b * given.starts.strides[0] + rows
        first = tl.load(at, mask=inside, other=given.num_keys)
    if given.stops is not None:
        last = tl.load(
            given.stops.pointer + b * given.stops.strides[0] + rows, mask=inside, other=0
        )
    return first, last


@triton.jit
def _table_rows(given, b, rows):
    """Which row of the table each query reads."""
    if given.rows is None:
        return rows
    at = given.rows.pointer + b * given.rows.strides[0] + rows
    return tl.load(at, mask=rows < given.num_queries, other=0)


@triton.jit
def _at_table(table, h, rows, columns):
    at = table.pointer + h.to(tl.int64) * table.strides[0]
    return at + rows[:, None].to(tl.int64) * table.strides[1] + columns[None, :]


@triton.jit
def _pick(tensor, b, h, rows, index, visible):
    """One side of an outer product at one index per column: (rows, columns)."""
    return tl.load(_at(tensor, b, h, rows, index), mask=visible, other=0.0).to(tl.float32)


@triton.jit
def _logits(given, q, k, b, h, rows, columns, visible, TILE: tl.constexpr):
    """The sum of terms of one tile, -inf where a query does not see a key."""
    logits = tl.zeros([TILE.rows, TILE.columns], dtype=tl.float32)
    if given.queries is not None:
        logits = tl.dot(q, tl.trans(k), input_precision=TILE.precision)
    if given.table is not None:
        at = _at_table(given.table, h, _table_rows(given, b, rows), columns)
        table = tl.load(at, mask=visible, other=0.0).to(tl.float32)
        if given.weight is not None:
            table *= tl.load(given.weight.pointer + h).to(tl.float32)
        logits += table
    if given.offsets is not None:
        at = given.offsets.pointer + h.to(tl.int64) * given.offsets.strides[0] + columns
        offsets = tl.load(at, mask=columns < given.num_keys, other=0.0)
        logits += offsets.to(tl.float32)[None, :]
    if given.tiled is not None:
        left = _pick(given.tiled, b, h, rows, columns % TILE.a, visible)
        logits += left * _pick(given.repeated, b, h, rows, columns // TILE.a, visible)
    return tl.where(visible, logits, float("-inf"))


@triton.jit
def _gradient(given, up, q, k, v, g, b, h, rows, columns, first, last, TILE: tl.constexpr):
    """The probabilities P of a tile and dS = P (dP - sum over keys of P dP)."""
    visible = (columns[None, :] >= first[:, None]) & (columns[None, :] < last[:, None])
    logits = _logits(given, q, k, b, h, rows, columns, visible, TILE)
    at = (b * given.num_heads + h).to(tl.int64) * given.num_queries + rows
    log_sum = tl.load(up.sums + at, mask=rows < given.num_queries, other=float("inf"))
    mean = tl.load(up.means + at, mask=rows < given.num_queries, other=0.0)
    p = tl.exp(logits - log_sum[:, None])
    dp = tl.dot(g, tl.trans(v), input_precision=TILE.precision)
    return p, p * (dp - mean[:, None])


@triton.jit
def forward_kernel(given, output, sums, TILE: tl.constexpr):
    """A tile of queries: softmax by a running maximum, the keys that it sees in tiles."""
    num_tiles = tl.cdiv(given.num_queries, TILE.rows)
    pair = tl.program_id(0) // num_tiles
    b, h = pair // given.num_heads, pair % given.num_heads
    rows = tl.program_id(0) % num_tiles * TILE.rows + tl.arange(0, TILE.rows)
    first, last = _load_range(given, b, rows)
    q = _load(given.queries, b, h, rows, given.num_queries, TILE.width, TILE.padded_width)
    top = tl.full([TILE.rows], float("-inf"), dtype=tl.float32)
    total = tl.zeros([TILE.rows], dtype=tl.float32)
    y = tl.zeros([TILE.rows, TILE.padded_value_width], dtype=tl.float32)
    begin = tl.min(first, 0) // TILE.columns * TILE.columns
    for column in range(begin, tl.max(last, 0), TILE.columns):
        columns = column + tl.arange(0, TILE.columns)
        visible = (columns[None, :] >= first[:, None]) & (columns[None, :] < last[:, None])
        k = _load(given.keys, b, h, columns, given.num_keys, TILE.width, TILE.padded_width)
        v = _load(
            given.value, b, h, columns, given.num_keys, TILE.value_width, TILE.padded_value_width
        )
        logits = _logits(given, q, k, b, h, rows, columns, visible, TILE)
        new_top = tl.maximum(top, tl.max(logits, 1))
        # A row that has seen nothing so far has no maximum: subtract 0, not -inf.
        subtracted = tl.where(new_top == float("-inf"), 0.0, new_top)
        exponentials = tl.exp(logits - subtracted[:, None])
        shrunk = tl.exp(top - subtracted)
        total = total * shrunk + tl.sum(exponentials, 1)
        y = y * shrunk[:, None]
        y += tl.dot(exponentials.to(v.dtype), v, input_precision=TILE.precision)
        top = new_top
    nothing = total == 0.0
    y = y / tl.where(nothing, 1.0, total)[:, None]
    num_queries = given.num_queries
    _store(output, b, h, rows, num_queries, y, TILE.value_width, TILE.padded_value_width)
    # +inf makes every probability of a row that sees nothing 0 in backward.
    log_sum = tl.where(nothing, float("inf"), top + tl.log(tl.where(nothing, 1.0, total)))
    at = sums + pair.to(tl.int64) * num_queries + rows
    tl.store(at, log_sum, mask=rows < num_queries)


@triton.jit
def backward_queries_kernel(given, up, dq_out, da_out, db_out, TILE: tl.constexpr):
    """A tile of queries over its keys: d queries = dS keys, and both sides of an outer product."""
    num_tiles = tl.cdiv(given.num_queries, TILE.rows)
    pair = tl.program_id(0) // num_tiles
    b, h = pair // given.num_heads, pair % given.num_heads
    rows = tl.program_id(0) % num_tiles * TILE.rows + tl.arange(0, TILE.rows)
    first, last = _load_range(given, b, rows)
    num_queries, num_keys = given.num_queries, given.num_keys
    q = _load(given.queries, b, h, rows, num_queries, TILE.width, TILE.padded_width)
    g = _load(up.grad, b, h, rows, num_queries, TILE.value_width, TILE.padded_value_width)
    dq = tl.zeros([TILE.rows, TILE.padded_width], dtype=tl.float32)
    da = tl.zeros([TILE.rows, TILE.padded_a], dtype=tl.float32)
    db = tl.zeros([TILE.rows, TILE.padded_b], dtype=tl.float32)
    begin = tl.min(first, 0) // TILE.columns * TILE.columns
    for column in range(begin, tl.max(last, 0), TILE.columns):
        columns = column + tl.arange(0, TILE.columns)
        k = _load(given.keys, b, h, columns, num_keys, TILE.width, TILE.padded_width)
        v = _load(given.value, b, h, columns, num_keys, TILE.value_width, TILE.padded_value_width)
        _, ds = _gradient(given, up, q, k, v, g, b, h, rows, columns, first, last, TILE)
        if dq_out is not None:
            dq += tl.dot(ds.to(k.dtype), k, input_precision=TILE.precision)
        # Adding up the columns of equal j mod a, or j div a, is a product with zeros and ones.
        inside = (rows < num_queries)[:, None] & (columns < num_keys)[None, :]
        if da_out is not None:
            right = _pick(given.repeated, b, h, rows, columns // TILE.a, inside)
            same = (columns % TILE.a)[:, None] == tl.arange(0, TILE.padded_a)[None, :]
            da += tl.dot(ds * right, same.to(tl.float32), input_precision=TILE.precision)
        if db_out is not None:
            left = _pick(given.tiled, b, h, rows, columns % TILE.a, inside)
            same = (columns // TILE.a)[:, None] == tl.arange(0, TILE.padded_b)[None, :]
            db += tl.dot(ds * left, same.to(tl.float32), input_precision=TILE.precision)
    _store(dq_out, b, h, rows, num_queries, dq, TILE.width, TILE.padded_width)
    _store(da_out, b, h, rows, num_queries, da, TILE.a, TILE.padded_a)
    _store(db_out, b, h, rows, num_queries, db, TILE.b, TILE.padded_b)


@triton.jit
def backward_keys_kernel(given, up, dk_out, dv_out, do_out, TILE: tl.constexpr):
    """A tile of keys over its queries: d keys = dS^T queries, d values = P^T dY, d offsets."""
    num_tiles = tl.cdiv(given.num_keys, TILE.columns)
    pair = tl.program_id(0) // num_tiles
    b, h = pair // given.num_heads, pair % given.num_heads
    column = tl.program_id(0) % num_tiles * TILE.columns
    columns = column + tl.arange(0, TILE.columns)
    num_queries, num_keys = given.num_queries, given.num_keys
    k = _load(given.keys, b, h, columns, num_keys, TILE.width, TILE.padded_width)
    v = _load(given.value, b, h, columns, num_keys, TILE.value_width, TILE.padded_value_width)
    dk = tl.zeros([TILE.columns, TILE.padded_width], dtype=tl.float32)
    dv = tl.zeros([TILE.columns, TILE.padded_value_width], dtype=tl.float32)
    do = tl.zeros([TILE.columns], dtype=tl.float32)
    for row in range(0, num_queries, TILE.rows):
        rows = row + tl.arange(0, TILE.rows)
        first, last = _load_range(given, b, rows)
        if (tl.min(first, 0) < column + TILE.columns) & (tl.max(last, 0) > column):
            q = _load(given.queries, b, h, rows, num_queries, TILE.width, TILE.padded_width)
            g = _load(up.grad, b, h, rows, num_queries, TILE.value_width, TILE.padded_value_width)
            p, ds = _gradient(given, up, q, k, v, g, b, h, rows, columns, first, last, TILE)
            if dv_out is not None:
                dv += tl.dot(tl.trans(p).to(g.dtype), g, input_precision=TILE.precision)
            if dk_out is not None:
                dk += tl.dot(tl.trans(ds).to(q.dtype), q, input_precision=TILE.precision)
            if do_out is not None:
                do += tl.sum(ds, 0)
    _store(dk_out, b, h, columns, num_keys, dk, TILE.width, TILE.padded_width)
    _store(dv_out, b, h, columns, num_keys, dv, TILE.value_width, TILE.padded_value_width)
    if do_out is not None:
        at = do_out + pair.to(tl.int64) * num_keys + columns
        tl.store(at, do, mask=columns < num_keys)


@triton.jit
def backward_table_kernel(given, up, dtable_out, dweight_out, TILE: tl.constexpr):
    """A tile of one head's table over all examples: d table = weight dS, d weight = table dS."""
    across = tl.cdiv(given.num_keys, TILE.columns)
    num_tiles = across * tl.cdiv(given.num_queries, TILE.rows)
    h, tile = tl.program_id(0) // num_tiles, tl.program_id(0) % num_tiles
    rows = tile // across * TILE.rows + tl.arange(0, TILE.rows)
    column = tile % across * TILE.columns
    columns = column + tl.arange(0, TILE.columns)
    num_queries, num_keys = given.num_queries, given.num_keys
    scale = tl.full([], 1.0, dtype=tl.float32)
    if given.weight is not None:
        scale = tl.load(given.weight.pointer + h).to(tl.float32)
    total = tl.zeros([TILE.rows, TILE.columns], dtype=tl.float32)
    dweight = tl.zeros([TILE.rows, TILE.columns], dtype=tl.float32)
    for example in range(given.batch):
        b = tl.full([], 0, dtype=tl.int32) + example
        first, last = _load_range(given, b, rows)
        if (tl.min(first, 0) < column + TILE.columns) & (tl.max(last, 0) > column):
            q = _load(given.queries, b, h, rows, num_queries, TILE.width, TILE.padded_width)
            k = _load(given.keys, b, h, columns, num_keys, TILE.width, TILE.padded_width)
            g = _load(up.grad, b, h, rows, num_queries, TILE.value_width, TILE.padded_value_width)
            v = _load(
                given.value, b, h, columns, num_keys, TILE.value_width, TILE.padded_value_width
            )
            _, ds = _gradient(given, up, q, k, v, g, b, h, rows, columns, first, last, TILE)
            if given.rows is None:
                total += ds
            else:
                read = _table_rows(given, b, rows)
                inside = (rows < num_queries)[:, None] & (columns < num_keys)[None, :]
                if dtable_out is not None:
                    at = _at_table(dtable_out, h, read, columns)
                    tl.atomic_add(at, ds * scale, mask=inside)
                if dweight_out is not None:
                    at = _at_table(given.table, h, read, columns)
                    dweight += ds * tl.load(at, mask=inside, other=0.0).to(tl.float32)
    inside = (rows < num_queries)[:, None] & (columns < num_keys)[None, :]
    if given.rows is None:
        if dtable_out is not None:
            tl.store(_at_table(dtable_out, h, rows, columns), total * scale, mask=inside)
        if dweight_out is not None:
            at = _at_table(given.table, h, rows, columns)
            dweight = total * tl.load(at, mask=inside, other=0.0).to(tl.float32)
    if dweight_out is not None:
        tl.store(dweight_out + h * num_tiles + tile, tl.sum(dweight))
