// Waves in 3D: a launch for a step of all shots, and a small one for its sources and receivers.
//
// A block has a tile of ROWS × 32·VECTOR cells across axes 1 and 2 and walks along axis 0 through a
// chunk of LENGTH planes. A thread has u of its cells on the planes around in registers; neighbours
// across the tile come from a plane in shared memory. There are two of those, so that one barrier a
// plane is enough. What the next plane needs is asked for before this one is computed. u⁺ replaces
// u⁻, and two fields change places from step to step.
//
// The memories ψ and ζ of an axis lie on the LAYER cells at either end of it. There are two sets, one
// read and one written, because each thread works out what it needs of its neighbours' itself.

constexpr int R = LAYER ? REACH : HALF, V = VECTOR;
constexpr int N[] = {N0, N1, N2};
constexpr int SLICE = N1 * N2;
constexpr long long CELLS = (long long)N0 * SLICE;
constexpr int TILES1 = (N1 + ROWS - 1) / ROWS, TILES2 = (N2 + 32 * V - 1) / (32 * V);
constexpr int CHUNKS = (N0 + LENGTH - 1) / LENGTH;
constexpr int PAD = (R + V - 1) / V * V, PITCH = 32 * V + 2 * PAD, PLANE = (ROWS + 2 * R) * PITCH;
constexpr int BESIDE = 2 * PAD / V;                        // of a row: pieces of V cells
constexpr int ABOVE = 2 * R * 32, HALO = ABOVE + ROWS * BESIDE; // and those of rows above and below
constexpr int HELD = (HALO + THREADS - 1) / THREADS;
constexpr int ZONE = LAYER ? LAYER + (MODE == ADJOINT ? HALF : 1) : 0; // where there is a correction
constexpr long long STRIPS[] = {2 * LAYER * CELLS / N0, 2 * LAYER * CELLS / N1, 2 * LAYER * CELLS / N2};
constexpr long long MEMORY = 2 * (STRIPS[0] + STRIPS[1] + STRIPS[2]);
static_assert(2 * PLANE * (int)sizeof(real) <= SHARED, "the plan has counted otherwise");
static_assert(N2 % V == 0, "rows of whole pieces");

struct alignas(V * sizeof(real)) Cells { real v[V]; };

DEVICE Cells load(const real* from, bool there) {
    Cells zero = {};
    return there ? *(const Cells*)from : zero;
}

// The correction of cell (i0, i1, i2) along an axis; u along it lies around `u`, in the field for axis
// 0, else in the plane. `old` and `fresh` are memories of the shot. This is a function that is called,
// so that it takes no registers from the cells, most of which are in no layer.
template <int AXIS>
CALLED real absorb(const real* u, int i0, int i1, int i2, const real* coefficients, const real* old, real* fresh) {
    constexpr int n = N[AXIS], apart = AXIS == 0 ? SLICE : AXIS == 1 ? PITCH : 1;
    constexpr int step = AXIS == 0 ? SLICE : AXIS == 1 ? N2 : 1; // of the memories
    constexpr long long zetas = STRIPS[AXIS], from = 2 * ((AXIS > 0) * STRIPS[0] + (AXIS > 1) * STRIPS[1]);
    const real* table = coefficients + (AXIS > 0) * (4 * N0 + 2) + (AXIS > 1) * (4 * N1 + 2);
    const long long corner = AXIS == 0 ? i1 * N2 + i2 : AXIS == 1 ? (long long)i0 * 2 * LAYER * N2 + i2 : ((long long)i0 * N1 + i1) * 2 * LAYER;
    const int i = AXIS == 0 ? i0 : AXIS == 1 ? i1 : i2;
    auto place = [&](int k) { return from + corner + (long long)(k < LAYER ? k : k - n + 2 * LAYER) * step; };
    auto stored = [&](int k) { return k >= 0 && k < n && (k < LAYER || k >= n - LAYER); };
    auto read = [&](int k, long long part) { return stored(i + k - REACH) ? old[place(i + k - REACH) + part] : real(0); };
    real line[1 + 2 * REACH], found = 0;
#pragma unroll
    for (int k = -REACH; k <= REACH; k++) line[k + REACH] = i + k >= 0 && i + k < n ? u[(long long)k * apart] : real(0);
    cross_layer<1>(
        line, K[AXIS], [&](int k) { return read(k, 0); }, [&](int k) { return read(k, zetas); },
        [&](int k) { return read_filter(table, n, i + k - REACH, SLOPE[AXIS]); },
        [&](int, real psi, real zeta, real correction) {
            found = correction;
            if (stored(i)) fresh[place(i)] = psi, fresh[place(i) + zetas] = zeta;
        });
    return found;
}

// The fields and memories are given, and are changed in place.
KERNEL step(real*, real*, PARAMETERS, real* fields, real* memory, int round) {
    const int tid = thread(), lane = tid % 32, row = tid / 32, parity = round & 1;
    const int tile = block() % (TILES1 * TILES2), walk = block() / (TILES1 * TILES2);
    const int base1 = tile / TILES2 * ROWS, base2 = tile % TILES2 * 32 * V, shot = walk / CHUNKS;
    const int begin = walk % CHUNKS * LENGTH, end = begin + LENGTH < N0 ? begin + LENGTH : N0;
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
        const int y = m >= 0 ? m / BESIDE : n / 32 < R ? n / 32 - R : ROWS - R + n / 32;
        const int x = m < 0 ? n % 32 * V : side * V - PAD + (2 * side >= BESIDE ? 32 * V : 0);
        const int at1 = base1 + y, at2 = base2 + x;
        halo_to[k] = n < HALO ? (y + R) * PITCH + PAD + x : -1;
        halo_from[k] = n < HALO && at1 >= 0 && at1 < N1 && at2 >= 0 && at2 < N2 ? at1 * N2 + at2 : -1;
    }

    real column[2 * R + 1][V]; // u on the planes from R before this one on
    Cells ahead, before, weights, halo[HELD];
    auto fetch = [&](int p) {
        const long long at = (long long)p * SLICE;
        ahead = load(now + at + (long long)R * SLICE + own, inside && p + R < N0);
        before = load(next + at + own, inside);
        weights = load(weight + at + own, inside);
#pragma unroll
        for (int k = 0; k < HELD; k++) halo[k] = load(now + at + halo_from[k], halo_from[k] >= 0);
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
        real* here = plane + (row + R) * PITCH + PAD + lane * V;
        *(Cells*)here = centre;
#pragma unroll
        for (int k = 0; k < HELD; k++)
            if (halo_to[k] >= 0) *(Cells*)(plane + halo_to[k]) = halo[k];
        if (p + 1 < end) fetch(p + 1);
        block_sync(); // the plane after this one is written elsewhere, that after it beyond the next barrier
        if (!inside) continue;

        real along[V + 2 * PAD], sum[V];
#pragma unroll
        for (int k = 0; k < V + 2 * PAD; k += V) {
            const Cells c = *(const Cells*)(here - PAD + k);
#pragma unroll
            for (int j = 0; j < V; j++) along[k + j] = c.v[j];
        }
#pragma unroll
        for (int j = 0; j < V; j++) sum[j] = (K[0][0] + K[1][0] + K[2][0]) * centre.v[j];
#pragma unroll
        for (int d = 1; d <= HALF; d++) {
            const Cells low = *(const Cells*)(here - d * PITCH), high = *(const Cells*)(here + d * PITCH);
#pragma unroll
            for (int j = 0; j < V; j++) {
                sum[j] += K[0][d] * (column[R - d][j] + column[R + d][j]);
                sum[j] += K[1][d] * (low.v[j] + high.v[j]);
                sum[j] += K[2][d] * (along[PAD + j - d] + along[PAD + j + d]);
            }
        }
#if LAYER > 0
        if (p < ZONE || p >= N0 - ZONE || i1 < ZONE || i1 >= N1 - ZONE || i2 < ZONE || i2 + V > N2 - ZONE) {
            const real* old = memory + ((long long)parity * SHOTS + shot) * MEMORY;
            real* fresh = memory + ((long long)(1 - parity) * SHOTS + shot) * MEMORY;
#pragma unroll
            for (int j = 0; j < V; j++) {
                const int x = i2 + j;
                const real* u = now + (long long)p * SLICE + own + j;
                if (p < ZONE || p >= N0 - ZONE) sum[j] += absorb<0>(u, p, i1, x, coefficients, old, fresh);
                if (i1 < ZONE || i1 >= N1 - ZONE) sum[j] += absorb<1>(here + j, p, i1, x, coefficients, old, fresh);
                if (x < ZONE || x >= N2 - ZONE) sum[j] += absorb<2>(here + j, p, i1, x, coefficients, old, fresh);
            }
        }
#endif
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
            forget(which); // or its addresses would have registers through the loop
            auto* stored = kept + ((long long)(t / EVERY) * SHOTS + which) * CELLS + at;
#if MODE == KEEP
            store(stored, q.v);
#else
            q = load(stored, true);
#if MODE == BORN
            const Cells share = load(ratio + at, true);
#pragma unroll
            for (int j = 0; j < V; j++) fresh.v[j] += share.v[j] * q.v[j];
#else
            real* mine = image + (long long)which * CELLS + at;
            Cells total = load(mine, t + EVERY < STEPS); // the last block comes first
#pragma unroll
            for (int j = 0; j < V; j++) total.v[j] += q.v[j] * centre.v[j];
            store(mine, total.v);
#endif
#endif
        }
#endif
        store(next + at, fresh.v);
    }
}

// Adds the sources of this step to u⁺, and to its q, and records u.
KERNEL points(real*, real*, PARAMETERS, real* fields, real*, int round) {
    const int i = block() * THREADS + thread(), parity = round & 1;
    const int t = MODE == ADJOINT ? STEPS - 1 - round : round;
    auto place = [&](const int* cell) { return ((long long)(cell[0] - HALF) * N1 + cell[1] - HALF) * N2 + cell[2] - HALF; };
#if MODE != BORN
    if (i < SHOTS * INJECTIONS) {
        const int shot = i / INJECTIONS, point = i / INJECTED_CORNERS;
        const long long at = place(injected_cells + 3LL * i);
        const real force = injected_weights[i] * series[(long long)point * STEPS + t];
        atomicAdd(fields + ((long long)(1 - parity) * SHOTS + shot) * CELLS + at, force);
#if MODE == KEEP
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
            sum += recorded_weights[k] * now[place(recorded_cells + 3 * k)];
        }
        data[(long long)i * STEPS + t] = sum;
    }
#endif
}
