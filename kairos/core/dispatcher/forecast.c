/* What calls are expected to hold, slot by slot, and which instance has room for one more: the
   arithmetic of `demand.py`, `occupancy.py` and `slots.py`, compiled.

   Plain C without Python's headers, so that any C compiler will do; `native.py` loads it, and numpy
   does the same where it is missing. Sizes are checked by the caller. No memory is allocated here.

   A survival curve is GRID shares of answers that are longer than so many tokens, `width` tokens
   apart; beyond them the share falls by the same part with each point. Slots widen with distance.
   A forecast has three planes: mean, variance, and what it would be if nobody had ended. */

#include <math.h>
#include <stddef.h>
#include <stdint.h>

/* Behind the shares of a curve, in its row: how much the logarithm falls at each further point, and
   the most that tokens times the share come to, and tokens times the share's deviation. */
enum { GRID = 256, DECAY = GRID, MOST_MEAN, MOST_DEVIATION, ROW };
enum { MEAN, VARIANCE, MOST, PLANES };
enum { SLOTS = 38 };

/* When slots begin, in SLOT_US: as `demand.py` has it. */
static const int SLOT_AT[SLOTS] = {
    0,   1,   2,   3,   4,    6,    8,    10,   13,   16,   20,   25,   31,
    38,  47,  58,  72,  90,   112,  140,  175,  218,  272,  340,  425,  531,
    663, 828, 1035, 1293, 1616, 2020, 2525, 3156, 3945, 4931, 6163, 7703};
static const double SLOT_US = 500000.0, GONE = 1e-4;

/* A call in flight (`in_flight.py`): instants in us, sizes in tokens. */
typedef struct {
    double prompt, begun_at, lasts_us;
    double generated, grows_from; /* of its answer, when told last; and since when it grows on */
    double limit, first_at;
    int64_t curve;
} Call;

/* An instance. What is said of it comes first, as `compiled_table.py` writes it. */
typedef struct {
    double running;   /* calls in flight */
    double kv_tokens; /* `inf`: not known */
    double times;     /* as slow as its kind */
    double unfilled;  /* tokens that a call leaves free of its last block, on average */
    double max_num_seqs;
    int64_t kind;     /* place in the lines */
    int64_t version;  /* of what is said here */
    /* Its calls in flight: which table of them, how often that has changed, tokens of all prompts,
       of answers that have ended, and of prompts what several have in common, all but once. */
    int64_t flight, changes;
    double prompt_tokens, ended_tokens, shared_tokens;
    const Call *calls;
    const double *kept;    /* of contexts, `kept_stride`: tokens; until when, 0 where there is none */
    int64_t kept_stride;

    double computing_tokens; /* of prompts under way */
    double computing;        /* the share of a step that they take */
    double computing_until;

    double unseen; /* KV memory that is not seen */
    double suspended;

    /* From here on it is ours. The speeds with one call more; of the request that is looked at,
       tokens of its prompt that calls here hold, and that are in the cache, and what was found. */
    double token_us, token_slope_us, begins_us;
    double in_use, cached;
    double cost, at_least; /* at least so much is taken with it, as shares */
    double peak;           /* where there is room; it may not be worked out yet */
    int64_t verdict;
    /* The forecast: of which version, when, and the most in it. What is looked at of each instance
       for each request comes before this, in few lines of the processor's cache. */
    int64_t forecast_of, forecast_at;
    double growth; /* tokens per us, while nobody ends */
    double grown;  /* since the forecast, by as much */
    double top;
    int64_t tight; /* the slot in which a request had no room here last */
    int64_t high;  /* the slot in which what it would hold with one was most, last */
    double forecast[PLANES][SLOTS];
    /* The calls as they were when all were looked at last, and what was expected then. */
    int64_t derived_of, derived_at, changes_then, calls_then;
    double prompt_tokens_then, ended_tokens_then, share, unfilled_then, tokens_per_us;
    double held[PLANES][SLOTS];
} Instance;

enum { NOT_LOOKED_AT, HAS_NO_ROOM, HAS_ROOM };

typedef struct {
    Instance *instances;
    int64_t rows;
    const double *shares, *widths; /* the curves */
    const double *lines; /* of each kind, to the next token and to the first: at_zero, slope, least */
    int64_t *places;     /* as many as rows: where answers go that are lists */
    double spread;       /* standard deviations above the mean that must be free */
    double widest;       /* no more than this share of the memory */
    double alike, alike_but_for_load; /* costs that differ by less count as the same */
    double free;         /* the share of the memory that is kept free for a second */
    int64_t renewed_us;  /* forecasts are derived anew when they are so old */
    int64_t few;         /* changes to less than one in so many calls are small */
    double half_answer;  /* tokens that are left of an answer, if nothing is known of it */
} Pool;

/* A request that is to be placed. */
typedef struct {
    double prompt_tokens;
    double answer_tokens; /* expected */
    double limit;         /* of its answer */
    int64_t curve;        /* of its answer's length */
    /* Tokens of its prompt that calls hold, and that are in the cache, by row; NULL: nowhere. */
    const double *in_use, *cached;
    int64_t kept_row; /* where memory is kept for it, or -1 */
    double kept_tokens;
    int64_t waits_since; /* for an instance where more of it is cached; NEVER: it does not */
} Wanted;

/* What is asked: of which instances, by row, and when; `busy` ones take nothing now. */
typedef struct {
    int64_t at;
    int64_t count;
    const int64_t *rows;
    int64_t busy_count;
    const int64_t *busy;
    int64_t reserved_row; /* where room is kept for another request, or -1 */
    double reserved[SLOTS];
    int64_t found;  /* of `places` */
    int64_t chosen; /* by `kairos_refused`: where the first goes that is not refused, or NOWHERE */
} Asked;

enum { NOWHERE = -1, WARM = -2 };
static const int64_t COMPUTING_UNKNOWN = INT64_MIN, NEVER = INT64_MIN;
static const double NOT_WORKED_OUT = -INFINITY;

static inline double greater(double a, double b)
{
    return a > b ? a : b;
}

static inline double lesser(double a, double b)
{
    return a < b ? a : b;
}

static inline double on_line(const double *line, double x)
{
    return greater(line[0] + line[1] * x, line[2]);
}

static inline const double *token_line(const Pool *pool, const Instance *here)
{
    return pool->lines + 6 * here->kind;
}

static inline const double *prompt_line(const Pool *pool, const Instance *here)
{
    return pool->lines + 6 * here->kind + 3;
}

int64_t kairos_bytes_of_instance(void)
{
    return sizeof(Instance);
}

/* ---- Curves ---- */

/* The share of calls that are longer than so many tokens. */
static inline double share_at(const double *curve, double point)
{
    return curve[point < GRID - 1.0 ? (int)point : GRID - 1];
}

/* The probability that a call goes on after `grown` tokens more, by the share `now` of calls that
   came as far as it did. */
static inline double alive_at(const double *curve, double generated, double grown, double per_width,
                              double now)
{
    double point = (generated + grown) * per_width, alive = share_at(curve, point) / now;
    if (point > GRID - 1.0) {
        point -= greater(generated * per_width, GRID - 1.0);
        alive *= exp(-point * curve[DECAY]);
    }
    return alive < GONE ? 0.0 : alive;
}

/* The most that tokens times the share of calls that are longer come to, anywhere, and tokens times
   the deviation of that. Beyond the grid shares fall exponentially, and both have one maximum. */
static void bound(double *curve, double width, double decay)
{
    double mean = 0.0, deviation = 0.0;
    for (int g = 0; g < GRID; g++) {
        double tokens = (g + 1) * width, share = curve[g];
        mean = greater(mean, tokens * share);
        deviation = greater(deviation, tokens * sqrt(greater(0.0, share - share * share)));
    }
    for (int half = 1; half <= 2; half++) { /* of the share, and of its root */
        double point = greater(GRID - 1.0, half / decay) + 1;
        double share = curve[GRID - 1] * exp(-(point - GRID) * decay);
        double most = point * width * (half == 1 ? share : sqrt(share));
        if (half == 1)
            mean = greater(mean, most);
        else
            deviation = greater(deviation, most);
    }
    curve[DECAY] = decay;
    curve[MOST_MEAN] = mean;
    curve[MOST_DEVIATION] = deviation;
}

/* Draws a survival curve from ascending quantiles; returns its width. See `Curves`. */
double kairos_draw(int64_t count, const double *quantiles, double *curve)
{
    int64_t top = count / 8 > 1 ? count / 8 : 1, below = 0;
    double last = quantiles[count - 1], sum = 0.0;
    for (int64_t q = count - top; q < count; q++)
        sum += quantiles[q];
    double excess = sum / top - quantiles[count - top];
    excess = greater(greater(excess, 0.05 * last), 1.0);
    double width = (last + 4 * excess) / (GRID - 1);
    double at_last = 1 - (count - 0.5) / count;
    for (int g = 0; g < GRID; g++) {
        double point = width * g;
        if (point > last) {
            curve[g] = at_last * exp(-(point - last) / excess);
            continue;
        }
        while (below < count && quantiles[below] <= point)
            below++; /* so many quantiles are not above the point */
        double x = below ? quantiles[below - 1] : 0.0;
        double share = below ? 1 - (below - 0.5) / count : 1.0;
        if (below < count) {
            double next = 1 - (below + 0.5) / count;
            share += (next - share) / (quantiles[below] - x) * (point - x);
        }
        curve[g] = share;
    }
    bound(curve, width, width / excess);
    return width;
}

/* ---- What instances are expected to hold ---- */

/* What all calls in flight on an instance are expected to hold, in sum. Of each prompt `share`
   counts. Returns how many answers grow by now. */
static int64_t together(const Pool *pool, const Instance *here, double at, double token_us,
                        double share, double held_by_slot[PLANES][SLOTS])
{
    double *mean = held_by_slot[MEAN], *variance = held_by_slot[VARIANCE];
    double *most = held_by_slot[MOST], at_once[SLOTS], held_now = 0.0;
    int64_t growing = 0;
    const Call *end = here->calls + (int64_t)here->running;
    for (int s = 0; s < SLOTS; s++) {
        at_once[s] = SLOT_AT[s] * SLOT_US / token_us;
        mean[s] = variance[s] = most[s] = 0.0;
    }
    for (const Call *call = here->calls; call < end; call++) {
        double grown_since = greater(0.0, at - call->grows_from) / token_us;
        double told = call->generated, limit = call->limit;
        double generated = greater(lesser(told + grown_since, limit), told);
        double held = call->prompt * share + generated + here->unfilled;
        double delay_us = greater(0.0, call->first_at - at);
        double per_width = 1.0 / pool->widths[call->curve];
        const double *curve = pool->shares + call->curve * ROW;
        double now = share_at(curve, generated * per_width);
        held_now += held;
        growing += delay_us == 0.0;
        for (int s = 0; s < SLOTS && delay_us > 0.0; s++)
            most[s] += greater(0.0, SLOT_AT[s] * SLOT_US - delay_us) / token_us;
        for (int s = 0; s < SLOTS; s++) {
            double grown = at_once[s], alive = 0.0;
            if (delay_us > 0.0)
                grown = greater(0.0, SLOT_AT[s] * SLOT_US - delay_us) / token_us;
            if (generated + grown < limit || grown == 0.0)
                alive = alive_at(curve, generated, grown, per_width, now);
            if (alive == 0.0)
                break; /* in all later slots, too */
            double tokens = held + grown;
            mean[s] += alive * tokens;
            variance[s] += (alive - alive * alive) * tokens * tokens;
        }
    }
    for (int s = 0; s < SLOTS; s++)
        most[s] += held_now + growing * at_once[s];
    return growing;
}

/* Whether what was expected of the calls, when all were looked at, still serves: see
   `BySurvival`. */
static int is_good(const Pool *pool, const Instance *here, int64_t at)
{
    int64_t changes = here->changes - here->changes_then;
    return here->derived_of == here->flight && at - here->derived_at < pool->renewed_us &&
           (changes == 0 || pool->few * changes < (int64_t)here->running);
}

/* How long a token takes. */
static inline double token_us_now(const Pool *pool, const Instance *here)
{
    return greater(1.0, here->times * on_line(token_line(pool, here), here->running));
}

/* Look at all calls of an instance. */
static void derive(const Pool *pool, Instance *here, int64_t at)
{
    double shared = 0.0;
    if (here->shared_tokens != 0.0 && here->running >= 2) {
        double longest = here->calls[0].prompt;
        for (int64_t c = 1; c < (int64_t)here->running; c++)
            longest = greater(longest, here->calls[c].prompt);
        shared = lesser(here->prompt_tokens - longest, here->shared_tokens);
    }
    double token_us = token_us_now(pool, here);
    here->share = 1 - shared / greater(1.0, here->prompt_tokens);
    int64_t growing = together(pool, here, at, token_us, here->share, here->held);
    here->derived_of = here->flight;
    here->derived_at = at;
    here->changes_then = here->changes;
    here->calls_then = (int64_t)here->running;
    here->prompt_tokens_then = here->prompt_tokens;
    here->ended_tokens_then = here->ended_tokens;
    here->unfilled_then = here->unfilled;
    here->tokens_per_us = growing / token_us;
}

/* How many times as much as then is expected by now: with the calls that began since, and without
   those that ended. */
static double times_by_now(const Instance *here, int64_t at)
{
    double more = here->share * (here->prompt_tokens - here->prompt_tokens_then);
    more += here->unfilled_then * ((int64_t)here->running - here->calls_then);
    more += here->tokens_per_us * (at - here->derived_at);
    more -= here->ended_tokens - here->ended_tokens_then;
    return greater(0.0, 1 + more / greater(1.0, here->held[MEAN][0]));
}

/* Tokens that are kept at the beginning of each slot, for contexts of which nobody holds them. */
static void kept_by_slot(const Instance *here, double at, double *kept)
{
    const double *until = here->kept + here->kept_stride;
    for (int s = 0; s < SLOTS; s++)
        kept[s] = 0.0;
    for (int64_t c = 0; c < here->kept_stride; c++) {
        double left = (until[c] - at) / SLOT_US;
        if (left > 0) {
            int last = 0;
            while (last + 1 < SLOTS && SLOT_AT[last + 1] < left)
                last++;
            kept[last] += here->kept[c];
        }
    }
    for (int s = SLOTS - 1; s > 0; s--)
        kept[s - 1] += kept[s];
}

/* What must be free above the mean. */
static inline double margin_of(const Pool *pool, const Instance *here, double variance)
{
    return lesser(pool->spread * sqrt(variance), pool->widest * here->kv_tokens);
}

/* The forecast of an instance. What is to stay free, in the slots that begin within a second, and
   what is kept count as held. */
static void forecast(const Pool *pool, Instance *here, int64_t at)
{
    double kept[SLOTS], times = 0.0, free = 0.0;
    if (here->running > 0) {
        if (!is_good(pool, here, at))
            derive(pool, here, at);
        times = times_by_now(here, at);
        free = here->kv_tokens < INFINITY ? pool->free * here->kv_tokens : 0.0;
    }
    kept_by_slot(here, at, kept);
    here->top = -INFINITY;
    for (int s = 0; s < SLOTS; s++) {
        double beside = kept[s] + (s < 2 ? free : 0.0);
        double mean = here->running > 0 ? times * here->held[MEAN][s] : 0.0;
        double variance = here->running > 0 ? times * here->held[VARIANCE][s] : 0.0;
        double most = here->running > 0 ? times * here->held[MOST][s] : 0.0;
        here->forecast[MEAN][s] = mean += beside;
        here->forecast[VARIANCE][s] = variance;
        here->forecast[MOST][s] = most += beside;
        double likely = mean + margin_of(pool, here, variance);
        here->top = greater(here->top, lesser(likely, most));
    }
    here->forecast_of = here->version;
    here->forecast_at = at;
    here->growth = here->running > 0 ? here->running / token_us_now(pool, here) : 0.0;
}

/* Derive anew what has changed, or is old. */
static inline void renew(const Pool *pool, Instance *here, int64_t at)
{
    if (here->forecast_of != here->version || at - here->forecast_at >= pool->renewed_us)
        forecast(pool, here, at);
    here->grown = here->growth * (at - here->forecast_at);
}

static inline double mean_at(const Instance *here, int slot)
{
    return here->forecast[MEAN][slot] + here->grown;
}

static void renew_all(const Pool *pool, const Asked *asked)
{
    for (int64_t i = 0; i < asked->count; i++) {
        Instance *here = pool->instances + asked->rows[i];
        if (!here->suspended)
            renew(pool, here, asked->at);
    }
}

/* The speeds of all instances, with one call more on each. */
void kairos_speeds(const Pool *pool)
{
    for (int64_t row = 0; row < pool->rows; row++) {
        Instance *here = pool->instances + row;
        const double *token = token_line(pool, here);
        double next_us = here->times * on_line(token, here->running + 1);
        here->token_us = greater(1.0, next_us);
        here->token_slope_us = next_us - here->times * on_line(token, here->running);
        here->begins_us = here->times * on_line(prompt_line(pool, here), 0.0);
    }
}

/* Tokens for calls. One on which nothing runs takes a call that may not fit in the end: it will fit
   nowhere better. */
static inline double capacity(const Instance *here)
{
    return here->running == 0 ? INFINITY : here->kv_tokens - here->unseen;
}

/* The most that is free now on any of the instances that are not suspended; 0: all are. */
double kairos_headroom(const Pool *pool, const Asked *asked)
{
    double most = -INFINITY;
    for (int64_t i = 0; i < asked->count; i++) {
        Instance *here = pool->instances + asked->rows[i];
        if (here->suspended)
            continue;
        renew(pool, here, asked->at);
        most = greater(most, capacity(here) - mean_at(here, 0));
    }
    return most > -INFINITY ? most : 0.0;
}

/* What an instance is expected to hold, renewed if it must be; 3 x SLOTS. */
const double *kairos_forecast(const Pool *pool, int64_t row, int64_t at)
{
    Instance *here = pool->instances + row;
    renew(pool, here, at);
    return here->forecast[MEAN];
}

/* ---- What a request would hold ---- */

/* What it takes to say what a request would hold on an instance at any point. */
typedef struct {
    double held; /* from the beginning */
    double limit, per_width, now;
    const double *curve;
} Growth;

static Growth growth_there(const Pool *pool, const Wanted *wanted, const Instance *here)
{
    double held = wanted->prompt_tokens + here->unfilled - here->in_use;
    if (wanted->kept_row >= 0 && here == pool->instances + wanted->kept_row)
        held -= wanted->kept_tokens;
    const double *curve = pool->shares + wanted->curve * ROW;
    double per_width = 1.0 / pool->widths[wanted->curve];
    return (Growth){held, wanted->limit, per_width, curve[0], curve};
}

/* Its mean, variance, and tokens if it does not end. */
static inline void own_at(const Growth *growth, const Instance *here, int slot, double *own)
{
    double since_us = greater(0.0, SLOT_AT[slot] * SLOT_US - here->begins_us);
    double grown = since_us / here->token_us, alive = 0.0;
    if (grown < growth->limit || grown == 0.0)
        alive = alive_at(growth->curve, 0.0, grown, growth->per_width, growth->now);
    double tokens = growth->held + grown, mean = alive * tokens;
    own[MEAN] = mean;
    own[VARIANCE] = mean * (tokens - mean);
    own[MOST] = tokens;
}

/* What an instance would hold at the beginning of a slot with so much more. */
static inline double load_with(const Pool *pool, const Instance *here, int slot, double mean,
                               double variance, double most)
{
    double margin = margin_of(pool, here, here->forecast[VARIANCE][slot] + variance);
    double likely = mean_at(here, slot) + mean + margin;
    return lesser(likely, here->forecast[MOST][slot] + here->grown + most);
}

/* What an instance would hold with the request, slot by slot. Stops, and returns 0, where that is
   more than `most` in a slot: the last time's first. */
static int loads_with(const Pool *pool, const Wanted *wanted, Instance *here, double most,
                      double *loads)
{
    Growth growth = growth_there(pool, wanted, here);
    double own[PLANES];
    for (int n = -1; n < SLOTS; n++) {
        int slot = n < 0 ? (int)here->tight : n;
        own_at(&growth, here, slot, own);
        loads[slot] = load_with(pool, here, slot, own[MEAN], own[VARIANCE], own[MOST]);
        if (loads[slot] > most) {
            here->tight = slot;
            return 0;
        }
    }
    return 1;
}

/* The highest of these, beside what is reserved there. */
static double peak_of(const Instance *here, const double *reserved, const double *loads)
{
    double peak = -INFINITY;
    for (int s = 0; s < SLOTS; s++) {
        double load = loads[s];
        if (reserved && reserved[s] > 0) {
            /* It is there to the end of the slot in which it ends: the other waits for that. */
            double more = loads[s] - mean_at(here, s);
            if (s > 0)
                more = greater(more, loads[s - 1] - mean_at(here, s - 1));
            load = mean_at(here, s) + more + reserved[s];
        }
        peak = greater(peak, load);
    }
    return peak;
}

static inline int is_reserved(const Pool *pool, const Asked *asked, const Instance *here)
{
    return asked->reserved_row >= 0 && here == pool->instances + asked->reserved_row;
}

/* What it would hold in one slot, if nothing is reserved there. */
static double load_at(const Pool *pool, const Wanted *wanted, const Instance *here, int slot)
{
    Growth growth = growth_there(pool, wanted, here);
    double own[PLANES];
    own_at(&growth, here, slot, own);
    return load_with(pool, here, slot, own[MEAN], own[VARIANCE], own[MOST]);
}

/* Works out the peak, of which it says whether there is room for it. */
static int fits_at_peak(const Pool *pool, const Wanted *wanted, const Asked *asked, Instance *here)
{
    double loads[SLOTS], room = capacity(here);
    int reserved = is_reserved(pool, asked, here);
    if (!loads_with(pool, wanted, here, reserved ? INFINITY : room, loads))
        return 0;
    here->peak = peak_of(here, reserved ? asked->reserved : NULL, loads);
    for (int s = 0; s < SLOTS; s++)
        if (loads[s] > loads[here->high])
            here->high = s;
    return here->peak <= room;
}

/* Whether there is room to spare, whatever becomes of the request. What it holds from the beginning,
   where it is there with probability a, adds no more than held * (a + spread * sqrt(a * (1 - a))),
   which is most for no a more than held * (1 + sqrt(1 + spread^2)) / 2. Its answer adds no more
   than its curve says. */
static int fits_for_sure(const Pool *pool, const Wanted *wanted, const Asked *asked,
                         const Instance *here)
{
    Growth growth = growth_there(pool, wanted, here);
    if (growth.held < 0.0 || is_reserved(pool, asked, here))
        return 0;
    double added = growth.held * (1.0 + sqrt(1.0 + pool->spread * pool->spread)) / 2.0;
    added += growth.curve[MOST_MEAN] + pool->spread * growth.curve[MOST_DEVIATION];
    return here->top + here->grown + added < (1.0 - 1e-9) * capacity(here); /* less what is rounded */
}

static int has_room(const Pool *pool, const Wanted *wanted, const Asked *asked, Instance *here)
{
    if (here->verdict == NOT_LOOKED_AT) {
        here->peak = NOT_WORKED_OUT;
        int fits = !here->suspended && (fits_for_sure(pool, wanted, asked, here) ||
                                        fits_at_peak(pool, wanted, asked, here));
        here->verdict = fits ? HAS_ROOM : HAS_NO_ROOM;
    }
    return here->verdict == HAS_ROOM;
}

/* The slot from which on an instance has room for the request. */
static int room_begins(const Pool *pool, const Wanted *wanted, Instance *here)
{
    double loads[SLOTS], room = capacity(here);
    int begins = SLOTS;
    loads_with(pool, wanted, here, INFINITY, loads);
    while (begins > 0 && !(loads[begins - 1] > room))
        begins--;
    return begins;
}

static double room_in_us(const Pool *pool, const Wanted *wanted, Instance *here)
{
    if (here->suspended || here->kv_tokens == INFINITY)
        return INFINITY;
    int begins = room_begins(pool, wanted, here);
    return begins < SLOTS ? SLOT_AT[begins] * SLOT_US : INFINITY;
}

static double cost_us(const Pool *pool, const Wanted *wanted, const Instance *here)
{
    double running = here->running, answer = wanted->answer_tokens;
    double computed = wanted->prompt_tokens - here->cached;
    double until_us = here->times * on_line(prompt_line(pool, here), computed);
    double compute_us = (until_us - here->begins_us) * (1 + running);
    double decode_us = answer * here->token_us;
    double slowed_us = running * answer * here->token_slope_us;
    return compute_us + decode_us + slowed_us;
}

/* ---- The choice ---- */

/* What is known of the prompt is noted at the instances that are asked of. A stretch of it is as
   long as the first prompt with it said, and something of a prompt is always computed. */
static void note_known(const Pool *pool, const Wanted *wanted, const Asked *asked)
{
    double most = wanted->prompt_tokens;
    for (int64_t i = 0; i < asked->count + asked->busy_count; i++) {
        int64_t row = i < asked->count ? asked->rows[i] : asked->busy[i - asked->count];
        Instance *here = pool->instances + row;
        double in_use = wanted->in_use ? wanted->in_use[row] : 0.0;
        double cached = wanted->cached ? wanted->cached[row] : 0.0;
        here->in_use = in_use < most ? in_use : most;
        here->cached = cached < most - 1 ? cached : most - 1;
        here->verdict = NOT_LOOKED_AT;
    }
}

/* What the request costs where it costs least of those that have room; `inf`: none has. */
static double least_cost(const Pool *pool, const Wanted *wanted, const Asked *asked)
{
    double least = INFINITY;
    for (int64_t i = 0; i < asked->count; i++) {
        Instance *here = pool->instances + asked->rows[i];
        here->cost = cost_us(pool, wanted, here);
        if (here->cost < least && has_room(pool, wanted, asked, here))
            least = here->cost;
    }
    return least;
}

/* Whether those that have room have all the same of the prompt cached. */
static int are_alike(const Pool *pool, const Wanted *wanted, const Asked *asked)
{
    const Instance *first = NULL;
    for (int64_t i = 0; i < asked->count && wanted->cached; i++) {
        Instance *here = pool->instances + asked->rows[i];
        if ((first && here->cached == first->cached) || !has_room(pool, wanted, asked, here))
            continue;
        if (first)
            return 0;
        first = here;
    }
    return 1;
}

static inline int is_computing_known(const Instance *here, const Asked *asked)
{
    return here->computing_until > asked->at;
}

/* Those of which it must be found out again what prompts under way take, by row, in `places`. */
static int64_t unknown_computing(const Pool *pool, const Asked *asked)
{
    int64_t found = 0;
    for (int64_t i = 0; i < asked->count; i++)
        if (!is_computing_known(pool->instances + asked->rows[i], asked))
            pool->places[found++] = asked->rows[i];
    return found;
}

static inline double size_of(const Instance *here)
{
    return here->kv_tokens < INFINITY ? here->kv_tokens : 1.0;
}

/* What is taken at least, the peak not being worked out: by what is held without the request, or by
   what would be held with it at one point. */
static double takes_at_least(const Pool *pool, const Wanted *wanted, const Asked *asked,
                             const Instance *here)
{
    double held = -INFINITY;
    if (growth_there(pool, wanted, here).held >= 0.0)
        held = here->top + here->grown;
    if (!is_reserved(pool, asked, here))
        held = greater(held, load_at(pool, wanted, here, (int)here->high));
    return held / size_of(here) + here->computing;
}

/* The place among those asked of of the one that costs no more than `bound` and of which least is
   taken: at its peak, and of a step; the first of several. It begins with the likeliest, so that of
   few others the peak need be worked out. */
static int64_t least_taken(const Pool *pool, const Wanted *wanted, const Asked *asked, double bound)
{
    double lowest = INFINITY;
    int64_t best = NOWHERE, likely = NOWHERE;
    for (int64_t i = 0; i < asked->count; i++) {
        Instance *here = pool->instances + asked->rows[i];
        if (!(here->cost <= bound))
            continue;
        here->at_least = takes_at_least(pool, wanted, asked, here);
        if (likely < 0 || here->at_least < pool->instances[asked->rows[likely]].at_least)
            likely = i;
    }
    for (int64_t n = likely < 0 ? asked->count : -1; n < asked->count; n++) {
        int64_t i = n < 0 ? likely : n;
        Instance *here = pool->instances + asked->rows[i];
        if (n == likely || !(here->cost <= bound))
            continue;
        if (here->at_least > lowest || (here->at_least == lowest && i > best))
            continue;
        if (!has_room(pool, wanted, asked, here))
            continue;
        if (here->peak == NOT_WORKED_OUT)
            fits_at_peak(pool, wanted, asked, here);
        double taken = here->peak / size_of(here) + here->computing;
        if (best < 0 || taken < lowest || (taken == lowest && i < best)) {
            best = i;
            lowest = taken;
        }
    }
    return best;
}

/* How long it is likely to be until a busy instance takes more: `Ledger.takes_more_in_us`. */
static double takes_more_in_us(const Pool *pool, const Instance *here)
{
    const double *prompt = prompt_line(pool, here);
    double longer_us = on_line(prompt, here->computing_tokens) - on_line(prompt, 0.0);
    double wait_us = here->times * greater(0.0, longer_us);
    if (here->running >= here->max_num_seqs) { /* answers end one after the other */
        double token_us = here->times * on_line(token_line(pool, here), here->running);
        wait_us = greater(wait_us, pool->half_answer * greater(1.0, token_us) / here->running);
    }
    return wait_us;
}

/* For how long it has waited for a warm instance by now. */
static inline double waited_us(const Wanted *wanted, const Asked *asked)
{
    return wanted->waits_since == NEVER ? 0.0 : (double)(asked->at - wanted->waits_since);
}

/* The first of those asked of where more of the prompt is cached than on the `best`, and which will
   have room so soon that the wait pays; as a place among them. The `least` costs without. */
static int64_t warm_one(const Pool *pool, const Wanted *wanted, const Asked *asked, int64_t best,
                        double least)
{
    double cached = pool->instances[asked->rows[best]].cached;
    double waited = waited_us(wanted, asked);
    for (int64_t i = 0; i < asked->count; i++) {
        Instance *there = pool->instances + asked->rows[i];
        if (!(there->cached > cached) || !(waited + there->cost < least))
            continue; /* whenever there is room */
        if (has_room(pool, wanted, asked, there))
            continue;
        if (waited + room_in_us(pool, wanted, there) + there->cost < least)
            return i;
    }
    return NOWHERE;
}

/* The same of the busy ones. COMPUTING_UNKNOWN: see `kairos_choose`. */
static int64_t warm_busy_one(const Pool *pool, const Wanted *wanted, Asked *asked, int64_t best,
                             double least)
{
    double cached = pool->instances[asked->rows[best]].cached;
    for (int64_t i = 0; i < asked->busy_count; i++) {
        const Instance *there = pool->instances + asked->busy[i];
        if (there->cached > cached && !is_computing_known(there, asked))
            pool->places[asked->found++] = asked->busy[i];
    }
    if (asked->found)
        return COMPUTING_UNKNOWN;
    for (int64_t i = 0; i < asked->busy_count; i++) {
        Instance *there = pool->instances + asked->busy[i];
        if (!(there->cached > cached))
            continue;
        renew(pool, there, asked->at);
        double wait_us = room_in_us(pool, wanted, there);
        wait_us = greater(wait_us, takes_more_in_us(pool, there));
        if (waited_us(wanted, asked) + wait_us + cost_us(pool, wanted, there) < least)
            return i;
    }
    return NOWHERE;
}

/* As `kairos_choose`, when all forecasts are renewed. */
static int64_t choose(const Pool *pool, const Wanted *wanted, Asked *asked)
{
    note_known(pool, wanted, asked);
    asked->found = 0;
    double least = least_cost(pool, wanted, asked);
    if (least == INFINITY)
        return NOWHERE;
    if (asked->count > 1 && (asked->found = unknown_computing(pool, asked)))
        return COMPUTING_UNKNOWN;
    double margin = are_alike(pool, wanted, asked) ? pool->alike_but_for_load : pool->alike;
    int64_t best = least_taken(pool, wanted, asked, least * (1 + margin));
    if (best < 0 || !wanted->cached)
        return best;
    int64_t warm = warm_one(pool, wanted, asked, best, least);
    if (warm != NOWHERE)
        return WARM - warm;
    warm = warm_busy_one(pool, wanted, asked, best, least);
    if (warm == COMPUTING_UNKNOWN)
        return COMPUTING_UNKNOWN;
    return warm == NOWHERE ? best : WARM - asked->count - warm;
}

/* Where the request goes, as a place among those asked of; or, WARM less that, for which it waits,
   since more of its prompt is cached there: the busy ones come after the others. NOWHERE: none has
   room. COMPUTING_UNKNOWN: `places` lists rows of which it is to be written first what prompts
   under way take. */
int64_t kairos_choose(const Pool *pool, const Wanted *wanted, Asked *asked)
{
    renew_all(pool, asked);
    return choose(pool, wanted, asked);
}

/* How many of the requests, from the first on, go nowhere now; `waits`: of each of these, whether
   there is room, and it waits for an instance all the same. The next one goes to `chosen`. Where
   `places` are found, as for `kairos_choose`, it ends before the request of which it must know. */
int64_t kairos_refused(const Pool *pool, const Wanted *const *requests, int64_t count,
                       Asked *asked, int64_t *waits)
{
    renew_all(pool, asked);
    asked->chosen = NOWHERE;
    for (int64_t n = 0; n < count; n++) {
        int64_t place = choose(pool, requests[n], asked);
        if (place >= 0)
            asked->chosen = place;
        if (place >= 0 || place == COMPUTING_UNKNOWN)
            return n;
        waits[n] = place <= WARM;
    }
    return count;
}

/* Room for the request on the instance that is expected to have it soonest, from then on: writes
   that to `rooms`, SLOTS, and returns its row; -1: none has. See `SlotPlacement.reserve`. */
int64_t kairos_reserve(const Pool *pool, const Wanted *wanted, const Asked *asked, double *rooms)
{
    Instance *soonest = NULL;
    int begins = SLOTS + 1;
    double loads[SLOTS], alone[SLOTS];
    renew_all(pool, asked);
    note_known(pool, wanted, asked);
    for (int64_t i = 0; i < asked->count && begins > 0; i++) {
        Instance *here = pool->instances + asked->rows[i];
        if (here->suspended)
            continue;
        int here_begins = room_begins(pool, wanted, here);
        if (here_begins < begins) {
            begins = here_begins;
            soonest = here;
        }
    }
    if (!soonest)
        return -1;
    double room = capacity(soonest);
    loads_with(pool, wanted, soonest, INFINITY, loads);
    for (int s = 0; s < SLOTS; s++) /* more than all would be taken for all */
        alone[s] = lesser(greater(0.0, loads[s] - mean_at(soonest, s)), room);
    for (begins = 0; begins < SLOTS; begins++) {
        int s = begins, from = 0, to = 0;
        for (; s < SLOTS; s++) { /* it grows from when it begins */
            int later = SLOT_AT[s] - SLOT_AT[begins];
            int last = later + (s + 1 < SLOTS ? SLOT_AT[s + 1] - SLOT_AT[s] - 1 : 0);
            while (from + 1 < SLOTS && SLOT_AT[from + 1] <= later)
                from++;
            while (to + 1 < SLOTS && SLOT_AT[to + 1] <= last)
                to++;
            rooms[s] = alone[from];
            for (int seen = from + 1; seen <= to; seen++)
                rooms[s] = greater(rooms[s], alone[seen]);
            if (!(rooms[s] + mean_at(soonest, s) <= room))
                break;
        }
        if (s < SLOTS)
            continue;
        for (s = 0; s < begins; s++)
            rooms[s] = 0.0;
        return soonest - pool->instances;
    }
    return -1;
}
