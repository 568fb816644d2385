// Waves of a 2D shot in the shared memory of a cluster of thread blocks, for all steps of a run.
//
// The first axis (x) is dealt out to the BLOCKS of a cluster, COLS columns each. A thread has a
// patch of PX columns by four rows (z): u and w of its cells stay in registers; shared memory has
// u⁻, which u⁺ replaces, and u for the neighbours. The columns at the rim of a block are written
// to the next block too; one barrier of the cluster ends a step.
//
//     u⁺ = 2u − u⁻ + w(Ku + correction) + force
//
// The correction is that of the absorbing layer, computed first, on its strips only: along z by
// warps whose lanes are rows, along x by threads that have a row and some columns.
//
// MODE is FORWARD, KEEP (q of every n-th step is written), BORN (its source is −n(η/m)q) or ADJOINT
// (backwards, with the image Σ q y). All sizes are macros; the source is compiled for each of them.

#ifdef __CUDACC__
#define DEVICE __device__ __forceinline__
#define TABLE __device__ constexpr
#define KERNEL extern "C" __global__ void __launch_bounds__(THREADS, 1)

extern __shared__ __align__(16) unsigned char arena[];

DEVICE int thread() { return threadIdx.x; }
DEVICE int block() { return blockIdx.x; }
DEVICE void block_sync() { __syncthreads(); }

DEVICE void cluster_sync() {
    if (BLOCKS == 1) return __syncthreads();
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The address of this block's variable in another block of the cluster, and a pair written there.
DEVICE unsigned remote(const void* own, int rank) {
    unsigned address;
    unsigned here = (unsigned)__cvta_generic_to_shared(own);
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(here), "r"(rank));
    return address;
}
DEVICE void store_remote(unsigned address, float a, float b) {
    asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(a), "f"(b) : "memory");
}
DEVICE void store_remote(unsigned address, double a, double b) {
    asm volatile("st.shared::cluster.v2.f64 [%0], {%1, %2};" ::"r"(address), "d"(a), "d"(b) : "memory");
}
template <class T> DEVICE T lane_after(T x, int by) { return __shfl_down_sync(~0u, x, by); }
template <class T> DEVICE T lane_before(T x, int by) { return __shfl_up_sync(~0u, x, by); }
// Keeps the compiler from holding what follows from x in registers of its own through the loop.
DEVICE void forget(int& x) { asm volatile("" : "+r"(x)); }
DEVICE int bits(unsigned x) { return __popc(x); }
DEVICE void prefetch(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }
#else
#include "host_threads.h" // the same source on a CPU, for tests of its indices
#endif

#define FORWARD 0
#define KEEP 1
#define BORN 2
#define ADJOINT 3

typedef REAL real;
struct alignas(2 * sizeof(real)) Pair { real a, b; };
struct alignas(16) Quad { real v[4]; };

// Weights of the second differences, centre first, each over the square of the spacing.
TABLE real WX[] = {WEIGHTS_X}, WZ[] = {WEIGHTS_Z};
constexpr real DX = SLOPE_X, DZ = SLOPE_Z; // one over the square of the spacing

constexpr int GROUPS = (NZ + 3) / 4;          // of four rows
constexpr int CELLS = 4 * PX;                 // of a patch
constexpr int PATCHES = GROUPS * (COLS / PX); // of a block
constexpr int COLUMN = 4 * SLOTS;             // reals of a column: SLOTS groups, guards included
constexpr int WIDTH = COLS + 2 * HALF;
constexpr int FIELD = WIDTH * COLUMN;
constexpr int WARPS = THREADS / 32;
constexpr int WINDOW = 24;                    // rows that a warp corrects, of its 32
constexpr int SPAN = WINDOWS * WINDOW;        // rows of a strip along z
constexpr int STRIP = LAYER + HALF + 1;       // columns of a strip along x
constexpr int SIDES = BLOCKS == 1 ? 2 : 1;    // strips along x that a block can have
constexpr int CHUNKS = LAYER ? (THREADS / NZ ? THREADS / NZ : 1) : 1;
constexpr int CHUNK = (STRIP + CHUNKS - 1) / CHUNKS;
constexpr int ENTRIES = INJECTED * INJECTED_CORNERS;
constexpr int EACH = (ENTRIES + THREADS - 1) / THREADS;
constexpr bool ALIGNED = NZ % 4 == 0;

// Shared memory, in the order of its parts.
constexpr int EXTRA = MODE >= BORN ? THREADS * CELLS : 0;
constexpr int ZCORR = LAYER ? COLS * 2 * SPAN : 0;
constexpr int XCORR = LAYER ? SIDES * STRIP * NZ : 0;
constexpr int XFILTER = LAYER ? SIDES * 4 * (STRIP + 2 * HALF) : 0;
constexpr int REALS = 2 * FIELD + EXTRA + ZCORR + XFILTER + 3 * XCORR;

constexpr int BYTES = (REALS + 3 * ENTRIES + RECORDED * RECORDED_CORNERS) * (int)sizeof(real)
    + (2 * ENTRIES + RECORDED * RECORDED_CORNERS + RECORDED + 4) * 4;
static_assert(BYTES <= SHARED, "the plan has counted otherwise");

// Where (column, row) lies in a field: a column has the pairs of rows 0, 1 of every group, then
// those of rows 2, 3, so that the pairs of neighbouring threads lie side by side. Column −HALF and
// row −4 are the first.
DEVICE int place(int x, int z) {
    int half = (z >> 1) & 1, group = (z + 4) >> 2;
    return (x + HALF) * COLUMN + half * 2 * SLOTS + group * 2 + (z & 1);
}
DEVICE Pair load_pair(const real* field, int x, int group, int half) {
    return *(const Pair*)(field + (x + HALF) * COLUMN + half * 2 * SLOTS + (group + 1) * 2);
}
DEVICE void load_quad(const real* field, int x, int group, real (&out)[4]) {
    Pair low = load_pair(field, x, group, 0), high = load_pair(field, x, group, 1);
    out[0] = low.a, out[1] = low.b, out[2] = high.a, out[3] = high.b;
}
DEVICE void store_quad(real* field, int x, int group, const real (&in)[4]) {
    real* at = field + (x + HALF) * COLUMN + (group + 1) * 2;
    *(Pair*)at = Pair{in[0], in[1]};
    *(Pair*)(at + 2 * SLOTS) = Pair{in[2], in[3]};
}
// Four rows of a (NX, NZ) array in global memory; rows beyond NZ are zero.
DEVICE void read_quad(const real* from, int z, real (&out)[4]) {
    if (ALIGNED) {
        Quad q = *(const Quad*)(from + z);
        for (int j = 0; j < 4; j++) out[j] = q.v[j];
    } else {
        for (int j = 0; j < 4; j++) out[j] = z + j < NZ ? from[z + j] : real(0);
    }
}
DEVICE void write_quad(real* to, int z, const real (&in)[4]) {
    if (ALIGNED) {
        *(Quad*)(to + z) = Quad{{in[0], in[1], in[2], in[3]}};
    } else {
        for (int j = 0; j < 4; j++)
            if (z + j < NZ) to[z + j] = in[j];
    }
}

// The layer along a line of cells. With b and a of the cells, b' and a' of the points between them,
//     ψ⁺ = b'ψ + a'Gu,   E = Ku + Dψ⁺,   ζ⁺ = bζ + aE,   correction = Dψ⁺ + ζ⁺,
// Gu the difference to the cell before and D = −Gᵀ. The transpose filters first, ζ⁺ = bζ + au and
// v = u + ζ⁺, and then K and D act on v: correction = Kζ⁺ + Dψ⁺, ψ⁺ = b'ψ + a'Gv.
struct alignas(4 * sizeof(real) < 16 ? 4 * sizeof(real) : 16) Filter { real b, a, b_before, a_before; };

// b and a of the cells along x, of the NX + 1 points around them, and the same along z.
DEVICE Filter read_filter(const real* coefficients, int axis, int index) {
    const int n = axis ? NZ : NX;
    const real* at = coefficients + (axis ? 4 * NX + 2 : 0) + index;
    bool cell = index >= 0 && index < n, point = index >= 0 && index <= n;
    return Filter{cell ? at[0] : 0, cell ? at[n] : 0, point ? at[2 * n] : 0, point ? at[3 * n + 1] : 0};
}

KERNEL wave(
    const real* __restrict__ weight, const real* __restrict__ coefficients,
#if MODE == BORN
    const real* __restrict__ ratio, const real* __restrict__ kept,
#elif MODE == ADJOINT
    const real* __restrict__ kept,
#endif
#if MODE != BORN
    const int* __restrict__ injected_cells, const real* __restrict__ injected_weights,
    const real* __restrict__ series,
#endif
#if MODE != ADJOINT
    const int* __restrict__ recorded_cells, const real* __restrict__ recorded_weights,
    real* __restrict__ data
#else
    real* __restrict__ image
#endif
#if MODE == KEEP
    , real* __restrict__ kept
#endif
) {
    real* fields = (real*)arena;
    real* extra = fields + 2 * FIELD; // the image, or η/m: quads of a thread's own
    real* zcorr = extra + EXTRA;      // (column, side, row of the strip)
    real* xfilter = zcorr + ZCORR;    // (side, column), from HALF before the strip on
    real* xcorr = xfilter + XFILTER;  // (side, column of the strip, row)
    real* xpsi = xcorr + XCORR;
    real* xzeta = xpsi + XCORR;
    real* force = (real*)arena + REALS;
    real* entry_weight = force + 2 * ENTRIES;
    real* record_weight = entry_weight + ENTRIES;
    int* entry_slot = (int*)(record_weight + RECORDED * RECORDED_CORNERS);
    int* entry_point = entry_slot + ENTRIES;
    int* record_place = entry_point + ENTRIES;
    int* record_point = record_place + RECORDED * RECORDED_CORNERS;
    int* counters = record_point + RECORDED;

    const int tid = thread(), lane = tid % 32, warp = tid / 32;
    const int rank = block() % BLOCKS, shot = block() / BLOCKS, first = rank * COLS;
    const bool works = tid < PATCHES;
    int group = tid % GROUPS, x0 = tid / GROUPS * PX;

    for (int i = tid; i < REALS; i += THREADS) fields[i] = 0;
    for (int i = tid; i < 2 * ENTRIES; i += THREADS) force[i] = 0;
    if (tid < 3) counters[tid] = 0;
    block_sync();

    // Cells that are forced get a number each, so that points that share one add up in it. A thread
    // knows those of its patch by a mask. The numbers are made in the field that is written first.
    int mask = 0;
    int slot = 0;
#if MODE != BORN
    int* numbers = (int*)(fields + FIELD);
    for (int pass = 0; pass < 2; pass++) {
        for (int e = tid; e < ENTRIES; e += THREADS) {
            const int* cell = injected_cells + ((long long)shot * ENTRIES + e) * 2;
            int gx = cell[0] - HALF, z = cell[1] - HALF, x = gx - first;
            real share = injected_weights[(long long)shot * ENTRIES + e];
            if (x < 0 || x >= COLS || share == 0) continue;
            int number = numbers[place(x, z)];
            if (pass == 0) { numbers[place(x, z)] = 1; continue; }
            int at = atomicAdd(counters + 0, 1);
            entry_slot[at] = number - 1, entry_point[at] = e / INJECTED_CORNERS;
            entry_weight[at] = share * weight[(long long)gx * NZ + z];
        }
        block_sync();
        if (pass == 0 && works) {
            for (int i = 0; i < PX; i++)
                for (int j = 0; j < 4; j++)
                    if (numbers[place(x0 + i, 4 * group + j)]) mask |= 1 << (4 * i + j);
            slot = atomicAdd(counters + 1, bits(mask));
            int next = slot;
            for (int i = 0; i < PX; i++)
                for (int j = 0; j < 4; j++)
                    if (mask >> (4 * i + j) & 1) numbers[place(x0 + i, 4 * group + j)] = ++next;
        }
        block_sync();
    }
    for (int i = tid; i < FIELD; i += THREADS) fields[FIELD + i] = 0;
    const int entries = counters[0];
    int my_slot[EACH];
    real my_weight[EACH];
    const real* my_series[EACH];
    for (int k = 0; k < EACH; k++) {
        int e = tid + k * THREADS;
        bool mine = e < entries;
        my_slot[k] = mine ? entry_slot[e] : -1;
        my_weight[k] = mine ? entry_weight[e] : real(0);
        int point = mine ? entry_point[e] : 0;
        my_series[k] = series + ((long long)shot * INJECTED + point) * STEPS;
        int t = MODE == ADJOINT ? STEPS - 1 : 0;
        if (mine) atomicAdd(force + my_slot[k], my_weight[k] * my_series[k][t]);
    }
#endif
#if MODE != ADJOINT
    // A point is recorded by the block of its first corner; the others lie in it or in its rim.
    for (int p = tid; p < RECORDED; p += THREADS) {
        const int* cell = recorded_cells + ((long long)shot * RECORDED + p) * RECORDED_CORNERS * 2;
        int x = cell[0] - HALF - first;
        if (x < 0 || x >= COLS) continue;
        int at = atomicAdd(counters + 2, 1);
        record_point[at] = p;
        for (int c = 0; c < RECORDED_CORNERS; c++) {
            int k = at * RECORDED_CORNERS + c;
            record_place[k] = place(cell[2 * c] - HALF - first, cell[2 * c + 1] - HALF);
            record_weight[k] = recorded_weights[((long long)shot * RECORDED + p) * RECORDED_CORNERS + c];
        }
    }
    block_sync();
    const int records = counters[2];
#endif

    real u[PX][4], w[PX][4];
    for (int i = 0; i < PX; i++) {
        for (int j = 0; j < 4; j++) u[i][j] = w[i][j] = 0;
        if (works && first + x0 + i < NX) {
            long long at = (long long)(first + x0 + i) * NZ;
            read_quad(weight + at, 4 * group, w[i]);
#if MODE == BORN
            real r[4];
            read_quad(ratio + at, 4 * group, r);
            *(Quad*)(extra + (i * THREADS + tid) * 4) = Quad{{r[0], r[1], r[2], r[3]}};
#endif
        }
    }

#if LAYER > 0
    // Along z a warp has one window of rows at one side, and every n-th column; a lane has a row.
    constexpr int KINDS = 2 * WINDOWS, LINES = (COLS + WARPS / KINDS - 1) / (WARPS / KINDS);
    const int kind = warp % KINDS, line = warp / KINDS, lines = (WARPS - kind + KINDS - 1) / KINDS;
    const int side = kind / WINDOWS, window = kind % WINDOWS;
    const int strip_row = window * WINDOW + lane - 4; // in the strip, which lies at either end
    const int row = strip_row + (side ? 4 * GROUPS - SPAN : 0);
    const bool corrects = lane >= 4 && lane < 4 + WINDOW;
    const bool filters = side ? row >= NZ - STRIP : row < STRIP;
    const Filter none = {0, 0, 0, 0};
    const Filter zfilter = filters ? read_filter(coefficients, 1, row) : none;
    int zplace = place(line, row), zout = line * 2 * SPAN + side * SPAN + strip_row;
    real zpsi[LINES], zzeta[LINES];
    for (int k = 0; k < LINES; k++) zpsi[k] = zzeta[k] = 0;

    // Along x a thread has a row and a chunk of the columns of a strip; its memory is shared.
    int xrow = tid % NZ, chunk = tid / NZ;
    const bool edge = rank == 0 || rank + 1 == BLOCKS, crosses = edge && chunk < CHUNKS;
    for (int i = tid; i < SIDES * (STRIP + 2 * HALF); i += THREADS) {
        int s = SIDES == 2 ? i / (STRIP + 2 * HALF) : rank > 0, j = i % (STRIP + 2 * HALF) - HALF;
        int gx = s ? NX + 1 - STRIP + j : j;
        *(Filter*)(xfilter + 4 * i) = j >= 0 && j < STRIP ? read_filter(coefficients, 0, gx) : none;
    }
#endif
#if BLOCKS > 1
    const unsigned left = remote(fields, rank > 0 ? rank - 1 : 0);
    const unsigned right = remote(fields, rank + 1 < BLOCKS ? rank + 1 : rank);
    const bool sends_left = works && rank > 0 && x0 == 0;
    const bool sends_right = works && rank + 1 < BLOCKS && x0 == COLS - PX;
#endif
    cluster_sync();

    for (int s = 0; s < STEPS; s++) {
        const int parity = s & 1;
        forget(group), forget(x0), forget(mask), forget(slot);
#if LAYER > 0
        forget(zplace), forget(zout), forget(xrow), forget(chunk);
#endif
        const real* now = fields + parity * FIELD;
        real* next = fields + (1 - parity) * FIELD;
        const int t = MODE == ADJOINT ? STEPS - 1 - s : s;
        const bool keeps = MODE != FORWARD && t % EVERY == 0;
        const long long layer_of = ((long long)(t / EVERY) * SHOTS + shot) * NX * NZ;

#if MODE != BORN
        real coming[EACH]; // the samples of the next step, on their way while this one is computed
        for (int k = 0; k < EACH; k++) {
            int after = MODE == ADJOINT ? t - 1 : t + 1;
            coming[k] = my_slot[k] >= 0 && s + 1 < STEPS ? my_series[k][after] : real(0);
        }
#endif
#if MODE != ADJOINT
        for (int e = tid; e < records; e += THREADS) {
            real sum = 0;
            for (int c = 0; c < RECORDED_CORNERS; c++) {
                int k = e * RECORDED_CORNERS + c;
                sum += record_weight[k] * now[record_place[k]];
            }
            data[((long long)shot * RECORDED + record_point[e]) * STEPS + t] = sum;
        }
#endif
#if LAYER > 0
#pragma unroll
        for (int k = 0; k < LINES; k++) {
            if (line + k * lines >= COLS) break;
            const real here = now[zplace + k * lines * COLUMN];
            real of = here, correction;
            if (MODE == ADJOINT) of = zzeta[k] = zfilter.b * zzeta[k] + zfilter.a * here;
            real v = MODE == ADJOINT ? here + of : here;
            real lower[HALF + 1], upper[HALF + 1];
#pragma unroll
            for (int d = 1; d <= HALF; d++) lower[d] = lane_before(of, d), upper[d] = lane_after(of, d);
            real before = MODE == ADJOINT ? lane_before(v, 1) : lower[1];
            zpsi[k] = zfilter.b_before * zpsi[k] + zfilter.a_before * (v - before);
            correction = DZ * (lane_after(zpsi[k], 1) - zpsi[k]);
            real e = WZ[0] * of;
#pragma unroll
            for (int d = 1; d <= HALF; d++) e += WZ[d] * (lower[d] + upper[d]);
            if (MODE != ADJOINT) e = zzeta[k] = zfilter.b * zzeta[k] + zfilter.a * (e + correction);
            if (corrects) zcorr[k * lines * 2 * SPAN + zout] = correction + e;
        }
        // Each thread works out what it needs of its neighbours' ψ or v itself, from the memory as
        // it was before this step, and writes its own after the barrier.
        real new_psi[SIDES][CHUNK], new_zeta[SIDES][CHUNK];
#pragma unroll
        for (int i = 0; i < SIDES; i++) {
            if (!crosses) continue;
            const int s = SIDES == 2 ? i : rank > 0;
            const int start = (s ? NX + 1 - STRIP : 0) - first, j0 = chunk * CHUNK;
            const Filter* filter = (const Filter*)xfilter + i * (STRIP + 2 * HALF) + HALF;
            const real* psi = xpsi + i * STRIP * NZ + xrow;
            const real* zeta = xzeta + i * STRIP * NZ + xrow;
            auto memory = [&](const real* m, int j) { return j >= 0 && j < STRIP ? m[j * NZ] : real(0); };
            constexpr int N = CHUNK + 2 * HALF;
            real v[N], of[N];
#pragma unroll
            for (int k = 0; k < N; k++) {
                const int j = j0 + k - HALF, x = start + j;
                const bool there = x < COLS + HALF && j < STRIP + HALF;
                v[k] = of[k] = there ? now[place(x, xrow)] : real(0);
                if (MODE == ADJOINT) {
                    of[k] = there ? filter[j].b * memory(zeta, j) + filter[j].a * v[k] : real(0);
                    v[k] += of[k];
                    if (k >= HALF && k < HALF + CHUNK) new_zeta[i][k - HALF] = of[k];
                }
            }
            real after = 0;
#pragma unroll
            for (int k = CHUNK; k >= 0; k--) {
                const int j = j0 + k;
                if (j > STRIP) continue;
                real point = filter[j].b_before * memory(psi, j) + filter[j].a_before * (v[k + HALF] - v[k + HALF - 1]);
                real correction = DX * (after - point);
                after = point;
                if (k == CHUNK) continue;
                new_psi[i][k] = point;
                real e = WX[0] * of[k + HALF];
#pragma unroll
                for (int d = 1; d <= HALF; d++) e += WX[d] * (of[k + HALF - d] + of[k + HALF + d]);
                if (MODE != ADJOINT) e = new_zeta[i][k] = filter[j].b * memory(zeta, j) + filter[j].a * (e + correction);
                if (j < STRIP) xcorr[(i * STRIP + j) * NZ + xrow] = correction + e;
            }
        }
        block_sync();
#pragma unroll
        for (int i = 0; i < SIDES; i++) {
            if (!crosses) continue;
#pragma unroll
            for (int k = 0; k < CHUNK; k++) {
                const int j = chunk * CHUNK + k;
                if (j >= STRIP) continue;
                xpsi[(i * STRIP + j) * NZ + xrow] = new_psi[i][k];
                xzeta[(i * STRIP + j) * NZ + xrow] = new_zeta[i][k];
            }
        }
#endif
        if (works) {
            real west[HALF][4], east[HALF][4], fresh[PX][4];
#pragma unroll
            for (int d = 0; d < HALF; d++) {
                load_quad(now, x0 - HALF + d, group, west[d]);
                load_quad(now, x0 + PX + d, group, east[d]);
            }
#pragma unroll
            for (int i = 0; i < PX; i++) {
                real along[4 + 2 * HALF], total[4];
                {
                    Pair low = load_pair(now, x0 + i, group - 1, 1), high = load_pair(now, x0 + i, group + 1, 0);
                    along[HALF - 2] = low.a, along[HALF - 1] = low.b;
                    along[HALF + 4] = high.a, along[HALF + 5] = high.b;
                    if (HALF == 4) {
                        low = load_pair(now, x0 + i, group - 1, 0), high = load_pair(now, x0 + i, group + 1, 1);
                        along[0] = low.a, along[1] = low.b;
                        along[2 * HALF + 2] = high.a, along[2 * HALF + 3] = high.b;
                    }
                }
#pragma unroll
                for (int j = 0; j < 4; j++) along[HALF + j] = u[i][j];
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    real sum = (WX[0] + WZ[0]) * u[i][j];
#pragma unroll
                    for (int d = 1; d <= HALF; d++) {
                        sum += WZ[d] * (along[HALF + j - d] + along[HALF + j + d]);
                        real lower = i - d < 0 ? west[i - d < 0 ? HALF + i - d : 0][j] : u[i - d < 0 ? 0 : i - d][j];
                        real upper = i + d >= PX ? east[i + d >= PX ? i + d - PX : 0][j] : u[i + d >= PX ? 0 : i + d][j];
                        sum += WX[d] * (lower + upper);
                    }
                    total[j] = sum;
                }
#if LAYER > 0
                const int x = x0 + i;
                if (group < SPAN / 4) {
                    Quad c = *(const Quad*)(zcorr + x * 2 * SPAN + 4 * group);
#pragma unroll
                    for (int j = 0; j < 4; j++) total[j] += c.v[j];
                }
                if (group >= GROUPS - SPAN / 4) {
                    Quad c = *(const Quad*)(zcorr + x * 2 * SPAN + SPAN + 4 * (group - GROUPS + SPAN / 4));
#pragma unroll
                    for (int j = 0; j < 4; j++) total[j] += c.v[j];
                }
#pragma unroll
                for (int k = 0; k < SIDES; k++) {
                    const int s = SIDES == 2 ? k : rank > 0;
                    const int column = first + x - (s ? NX + 1 - STRIP : 0);
                    if (!edge || column < 0 || column >= STRIP) continue;
                    real c[4];
                    read_quad(xcorr + (k * STRIP + column) * NZ, 4 * group, c);
#pragma unroll
                    for (int j = 0; j < 4; j++) total[j] += c[j];
                }
#endif
#pragma unroll
                for (int j = 0; j < 4; j++) total[j] *= w[i][j];
                const int gx = first + x0 + i;
#if MODE == KEEP
                if (keeps && gx < NX) write_quad(kept + layer_of + (long long)gx * NZ, 4 * group, total);
#endif
#if MODE >= BORN
                if (keeps && gx < NX) {
                    real q[4];
                    read_quad(kept + layer_of + (long long)gx * NZ, 4 * group, q);
                    Quad* own = (Quad*)(extra + (i * THREADS + tid) * 4);
                    Quad mine = *own;
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        if (MODE == BORN) total[j] += mine.v[j] * q[j];
                        else mine.v[j] += q[j] * u[i][j];
                    }
                    if (MODE == ADJOINT) *own = mine;
                }
#endif
                load_quad(next, x0 + i, group, fresh[i]); // u⁻, which u⁺ replaces
#pragma unroll
                for (int j = 0; j < 4; j++) fresh[i][j] = 2 * u[i][j] - fresh[i][j] + total[j];
#if MODE != BORN
                if (mask >> (4 * i) & 15) {
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        if (!(mask >> (4 * i + j) & 1)) continue;
                        real* forced = force + parity * ENTRIES + slot + bits(mask & ((1u << (4 * i + j)) - 1));
                        fresh[i][j] += *forced;
#if MODE == KEEP
                        if (keeps) kept[layer_of + (long long)gx * NZ + 4 * group + j] += *forced;
#endif
                        *forced = 0;
                    }
                }
#endif
                store_quad(next, x0 + i, group, fresh[i]);
#if BLOCKS > 1
                const int corner = ((1 - parity) * FIELD + (group + 1) * 2) * (int)sizeof(real);
                constexpr int HIGH = 2 * SLOTS * (int)sizeof(real);
                if (i < HALF && sends_left) {
                    unsigned to = left + corner + (COLS + HALF + i) * COLUMN * (int)sizeof(real);
                    store_remote(to, fresh[i][0], fresh[i][1]);
                    store_remote(to + HIGH, fresh[i][2], fresh[i][3]);
                }
                if (i >= PX - HALF && sends_right) {
                    unsigned to = right + corner + (i - PX + HALF) * COLUMN * (int)sizeof(real);
                    store_remote(to, fresh[i][0], fresh[i][1]);
                    store_remote(to + HIGH, fresh[i][2], fresh[i][3]);
                }
#endif
            }
#pragma unroll
            for (int i = 0; i < PX; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) u[i][j] = fresh[i][j];
        }
#if MODE != BORN
        for (int k = 0; k < EACH; k++)
            if (my_slot[k] >= 0)
                atomicAdd(force + (1 - parity) * ENTRIES + my_slot[k], my_weight[k] * coming[k]);
#endif
        cluster_sync();
    }

#if MODE == ADJOINT
    for (int i = 0; i < PX; i++) {
        int gx = first + x0 + i;
        if (!works || gx >= NX) continue;
        Quad mine = *(const Quad*)(extra + (i * THREADS + tid) * 4);
        write_quad(image + ((long long)shot * NX + gx) * NZ, 4 * group, mine.v);
    }
#endif
}
