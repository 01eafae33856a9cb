/* Products of bfloat16 numbers with float32 sums, for processors that have them (avx512_bf16).

   The processor adds two products at once, so that one side of a product lies in pairs of numbers:
   (k / 2, n) of Two, where the two are rows 2 l and 2 l + 1 of a column. The other side is a matrix
   of rows as ever. Rows are filled up with zeros: to pairs, and to whole vectors. */

#include "vectors.h"

#if defined(__AVX512BF16__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define HAS_BFLOAT16 1
#include <immintrin.h>
#else
#define HAS_BFLOAT16 0
#endif

typedef uint16_t Half;
typedef uint32_t Two; /* the first in the lower half */

/* To the nearest, of two to the even one, as torch rounds. */
INLINE Half rounded(float x)
{
    Two bits;
    memcpy(&bits, &x, sizeof(bits));
    return x != x ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

#if HAS_BFLOAT16

#define AT_ONCE 64 /* pairs of a sum, of which four vectors each stay in the first cache */

INLINE void round_to(Half *to, const float *from)
{
    _mm256_storeu_si256((void *)to, (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(from)));
}


/* `rows` rows and `vectors` vectors of columns of out = left right, or added to it: k pairs. */
INLINE void multiply_tile_of_two(const int rows, const int vectors, int64_t k, const Two *left,
                                 int64_t left_row, const Two *right, int64_t right_row, int added,
                                 float *out, int64_t out_row)
{
    __m512 sum[8][4];
    for (int i = 0; i < rows; i++)
        for (int v = 0; v < vectors; v++)
            sum[i][v] = added ? _mm512_loadu_ps(out + i * out_row + v * LANES) : _mm512_setzero_ps();
    for (int64_t l = 0; l < k; l++) {
        __m512bh row[4];
        for (int v = 0; v < vectors; v++)
            row[v] = (__m512bh)_mm512_loadu_si512(right + l * right_row + v * LANES);
        for (int i = 0; i < rows; i++) {
            const __m512bh here = (__m512bh)_mm512_set1_epi32((int)left[i * left_row + l]);
            for (int v = 0; v < vectors; v++)
                sum[i][v] = _mm512_dpbf16_ps(sum[i][v], here, row[v]);
        }
    }
    for (int i = 0; i < rows; i++)
        for (int v = 0; v < vectors; v++)
            _mm512_storeu_ps(out + i * out_row + v * LANES, sum[i][v]);
}

/* out = left right, or added to it: (m, n) = (m, k pairs) (k pairs, n), n in whole vectors. */
static void multiply_two(int64_t m, int64_t n, int64_t k, const Two *left, int64_t left_row,
                         const Two *right, int64_t right_row, int added, float *out,
                         int64_t out_row)
{
    for (int64_t l = 0; l < k; l += AT_ONCE, added = 1) {
        const int64_t here = k - l < AT_ONCE ? k - l : AT_ONCE;
        for (int64_t j = 0, vectors; j < n; j += vectors * LANES) {
            const int64_t left_over = (n - j) / LANES;
            vectors = left_over >= 4 ? 4 : left_over >= 2 ? 2 : 1;
            #define TILE(rows, vectors) \
                multiply_tile_of_two(rows, vectors, here, left + i * left_row + l, left_row, \
                                     right + l * right_row + j, right_row, added, \
                                     out + i * out_row + j, out_row)
            for (int64_t i = 0, rows; i < m; i += rows) {
                rows = m - i >= 8 && vectors < 4 ? 8 : m - i >= 4 ? 4 : 1;
                if (vectors == 4 && rows == 4)
                    TILE(4, 4);
                else if (vectors == 4)
                    TILE(1, 4);
                else if (vectors == 2 && rows == 8)
                    TILE(8, 2);
                else if (vectors == 2 && rows == 4)
                    TILE(4, 2);
                else if (vectors == 2)
                    TILE(1, 2);
                else if (rows == 8)
                    TILE(8, 1);
                else if (rows == 4)
                    TILE(4, 1);
                else
                    TILE(1, 1);
            }
            #undef TILE
        }
    }
    if (!k && !added)
        for (int64_t i = 0; i < m; i++)
            memset(out + i * out_row, 0, n * sizeof(float));
}

/* Pairs of rows: out[i / 2][j] = rows i and i + 1 at column j, n in whole vectors. */
static void pair_rows(const Half *from, int64_t row, int64_t rows, int64_t n, Two *out, int64_t step)
{
    for (int64_t i = 0; i < rows; i += 2)
        for (int64_t j = 0; j < n; j += LANES) {
            const __m256i upper = i + 1 < rows
                ? _mm256_loadu_si256((const void *)(from + (i + 1) * row + j)) : _mm256_setzero_si256();
            const __m256i lower = _mm256_loadu_si256((const void *)(from + i * row + j));
            const __m512i both = _mm512_or_si512(
                _mm512_cvtepu16_epi32(lower), _mm512_slli_epi32(_mm512_cvtepu16_epi32(upper), 16));
            _mm512_storeu_si512(out + i / 2 * step + j, both);
        }
}

/* Pairs of columns: out[j / 2][i] = columns j and j + 1 of row i, n of them and even. */
static void pair_columns(const Half *from, int64_t row, int64_t rows, int64_t n, Two *out,
                         int64_t step)
{
    for (int64_t first = 0; first < rows; first += LANES)
        for (int64_t j = 0; j < n; j += 2)
            for (int64_t i = first; i < rows && i < first + LANES; i++)
                memcpy(out + j / 2 * step + i, from + i * row + j, sizeof(Two));
}

/* The transpose, in pairs of what were rows: out[j][i / 2] = rows i and i + 1 at column j. */
static void pair_transposed(const Half *from, int64_t row, int64_t rows, int64_t n, Two *out,
                            int64_t step)
{
    for (int64_t first = 0; first < n; first += LANES)
        for (int64_t i = 0; i < rows; i += 2)
            for (int64_t j = first; j < n && j < first + LANES; j++)
                out[j * step + i / 2] = from[i * row + j]
                                        | (i + 1 < rows ? (Two)from[(i + 1) * row + j] << 16 : 0);
}

/* Round the rows of a float32 matrix, n in whole vectors. */
static void round_rows(const float *from, int64_t row, int64_t rows, int64_t n, Half *out)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < n; j += LANES)
            round_to(out + i * row + j, from + i * row + j);
}

#endif
