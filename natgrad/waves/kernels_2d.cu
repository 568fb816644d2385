// Waves of a 2D shot in the shared memory of a cluster of thread blocks, for all steps of a run.
//
// The first axis (x) is dealt out to the BLOCKS of a cluster, COLS columns each. A thread has a
// patch of PX columns by four rows (z): u and w of its cells stay in registers; shared memory has
// u⁻, which u⁺ replaces, and u for the neighbours. The columns at the rim of a block are sent to
// the next block too, which waits for them alone: no barrier of the whole cluster ends a step.
//
//     u⁺ = 2u − u⁻ + w(Ku + correction) + force
//
// The correction is that of the absorbing layer, computed first, on its strips only: along z by
// lanes that have four rows each, along x by threads that have a row and some columns.

constexpr int GROUPS = (NZ + 3) / 4;          // of four rows
constexpr int CELLS = 4 * PX;                 // of a patch
constexpr int PATCHES = GROUPS * (COLS / PX); // of a block
constexpr int COLUMN = 4 * SLOTS;             // reals of a column: SLOTS groups, guards included
constexpr int WIDTH = COLS + 2 * HALF;
constexpr int FIELD = WIDTH * COLUMN;
constexpr int WARPS = THREADS / 32;
constexpr int STRIP = LAYER + HALF + 1; // columns of a strip along x
constexpr int SIDES = BLOCKS == 1 ? 2 : 1; // strips along x that a block can have
constexpr int CHUNKS = LAYER && THREADS >= NZ ? THREADS / NZ : 1;
constexpr int CHUNK = (STRIP + CHUNKS - 1) / CHUNKS;
constexpr int ACROSS = CHUNKS * CHUNK, AROUND = ACROSS + 2 * REACH;
constexpr int QUADS = (LAYER + HALF + 4 * GROUPS - NZ + 3) / 4; // groups of a strip along z
constexpr int SPAN = 4 * QUADS;
constexpr int PER = 32 / QUADS;                       // columns of it that a warp has at a time
constexpr int ROUNDS = ((COLS + PER - 1) / PER + WARPS - 1) / WARPS;
constexpr int EACH = (INJECTIONS + THREADS - 1) / THREADS;
constexpr bool ALIGNED = NZ % 4 == 0;

// Shared memory, in the order of its parts.
constexpr int EXTRA = MODE >= BORN ? THREADS * CELLS : 0;
constexpr int ZCORR = LAYER ? COLS * 2 * SPAN : 0;
constexpr int ZFILTER = LAYER ? 2 * QUADS * 16 : 0;
constexpr int XFILTER = LAYER ? SIDES * 4 * AROUND : 0;
constexpr int XCORR = LAYER ? SIDES * ACROSS * NZ : 0;
constexpr int XMEMORY = LAYER ? SIDES * AROUND * NZ : 0;
constexpr int REALS = 2 * FIELD + EXTRA + ZCORR + ZFILTER + XFILTER + XCORR + 2 * XMEMORY;
constexpr int BYTES = (REALS + 3 * INJECTIONS + RECORDED * RECORDED_CORNERS) * (int)sizeof(real)
    + (2 * INJECTIONS + RECORDED * RECORDED_CORNERS + RECORDED + 4) * 4 + 40;
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
        store(to + z, in);
    } else {
        for (int j = 0; j < 4; j++)
            if (z + j < NZ) to[z + j] = in[j];
    }
}

KERNEL wave(PARAMETERS) {
    real* fields = (real*)arena;
    real* extra = fields + 2 * FIELD; // the image, or η/m: quads of a thread's own
    real* zcorr = extra + EXTRA;      // (end, column, row of the strip)
    real* zfilter = zcorr + ZCORR;    // (b, a, b', a'; end; row)
    real* xfilter = zfilter + ZFILTER; // (side, column), from REACH before the strip on
    real* xcorr = xfilter + XFILTER;  // (side, column of the strip, row)
    real* xpsi = xcorr + XCORR;       // (side, column from REACH before the strip on, row)
    real* xzeta = xpsi + XMEMORY;
    real* force = (real*)arena + REALS;
    real* entry_weight = force + 2 * INJECTIONS;
    real* record_weight = entry_weight + INJECTIONS;
    int* entry_slot = (int*)(record_weight + RECORDED * RECORDED_CORNERS);
    int* entry_point = entry_slot + INJECTIONS;
    int* record_place = entry_point + INJECTIONS;
    int* record_point = record_place + RECORDED * RECORDED_CORNERS;
    int* counters = record_point + RECORDED;
    long long* bars = (long long*)(arena + SHARED) - 4; // (side, parity of the field)

    const int tid = thread(), lane = tid % 32, warp = tid / 32;
    const int rank = block() % BLOCKS, shot = block() / BLOCKS, first = rank * COLS;
    const bool works = tid < PATCHES;
    int group = tid % GROUPS, x0 = tid / GROUPS * PX;

    for (int i = tid; i < REALS; i += THREADS) fields[i] = 0;
    for (int i = tid; i < 2 * INJECTIONS; i += THREADS) force[i] = 0;
    if (tid < 3) counters[tid] = 0;
    block_sync();

    // Cells that are forced get a number each, so that points that share one add up in it. A thread
    // knows those of its patch by a mask. The numbers are made in the field that is written first.
    int mask = 0, slot = 0;
#if MODE != BORN
    int* numbers = (int*)(fields + FIELD);
    for (int pass = 0; pass < 2; pass++) {
        for (int e = tid; e < INJECTIONS; e += THREADS) {
            const int* cell = injected_cells + ((long long)shot * INJECTIONS + e) * 2;
            int x = cell[0] - HALF - first, z = cell[1] - HALF;
            real share = injected_weights[(long long)shot * INJECTIONS + e];
            if (x < 0 || x >= COLS || share == 0) continue;
            int number = numbers[place(x, z)];
            if (pass == 0) { numbers[place(x, z)] = 1; continue; }
            int at = atomicAdd(counters + 0, 1);
            entry_slot[at] = number - 1, entry_point[at] = e / INJECTED_CORNERS;
            entry_weight[at] = share;
        }
        block_sync();
        if (pass == 0 && works) {
            for (int k = 0; k < CELLS; k++)
                if (numbers[place(x0 + k / 4, 4 * group + k % 4)]) mask |= 1 << k;
            int next = slot = atomicAdd(counters + 1, bits(mask));
            for (int k = 0; k < CELLS; k++)
                if (mask >> k & 1) numbers[place(x0 + k / 4, 4 * group + k % 4)] = ++next;
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
        my_slot[k] = mine ? entry_slot[e] : -1, my_weight[k] = mine ? entry_weight[e] : real(0);
        my_series[k] = series + ((long long)shot * INJECTED + (mine ? entry_point[e] : 0)) * STEPS;
        if (mine) atomicAdd(force + my_slot[k], my_weight[k] * my_series[k][MODE == ADJOINT ? STEPS - 1 : 0]);
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
    // Along z a warp has the strips of some columns, a lane four rows of one at each end.
    for (int i = tid; i < 2 * SPAN; i += THREADS) {
        int end = i / SPAN, row = i % SPAN + (end ? 4 * GROUPS - SPAN : 0);
        bool inside = end ? row >= NZ - STRIP : row < STRIP;
        Filter f = inside ? read_filter(coefficients + 4 * NX + 2, NZ, row, SLOPE[1]) : Filter{0, 0, 0, 0};
        real* to = zfilter + i;
        to[0] = f.b, to[2 * SPAN] = f.a, to[4 * SPAN] = f.b_before, to[6 * SPAN] = f.a_before;
    }
    int zgroup = lane % QUADS, zcolumn = lane / QUADS;
    real zpsi[2 * ROUNDS][4], zzeta[2 * ROUNDS][4];
    for (int k = 0; k < 2 * ROUNDS; k++)
        for (int j = 0; j < 4; j++) zpsi[k][j] = zzeta[k][j] = 0;

    // Along x a thread has a row and a chunk of the columns of a strip; its memory is shared.
    int xrow = tid % NZ, chunk = tid / NZ;
    const bool edge = rank == 0 || rank + 1 == BLOCKS, crosses = edge && chunk < CHUNKS;
    for (int i = tid; i < SIDES * AROUND; i += THREADS) {
        int end = SIDES == 2 ? i / AROUND : rank > 0, j = i % AROUND - REACH;
        int gx = end ? NX + 1 - STRIP + j : j;
        Filter f = j >= 0 && j < STRIP ? read_filter(coefficients, NX, gx, SLOPE[0]) : Filter{0, 0, 0, 0};
        *(Filter*)(xfilter + 4 * i) = f;
    }
#endif
#if BLOCKS > 1
    const unsigned left = remote(fields, rank > 0 ? rank - 1 : 0);
    const unsigned right = remote(fields, rank + 1 < BLOCKS ? rank + 1 : rank);
    const bool sends_left = works && rank > 0 && x0 == 0;
    const bool sends_right = works && rank + 1 < BLOCKS && x0 == COLS - PX;
    // What the block on the right sends to comes over bars 2 and 3 there, and so on.
    const unsigned left_bar = remote(bars + 2, rank > 0 ? rank - 1 : 0);
    const unsigned right_bar = remote(bars, rank + 1 < BLOCKS ? rank + 1 : rank);
    constexpr int RIM = HALF * 4 * GROUPS * (int)sizeof(real);
    const bool waits_left = rank > 0, waits_right = rank + 1 < BLOCKS;
    if (tid == 0) {
        for (int i = 0; i < 4; i++) bar_init(bars + i);
        for (int i = 0; i < 4; i++) bar_arm(bars + i, RIM);
    }
#endif
    cluster_sync();

#pragma unroll 1
    for (int s = 0; s < STEPS; s++) {
        const int parity = s & 1;
        forget(group), forget(x0), forget(mask), forget(slot);
#if LAYER > 0
        forget(zgroup), forget(zcolumn), forget(xrow), forget(chunk);
#endif
        const real* now = fields + parity * FIELD;
        real* next = fields + (1 - parity) * FIELD;
        const int t = MODE == ADJOINT ? STEPS - 1 - s : s;
        const bool keeps = MODE != FORWARD && t % EVERY == 0;
        const long long layer_of = ((long long)(t / EVERY) * SHOTS + shot) * NX * NZ;
#if MODE >= BORN
        auto read_kept = [&](real(&q)[PX][4]) {
#pragma unroll
            for (int i = 0; i < PX; i++) {
                int gx = first + x0 + i;
                read_quad(kept + layer_of + (long long)(gx < NX ? gx : NX - 1) * NZ, 4 * group, q[i]);
                if (gx >= NX) q[i][0] = q[i][1] = q[i][2] = q[i][3] = 0;
            }
        };
#endif

#if MODE != BORN
        real coming[EACH]; // the samples of the next step, on their way while this one is computed
        for (int k = 0; k < EACH; k++)
            coming[k] = my_slot[k] >= 0 && s + 1 < STEPS ? my_series[k][t + (MODE == ADJOINT ? -1 : 1)] : real(0);
#endif
#if LAYER > 0
#pragma unroll
        for (int k = 0; k < 2 * ROUNDS; k++) {
            const int end = k & 1, x = (warp + k / 2 * WARPS) * PER + zcolumn, z = zgroup + (end ? GROUPS - QUADS : 0);
            const bool counts = zcolumn < PER && x < COLS;
            const int at = counts ? x : 0;
            real f[4][4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                Quad q = *(const Quad*)(zfilter + (2 * i + end) * SPAN + 4 * zgroup);
#pragma unroll
                for (int j = 0; j < 4; j++) f[i][j] = q.v[j];
            }
            auto pair = [&](int by, int half) { return load_pair(now, at, z + by, half); };
            const Quad out = cross_lanes(pair, f, K[1], zgroup == 0, zgroup == QUADS - 1, zpsi[k], zzeta[k]);
            if (counts) *(Quad*)(zcorr + (end * COLS + x) * SPAN + 4 * zgroup) = out;
        }
        // Each thread works out what it needs of its neighbours' ψ or v itself, from the memory as
        // it was before this step, and writes its own after the barrier. Beyond the strip the
        // filters are zero, whatever is read there.
        real new_psi[SIDES][CHUNK], new_zeta[SIDES][CHUNK];
#pragma unroll
        for (int i = 0; i < SIDES; i++) {
            if (!crosses) continue;
            const int end = SIDES == 2 ? i : rank > 0, j0 = chunk * CHUNK;
            const real* u = now + place((end ? NX + 1 - STRIP - first : 0) + j0 - REACH, xrow);
            const Filter* filter = (const Filter*)xfilter + i * AROUND + j0;
            const real *psi = xpsi + (i * AROUND + j0) * NZ + xrow, *zeta = psi + XMEMORY;
            real* out = xcorr + (i * ACROSS + j0) * NZ + xrow;
            real v[CHUNK + 2 * REACH];
#pragma unroll
            for (int k = 0; k < CHUNK + 2 * REACH; k++) // the first may lie outside the field, but is not needed
                v[k] = k > 0 || HALF > 2 || chunk > 0 ? u[k * COLUMN] : real(0);
            cross_layer<CHUNK>(
                v, K[0], [&](int k) { return psi[k * NZ]; }, [&](int k) { return zeta[k * NZ]; },
                [&](int k) { return filter[k]; },
                [&](int k, real point, real cell, real correction) {
                    new_psi[i][k] = point, new_zeta[i][k] = cell, out[k * NZ] = correction;
                });
        }
#endif
#if BLOCKS > 1
        // The layer needs no rim. That of this field has come when its barrier has had its phase. The
        // other blocks send the next but one into it only after this block has sent what is computed
        // from it.
        if (s > 0) {
            const int phase = ((s - 1) >> 1) & 1;
            if (waits_left) bar_wait(bars + parity, phase);
            if (waits_right) bar_wait(bars + 2 + parity, phase);
        }
#endif
#if MODE != ADJOINT
#pragma unroll 1
        for (int e = tid; e < records; e += THREADS) {
            real sum = 0;
            for (int c = 0; c < RECORDED_CORNERS; c++) {
                int k = e * RECORDED_CORNERS + c;
                sum += record_weight[k] * now[record_place[k]];
            }
            data[((long long)shot * RECORDED + record_point[e]) * STEPS + t] = sum;
        }
#endif
        block_sync();
#if BLOCKS > 1
        if (tid == 0 && s > 0) {
            if (waits_left) bar_arm(bars + parity, RIM);
            if (waits_right) bar_arm(bars + 2 + parity, RIM);
        }
#endif
#if LAYER > 0
#pragma unroll
        for (int i = 0; i < SIDES; i++) {
            if (!crosses) continue;
#pragma unroll
            for (int k = 0; k < CHUNK; k++) {
                const int at = (i * AROUND + chunk * CHUNK + k + REACH) * NZ + xrow;
                xpsi[at] = new_psi[i][k], xzeta[at] = new_zeta[i][k];
            }
        }
#endif
        if (works) {
#if MODE >= BORN
            // q comes from far: it is asked for two steps before it is used.
            const int soon = MODE == ADJOINT ? t - 2 : t + 2;
            if (soon >= 0 && soon < STEPS && soon % EVERY == 0 && group % 8 == 0)
#pragma unroll
                for (int i = 0; i < PX; i++)
                    if (first + x0 + i < NX)
                        prefetch(kept + (((long long)(soon / EVERY) * SHOTS + shot) * NX + first + x0 + i) * NZ + 4 * group);
#endif
#if MODE == ADJOINT
            if (keeps) {
                real q[PX][4];
                read_kept(q);
#pragma unroll
                for (int i = 0; i < PX; i++) {
                    Quad* own = (Quad*)(extra + (i * THREADS + tid) * 4);
                    Quad mine = *own;
#pragma unroll
                    for (int j = 0; j < 4; j++) mine.v[j] += q[i][j] * u[i][j];
                    *own = mine;
                }
            }
#endif
            real fresh[PX][4];
#if LAYER > 0
            const bool zstrip = group < QUADS || group >= GROUPS - QUADS;
            const int zfrom = group < QUADS ? x0 * SPAN + 4 * group : (COLS + x0) * SPAN + 4 * (group - GROUPS + QUADS);
            const int gx0 = first + x0;
            const bool xstrip = gx0 < STRIP || gx0 + PX > NX + 1 - STRIP;
#endif
            auto update = [&](auto crossed) {
                real west[HALF][4], east[HALF][4];
#pragma unroll
                for (int d = 0; d < HALF; d++) {
                    load_quad(now, x0 - HALF + d, group, west[d]);
                    load_quad(now, x0 + PX + d, group, east[d]);
                }
#pragma unroll
                for (int i = 0; i < PX; i++) {
                    real along[4 + 2 * HALF];
                    const Pair low = load_pair(now, x0 + i, group - 1, 1), high = load_pair(now, x0 + i, group + 1, 0);
                    along[HALF - 2] = low.a, along[HALF - 1] = low.b;
                    along[HALF + 4] = high.a, along[HALF + 5] = high.b;
                    if (HALF == 4) {
                        const Pair lowest = load_pair(now, x0 + i, group - 1, 0), highest = load_pair(now, x0 + i, group + 1, 1);
                        along[0] = lowest.a, along[1] = lowest.b;
                        along[2 * HALF + 2] = highest.a, along[2 * HALF + 3] = highest.b;
                    }
                    load_quad(next, x0 + i, group, fresh[i]); // u⁻, which u⁺ replaces
                    Quad sum = {{0, 0, 0, 0}};
#if LAYER > 0
                    if (zstrip) sum = *(const Quad*)(zcorr + zfrom + i * SPAN);
                    if (decltype(crossed)::value) {
                        const int column = first + x0 + i - (SIDES == 1 && rank > 0 ? NX + 1 - STRIP : 0);
#pragma unroll
                        for (int k = 0; k < SIDES; k++) {
                            const int at = column - (k ? NX + 1 - STRIP : 0);
                            if (at < 0 || at >= STRIP) continue;
                            real c[4];
                            read_quad(xcorr + (k * ACROSS + at) * NZ, 4 * group, c);
#pragma unroll
                            for (int j = 0; j < 4; j++) sum.v[j] += c[j];
                        }
                    }
#endif
#pragma unroll
                    for (int j = 0; j < 4; j++) along[HALF + j] = u[i][j];
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        sum.v[j] += K[0][0] * u[i][j]; // their sum, rounded, would drift from step to step
                        sum.v[j] += K[1][0] * u[i][j];
#pragma unroll
                        for (int d = 1; d <= HALF; d++) {
                            sum.v[j] += K[1][d] * (along[HALF + j - d] + along[HALF + j + d]);
                            real lower = i - d < 0 ? west[i - d < 0 ? HALF + i - d : 0][j] : u[i - d < 0 ? 0 : i - d][j];
                            real upper = i + d >= PX ? east[i + d >= PX ? i + d - PX : 0][j] : u[i + d >= PX ? 0 : i + d][j];
                            sum.v[j] += K[0][d] * (lower + upper);
                        }
                    }
#if MODE == KEEP
#pragma unroll
                    for (int j = 0; j < 4; j++) sum.v[j] *= w[i][j];
                    const int gx = first + x0 + i;
                    if (keeps && gx < NX) write_quad(kept + layer_of + (long long)gx * NZ, 4 * group, sum.v);
#pragma unroll
                    for (int j = 0; j < 4; j++) fresh[i][j] = fused(2, u[i][j], -fresh[i][j]) + sum.v[j];
#else
#pragma unroll
                    for (int j = 0; j < 4; j++) fresh[i][j] = fused(w[i][j], sum.v[j], fused(2, u[i][j], -fresh[i][j]));
#endif
                }
            };
#if LAYER > 0
            if (xstrip) update(Flag<true>());
            else
#endif
                update(Flag<false>());
#if MODE == BORN
            if (keeps) {
                real q[PX][4];
                read_kept(q);
#pragma unroll
                for (int i = 0; i < PX; i++) {
                    Quad mine = *(const Quad*)(extra + (i * THREADS + tid) * 4);
#pragma unroll
                    for (int j = 0; j < 4; j++) fresh[i][j] += mine.v[j] * q[i][j];
                }
            }
#endif
#if MODE != BORN
            if (mask) {
#pragma unroll
                for (int k = 0; k < CELLS; k++) {
                    if (!(mask >> k & 1)) continue;
                    real* forced = force + parity * INJECTIONS + slot + bits(mask & ((1u << k) - 1));
                    fresh[k / 4][k % 4] += *forced;
#if MODE == KEEP
                    if (keeps) kept[layer_of + (long long)(first + x0 + k / 4) * NZ + 4 * group + k % 4] += *forced;
#endif
                    *forced = 0;
                }
            }
#endif
#if BLOCKS > 1
            const int corner = ((1 - parity) * FIELD + (group + 1) * 2) * (int)sizeof(real);
            constexpr int HIGH = 2 * SLOTS * (int)sizeof(real);
            if (sends_left && s + 1 < STEPS) {
#pragma unroll
                for (int i = 0; i < HALF; i++) {
                    unsigned to = left + corner + (COLS + HALF + i) * COLUMN * (int)sizeof(real);
                    send(to, fresh[i][0], fresh[i][1], left_bar + 8 * (1 - parity));
                    send(to + HIGH, fresh[i][2], fresh[i][3], left_bar + 8 * (1 - parity));
                }
            }
            if (sends_right && s + 1 < STEPS) {
#pragma unroll
                for (int i = PX - HALF; i < PX; i++) {
                    unsigned to = right + corner + (i - PX + HALF) * COLUMN * (int)sizeof(real);
                    send(to, fresh[i][0], fresh[i][1], right_bar + 8 * (1 - parity));
                    send(to + HIGH, fresh[i][2], fresh[i][3], right_bar + 8 * (1 - parity));
                }
            }
#endif
#pragma unroll
            for (int i = 0; i < PX; i++) {
                store_quad(next, x0 + i, group, fresh[i]);
#pragma unroll
                for (int j = 0; j < 4; j++) u[i][j] = fresh[i][j];
            }
        }
#if MODE != BORN
        for (int k = 0; k < EACH; k++)
            if (my_slot[k] >= 0)
                atomicAdd(force + (1 - parity) * INJECTIONS + my_slot[k], my_weight[k] * coming[k]);
#endif
        block_sync();
    }
    cluster_sync(); // no block leaves while another one may send to it

#if MODE == ADJOINT
    for (int i = 0; i < PX; i++) {
        int gx = first + x0 + i;
        if (!works || gx >= NX) continue;
        Quad mine = *(const Quad*)(extra + (i * THREADS + tid) * 4);
        write_quad(image + ((long long)shot * NX + gx) * NZ, 4 * group, mine.v);
    }
#endif
}
