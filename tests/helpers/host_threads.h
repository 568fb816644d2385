// CUDA threads as coroutines of one CPU thread, in an order that is shuffled at every turn: a value
// that is read before the barrier that it needs differs from one seed to the next.
#pragma once
#include <csetjmp>
#include <cstdlib>
#include <cstring>
#include <random>
#include <sys/mman.h>
#include <type_traits>
#include <ucontext.h>
#include <utility>
#include <vector>

#define DEVICE __attribute__((visibility("hidden"))) inline
#define TABLE constexpr
#define KERNEL static void
#define __restrict__

struct Barrier {
    int count = 0, arrived = 0;
    long generation = 0;
};
struct Warp : Barrier {
    double slots[2][32];
};
struct Block : Barrier {
    unsigned char* shared; // ends where the plan says: what is read or written after it is a fault
    std::vector<Warp> warps;
    static constexpr size_t PAGE = 4096, SIZE = (SHARED + PAGE - 1) / PAGE * PAGE;
    Block() {
        void* pages = mmap(nullptr, SIZE + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (pages == MAP_FAILED || mprotect((char*)pages + SIZE, PAGE, PROT_NONE)) std::abort();
        shared = (unsigned char*)pages + SIZE - SHARED;
        std::memset(shared, 0xff, SHARED); // NaN
    }
    ~Block() { munmap(shared + SHARED - SIZE, SIZE + PAGE); }
    Block(const Block&) = delete;
};
struct Sent { // on its way to another block
    unsigned char pair[16];
    int size;
    unsigned to, bar;
};
struct Cluster : Barrier {
    std::vector<Block> blocks = std::vector<Block>(BLOCKS);
    std::vector<Sent> sent;
};
struct Fiber {
    jmp_buf state;
    int thread, block;
    Cluster* cluster;
    bool done = false;
    std::vector<char> stack;
    Block& own() { return cluster->blocks[block % BLOCKS]; }
    Warp& warp() { return own().warps[thread / 32]; }
};

static Fiber* current;
static jmp_buf scheduler;
static void (*body)();
#define arena (current->own().shared)

static void yield() {
    Fiber* self = current;
    if (!_setjmp(self->state)) _longjmp(scheduler, 1);
}
static void wait_at(Barrier& barrier) {
    long generation = barrier.generation;
    if (++barrier.arrived == barrier.count) {
        barrier.arrived = 0, barrier.generation++;
        return;
    }
    while (barrier.generation == generation) yield();
}

static int thread() { return current->thread; }
static int block() { return current->block; }
static void block_sync() { wait_at(current->own()); }
static void cluster_sync() { wait_at(*current->cluster); }
static int bits(unsigned x) { return __builtin_popcount(x); }
static unsigned short to_bfloat(float x) {
    if (x != x) return 0x7fff; // NaN, as shared memory has it at first
    unsigned all;
    std::memcpy(&all, &x, sizeof all);
    return (all + 0x7fff + (all >> 16 & 1)) >> 16;
}
static void forget(int&) {}
static void hold(int&) {}
static float fused(float a, float b, float c) { return a * b + c; }
static double fused(double a, double b, double c) { return a * b + c; }
static void prefetch(const void*, int = 0) {}
template <class T> void copy_later(void* to, const T* from) {
    if ((size_t)to % sizeof(T) || (size_t)from % sizeof(T)) std::abort();
    std::memcpy(to, from, sizeof(T));
}
static void await_copies() {}
template <class T, int N> void store(T* to, const T (&x)[N]) {
    if ((size_t)to % (N * sizeof(T) < 16 ? N * sizeof(T) : 16)) std::abort();
    for (int i = 0; i < N; i++) to[i] = x[i];
}
static void store(unsigned long long* to, unsigned long long x) {
    if ((size_t)to % sizeof x) std::abort();
    *to = x;
}
template <class T, int N> void load_once(const T* from, T (&x)[N]) {
    if ((size_t)from % (N * sizeof(T) < 16 ? N * sizeof(T) : 16)) std::abort();
    for (int i = 0; i < N; i++) x[i] = from[i];
}
template <class T> void add(T* to, const T (&x)[4]) {
    if ((size_t)to % (4 * sizeof(T) < 16 ? 4 * sizeof(T) : 16)) std::abort();
    for (int i = 0; i < 4; i++) to[i] += x[i];
}
template <class T> T atomicAdd(T* at, T by) { T old = *at; return *at += by, old; }

static unsigned remote(const void* own, int rank) {
    return (unsigned(rank) << 20) + unsigned((unsigned char*)own - arena);
}
struct Transactions {
    int bytes;
    short armed, phase;
    void settle() {
        if (armed && !bytes) armed = 0, phase ^= 1;
    }
};
static void bar_init(void* bar) { *(Transactions*)bar = {0, 0, 0}; }
static void bar_arm(void* bar, int bytes) {
    auto& t = *(Transactions*)bar;
    if (t.armed) std::abort();
    t.armed = 1, t.bytes += bytes, t.settle();
}
static void bar_wait(void* bar, int phase) {
    while (((Transactions*)bar)->phase == phase) yield();
}
template <class T> void send(unsigned to, T a, T b, unsigned bar) {
    T pair[2] = {a, b};
    Sent sent = {{}, sizeof pair, to, bar};
    std::memcpy(sent.pair, pair, sizeof pair);
    current->cluster->sent.push_back(sent);
}
// What was sent arrives in any order, some of it later.
static void deliver(Cluster& cluster, std::mt19937& random) {
    auto at = [&](unsigned address) { return cluster.blocks[address >> 20].shared + (address & 0xfffff); };
    auto all = std::move(cluster.sent);
    cluster.sent.clear();
    for (auto& sent : all) {
        if (random() % 2) {
            cluster.sent.push_back(sent);
            continue;
        }
        std::memcpy(at(sent.to), sent.pair, sent.size);
        auto& t = *(Transactions*)at(sent.bar);
        t.bytes -= sent.size, t.settle();
    }
}
template <class T> T lane_at(T x, int lane) {
    Warp& warp = current->warp();
    auto& slots = warp.slots[warp.generation & 1];
    slots[current->thread % 32] = x;
    wait_at(warp);
    return lane < 0 || lane > 31 ? x : T(slots[lane]);
}
template <class T> T lane_after(T x, int by) { return lane_at(x, current->thread % 32 + by); }
template <class T> T lane_before(T x, int by) { return lane_at(x, current->thread % 32 - by); }
static int any_lane(unsigned x) {
    unsigned all = 0;
    for (int lane = 0; lane < 32; lane++) all |= lane_at(x, lane);
    return all;
}

static void enter() {
    if (!_setjmp(current->state)) _longjmp(scheduler, 1);
    body();
    current->done = true;
    _longjmp(scheduler, 1);
}

static void run_cluster(int first, std::mt19937& random) {
    Cluster cluster;
    cluster.count = BLOCKS * THREADS;
    for (auto& b : cluster.blocks) {
        b.count = THREADS, b.warps.resize(THREADS / 32);
        for (auto& w : b.warps) w.count = 32;
    }
    std::vector<Fiber> fibers(BLOCKS * THREADS);
    std::vector<Fiber*> order;
    for (int i = 0; i < BLOCKS * THREADS; i++) {
        Fiber& f = fibers[i];
        f.thread = i % THREADS, f.block = first + i / THREADS, f.cluster = &cluster;
        f.stack.resize(1 << 15);
        ucontext_t context;
        getcontext(&context);
        context.uc_stack.ss_sp = f.stack.data(), context.uc_stack.ss_size = f.stack.size();
        makecontext(&context, enter, 0);
        current = &f;
        if (!_setjmp(scheduler)) setcontext(&context);
        order.push_back(&fibers[i]);
    }
    for (size_t left = order.size(); left;) {
        deliver(cluster, random);
        for (size_t i = order.size(); i > 1; i--) std::swap(order[i - 1], order[random() % i]);
        for (Fiber* f : order) {
            if (f->done) continue;
            current = f;
            if (!_setjmp(scheduler)) _longjmp(f->state, 1);
            left -= f->done;
        }
    }
}

static void** parameters;
static int round_number; // a parameter that is no pointer
template <class A> A take(size_t i) {
    if constexpr (std::is_pointer_v<A>) return (A)parameters[i];
    else return round_number;
}
template <class... A, size_t... I> void call(void (*f)(A...), std::index_sequence<I...>) {
    f(take<A>(I)...);
}
template <class... A> void call(void (*f)(A...)) { call(f, std::index_sequence_for<A...>()); }
#define HOST_LAUNCH(kernel)                                                          \
    extern "C" void launch_##kernel(void** given, int grid, int seed, int round) {   \
        parameters = given, round_number = round, body = [] { call(kernel); };       \
        std::mt19937 random(seed);                                                   \
        for (int i = 0; i < grid; i += BLOCKS) run_cluster(i, random);               \
    }
