// What the kernels of waves share: the GPU's instructions, the numbers of the scheme (scheme.py), and
// the step of the absorbing layer along a line of cells. All sizes are macros; a source is compiled
// for each of them.
//
// MODE is FORWARD, KEEP (q of every n-th step is written), BORN (its source is −n(η/m)q) or ADJOINT
// (backwards, with the image Σ q y).

#ifdef __CUDACC__
#define DEVICE __device__ __forceinline__
#define TABLE __device__ constexpr
#define KERNEL extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)

extern __shared__ __align__(16) unsigned char arena[];

DEVICE int thread() { return threadIdx.x; }
DEVICE int block() { return blockIdx.x; }
DEVICE void block_sync() { __syncthreads(); }

DEVICE void cluster_sync() {
    if (BLOCKS == 1) return __syncthreads();
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The address of this block's variable in another block of the cluster, and a pair sent there.
DEVICE unsigned remote(const void* own, int rank) {
    unsigned address;
    unsigned here = (unsigned)__cvta_generic_to_shared(own);
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(here), "r"(rank));
    return address;
}
// A transaction barrier counts the bytes that another block sends; a phase of it is armed with their
// number and ends when all have come. Who waits acquires what the cluster has released.
DEVICE void bar_init(void* bar) {
    unsigned at = (unsigned)__cvta_generic_to_shared(bar);
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\nfence.mbarrier_init.release.cluster;" ::"r"(at) : "memory");
}
DEVICE void bar_arm(void* bar, int bytes) {
    unsigned at = (unsigned)__cvta_generic_to_shared(bar);
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}
DEVICE void bar_wait(void* bar, int phase) {
    unsigned at = (unsigned)__cvta_generic_to_shared(bar);
    asm volatile(
        "{\n.reg .pred done;\nagain:\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n}" ::"r"(at), "r"(phase) : "memory");
}
DEVICE void send(unsigned to, float a, float b, unsigned bar) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];"
                 ::"r"(to), "f"(a), "f"(b), "r"(bar) : "memory");
}
DEVICE void send(unsigned to, double a, double b, unsigned bar) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f64 [%0], {%1, %2}, [%3];"
                 ::"r"(to), "d"(a), "d"(b), "r"(bar) : "memory");
}
template <class T> DEVICE T lane_after(T x, int by) { return __shfl_down_sync(~0u, x, by); }
template <class T> DEVICE T lane_before(T x, int by) { return __shfl_up_sync(~0u, x, by); }
// Keeps the compiler from holding what follows from x in registers of its own through the loop.
DEVICE void forget(int& x) { asm volatile("" : "+r"(x)); }
// Keeps the assembler from working x out anew, from the number of the thread, wherever it is needed.
DEVICE void hold(int& x) { x = __shfl_sync(~0u, x, threadIdx.x % 32); }
// The bits that any lane has; from the first lane, so that the compiler knows that all have the same.
DEVICE int any_lane(unsigned x) { return __shfl_sync(~0u, __reduce_or_sync(~0u, x), 0); }
DEVICE int bits(unsigned x) { return __popc(x); }
// bfloat16 by its bits: rounded to the nearest, to an even one between two; NaN stays NaN.
DEVICE unsigned short to_bfloat(float x) {
    unsigned short upper;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(upper) : "f"(x));
    return upper;
}
DEVICE float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
DEVICE double fused(double a, double b, double c) { return __fma_rn(a, b, c); }
// Stores to global memory that stay whole, where the compiler takes structs to pieces, and that leave
// the cache first; so do loads of what nobody else reads.
DEVICE void store(float* to, const float (&x)[4]) {
    asm volatile("st.global.cs.v4.f32 [%0], {%1, %2, %3, %4};"
                 ::"l"(__cvta_generic_to_global(to)), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]) : "memory");
}
DEVICE void store(double* to, const double (&x)[4]) {
    for (int i = 0; i < 4; i += 2)
        asm volatile("st.global.cs.v2.f64 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(to + i)), "d"(x[i]), "d"(x[i + 1]) : "memory");
}
DEVICE void store(unsigned long long* to, unsigned long long x) {
    asm volatile("st.global.cs.b64 [%0], %1;" ::"l"(__cvta_generic_to_global(to)), "l"(x) : "memory");
}
template <class T> DEVICE void store(T* to, const T (&x)[1]) { *to = x[0]; }
DEVICE void load_once(const float* from, float (&x)[4]) {
    asm volatile("ld.global.cs.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3]) : "l"(__cvta_generic_to_global(from)));
}
template <class T> DEVICE void load_once(const T* from, T (&x)[1]) { x[0] = *from; }
// Additions to global memory that nobody waits for.
DEVICE void add(float* to, const float (&x)[4]) {
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};"
                 ::"l"(__cvta_generic_to_global(to)), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]) : "memory");
}
DEVICE void add(double* to, const double (&x)[4]) {
    for (int i = 0; i < 4; i++) atomicAdd(to + i, x[i]);
}
// Copies to shared memory that go past the registers, and past the first cache where they can, and a
// wait for those of this thread.
template <class T> DEVICE void copy_later(void* to, const T* from) {
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    if constexpr (sizeof(T) == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(__cvta_generic_to_global(from)) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(at), "l"(__cvta_generic_to_global(from)), "n"(sizeof(T)) : "memory");
}
DEVICE void await_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
// Asks for global memory, which waits in the second cache: a line of it, or some bytes.
DEVICE void prefetch(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }
DEVICE void prefetch(const void* from, int bytes) {
    const unsigned long long at = (unsigned long long)__cvta_generic_to_global(from), start = (at + 15) & ~15ull;
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(start), "r"((int)(at + bytes - start) & ~15) : "memory");
}
#else
#include "host_threads.h" // the same source on a CPU, for tests of its indices
#endif
#define FORWARD 0
#define KEEP 1
#define BORN 2
#define ADJOINT 3

typedef REAL real;
struct alignas(2 * sizeof(real)) Pair { real a, b; };
template <class T> struct alignas(4 * sizeof(T) < 16 ? 4 * sizeof(T) : 16) Four { T v[4]; };
typedef Four<real> Quad;

struct Bfloat { // bfloat16, the upper half of a float
    unsigned short upper;
    Bfloat() = default;
    DEVICE Bfloat(real x) : upper(to_bfloat(x)) {}
    DEVICE operator real() const {
        union { unsigned bits; float x; } all = {(unsigned)upper << 16};
        return all.x;
    }
};
DEVICE void store(Bfloat* to, const real (&x)[4]) {
    unsigned long long all = 0;
    for (int j = 0; j < 4; j++) all |= (unsigned long long)Bfloat(x[j]).upper << 16 * j;
    store((unsigned long long*)to, all);
}
DEVICE void store(Bfloat* to, const real (&x)[1]) { *to = x[0]; }
DEVICE void load_once(const Bfloat* from, real (&x)[4]) {
    const Four<Bfloat> all = *(const Four<Bfloat>*)from;
    for (int j = 0; j < 4; j++) x[j] = all.v[j];
}
DEVICE void load_once(const Bfloat* from, real (&x)[1]) { x[0] = *from; }
#if BFLOAT16
typedef Bfloat Kept; // q of the source waves
#else
typedef real Kept;
#endif

template <bool B> struct Flag { static constexpr bool value = B; };

// Of every axis: weights of the second difference, centre first, and one, over the spacing squared. If
// both axes in 2D have the same, the last weight is the unit, which saves products, and w has it.
TABLE real K[][HALF + 1] = {AXES_WEIGHTS};
TABLE real SLOPE[] = {AXES_SLOPES};
constexpr real NEAR = 1 + 3 * real(GAMMA), FAR = real(GAMMA) / NEAR; // the second relative to the first
constexpr int REACH = HALF > 3 ? HALF : 3;                           // of the layer's step, in cells
constexpr int INJECTIONS = INJECTED * INJECTED_CORNERS;

// The layer along a line of cells. With b and a of the cells, b' and a' of the points between them,
//     ψ⁺ = b'ψ + a'Gu,   E = Ku + Dψ⁺,   ζ⁺ = bζ + aE,   correction = Dψ⁺ + ζ⁺,
// Gu the difference of four cells around a point and D = −Gᵀ. The transpose filters first,
// ζ⁺ = bζ + au and v = u + ζ⁺, and then Ku + correction = Kv + Dψ⁺, ψ⁺ = b'ψ + a'Gv.
// The factors of G and D are in a'. ψ of a cell is that of the point before it.
DEVICE real difference(real second, real before, real after, real next) {
    return (after - before) - FAR * (next - second);
}
struct alignas(4 * sizeof(real) < 16 ? 4 * sizeof(real) : 16) Filter { real b, a, b_before, a_before; };

// Of a cell of an axis of n, whose table has b and a of its cells, then of the n + 1 points around.
DEVICE Filter read_filter(const real* table, int n, int index, real slope) {
    const real* at = table + index;
    bool cell = index >= 0 && index < n, point = index >= 0 && index <= n;
    const real factor = NEAR * NEAR * slope;
    return Filter{cell ? at[0] : 0, cell ? at[n] : 0, point ? at[2 * n] : 0, point ? factor * at[3 * n + 1] : 0};
}

// COUNT cells of a line: Ku and the correction. `v` has u from REACH cells before them on; `psi`, `zeta`
// and `filter` give what was there before the step, by the same index, so that threads that share a
// line need not wait for each other; `put` takes a cell's new ψ, ζ and the sum.
template <int COUNT, class Psi, class Zeta, class Filters, class Put>
DEVICE void cross_layer(real (&v)[COUNT + 2 * REACH], const real (&weights)[HALF + 1], Psi psi, Zeta zeta, Filters filter, Put put) {
    real cells[COUNT], points[COUNT + 3]; // the points from that before the cell before on
    if (MODE == ADJOINT) {
#pragma unroll
        for (int k = 0; k < COUNT + 2 * REACH; k++) {
            const real kept = filter(k).b * zeta(k) + filter(k).a * v[k];
            if (k >= REACH && k < REACH + COUNT) cells[k - REACH] = kept;
            v[k] += kept;
        }
    }
#pragma unroll
    for (int k = 0; k < COUNT + 3; k++) {
        const int n = k + REACH - 1;
        const Filter f = filter(n);
        points[k] = f.b_before * psi(n) + f.a_before * difference(v[n - 2], v[n - 1], v[n], v[n + 1]);
    }
#pragma unroll
    for (int k = 0; k < COUNT; k++) {
        const int n = k + REACH;
        real e = difference(points[k], points[k + 1], points[k + 2], points[k + 3]) + weights[0] * v[n];
#pragma unroll
        for (int m = 1; m <= HALF; m++) e += weights[m] * (v[n - m] + v[n + m]);
        if (MODE != ADJOINT) {
            cells[k] = filter(n).b * zeta(n) + filter(n).a * e;
            e += cells[k];
        }
        put(k, points[k + 1], cells[k], e);
    }
}

// The same of four cells of a line whose other cells the neighbouring lanes have, from the first lane
// of a strip to its last. `v` has u from HALF cells before on, f has b, a, b', a'.
DEVICE void cross_lanes(real (&v)[4 + 2 * HALF], const Quad (&f)[4], const real (&weights)[HALF + 1], bool first, bool last, real (&psi)[4], real (&zeta)[4], real (&sum)[4]) {
    real points[7];
    if (MODE == ADJOINT) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            zeta[j] = f[0].v[j] * zeta[j] + f[1].v[j] * v[HALF + j];
            v[HALF + j] += zeta[j];
        }
#pragma unroll
        for (int j = 0; j < HALF; j++) {
            const real before = lane_before(v[4 + j], 1), after = lane_after(v[HALF + j], 1);
            v[j] = first ? v[j] : before;
            v[HALF + 4 + j] = last ? v[HALF + 4 + j] : after;
        }
    }
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const real* at = v + HALF + j;
        points[j + 1] = psi[j] = f[2].v[j] * psi[j] + f[3].v[j] * difference(at[-2], at[-1], at[0], at[1]);
    }
    const real before = lane_before(points[4], 1), after = lane_after(points[1], 1), next = lane_after(points[2], 1);
    points[0] = first ? real(0) : before, points[5] = last ? real(0) : after, points[6] = last ? real(0) : next;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        real e = difference(points[j], points[j + 1], points[j + 2], points[j + 3]) + weights[0] * v[HALF + j];
#pragma unroll
        for (int n = 1; n <= HALF; n++) e += weights[n] * (v[HALF + j - n] + v[HALF + j + n]);
        if (MODE != ADJOINT) {
            zeta[j] = f[0].v[j] * zeta[j] + f[1].v[j] * e;
            e += zeta[j];
        }
        sum[j] += e;
    }
}

// The parameters of a kernel: what is given, then the results.
#define ARRAY const real* __restrict__
#define KEPT_ARRAY const Kept* __restrict__ kept
#define MEDIUM ARRAY weight, ARRAY coefficients
#define INJECTION const int *__restrict__ injected_cells, ARRAY injected_weights, ARRAY series
#define RECORDING const int *__restrict__ recorded_cells, ARRAY recorded_weights
#if MODE == FORWARD
#define PARAMETERS MEDIUM, INJECTION, RECORDING, real* data
#elif MODE == KEEP
#define PARAMETERS MEDIUM, INJECTION, RECORDING, real *data, Kept *kept
#elif MODE == BORN
#define PARAMETERS MEDIUM, ARRAY ratio, KEPT_ARRAY, RECORDING, real* data
#else
#define PARAMETERS MEDIUM, KEPT_ARRAY, INJECTION, real* image
#endif
