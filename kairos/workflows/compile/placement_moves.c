/* A walk over plans of devices: the moves of `placement_moves.py`, compiled. It takes the same
   steps as Python does, and finds the same plan.

   Plain C without Python's headers. Sizes are checked by the caller. No memory is allocated here:
   `room` has what `kairos_walk_bytes` says. A set of devices is a bit for each. */

#include <math.h>
#include <stdint.h>
#include <string.h>

enum { MOST_DEVICES = 64, LOOKING = 4 };

typedef struct {
    double makespan, together, loads;
} Cost;

typedef struct {
    double free;
    uint64_t known;
    int64_t resident, context, before;
} Device;

typedef struct {
    int64_t count, devices;
    /* Of operator n the places needs_at[n] to needs_at[n + 1] of `needs`; of followers, too. */
    const int64_t *needs_at, *needs, *followers_at, *followers;
    const int64_t *model, *context, *parts; /* context: -1 for none; of parts, the most */
    const double *run, *last, *reused, *tails; /* run: `devices` of each; last: -1 for none */
    const double *load, *wake, *stay;          /* by model */
} Problem;

/* A plan, and when what ends; of `states` the devices before each place, and after the last. */
typedef struct {
    int64_t *order, *place, *cause;
    uint64_t *on;
    double *first, *ends, *loads;
    Device *states;
} Plan;

typedef struct {
    const Problem *of;
    Plan now, tried;
    int64_t *best, *blame;
    uint64_t *best_on;
    Cost *history;
    uint64_t dice;
    int64_t steps;
} Walk;

static int64_t drawn(Walk *walk, int64_t below) {
    walk->dice = walk->dice * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((walk->dice >> 33) % (uint64_t)below);
}

static int is_less(Cost one, Cost other) {
    if (one.makespan != other.makespan) return one.makespan < other.makespan;
    if (one.together != other.together) return one.together < other.together;
    return one.loads < other.loads;
}

static int64_t bits(uint64_t set) {
    int64_t found = 0;
    for (; set; set &= set - 1) found++;
    return found;
}

static int64_t lowest(uint64_t set) {
#if defined(__GNUC__)
    return __builtin_ctzll(set);
#else
    int64_t at = 0;
    for (; !(set & 1); set >>= 1) at++;
    return at;
#endif
}

static uint64_t one_of(Walk *walk, uint64_t set) {
    int64_t skipped = drawn(walk, bits(set));
    while (skipped--) set &= set - 1;
    return set & (~set + 1);
}

static double begins(const Problem *of, const Device *device, int64_t model) {
    if (device->resident == model) return device->free + of->stay[model];
    return device->free + (device->known >> model & 1 ? of->wake[model] : of->load[model]);
}

/* Reckons a plan from a place on. Returns whether it may be within the limit. `states`: the devices
   there, changed; kept after each place where `keeps`. */
static int reckon(Walk *walk, Plan *plan, int64_t from, Device *states, double loads, double limit,
                  int keeps, Cost *cost) {
    const Problem *of = walk->of;
    int64_t devices = of->devices;
    double makespan = 0.0;
    for (int64_t at = 0; at < from; at++)
        if (plan->ends[plan->order[at]] > makespan) makespan = plan->ends[plan->order[at]];
    for (int64_t at = from; at < of->count; at++) {
        int64_t n = plan->order[at], model = of->model[n], context = of->context[n];
        int64_t ready_by = -1, slow = -1, why = -1, parts = bits(plan->on[n]);
        double ready = -1.0, end = 0.0, first = -1.0, last_end = 0.0;
        double share = of->run[n * devices + parts - 1];
        for (int64_t k = of->needs_at[n]; k < of->needs_at[n + 1]; k++) {
            int64_t needed = of->needs[k];
            if (plan->first[needed] > ready) {
                ready = plan->first[needed];
                ready_by = plan->place[needed];
            }
            if (plan->ends[needed] > end) {
                end = plan->ends[needed];
                slow = plan->place[needed];
            }
        }
        for (uint64_t left = plan->on[n]; left; left &= left - 1) {
            Device *device = states + lowest(left);
            int64_t because = device->before;
            double run = share, start = begins(of, device, model);
            walk->steps++;
            if (context >= 0 && device->context == context) {
                run = share - of->reused[n] / (double)parts;
                if (run < 0.0) run = 0.0;
            }
            double last = of->last[n] < 0.0 || of->last[n] > run ? run : of->last[n];
            loads += device->resident != model;
            if (ready > start) {
                start = ready;
                because = ready_by;
            }
            device->free = start + run;
            if (end + last > start + run) {
                device->free = end + last;
                because = slow;
            }
            device->resident = model;
            device->known |= (uint64_t)1 << model;
            device->context = context;
            device->before = at;
            if (first < 0.0 || start + last < first) first = start + last;
            if (device->free > last_end) {
                last_end = device->free;
                why = because;
            }
        }
        if (last_end + of->tails[n] > limit) return 0;
        plan->first[n] = first;
        plan->ends[n] = last_end;
        plan->place[n] = at;
        plan->cause[at] = why;
        if (last_end > makespan) makespan = last_end;
        if (keeps) {
            memcpy(plan->states + (at + 1) * devices, states, sizeof(Device) * (size_t)devices);
            plan->loads[at + 1] = loads;
        }
    }
    cost->makespan = makespan;
    cost->together = 0.0;
    for (int64_t d = 0; d < devices; d++) cost->together += states[d].free;
    cost->loads = loads;
    return 1;
}

/* Reckons it whole from a place on, and keeps what is there after each. */
static Cost settle(Walk *walk, Plan *plan, int64_t from) {
    Device states[MOST_DEVICES];
    Cost cost = {0};
    int64_t steps = walk->steps;
    memcpy(states, plan->states + from * walk->of->devices,
           sizeof(Device) * (size_t)walk->of->devices);
    reckon(walk, plan, from, states, plan->loads[from], INFINITY, 1, &cost);
    walk->steps = steps;
    return cost;
}

/* A place of what the end waits for, or any. */
static int64_t chosen(Walk *walk) {
    const Plan *plan = &walk->now;
    int64_t found = 0, at = 0;
    if (!drawn(walk, 2)) return drawn(walk, walk->of->count);
    for (int64_t n = 1; n < walk->of->count; n++)
        if (plan->ends[n] > plan->ends[at]) at = n;
    for (at = plan->place[at]; at >= 0; at = plan->cause[at]) walk->blame[found++] = at;
    return walk->blame[drawn(walk, found)];
}

/* Moves an operator of the tried order. Returns from where on it is another one. */
static int64_t moved(Walk *walk, int64_t at, int64_t to) {
    int64_t *order = walk->tried.order, n = order[at];
    if (to < at) memmove(order + to + 1, order + to, sizeof(*order) * (size_t)(at - to));
    if (to > at) memmove(order + at, order + at + 1, sizeof(*order) * (size_t)(to - at));
    order[to] = n;
    return to < at ? to : at;
}

/* Beside an operator of the same model, on its devices or one of them. */
static int64_t beside(Walk *walk, int64_t at, int64_t low, int64_t high) {
    const int64_t *model = walk->of->model, *order = walk->now.order;
    int64_t n = order[at], places = high - low + 1, from = drawn(walk, places);
    for (int64_t k = 0; k < places; k++) {
        int64_t other = low + (from + k) % places;
        if (other == at || model[order[other]] != model[n]) continue;
        uint64_t on = walk->now.on[order[other]];
        if (bits(on) > walk->of->parts[n]) on = one_of(walk, on);
        int64_t to = other + (drawn(walk, 2) && at > other && other < high);
        if (to == at && on == walk->now.on[n]) return -1;
        walk->tried.on[n] = on;
        return moved(walk, at, to);
    }
    return -1;
}

static int64_t exchanged(Walk *walk, int64_t at) {
    int64_t with = drawn(walk, walk->of->count);
    int64_t n = walk->now.order[at], other = walk->now.order[with];
    uint64_t one = walk->now.on[n], two = walk->now.on[other];
    if (one == two || bits(two) > walk->of->parts[n] || bits(one) > walk->of->parts[other])
        return -1;
    walk->tried.on[n] = two;
    walk->tried.on[other] = one;
    return at < with ? at : with;
}

/* All that a device runs one after the other of an operator's model, on another device. */
static int64_t together(Walk *walk, int64_t at) {
    const int64_t *model = walk->of->model, *order = walk->now.order;
    int64_t n = order[at], from = at;
    uint64_t on = one_of(walk, walk->now.on[n]);
    uint64_t to = (uint64_t)1 << drawn(walk, walk->of->devices);
    if (on == to || on != walk->now.on[n]) return -1;
    for (int64_t k = at; k >= 0 && (!(walk->now.on[order[k]] & on) || model[order[k]] == model[n]);
         k--)
        if (walk->now.on[order[k]] == on) {
            walk->tried.on[order[k]] = to;
            from = k;
        }
    for (int64_t k = at + 1; k < walk->of->count; k++) {
        if (!(walk->now.on[order[k]] & on)) continue;
        if (model[order[k]] != model[n]) break;
        if (walk->now.on[order[k]] == on) walk->tried.on[order[k]] = to;
    }
    return from;
}

/* Shared by those that could begin it first, by one more or less, or by another one. */
static int64_t shared(Walk *walk, int64_t at, int64_t low, int64_t high, int64_t kind) {
    const Problem *of = walk->of;
    int64_t n = walk->now.order[at];
    int64_t to = drawn(walk, 2) ? at : low + drawn(walk, high - low + 1);
    uint64_t on = walk->now.on[n];
    if (kind < 14) {
        const Device *states = walk->now.states + to * of->devices;
        double when[MOST_DEVICES];
        for (int64_t d = 0; d < of->devices; d++) when[d] = begins(of, states + d, of->model[n]);
        on = 0;
        for (int64_t parts = 1 + drawn(walk, of->parts[n]); parts; parts--) {
            int64_t first = -1;
            for (int64_t d = 0; d < of->devices; d++)
                if (!(on >> d & 1) && (first < 0 || when[d] < when[first])) first = d;
            on |= (uint64_t)1 << first;
        }
    } else {
        on ^= (uint64_t)1 << drawn(walk, of->devices);
        if (kind == 15) on ^= (uint64_t)1 << drawn(walk, of->devices);
        if (!on || bits(on) > of->parts[n]) return -1;
    }
    if (on == walk->now.on[n] && to == at) return -1;
    walk->tried.on[n] = on;
    return moved(walk, at, to);
}

/* Makes of the plan another one. Returns from where on it is another, or -1. */
static int64_t another(Walk *walk) {
    const Problem *of = walk->of;
    const Plan *now = &walk->now;
    int64_t at = chosen(walk), n = now->order[at], low = 0, high = of->count - 1;
    for (int64_t k = of->needs_at[n]; k < of->needs_at[n + 1]; k++)
        if (now->place[of->needs[k]] + 1 > low) low = now->place[of->needs[k]] + 1;
    for (int64_t k = of->followers_at[n]; k < of->followers_at[n + 1]; k++)
        if (now->place[of->followers[k]] - 1 < high) high = now->place[of->followers[k]] - 1;
    memcpy(walk->tried.order, now->order, sizeof(*now->order) * (size_t)of->count);
    memcpy(walk->tried.on, now->on, sizeof(*now->on) * (size_t)of->count);
    int64_t kind = drawn(walk, 16);
    if (kind >= 12 && of->parts[n] > 1) return shared(walk, at, low, high, kind);
    if (kind == 11) return together(walk, at);
    if (kind == 9 || kind == 10) return exchanged(walk, at);
    if (kind >= 3 && kind < 6) return beside(walk, at, low, high);
    int64_t to = low + drawn(walk, high - low + 1);
    if (kind >= 6) walk->tried.on[n] = (uint64_t)1 << drawn(walk, of->devices);
    if (to == at && walk->tried.on[n] == now->on[n]) return -1;
    return moved(walk, at, to);
}

static void *taken(char **room, int64_t count, size_t size) {
    void *found = *room;
    *room += (size_t)count * size;
    return found;
}

static void lay(Plan *plan, const Problem *of, char **room) {
    plan->order = taken(room, of->count, sizeof(*plan->order));
    plan->place = taken(room, of->count, sizeof(*plan->place));
    plan->cause = taken(room, of->count, sizeof(*plan->cause));
    plan->on = taken(room, of->count, sizeof(*plan->on));
    plan->first = taken(room, of->count, sizeof(*plan->first));
    plan->ends = taken(room, of->count, sizeof(*plan->ends));
    plan->loads = taken(room, of->count + 1, sizeof(*plan->loads));
    plan->states = taken(room, (of->count + 1) * of->devices, sizeof(*plan->states));
}

int64_t kairos_walk_bytes(int64_t count, int64_t devices, int64_t history) {
    return 8 * (18 * count + 2) + 2 * (count + 1) * devices * (int64_t)sizeof(Device) +
           history * (int64_t)sizeof(Cost);
}

/* Walks from a plan, `order` and `on`, and puts the best there that it came by. Returns the steps
   that it took: operators that were reckoned, a step for each device of each. */
int64_t kairos_walk(const Problem *of, int64_t *order, uint64_t *on, char *room, int64_t steps,
                    int64_t idle_most, int64_t history, double slack, int64_t seed) {
    Walk walk = {.of = of, .dice = (uint64_t)seed};
    size_t count = (size_t)of->count, devices = (size_t)of->devices;
    lay(&walk.now, of, &room);
    lay(&walk.tried, of, &room);
    walk.best = order;
    walk.best_on = on;
    walk.blame = taken(&room, of->count, sizeof(*walk.blame));
    walk.history = taken(&room, history, sizeof(*walk.history));
    memcpy(walk.now.order, order, sizeof(*order) * count);
    memcpy(walk.now.on, on, sizeof(*on) * count);
    for (size_t d = 0; d < devices; d++)
        walk.now.states[d] = (Device){.resident = -1, .context = -1, .before = -1};
    walk.now.loads[0] = 0.0;
    Cost now = settle(&walk, &walk.now, 0), best = now, cost = now;
    for (int64_t k = 0; k < history; k++) {
        walk.history[k] = now;
        walk.history[k].makespan *= 1.0 + slack;
    }
    for (int64_t turn = 0, idle = 0; walk.steps < steps && idle < idle_most; turn++, idle++) {
        Device states[MOST_DEVICES];
        Cost *before = walk.history + turn % history, limit = is_less(now, *before) ? *before : now;
        walk.steps += LOOKING;
        int64_t from = another(&walk);
        if (from < 0) continue;
        memcpy(states, walk.now.states + (size_t)from * devices, sizeof(Device) * devices);
        memcpy(walk.tried.first, walk.now.first, sizeof(double) * count);
        memcpy(walk.tried.ends, walk.now.ends, sizeof(double) * count);
        memcpy(walk.tried.place, walk.now.place, sizeof(int64_t) * count);
        if (reckon(&walk, &walk.tried, from, states, walk.now.loads[from], limit.makespan + 1e-9,
                   0, &cost) &&
            !is_less(limit, cost)) {
            memcpy(walk.now.order, walk.tried.order, sizeof(*order) * count);
            memcpy(walk.now.on, walk.tried.on, sizeof(*on) * count);
            now = settle(&walk, &walk.now, from);
            if (is_less(now, best)) {
                best = now;
                idle = 0;
                memcpy(walk.best, walk.now.order, sizeof(*order) * count);
                memcpy(walk.best_on, walk.now.on, sizeof(*on) * count);
            }
        }
        if (is_less(now, *before)) *before = now;
    }
    return walk.steps;
}
