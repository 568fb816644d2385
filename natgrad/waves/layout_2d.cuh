// How kernels_2d.cu lays a shot out: the sizes of its parts, shared memory, and the patches of a thread.

constexpr int GROUPS = (NZ + 3) / 4;                                   // of four rows
constexpr int ZONE = LAYER ? LAYER + (MODE == ADJOINT ? HALF : 1) : 0; // cells of a strip: those with a correction
constexpr int QUADS = LAYER ? (ZONE + 4 * GROUPS - NZ + 3) / 4 : 0;    // groups of a strip along z
constexpr int INNER = GROUPS - 2 * QUADS;
constexpr int PIECE = QUADS ? QUADS : 1, PER = 32 / PIECE; // lanes across a strip, strips of a warp
constexpr int WARPS = THREADS / 32;
constexpr int WIDTH = COLS + 2 * HALF;
constexpr int FIELD = WIDTH * COLUMN;
constexpr int SIDES = BLOCKS == 1 ? 2 : 1;      // strips along x that a block can have
constexpr int MARGIN = (PX > PO ? PX : PO) - 1; // cells beyond a strip that patches of it may have
constexpr int STRIP = ZONE + MARGIN;            // columns of its memory
constexpr int AROUND = STRIP + MARGIN + 2 * REACH;
constexpr int LAST = BLOCKS == 1 ? NX : NX - FIRST - (BLOCKS - 2) * COLS; // columns of the last block
// Patches of a strip along x: those from column 0 on, those of the last block from FAR_PATCH on. They have
// warps of their own.
constexpr int NEAR_PATCHES = (ZONE + PX - 1) / PX, FAR_PATCH = (LAST - ZONE) / PX, FAR_PATCHES = (LAST + PX - 1) / PX - FAR_PATCH;
constexpr int MOST_PATCHES = NEAR_PATCHES > FAR_PATCHES ? NEAR_PATCHES : FAR_PATCHES;
constexpr int STRIP_WARPS = LAYER ? ((SIDES == 2 ? NEAR_PATCHES + FAR_PATCHES : MOST_PATCHES) * INNER + 31) / 32 : 0;
constexpr bool ALIGNED = NZ % 4 == 0 && GZ % 4 == 0;
constexpr int CENTRES = K[0][0] == K[1][0] ? 2 : 1; // axes whose share of u itself is counted along x

// Shared memory, in the order of its parts.
constexpr int XMEMORY = LAYER ? (SIDES * STRIP * LINE + 3) / 4 * 4 : 0;
constexpr int ZETAS = MODE == ADJOINT ? 2 : 1; // the neighbours' are needed too
constexpr int ZMEMORY = LAYER ? THREADS * 8 * PO : 0;
constexpr int BEYOND = LAYER ? ((MARGIN + REACH) * LINE + 3) / 4 * 4 : 0; // what is read after XMEMORY, and multiplied by zero
constexpr int GUARD = BEYOND > ZMEMORY ? BEYOND - ZMEMORY : 0;
constexpr int ZFILTER = 2 * QUADS * 16;
constexpr int XFILTER = LAYER ? SIDES * 4 * AROUND : 0;
constexpr int REALS = 2 * FIELD + (2 + ZETAS) * XMEMORY + ZMEMORY + GUARD + ZFILTER + XFILTER;
constexpr int BYTES = (REALS + 4 * INJECTIONS + RECORDED * RECORDED_CORNERS) * (int)sizeof(real)
    + (2 * INJECTIONS + RECORDED * RECORDED_CORNERS + RECORDED + 4) * 4 + 72;
static_assert(BYTES <= SHARED, "the plan has counted otherwise");
static_assert(FIELD % 2 == 0 && (2 * FIELD + (2 + ZETAS) * XMEMORY) % 4 == 0 && (ZMEMORY + GUARD) % 4 == 0, "quads are not aligned");

// Where (column, row) lies in a field: a column has the pairs of rows 0, 1 of every group, then
// those of rows 2, 3, so that the pairs of neighbouring threads lie side by side. Column −HALF and
// row −4 are the first.
constexpr int SECOND_PAIRS = 2 * (GROUPS + 2);
DEVICE int place(int x, int z) {
    int half = (z >> 1) & 1, group = (z + 4) >> 2;
    return (x + HALF) * COLUMN + half * SECOND_PAIRS + group * 2 + (z & 1);
}
DEVICE Pair load_pair(const real* field, int x, int group, int half) {
    return *(const Pair*)(field + (x + HALF) * COLUMN + half * SECOND_PAIRS + (group + 1) * 2);
}
DEVICE void load_quad(const real* field, int x, int group, real (&out)[4]) {
    Pair low = load_pair(field, x, group, 0), high = load_pair(field, x, group, 1);
    out[0] = low.a, out[1] = low.b, out[2] = high.a, out[3] = high.b;
}
DEVICE void store_quad(real* field, int x, int group, const real (&in)[4]) {
    real* at = field + (x + HALF) * COLUMN + (group + 1) * 2;
    *(Pair*)at = Pair{in[0], in[1]};
    *(Pair*)(at + SECOND_PAIRS) = Pair{in[2], in[3]};
}
// A tile along an axis: OF of them, of N cells each, cover the G of the grid. On either side it has at least
// OVERLAP cells that another tile owns, unless the grid ends there.
template <int G, int N, int OF> struct Span {
    int number, origin, begin, end;
    DEVICE Span(int number) : number(number) {
        constexpr int APART = N - 2 * OVERLAP;
        origin = last() ? G - N : number * APART;
        begin = first() ? 0 : number * APART + OVERLAP - origin, end = last() ? N : N - OVERLAP;
    }
    DEVICE bool first() const { return OF == 1 || number == 0; }
    DEVICE bool last() const { return OF == 1 || number + 1 == OF; }
    DEVICE bool owns(int k) const { return OF == 1 || (k >= begin && k < end); }
};
typedef Span<GZ, NZ, TZ> SpanZ;
// Four rows of a tile of an array on the grid; rows beyond NZ are zero, others' are not written.
template <class T> DEVICE void read_quad(const T* from, int z, real (&out)[4]) {
    if (ALIGNED) {
        Four<T> q = *(const Four<T>*)(from + z);
        for (int j = 0; j < 4; j++) out[j] = q.v[j];
    } else {
        for (int j = 0; j < 4; j++) out[j] = z + j < NZ ? real(from[z + j]) : real(0);
    }
}
template <class T, int N> DEVICE void read_patch(const T* from, int x, int group, real (&out)[N][4]) {
#pragma unroll
    for (int i = 0; i < N; i++) read_quad(from + (long long)(x + i < NX ? x + i : NX - 1) * GZ, 4 * group, out[i]);
}
template <class T> DEVICE void write_quad(const SpanZ& rows, T* to, int z, const real (&in)[4]) {
    if (ALIGNED) {
        if (rows.owns(z)) store(to + z, in);
    } else {
        for (int j = 0; j < 4; j++)
            if (z + j < NZ && rows.owns(z + j)) to[z + j] = in[j];
    }
}
DEVICE void add_quad(const SpanZ& rows, real* to, int z, const real (&in)[4]) {
    if (ALIGNED) {
        if (rows.owns(z)) add(to + z, in);
    } else {
        for (int j = 0; j < 4; j++)
            if (z + j < NZ && rows.owns(z + j)) atomicAdd(to + z + j, in[j]);
    }
}

// What a patch is: one that has cells, that is next to the block on the left or on the right, that has
// the layer along x; whose lane is the first of a strip along z, or the last; whose cells have forces.
enum { WORKS = 1, LEFT = 2, RIGHT = 4, CROSSED = 8, TOP = 16, BOTTOM = 32, FORCED = 64 };
template <int N, bool OUT> struct Patch {
    static constexpr int COUNT = N, BEFORE = OUT ? PX : 0; // columns, and those of the thread before them
    static constexpr bool OUTER = OUT;
    static constexpr bool HOLDS = OUT && MODE != ADJOINT; // u⁻ from step to step, in registers that are left
    int group, x0, is, warp; // is: WORKS and so on; warp: those of any lane
    real u[N][4], before[N][4];
    real own[N][4]; // w; in a strip along z ψ, which changes, so that w has its place in shared memory
};
