// Waves in 3D: a launch for a step of all shots, and a small one for its sources and receivers. In 2D,
// where tiles for clusters would take longer, N1 is 1, and nothing is done along axis 1.
//
// A block has a tile of ROWS × LANES·VECTOR cells across axes 1 and 2 and walks along axis 0 through a
// chunk of at most LENGTH planes. A thread has u of its cells on the planes around in registers;
// neighbours across the tile come from a plane in shared memory, and so do the memories of axes 1 and
// 2. There are two of those, so that one barrier a plane is enough. What the next plane needs is asked
// for before this one is computed, and what the plane after it needs is on its way to the cache. In 2D
// fields stay in the cache as long as they can, and w, which all shots share; in 3D there is no room.
// u⁺ replaces u⁻, and two fields change places from step to step.
//
// The memories ψ and ζ of an axis lie on the LAYER cells at either end of it; on WIDE cells, whole
// pieces of V, at the ends of axis 2. There are two sets, one read and one written, because each thread
// works out what it needs of its neighbours' itself.

constexpr int R = LAYER ? REACH : HALF, V = VECTOR;
constexpr int N[] = {N0, N1, N2};
constexpr int SLICE = N1 * N2;
constexpr long long CELLS = (long long)N0 * SLICE;
constexpr int WIDTH = LANES * V; // of a tile, in cells
constexpr int TILES1 = (N1 + ROWS - 1) / ROWS, TILES2 = (N2 + WIDTH - 1) / WIDTH;
// Chunks get shorter, from 1.6 of their mean length to 0.4 of it, so that blocks end together.
constexpr int start(int chunk) { return (long long)N0 * chunk * (8 * CHUNKS - 3 * chunk) / (5LL * CHUNKS * CHUNKS); }
constexpr int LENGTH = start(1) + 1;
constexpr bool DEEP = N1 > 1;        // in 3D
constexpr int AXES = DEEP ? 3 : 2;
constexpr int R1 = DEEP ? R : 0;     // rows above and below a tile
constexpr int PAD = (R + V - 1) / V * V, PITCH = WIDTH + 2 * PAD, PLANE = (ROWS + 2 * R1) * PITCH;
constexpr int BESIDE = 2 * PAD / V;                                 // of a row: pieces of V cells
constexpr int ABOVE = 2 * R1 * LANES, HALO = ABOVE + ROWS * BESIDE; // and those of rows above and below
constexpr int HELD = (HALO + THREADS - 1) / THREADS;
constexpr int ZONE = LAYER ? LAYER + (MODE == ADJOINT ? HALF : 1) : 0; // where there is a correction
constexpr int WIDE = (LAYER + 3) / 4 * 4;

// Tiles without a cell in the layers of axes 1 and 2 run code without them. Those around take longer
// and come first, so that none is left alone at the end.
constexpr int LOW1 = DEEP ? (ZONE + ROWS - 1) / ROWS : 0, LOW2 = (ZONE + WIDTH - 1) / WIDTH;
constexpr int HIGH1 = LAYER && DEEP ? (N1 - ZONE) / ROWS : TILES1, HIGH2 = LAYER ? (N2 - ZONE) / WIDTH : TILES2;
constexpr int INNER1 = HIGH1 > LOW1 ? HIGH1 - LOW1 : 0, INNER2 = HIGH2 > LOW2 ? HIGH2 - LOW2 : 0;
constexpr int INNER = INNER1 * INNER2, EDGES = TILES1 * TILES2 - INNER;
constexpr long long STRIPS[] = {2 * LAYER * CELLS / N0, DEEP ? 2 * LAYER * CELLS / N1 : 0, 2 * WIDE * CELLS / N2};
constexpr long long MEMORY = 2 * (STRIPS[0] + STRIPS[1] + STRIPS[2]);
constexpr int FILTERS[] = {LENGTH + 2 * R, DEEP ? ROWS + 2 * R : 0, PITCH}; // of a block, for each axis
constexpr int ALL = LAYER ? FILTERS[0] + FILTERS[1] + FILTERS[2] : 0;
constexpr int HELD1 = LAYER && DEEP ? (ROWS + 2 * R) * WIDTH : 0, HELD2 = LAYER ? ROWS * PITCH : 0; // ψ or ζ of an axis on a plane
constexpr int MEMORIES = 4 * (HELD1 + HELD2);
static_assert((2 * PLANE + MEMORIES + 4 * ALL) * (int)sizeof(real) <= SHARED, "the plan has counted otherwise");
static_assert(N2 % V == 0, "rows of whole pieces");

struct alignas(V * sizeof(real)) Cells { real v[V]; };
template <int AXIS> struct Number { static constexpr int value = AXIS; };

// Where the memories of cell k of an axis lie on its line, and whether there are any.
template <int AXIS> DEVICE bool stored(int k) {
    constexpr int n = N[AXIS], width = AXIS == 2 ? WIDE : LAYER;
    return n > 1 && k >= 0 && k < n && (k < width || k >= n - width);
}
template <int AXIS> DEVICE long long place(int k) {
    constexpr int n = N[AXIS], width = AXIS == 2 ? WIDE : LAYER;
    return (long long)(k < width ? k : k - n + 2 * width) * (AXIS == 0 ? SLICE : AXIS == 1 ? N2 : 1);
}
DEVICE Cells load(const real* from, bool there) {
    Cells zero = {};
    return there ? *(const Cells*)from : zero;
}
template <class T> DEVICE Cells load_once(const T* from, bool there) {
    Cells c = {};
    if (there) load_once(from, c.v);
    return c;
}

// What the layer of an axis adds to V cells that lie side by side across it. `u(m)` and `filter[m]` are
// those m cells further along the axis, `bend` is Ku along it, `old(0, m)` and `old(1, m)` are ψ and ζ
// there before the step, zeros beyond the strips, and `fresh` has those of the line of cells after it.
template <int AXIS, class Line, class Old>
DEVICE void absorb(Line u, const Filter* filter, Old old, real* fresh, int i, const real (&bend)[V], real (&sum)[V]) {
    constexpr int FROM = MODE == ADJOINT ? REACH : 3;
    constexpr real SHARE[] = {FAR, -1, 1, -FAR}; // of the four points around a cell in D
    real slope[V], curved[V], v[4][V];
#pragma unroll
    for (int j = 0; j < V; j++) slope[j] = curved[j] = v[1][j] = v[2][j] = v[3][j] = 0;
#pragma unroll
    for (int m = -FROM; m <= FROM; m++) {
        Cells here = u(m);
        if (MODE == ADJOINT) {
            const Filter f = filter[m];
            Cells zeta = old(1, m);
#pragma unroll
            for (int j = 0; j < V; j++) {
                zeta.v[j] = f.b * zeta.v[j] + f.a * here.v[j];
                here.v[j] += zeta.v[j];
                if (m >= -HALF && m <= HALF) curved[j] += K[AXIS][m < 0 ? -m : m] * zeta.v[j];
            }
            if (m == 0 && stored<AXIS>(i)) store(fresh + STRIPS[AXIS] + place<AXIS>(i), zeta.v);
        }
#pragma unroll
        for (int j = 0; j < V; j++) v[0][j] = v[1][j], v[1][j] = v[2][j], v[2][j] = v[3][j], v[3][j] = here.v[j];
        if (m < 0 || m > 3) continue;
        const Filter f = filter[m - 1];
        Cells psi = old(0, m - 1);
#pragma unroll
        for (int j = 0; j < V; j++) {
            psi.v[j] = f.b_before * psi.v[j] + f.a_before * difference(v[0][j], v[1][j], v[2][j], v[3][j]);
            slope[j] += SHARE[m] * psi.v[j];
        }
        if (m == 1 && stored<AXIS>(i)) store(fresh + place<AXIS>(i), psi.v);
    }
    if (MODE != ADJOINT) {
        const Filter f = filter[0];
        Cells zeta = old(1, 0);
#pragma unroll
        for (int j = 0; j < V; j++) curved[j] = zeta.v[j] = f.b * zeta.v[j] + f.a * (bend[j] + slope[j]);
        if (stored<AXIS>(i)) store(fresh + STRIPS[AXIS] + place<AXIS>(i), zeta.v);
    }
#pragma unroll
    for (int j = 0; j < V; j++) sum[j] += slope[j] + curved[j];
}

// The same along axis 2, for V cells one after the other; u begins PAD cells before them. `psi` and
// `zeta` have what was there before the step, zeros beyond the strips.
DEVICE void absorb_along(const real (&u)[V + 2 * PAD], const real* filter, const real* psi, const real* zeta, real* fresh, int i, const real (&bend)[V], real (&sum)[V]) {
    real v[V + 2 * PAD], of[V + 2 * PAD], points[V + 3]; // from that before the cell before on
    auto read = [&](int which, int m) { return *(const Cells*)(filter + which * PITCH + m); };
#pragma unroll
    for (int m = -PAD; m < V + PAD; m += V) {
        Cells memory = *(const Cells*)(zeta + m), b = read(0, m), a = read(1, m);
#pragma unroll
        for (int j = 0; j < V; j++) {
            const int k = PAD + m + j;
            v[k] = u[k];
            if (MODE != ADJOINT) continue;
            of[k] = memory.v[j] = b.v[j] * memory.v[j] + a.v[j] * u[k];
            v[k] += of[k];
        }
        if (MODE == ADJOINT && m == 0 && stored<2>(i)) store(fresh + STRIPS[2] + place<2>(i), memory.v);
    }
#pragma unroll
    for (int m = -V; m < V + 2; m += V) {
        Cells memory = *(const Cells*)(psi + m), b = read(2, m), a = read(3, m);
#pragma unroll
        for (int j = 0; j < V; j++) {
            const int k = m + j;
            if (k < -1 || k > V + 1) continue;
            const real* near = v + PAD + k;
            points[k + 1] = memory.v[j] = b.v[j] * memory.v[j] + a.v[j] * difference(near[-2], near[-1], near[0], near[1]);
        }
        if (m == 0 && stored<2>(i)) store(fresh + place<2>(i), memory.v);
    }
    Cells memory = *(const Cells*)zeta, b = read(0, 0), a = read(1, 0);
#pragma unroll
    for (int j = 0; j < V; j++) {
        real e = difference(points[j], points[j + 1], points[j + 2], points[j + 3]);
        if (MODE == ADJOINT) {
            e += K[2][0] * of[PAD + j];
#pragma unroll
            for (int d = 1; d <= HALF; d++) e += K[2][d] * (of[PAD + j - d] + of[PAD + j + d]);
        } else {
            memory.v[j] = b.v[j] * memory.v[j] + a.v[j] * (bend[j] + e);
            e += memory.v[j];
        }
        sum[j] += e;
    }
    if (MODE != ADJOINT && stored<2>(i)) store(fresh + STRIPS[2] + place<2>(i), memory.v);
}

DEVICE long long locate(const int* cell) {
    long long row = (long long)(cell[0] - HALF) * N1;
    if (DEEP) row = row + cell[1] - HALF;
    return row * N2 + cell[AXES - 1] - HALF;
}

// The fields and memories are given, and are changed in place.
KERNEL step(real*, real*, PARAMETERS, real* fields, real* memory, int round) {
    const bool edge = block() < EDGES * CHUNKS * SHOTS;
    const int n = block() - (edge ? 0 : EDGES * CHUNKS * SHOTS), tiles = edge ? EDGES : INNER;
    const int tile = n % tiles, walk = n / tiles, rest = tile - (TILES1 - INNER1) * TILES2;
    int tile1, tile2;
    if (!edge) {
        constexpr int ACROSS = INNER2 ? INNER2 : 1;
        tile1 = LOW1 + tile / ACROSS, tile2 = LOW2 + tile % ACROSS;
    } else if (rest < 0) { // a row of tiles at an end of axis 1
        tile1 = tile / TILES2, tile2 = tile % TILES2;
        if (tile1 >= LOW1) tile1 += INNER1;
    } else { // at an end of one of the others
        constexpr int ENDS = TILES2 > INNER2 ? TILES2 - INNER2 : 1;
        tile1 = LOW1 + rest / ENDS, tile2 = rest % ENDS;
        if (tile2 >= LOW2) tile2 += INNER2;
    }
    const int tid = thread(), lane = tid % LANES, row = tid / LANES, parity = round & 1;
    const int base1 = tile1 * ROWS, base2 = tile2 * WIDTH, shot = walk / CHUNKS;
    const int begin = start(walk % CHUNKS), end = start(walk % CHUNKS + 1);
    const int i1 = base1 + row, i2 = base2 + lane * V;
    const bool inside = i1 < N1 && i2 < N2;
    const int own = inside ? i1 * N2 + i2 : 0;
    const int t = MODE == ADJOINT ? STEPS - 1 - round : round;
    const bool keeps = MODE != FORWARD && t % EVERY == 0;
    const real* __restrict__ now = fields + ((long long)parity * SHOTS + shot) * CELLS;
    real* next = fields + ((long long)(1 - parity) * SHOTS + shot) * CELLS; // u⁻ until u⁺ replaces it

    int halo_from[HELD], halo_to[HELD]; // in the plane, or −1
    for (int k = 0; k < HELD; k++) {
        const int n = tid + k * THREADS, m = n - ABOVE, side = m % BESIDE;
        const int y = m >= 0 ? m / BESIDE : n / LANES < R1 ? n / LANES - R1 : ROWS - R1 + n / LANES;
        const int x = m < 0 ? n % LANES * V : side * V - PAD + (2 * side >= BESIDE ? WIDTH : 0);
        const int at1 = base1 + y, at2 = base2 + x;
        halo_to[k] = n < HALO ? (y + R1) * PITCH + PAD + x : -1;
        halo_from[k] = n < HALO && at1 >= 0 && at1 < N1 && at2 >= 0 && at2 < N2 ? at1 * N2 + at2 : -1;
    }

#if LAYER > 0
    Filter* filters = (Filter*)((real*)arena + 2 * PLANE + MEMORIES);
    real* along_filters = (real*)(filters + FILTERS[0] + FILTERS[1]); // b, a, b', a' of all cells
    for (int k = tid; k < (edge ? ALL : FILTERS[0]); k += THREADS) {
        const real* table = coefficients;
        if (k < FILTERS[0]) filters[k] = read_filter(table, N0, begin - R + k, SLOPE[0]);
        else if (k < FILTERS[0] + FILTERS[1])
            filters[k] = read_filter(table + 4 * N0 + 2, N1, base1 - R + k - FILTERS[0], SLOPE[1]);
        else {
            const int x = k - FILTERS[0] - FILTERS[1];
            const Filter f = read_filter(table + (DEEP ? 4 * (N0 + N1) + 4 : 4 * N0 + 2), N2, base2 - PAD + x, SLOPE[2]);
            real* to = along_filters + x;
            to[0] = f.b, to[PITCH] = f.a, to[2 * PITCH] = f.b_before, to[3 * PITCH] = f.a_before;
        }
    }
#endif

    // Of what no copy fills, the cells beyond the grid and beside the strips, these zeros stay.
    for (int k = tid; k < 2 * PLANE + (edge ? MEMORIES : 0); k += THREADS) ((real*)arena)[k] = 0;
    block_sync();

    auto follow = [&](auto at_edge) {
        constexpr bool EDGE = decltype(at_edge)::value;
        real column[2 * R + 1][V]; // u on the planes from R before this one on
        Cells ahead, before, weights;
        auto remembered = [&](int set, long long line) {
            int which = set * SHOTS + shot;
            forget(which); // or addresses would have registers through the loop
            return memory + which * MEMORY + line;
        };
        auto beside = [&](int p) { return 2 * STRIPS[0] + (long long)p * 2 * LAYER * N2 + i2; };
        auto along_row = [&](int p) { return 2 * (STRIPS[0] + STRIPS[1]) + ((long long)p * N1 + i1) * 2 * WIDE; };
        auto held1 = [&](int p) { return (real*)arena + 2 * PLANE + 2 * (p & 1) * HELD1 + (row + R) * WIDTH + lane * V; };
        auto held2 = [&](int p) { return (real*)arena + 2 * PLANE + 4 * HELD1 + 2 * (p & 1) * HELD2 + row * PITCH + PAD; };
        auto fetch = [&](int p) {
            const long long at = (long long)p * SLICE;
            if (inside && lane % (128 / (V * (int)sizeof(real))) == 0) { // of a cache line
                const long long on = at + SLICE + own;
                if (p + 1 + R < N0) prefetch(now + on + (long long)R * SLICE);
                if (p + 1 < N0) prefetch(next + on), prefetch(weight + on);
                constexpr int AHEAD = MODE == ADJOINT ? REACH : 2;
                if (LAYER && stored<0>(p + AHEAD)) {
                    const real* from = remembered(parity, own + place<0>(p + AHEAD));
                    prefetch(from), prefetch(from + STRIPS[0]);
                }
            }
            ahead = load(now + at + (long long)R * SLICE + own, inside && p + R < N0);
            before = DEEP ? load_once(next + at + own, inside) : load(next + at + own, inside);
            weights = DEEP ? load_once(weight + at + own, inside) : load(weight + at + own, inside);
            real* plane = (real*)arena + (p & 1) * PLANE;
#pragma unroll
            for (int k = 0; k < HELD; k++)
                if (halo_from[k] >= 0) copy_later(plane + halo_to[k], (const Cells*)(now + at + halo_from[k]));
            auto copy = [&](real* to, int held, long long line, long long strip) {
                const real* from = remembered(parity, line);
                copy_later(to, (const Cells*)from), copy_later(to + held, (const Cells*)(from + strip));
            };
            auto recall_row = [&](int y) {
                if (i2 < N2 && stored<1>(i1 + y)) copy(held1(p) + y * WIDTH, HELD1, beside(p) + place<1>(i1 + y), STRIPS[1]);
            };
            if (EDGE && DEEP && (base1 < ZONE || base1 + ROWS > N1 - ZONE)) {
                recall_row(0);
                if (row < R) recall_row(-R);
                if (row >= ROWS - R) recall_row(R);
            }
            auto recall = [&](int x) {
                if (i1 < N1 && stored<2>(base2 + x)) copy(held2(p) + x, HELD2, along_row(p) + place<2>(base2 + x), STRIPS[2]);
            };
            if (EDGE && (base2 < ZONE || base2 + WIDTH > N2 - ZONE)) {
                recall(lane * V);
                if (lane < PAD / V) recall(lane * V - PAD), recall(lane * V + WIDTH);
            }
        };
#pragma unroll
        for (int k = 0; k < 2 * R; k++) {
            const int p = begin - R + k;
            const Cells c = load(now + (long long)p * SLICE + own, inside && p >= 0 && p < N0);
#pragma unroll
            for (int j = 0; j < V; j++) column[k + 1][j] = c.v[j];
        }
        fetch(begin);

#pragma unroll 1
        for (int p = begin; p < end; p++) {
            real* plane = (real*)arena + (p & 1) * PLANE;
            Cells centre, u_before = before, w = weights;
#pragma unroll
            for (int j = 0; j < V; j++) {
#pragma unroll
                for (int k = 0; k < 2 * R; k++) column[k][j] = column[k + 1][j];
                column[2 * R][j] = ahead.v[j], centre.v[j] = column[R][j];
            }
            real* here = plane + (row + R1) * PITCH + PAD + lane * V;
            *(Cells*)here = centre;
            await_copies();
            block_sync(); // the plane after this one is written elsewhere, that after it beyond the next barrier
            if (p + 1 < end) fetch(p + 1);
            if (!inside) continue;

            // One axis after the other, so that few numbers are held at a time.
            real sum[V] = {};
            auto across = [&](auto axis, auto u, auto old, bool zone, int filter, long long line, int i) {
                constexpr int AXIS = decltype(axis)::value;
                real bend[V];
#pragma unroll
                for (int j = 0; j < V; j++) bend[j] = K[AXIS][0] * centre.v[j];
#pragma unroll
                for (int d = 1; d <= HALF; d++) {
                    const Cells low = u(-d), high = u(d);
#pragma unroll
                    for (int j = 0; j < V; j++) bend[j] += K[AXIS][d] * (low.v[j] + high.v[j]);
                }
#pragma unroll
                for (int j = 0; j < V; j++) sum[j] += bend[j];
#if LAYER > 0
                if constexpr (AXIS == 0 || EDGE)
                    if (zone) absorb<AXIS>(u, filters + filter, old, remembered(1 - parity, line), i, bend, sum);
#endif
            };
            {
                real along[V + 2 * PAD], bend[V];
#pragma unroll
                for (int k = 0; k < V + 2 * PAD; k += V) {
                    const Cells c = *(const Cells*)(here - PAD + k);
#pragma unroll
                    for (int j = 0; j < V; j++) along[k + j] = c.v[j];
                }
#pragma unroll
                for (int j = 0; j < V; j++) {
                    bend[j] = K[2][0] * centre.v[j];
#pragma unroll
                    for (int d = 1; d <= HALF; d++) bend[j] += K[2][d] * (along[PAD + j - d] + along[PAD + j + d]);
                    sum[j] = bend[j];
                }
#if LAYER > 0
                if (EDGE && (i2 < ZONE || i2 + V > N2 - ZONE)) {
                    const real* f = along_filters + PAD + lane * V;
                    const real* psi = held2(p) + lane * V;
                    absorb_along(along, f, psi, psi + HELD2, remembered(1 - parity, along_row(p)), i2, bend, sum);
                }
#endif
            }
            auto in_plane = [&](int m) { return *(const Cells*)(here + m * PITCH); };
            auto held = [&](int which, int m) { return *(const Cells*)(held1(p) + which * HELD1 + m * WIDTH); };
            if constexpr (DEEP) across(Number<1>(), in_plane, held, i1 < ZONE || i1 >= N1 - ZONE, FILTERS[0] + R + row, beside(p), i1);
            auto in_column = [&](int m) {
                Cells c;
#pragma unroll
                for (int j = 0; j < V; j++) c.v[j] = column[R + m][j];
                return c;
            };
            auto kept0 = [&](int which, int m) {
                return load(remembered(parity, own + which * STRIPS[0] + place<0>(p + m)), stored<0>(p + m));
            };
            across(Number<0>(), in_column, kept0, p < ZONE || p >= N0 - ZONE, R + p - begin, own, p);
            const long long at = (long long)p * SLICE + own;
            Cells fresh, q;
#pragma unroll
            for (int j = 0; j < V; j++) {
                q.v[j] = w.v[j] * sum[j];
                fresh.v[j] = fused(2, centre.v[j], -u_before.v[j]) + q.v[j];
            }
#if MODE != FORWARD
            if (keeps) {
                int which = shot;
                forget(which);
                auto* stored = kept + ((long long)(t / EVERY) * SHOTS + which) * CELLS + at;
#if MODE == KEEP
                for (int k = 0; BFLOAT16 && k < INJECTIONS; k++) { // q is rounded once, with the force
                    const int i = shot * INJECTIONS + k;
                    const long long after = locate(injected_cells + (long long)AXES * i) - at;
#pragma unroll
                    for (int j = 0; j < V; j++)
                        if (after == j) q.v[j] += injected_weights[i] * series[(long long)(i / INJECTED_CORNERS) * STEPS + t];
                }
                store(stored, q.v);
#else
                q = load_once(stored, true);
#if MODE == BORN
                const Cells share = load_once(ratio + at, true);
#pragma unroll
                for (int j = 0; j < V; j++) fresh.v[j] += share.v[j] * q.v[j];
#else
                real* mine = image + (long long)which * CELLS + at;
                Cells total = load_once(mine, t + EVERY < STEPS); // the last block comes first
#pragma unroll
                for (int j = 0; j < V; j++) total.v[j] += q.v[j] * centre.v[j];
                store(mine, total.v);
#endif
#endif
            }
#endif
            if (DEEP) store(next + at, fresh.v);
            else *(Cells*)(next + at) = fresh;
        }
    };
    if (LAYER && edge) follow(Flag<(LAYER > 0)>());
    else if (INNER) follow(Flag<false>());
}

// Adds the sources of this step to u⁺, and to a q that is not rounded, and records u.
KERNEL points(real*, real*, PARAMETERS, real* fields, real*, int round) {
    const int i = block() * THREADS + thread(), parity = round & 1;
    const int t = MODE == ADJOINT ? STEPS - 1 - round : round;
#if MODE != BORN
    if (i < SHOTS * INJECTIONS) {
        const int shot = i / INJECTIONS, point = i / INJECTED_CORNERS;
        const long long at = locate(injected_cells + (long long)AXES * i);
        const real force = injected_weights[i] * series[(long long)point * STEPS + t];
        atomicAdd(fields + ((long long)(1 - parity) * SHOTS + shot) * CELLS + at, force);
#if MODE == KEEP && !BFLOAT16
        if (t % EVERY == 0) atomicAdd(kept + ((long long)(t / EVERY) * SHOTS + shot) * CELLS + at, force);
#endif
    }
#endif
#if MODE != ADJOINT
    if (i < SHOTS * RECORDED) {
        const real* now = fields + ((long long)parity * SHOTS + i / RECORDED) * CELLS;
        real sum = 0;
        for (int c = 0; c < RECORDED_CORNERS; c++) {
            const long long k = (long long)i * RECORDED_CORNERS + c;
            sum += recorded_weights[k] * now[locate(recorded_cells + AXES * k)];
        }
        data[(long long)i * STEPS + t] = sum;
    }
#endif
}
