// Waves of a 2D shot in the shared memory of a cluster of thread blocks, for all steps of a run.
//
// The first axis (x) is dealt out to the BLOCKS of a cluster: FIRST columns to the first of them, COLS
// to those between, the others to the last. The blocks at the ends have fewer, because the layer along
// x costs them more. A thread has a patch of PX columns by four rows (z) between the strips of the
// layer along z and, to share that layer out evenly, a patch of PO columns by four rows in one of them.
// Registers have u of its cells, with w between the strips and ψ (and u⁻, but in the transpose) in them.
// Shared memory has the rest: u⁻, which u⁺ replaces, u for the neighbours, w of the strips along z and
// what else the layer remembers.
//
//     u⁺ = 2u − u⁻ + w(Ku + correction) + force
//
// The columns at the rim of a block are sent to the next block too, where those that need them wait for
// them alone. One barrier of a block ends a step: a step reads what the one before has written.
//
// A grid of GX × GZ cells that is too large is cut into TX × TZ tiles of NX × NZ. A launch is then a round of
// BURST steps, which leaves its fields to the next in global memory. Beyond its rim a tile takes u for zero,
// so that in each step HALF cells more, from the rim on, are wrong. Tiles overlap by as many.

#if TX * TZ > 1
static_assert(BURST % 4 == 0 && BLOCKS > 1, "fields and barriers begin a round as they began the first");
KERNEL wave(real*, real*, PARAMETERS, real* waves, real* memories, int round) {
    const int begin = round * BURST, stop = begin + BURST < STEPS ? begin + BURST : STEPS;
#else
KERNEL wave(PARAMETERS) {
    constexpr int begin = 0, stop = STEPS;
#endif
    real* fields = (real*)arena;
    real* xmemory = fields + 2 * FIELD; // ψ of both parities, then ζ: (side, column of the strip, half, group, row)
    real* zmemory = xmemory + (2 + ZETAS) * XMEMORY; // (column, w or ζ, thread, row)
    real* zfilter = zmemory + ZMEMORY + GUARD; // (b, a, b', a'; end; row)
    real* xfilter = zfilter + ZFILTER; // (side, column), from REACH before the memory's on
    real* force = (real*)arena + REALS;
    real* coming = force + 2 * INJECTIONS;
    real* entry_weight = coming + INJECTIONS;
    real* record_weight = entry_weight + INJECTIONS;
    int* entry_slot = (int*)(record_weight + RECORDED * RECORDED_CORNERS);
    int* entry_point = entry_slot + INJECTIONS;
    int* record_place = entry_point + INJECTIONS;
    int* record_point = record_place + RECORDED * RECORDED_CORNERS;
    int* counters = record_point + RECORDED;
    long long* bars = (long long*)(arena + SHARED) - 8; // (outer patches or not, side, parity of the field)

    const int tid = thread(), lane = tid % 32, warp = tid / 32;
    const int rank = block() % BLOCKS, shot = block() / BLOCKS / (TX * TZ), tile = block() / BLOCKS % (TX * TZ);
    const int first = rank == 0 ? 0 : FIRST + (rank - 1) * COLS;
    const int width = rank == 0 ? FIRST : rank + 1 < BLOCKS ? COLS : NX - first;
    const Span<GX, NX, TX> span_x(tile % TX);
    const SpanZ span_z(tile / TX);
    auto inside = [&](int gx) { return gx < NX && span_x.owns(gx); }; // a column that the tile writes

    Patch<PX, false> inner;
    Patch<PO, true> outer;
    const bool has_left = rank > 0, has_right = rank + 1 < BLOCKS;
    const bool near_end = LAYER && rank == 0, far_end = LAYER && rank + 1 == BLOCKS, at_end = near_end || far_end;

    // Patches between the strips along z. At the ends, the first warps have those of the strip along x.
    // Then come the columns at the rims, to warps that have patches of the other kind to wait with.
    constexpr int LANES = INNER ? INNER : 1;
    const int near_patches = near_end ? NEAR_PATCHES : 0, far_patches = far_end ? FAR_PATCHES : 0;
    const int others = (width + PX - 1) / PX - near_patches - far_patches;
    const bool in_strip = at_end && warp < STRIP_WARPS;
    const int turn = tid - (at_end && !in_strip ? 32 * STRIP_WARPS : 0), column = turn / LANES;
    const bool has_inner = INNER && column < (in_strip ? near_patches + far_patches : others);
    int patch;
    if (in_strip) patch = column < near_patches ? column : FAR_PATCH + column - near_patches;
    else if (has_right && column == has_left) patch = near_patches + others - 1;
    else patch = near_patches + column - (has_right && column > has_left);
    inner.x0 = PX * patch, inner.group = QUADS + turn % LANES;
    inner.is = (has_inner ? WORKS : 0) | (in_strip ? CROSSED : 0);

    // In the strips along z a lane has four rows, a warp PER patches side by side. At the ends the last
    // warps have those that the strip along x crosses, and the warps before them the others.
    const int across = (width + PO - 1) / PO, near_across = near_end ? (ZONE + PO - 1) / PO : 0;
    const int from_far = far_end ? (width - ZONE) / PO : across, crossed = near_across + across - from_far;
    const int cross_warps = (2 * crossed + PER - 1) / PER, place_of = at_end ? WARPS - 1 - warp : warp;
    const bool crosses = place_of < cross_warps;
    const int count = crosses ? crossed : across - crossed, number = (crosses ? place_of : place_of - cross_warps) * PER + lane / PIECE;
    const bool has_outer = lane < PER * PIECE && number < 2 * count;
    const int end = has_outer ? number / count : 0, piece = has_outer ? number % count : 0, zgroup = lane % PIECE;
    outer.x0 = PO * (!crosses ? near_across + piece : piece < near_across ? piece : from_far + piece - near_across);
    outer.group = zgroup + (end ? GROUPS - QUADS : 0);
    outer.is = (has_outer ? WORKS : 0) | (crosses ? CROSSED : 0) | (zgroup == 0 ? TOP : 0) | (zgroup == QUADS - 1 ? BOTTOM : 0);
    const int late = at_end ? tid : THREADS - 1 - tid; // warps with the fewest cells look after the points
    auto both = [&](auto use) {
        use(inner);
        if (LAYER) use(outer);
    };
    both([&](auto& p) {
        if (p.is & WORKS) p.is |= (has_left && p.x0 < HALF ? LEFT : 0) | (has_right && p.x0 + p.COUNT > width - HALF ? RIGHT : 0);
        // A lane without cells goes along with the last one of its warp that has some, whose words of shared
        // memory it reads too: others would take the banks' time.
        const unsigned working = any_lane(p.is & WORKS ? 1u << lane : 0);
        const bool last = working >> lane == 1;
        const int x0 = any_lane(last ? p.x0 : 0), group = any_lane(last ? p.group : 0);
        if (!(p.is & WORKS)) p.x0 = x0, p.group = group;
        hold(p.group), hold(p.x0), hold(p.is);
    });
    int zfrom = 4 * (outer.group < QUADS ? outer.group : outer.group - INNER); // in the table of filters
    hold(zfrom);

    for (int i = tid; i < REALS; i += THREADS) fields[i] = 0;
    for (int i = tid; i < 2 * INJECTIONS; i += THREADS) force[i] = 0;
    if (tid < 3) counters[tid] = 0;
    block_sync();

    // Cells that are forced get a number each, so that points that share one add up in it. A thread
    // knows those of its patches by a mask. The numbers are made in the field that is written first.
    int mask = 0, slot = 0, entries = 0, records = 0;
#if MODE != BORN
    int* numbers = (int*)(fields + FIELD);
    for (int pass = 0; pass < 2; pass++) {
        for (int e = tid; e < INJECTIONS; e += THREADS) {
            const int* cell = injected_cells + ((long long)shot * INJECTIONS + e) * 2;
            int x = cell[0] - HALF - span_x.origin - first, z = cell[1] - HALF - span_z.origin;
            real share = injected_weights[(long long)shot * INJECTIONS + e];
            if (x < 0 || x >= width || (TZ > 1 && (z < 0 || z >= NZ)) || share == 0) continue;
            int number = numbers[place(x, z)];
            if (pass == 0) { numbers[place(x, z)] = 1; continue; }
            int at = atomicAdd(counters + 0, 1);
            entry_slot[at] = number - 1, entry_point[at] = e / INJECTED_CORNERS;
            entry_weight[at] = share;
        }
        block_sync();
        if (pass == 0) {
            both([&](auto& p) {
                for (int k = 0; k < 4 * p.COUNT; k++)
                    if (p.is & WORKS && numbers[place(p.x0 + k / 4, 4 * p.group + k % 4)]) mask |= 1 << (4 * p.BEFORE + k);
            });
            int next = slot = atomicAdd(counters + 1, bits(mask));
            both([&](auto& p) {
                for (int k = 0; k < 4 * p.COUNT; k++)
                    if (mask >> (4 * p.BEFORE + k) & 1) numbers[place(p.x0 + k / 4, 4 * p.group + k % 4)] = ++next;
            });
        }
        block_sync();
    }
    for (int i = tid; i < FIELD; i += THREADS) fields[FIELD + i] = 0;
    entries = counters[0];
    const real* samples = series + (long long)shot * INJECTED * STEPS;
    for (int e = tid; e < entries; e += THREADS) {
        const real sample = samples[(long long)entry_point[e] * STEPS + (MODE == ADJOINT ? STEPS - 1 - begin : begin)];
        atomicAdd(force + entry_slot[e], entry_weight[e] * sample);
    }
    auto fetch = [&](int step) { // samples of that step
#pragma unroll 1
        for (int e = late; e < entries; e += THREADS)
            copy_later(coming + e, samples + (long long)entry_point[e] * STEPS + (MODE == ADJOINT ? STEPS - 1 - step : step));
    };
    if (begin + 1 < STEPS) fetch(begin + 1);
#endif
#if MODE != ADJOINT
    // A point is recorded by the block of its first corner; the others lie in it or in its rim.
    for (int p = tid; p < RECORDED; p += THREADS) {
        const int* cell = recorded_cells + ((long long)shot * RECORDED + p) * RECORDED_CORNERS * 2;
        int x = cell[0] - HALF - span_x.origin - first, z = cell[1] - HALF - span_z.origin;
        if (x < 0 || x >= width || !span_x.owns(first + x) || !span_z.owns(z)) continue;
        int at = atomicAdd(counters + 2, 1);
        record_point[at] = p;
        for (int c = 0; c < RECORDED_CORNERS; c++) {
            int k = at * RECORDED_CORNERS + c;
            record_place[k] = place(cell[2 * c] - HALF - span_x.origin - first, cell[2 * c + 1] - HALF - span_z.origin);
            record_weight[k] = recorded_weights[((long long)shot * RECORDED + p) * RECORDED_CORNERS + c];
        }
    }
    block_sync();
    records = counters[2];
#endif

    const long long corner = (long long)span_x.origin * GZ + span_z.origin; // of the tile in the grid
    auto zplace = [&](int column) { return (Quad*)zmemory + 2 * column * THREADS + tid; }; // w of this thread, then ζ
    both([&](auto& p) {
#pragma unroll
        for (int i = 0; i < p.COUNT; i++) {
#pragma unroll
            for (int j = 0; j < 4; j++) p.u[i][j] = p.own[i][j] = p.before[i][j] = 0;
            const int gx = first + p.x0 + i;
            if (!(p.is & WORKS) || gx >= NX) continue;
            Quad w;
            read_quad(weight + corner + (long long)gx * GZ, 4 * p.group, w.v);
            if (p.OUTER) *zplace(i) = w;
            else
                for (int j = 0; j < 4; j++) p.own[i][j] = w.v[j];
#if MODE == ADJOINT
            const real none[4] = {0, 0, 0, 0};
            if (begin == 0 && inside(gx)) write_quad(span_z, image + corner + ((long long)shot * GX + gx) * GZ, 4 * p.group, none);
#endif
        }
    });

#if TX * TZ > 1
    // What a round leaves to the next: u and u⁻, and ψ and ζ of the strips at the ends of the grid. There are
    // two sets, because a tile reads what the others write.
    auto field = [&](int set, int old, int gx) { return waves + (((2LL * set + old) * SHOTS + shot) * GX + gx) * GZ + corner; };
    auto strip_x = [&](int set, int which, int k) {
        return memories + ((((2LL * set + which) * SHOTS + shot) * 2 + far_end) * STRIP + k) * GZ + span_z.origin;
    };
    auto strip_z = [&](int set, int which, int gx) {
        return memories + 8LL * SHOTS * STRIP * GZ + (((2LL * set + which) * SHOTS + shot) * GX + span_x.origin + gx) * 8 * QUADS + zfrom;
    };
    const bool edge_x = (near_end && span_x.first()) || (far_end && span_x.last());
    const bool edge_z = LAYER && (outer.group < QUADS ? span_z.first() : span_z.last());
    block_sync();
    if (begin) {
        const int set = round & 1;
        real four[4];
        for (int i = tid; i < 2 * (width + 2 * HALF) * GROUPS; i += THREADS) {
            const int x = i / 2 / GROUPS - HALF, group = i / 2 % GROUPS, old = i % 2;
            if (first + x < 0 || first + x >= NX) continue;
            read_quad(field(set, old, first + x), 4 * group, four);
            store_quad(fields + old * FIELD, x, group, four);
        }
        for (int i = tid; edge_x && i < 2 * STRIP * GROUPS; i += THREADS) {
            const int k = i / 2 / GROUPS, group = i / 2 % GROUPS, which = i % 2;
            real* to = xmemory + 2 * which * XMEMORY + k * LINE + 2 * group;
            read_quad(strip_x(set, which, k), 4 * group, four);
            *(Pair*)to = Pair{four[0], four[1]}, *(Pair*)(to + 2 * GROUPS) = Pair{four[2], four[3]};
        }
        block_sync();
        both([&](auto& p) {
#pragma unroll
            for (int i = 0; i < p.COUNT; i++) {
                const int gx = first + p.x0 + i;
                if (!(p.is & WORKS) || gx >= NX) continue;
                load_quad(fields, p.x0 + i, p.group, p.u[i]);
                load_quad(fields + FIELD, p.x0 + i, p.group, p.before[i]);
                if (!p.OUTER || !edge_z) continue;
                const Quad psi = *(const Quad*)strip_z(set, 0, gx);
                for (int j = 0; j < 4; j++) p.own[i][j] = psi.v[j];
                zplace(i)[THREADS] = *(const Quad*)strip_z(set, 1, gx);
            }
        });
    }
#endif
#if LAYER > 0
    for (int i = tid; i < 8 * QUADS; i += THREADS) {
        int far = i / (4 * QUADS), row = i % (4 * QUADS) + (far ? 4 * (GROUPS - QUADS) : 0);
        Filter f = read_filter(coefficients + 4 * GX + 2, GZ, span_z.origin + row, SLOPE[1]);
        real* to = zfilter + i;
        to[0] = f.b, to[8 * QUADS] = f.a, to[16 * QUADS] = f.b_before, to[24 * QUADS] = f.a_before;
    }
    for (int i = tid; i < SIDES * AROUND; i += THREADS) {
        int far = SIDES == 2 ? i / AROUND : rank > 0, gx = i % AROUND - REACH + (far ? NX - ZONE - MARGIN : 0);
        *(Filter*)(xfilter + 4 * i) = read_filter(coefficients, GX, span_x.origin + gx, SLOPE[0]);
    }
#endif
#if BLOCKS > 1
    // What the block on the right sends to comes over bars 2 and 3 there, and so on.
    const unsigned left = remote(fields, has_left ? rank - 1 : 0), right = remote(fields, has_right ? rank + 1 : rank);
    const unsigned left_bar = remote(bars + 2, has_left ? rank - 1 : 0), right_bar = remote(bars, has_right ? rank + 1 : rank);
    const int left_width = rank == 1 ? FIRST : COLS;
    auto arm = [&](int parity) {
        for (int i = 0; i < (LAYER ? 2 : 1); i++) {
            const int bytes = HALF * 4 * (i ? 2 * QUADS : INNER) * (int)sizeof(real);
            if (has_left) bar_arm(bars + 4 * i + parity, bytes);
            if (has_right) bar_arm(bars + 4 * i + 2 + parity, bytes);
        }
    };
    if (tid == 0) {
        for (int i = 0; i < 8; i++) bar_init(bars + i);
        arm(0), arm(1);
    }
#endif
    // What any lane of the warp is or has, so that a warp branches as a whole.
    both([&](auto& p) {
        const unsigned own = ((1ull << 4 * p.COUNT) - 1) << 4 * p.BEFORE;
        p.warp = any_lane(p.is & (WORKS | LEFT | RIGHT | CROSSED) | (mask & own ? FORCED : 0));
    });
    const int points = entries > records ? entries : records;
    const bool serves = any_lane(late < points || late == 0);
    cluster_sync();

#if LAYER > 0
    // Ku and the correction along x. The thread works out what it needs of its neighbours' ψ or v itself,
    // from the memory as the step before has left it. Beyond the strip the filters are zero, whatever is read.
    auto cross = [&](auto& p, int parity, const real* now, auto& fresh) {
        constexpr int N = sizeof(fresh) / (4 * sizeof(real));
        const int gx0 = first + p.x0, side = SIDES == 2 && gx0 >= ZONE, far = SIDES == 2 ? side : rank > 0;
        const int j0 = gx0 - (far ? NX - ZONE - MARGIN : 0);
        const Filter* filter = (const Filter*)xfilter + side * AROUND + j0; // from REACH columns before on
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int at = (side * STRIP + j0) * LINE + half * 2 * GROUPS + 2 * p.group;
            real *psi = xmemory + parity * XMEMORY + at, *zeta = xmemory + (ZETAS == 2 ? 2 + parity : 2) * XMEMORY + at;
            real *to_psi = xmemory + (1 - parity) * XMEMORY + at, *to_zeta = ZETAS == 2 ? to_psi + 2 * XMEMORY : zeta;
            real v[2][N + 2 * REACH], points[2][N + 3], cells[2][N + 2 * REACH];
#pragma unroll
            for (int k = 0; k < N + 2 * REACH; k++) {
                const int i = k - REACH;
                const bool own = i >= 0 && i < N;
                const real(&mine)[4] = p.u[own ? i : 0];
                Pair have = {0, 0}, kept = {0, 0};
                if (own) have = Pair{mine[2 * half], mine[2 * half + 1]};
                else if (k > 0 || HALF == REACH || p.x0 > 0) have = load_pair(now, p.x0 + i, p.group, half); // else outside the field
                if (MODE == ADJOINT || own) kept = *(const Pair*)(zeta + i * LINE);
                v[0][k] = have.a, v[1][k] = have.b, cells[0][k] = kept.a, cells[1][k] = kept.b;
            }
#pragma unroll
            for (int k = 0; k < N + 3; k++) {
                const Pair kept = *(const Pair*)(psi + (k - 1) * LINE);
                points[0][k] = kept.a, points[1][k] = kept.b;
            }
#pragma unroll
            for (int r = 0; r < 2; r++)
                cross_layer<N>(
                    v[r], K[0], [&](int k) { return points[r][k - REACH + 1]; }, [&](int k) { return cells[r][k]; },
                    [&](int k) { return filter[k]; },
                    [&](int k, real point, real cell, real sum) {
                        points[r][k] = point, cells[r][k] = cell, fresh[k][2 * half + r] = sum;
                        if (CENTRES == 2 && !p.OUTER) fresh[k][2 * half + r] += K[1][0] * p.u[k][2 * half + r];
                    });
#pragma unroll
            for (int k = 0; k < N; k++) {
                if (!(p.is & WORKS) || gx0 + k >= NX) continue;
                *(Pair*)(to_psi + k * LINE) = Pair{points[0][k], points[1][k]};
                *(Pair*)(to_zeta + k * LINE) = Pair{cells[0][k], cells[1][k]};
            }
        }
    };
#endif
    auto run = [&](auto at_end) {
        constexpr bool ENDS = decltype(at_end)::value;
        int until = (STEPS - 1 - begin) % EVERY; // steps of the adjoint before the next with q: to count takes fewer registers
#pragma unroll 1
        for (int s = begin; s < stop; s++) {
            const int parity = s & 1, phase = ((s - 1) >> 1) & 1;
            forget(inner.group), forget(inner.x0), forget(outer.group), forget(outer.x0);
            forget(zfrom), forget(mask), forget(slot);
            const real* now = fields + parity * FIELD;
            real* next = fields + (1 - parity) * FIELD;
            const int t = MODE == ADJOINT ? STEPS - 1 - s : s;
            const bool keeps = MODE == ADJOINT ? until == 0 : MODE != FORWARD && t % EVERY == 0;
            until = until ? until - 1 : EVERY - 1;
            auto layer = [&] { return ((long long)(t / EVERY) * SHOTS + shot) * GX * GZ + corner; }; // of q, where the step has one

            // Corners in the rim are read before this block sends what lets others overwrite it.
            constexpr bool RIMS = BLOCKS > 1 && MODE != ADJOINT && RECORDED_CORNERS > 1;
            if (serves) {
#if MODE >= BORN
                // q comes from far: it is asked for two steps before it is used.
                const int soon = MODE == ADJOINT ? t - 2 : t + 2;
                if (late == 0 && soon >= 0 && soon < STEPS && soon % EVERY == 0)
                    for (int k = 0; k < (TZ > 1 ? width : 1); k++)
                        prefetch(kept + (((long long)(soon / EVERY) * SHOTS + shot) * GX + first + k) * GZ + corner, (TZ > 1 ? 1 : width) * NZ * (int)sizeof(Kept));
#endif
#if BLOCKS > 1
                if (late == 0 && s > begin + 1) arm(1 - parity);
                if (RIMS && s > begin && has_right)
                    for (int i = 0; i < (LAYER ? 2 : 1); i++) bar_wait(bars + 4 * i + 2 + parity, phase);
#endif
#if MODE != ADJOINT
#pragma unroll 1
                for (int e = late; e < records; e += THREADS) {
                    real sum = 0;
                    for (int c = 0; c < RECORDED_CORNERS; c++) {
                        int k = e * RECORDED_CORNERS + c;
                        sum += record_weight[k] * now[record_place[k]];
                    }
                    data[((long long)shot * RECORDED + record_point[e]) * STEPS + t] = sum;
                }
#endif
#if MODE != BORN
                if (late < entries && s + 1 < stop) { // what the next step adds, whose samples came meanwhile
                    await_copies();
#pragma unroll 1
                    for (int e = late; e < entries; e += THREADS)
                        atomicAdd(force + (1 - parity) * INJECTIONS + entry_slot[e], entry_weight[e] * coming[e]);
                    if (s + 2 < stop) fetch(s + 2);
                }
#endif
            }
            if (RIMS) block_sync();
            auto advance = [&](auto out, auto& p) {
                constexpr bool OUTER = decltype(out)::value;
                constexpr int N = OUTER ? PO : PX, BEFORE = OUTER ? PX : 0;
                const int group = p.group, x0 = p.x0, gx0 = first + x0;
                if (!(p.warp & WORKS)) return;
                const bool works = p.is & WORKS; // a lane without cells writes nothing: its numbers grow without bound
#if MODE == ADJOINT
                if (keeps && works) {
                    real q[N][4];
                    read_patch(kept + layer(), gx0, group, q);
#pragma unroll
                    for (int i = 0; i < N; i++) {
#pragma unroll
                        for (int j = 0; j < 4; j++) q[i][j] *= p.u[i][j];
                        if (inside(gx0 + i)) add_quad(span_z, image + corner + ((long long)shot * GX + gx0 + i) * GZ, 4 * group, q[i]);
                    }
                }
#endif
#if BLOCKS > 1
                // The rim of this field has come when its barrier has had its phase. The other blocks send the
                // next but one into it only after this block has sent what is computed from it.
                if (p.warp & LEFT && s > begin) bar_wait(bars + 4 * OUTER + parity, phase);
                if (p.warp & RIGHT && s > begin) bar_wait(bars + 4 * OUTER + 2 + parity, phase);
#endif
                real fresh[N][4]; // the sums of both axes, then u⁺
#if LAYER > 0
                bool crossed = false;
                if constexpr (ENDS) crossed = p.warp & CROSSED;
                if (crossed) cross(p, parity, now, fresh);
                else
#endif
                {
                    real west[HALF][4], east[HALF][4];
#pragma unroll
                    for (int d = 0; d < HALF; d++) {
                        load_quad(now, x0 - HALF + d, group, west[d]);
                        load_quad(now, x0 + N + d, group, east[d]);
                    }
#pragma unroll
                    for (int k = 0; k < 4 * N; k++) {
                        const int i = k / 4, j = k % 4;
                        fresh[i][j] = 0;
#pragma unroll
                        for (int d = HALF; d > 0; d--) { // the last weight may be 1: beginning with it saves a product
                            real lower = i - d < 0 ? west[i - d < 0 ? HALF + i - d : 0][j] : p.u[i - d < 0 ? 0 : i - d][j];
                            real upper = i + d >= N ? east[i + d >= N ? i + d - N : 0][j] : p.u[i + d >= N ? 0 : i + d][j];
                            fresh[i][j] += K[0][d] * (lower + upper);
                            if (d == HALF) fresh[i][j] += (OUTER ? 1 : CENTRES) * K[0][0] * p.u[i][j];
                        }
                    }
                }
#if LAYER > 0
                Quad f[4];
                if (OUTER)
#pragma unroll
                    for (int i = 0; i < 4; i++) f[i] = *(const Quad*)(zfilter + 8 * QUADS * i + zfrom);
#endif
#pragma unroll
                for (int i = 0; i < N; i++) {
                    real along[4 + 2 * HALF];
                    const Pair low = load_pair(now, x0 + i, group - 1, 1), high = load_pair(now, x0 + i, group + 1, 0);
                    along[HALF - 2] = low.a, along[HALF - 1] = low.b;
                    along[HALF + 4] = high.a, along[HALF + 5] = high.b;
                    if (HALF == 4) {
                        const Pair lowest = load_pair(now, x0 + i, group - 1, 0), highest = load_pair(now, x0 + i, group + 1, 1);
                        along[0] = lowest.a, along[1] = lowest.b;
                        along[2 * HALF + 2] = highest.a, along[2 * HALF + 3] = highest.b;
                    }
#pragma unroll
                    for (int j = 0; j < 4; j++) along[HALF + j] = p.u[i][j];
#if LAYER > 0
                    if (OUTER) {
                        Quad zeta = zplace(i)[THREADS];
                        cross_lanes(along, f, K[1], p.is & TOP, p.is & BOTTOM, p.own[i], zeta.v, fresh[i]);
                        if (works) zplace(i)[THREADS] = zeta;
                    } else
#endif
#pragma unroll
                        for (int j = 0; j < 4; j++) {
                            if (CENTRES == 1) fresh[i][j] += K[1][0] * along[HALF + j]; // a rounded sum would drift
#pragma unroll
                            for (int d = 1; d <= HALF; d++) fresh[i][j] += K[1][d] * (along[HALF + j - d] + along[HALF + j + d]);
                        }
                }
#pragma unroll
                for (int i = 0; i < N; i++) {
                    Quad w;
                    if (OUTER) w = *zplace(i);
                    else
#pragma unroll
                        for (int j = 0; j < 4; j++) w.v[j] = p.own[i][j];
                    if (!p.HOLDS) load_quad(next, x0 + i, group, p.before[i]); // u⁻, which u⁺ replaces
#if MODE == KEEP
#pragma unroll
                    for (int j = 0; j < 4; j++) fresh[i][j] *= w.v[j];
                    if (keeps && works && inside(gx0 + i)) write_quad(span_z, kept + layer() + (long long)(gx0 + i) * GZ, 4 * group, fresh[i]);
#pragma unroll
                    for (int j = 0; j < 4; j++) fresh[i][j] += fused(2, p.u[i][j], -p.before[i][j]);
#else
#pragma unroll
                    for (int j = 0; j < 4; j++) fresh[i][j] = fused(w.v[j], fresh[i][j], fused(2, p.u[i][j], -p.before[i][j]));
#endif
                }
#if MODE == BORN
                if (keeps && works) {
                    real q[N][4], r[N][4];
                    read_patch(kept + layer(), gx0, group, q), read_patch(ratio + corner, gx0, group, r);
#pragma unroll
                    for (int i = 0; i < N; i++)
#pragma unroll
                        for (int j = 0; j < 4; j++)
                            if (gx0 + i < NX) fresh[i][j] += r[i][j] * q[i][j];
                }
#endif
#if MODE != BORN
                constexpr unsigned MINE = ((1ull << 4 * N) - 1) << 4 * BEFORE;
                if (p.warp & FORCED)
#pragma unroll
                    for (int j = 0; j < 4; j++) { // receivers tend to lie in a row
                        if (!(mask & MINE & 0x11111111u << j)) continue;
#pragma unroll
                        for (int i = 0; i < N; i++) {
                            const int bit = 4 * (BEFORE + i) + j;
                            if (!(mask >> bit & 1)) continue;
                            real* forced = force + parity * INJECTIONS + slot + bits(mask & ((1u << bit) - 1));
                            fresh[i][j] += *forced;
#if MODE == KEEP
                            if (keeps && span_x.owns(gx0 + i) && span_z.owns(4 * group + j)) {
                                Kept& q = kept[layer() + (long long)(gx0 + i) * GZ + 4 * group + j];
#if BFLOAT16
                                q = fresh[i][j] - fused(2, p.u[i][j], -p.before[i][j]); // rounded once
#else
                                q += *forced;
#endif
                            }
#endif
                            *forced = 0;
                        }
                    }
#endif
#if BLOCKS > 1
                if (p.warp & (LEFT | RIGHT) && s + 1 < stop) {
                    constexpr int STRIDE = COLUMN * (int)sizeof(real), SECOND = SECOND_PAIRS * (int)sizeof(real);
                    const int to = ((1 - parity) * FIELD + place(x0, 4 * group)) * (int)sizeof(real), bar = 8 * (4 * OUTER + 1 - parity);
                    const unsigned on_left = left + to + left_width * STRIDE, on_right = right + to - width * STRIDE;
                    if (p.is & LEFT)
#pragma unroll
                        for (int i = 0; i < N; i++) {
                            if (N < HALF ? x0 + i >= HALF : i >= HALF) continue;
                            send(on_left + i * STRIDE, fresh[i][0], fresh[i][1], left_bar + bar);
                            send(on_left + i * STRIDE + SECOND, fresh[i][2], fresh[i][3], left_bar + bar);
                        }
                    if (p.is & RIGHT)
#pragma unroll
                        for (int i = 0; i < N; i++) {
                            if (N < HALF ? x0 + i < width - HALF : i < N - HALF) continue;
                            send(on_right + i * STRIDE, fresh[i][0], fresh[i][1], right_bar + bar);
                            send(on_right + i * STRIDE + SECOND, fresh[i][2], fresh[i][3], right_bar + bar);
                        }
                }
#endif
#pragma unroll
                for (int i = 0; i < N; i++) {
                    if (works) store_quad(next, x0 + i, group, fresh[i]);
#pragma unroll
                    for (int j = 0; j < 4; j++) p.before[i][j] = p.u[i][j], p.u[i][j] = fresh[i][j];
                }
            };
            // In this order the rim of either kind of patches has the time of the other kind to arrive.
#if LAYER > 0
            advance(Flag<true>(), outer);
#endif
            advance(Flag<false>(), inner);
            block_sync();
        }
    };
    // Blocks without a layer along x have a loop of their own, whose registers do not make way for it.
    if (LAYER && (rank == 0 || rank + 1 == BLOCKS)) run(Flag<(LAYER > 0)>());
    else run(Flag<false>());
    cluster_sync(); // no block leaves while another one may send to it
#if TX * TZ > 1
    if (stop == STEPS) return;
    const int set = 1 - (round & 1);
    real four[4];
    for (int i = tid; i < 2 * width * GROUPS; i += THREADS) {
        const int x = i / 2 / GROUPS, group = i / 2 % GROUPS, old = i % 2;
        if (!inside(first + x)) continue;
        load_quad(fields + old * FIELD, x, group, four);
        write_quad(span_z, field(set, old, first + x), 4 * group, four);
    }
    for (int i = tid; edge_x && i < 2 * STRIP * GROUPS; i += THREADS) {
        const int k = i / 2 / GROUPS, group = i / 2 % GROUPS, which = i % 2;
        const real* from = xmemory + 2 * which * XMEMORY + k * LINE + 2 * group;
        four[0] = from[0], four[1] = from[1], four[2] = from[2 * GROUPS], four[3] = from[2 * GROUPS + 1];
        write_quad(span_z, strip_x(set, which, k), 4 * group, four);
    }
    if (edge_z)
#pragma unroll
        for (int i = 0; i < PO; i++) {
            const int gx = first + outer.x0 + i;
            if (!(outer.is & WORKS) || !inside(gx)) continue;
            store(strip_z(set, 0, gx), outer.own[i]);
            *(Quad*)strip_z(set, 1, gx) = zplace(i)[THREADS];
        }
#endif
}
