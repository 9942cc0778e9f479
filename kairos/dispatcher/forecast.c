/* What calls are expected to hold, slot by slot, and which instance has room for one more: the
   arithmetic of `demand.py`, `board.py`, `occupancy.py` and `slots.py`, compiled.

   Plain C without Python's headers, so that any C compiler will do; `native.py` loads it, and numpy
   does the same where it is missing. Sizes are checked by the caller. No memory is allocated here.

   A survival curve is GRID shares of answers that are longer than so many tokens, `width` tokens
   apart. What a call holds is worked out for POINTS slots and is taken to change linearly between.
   A forecast has three planes: mean, variance, and what it would be if nobody had ended. */

#include <math.h>
#include <stddef.h>
#include <stdint.h>

enum { GRID = 256, SLOTS = 48, POINTS = 15 };

static const int WORKED_OUT[POINTS] = {0, 1, 2, 3, 4, 6, 8, 10, 13, 16, 20, 25, 31, 38, SLOTS - 1};
static const double SLOT_US = 500000.0;

/* A row for each instance; columns are `rows` numbers apart. */
typedef struct {
    int64_t rows;
    const double *values;       /* 8 columns: see `Board` */
    double *speeds;             /* 3 columns: token_us, token_slope_us, begins_us */
    const int64_t *kinds;       /* places in the lines */
    const double *token_lines;  /* of each kind: at_zero, slope, least */
    const double *prompt_lines; /* the same */
    double *forecasts;          /* 3 x rows x SLOTS */
    const int64_t *versions;    /* of what is booked there */
    const int64_t *forecast_of; /* the version of which the forecast is */
    const int64_t *forecast_at; /* when it was made */
} Table;

enum { RUNNING, KV_TOKENS, TIMES, UNSEEN, SUSPENDED, UNFILLED, COMPUTING, COMPUTING_UNTIL };
enum { TOKEN_US, TOKEN_SLOPE_US, BEGINS_US };

static inline double greater(double a, double b)
{
    return a > b ? a : b;
}

static inline double lesser(double a, double b)
{
    return a < b ? a : b;
}

static inline double value(const Table *table, int column, int64_t row)
{
    return table->values[column * table->rows + row];
}

static inline double speed(const Table *table, int column, int64_t row)
{
    return table->speeds[column * table->rows + row];
}

static inline double on_line(const double *line, double x)
{
    return greater(line[0] + line[1] * x, line[2]);
}

/* The share of calls that are longer than so many tokens. */
static inline double share_at(const double *curve, double tokens, double per_width)
{
    double point = tokens * per_width;
    return curve[point < GRID - 1.0 ? (int)point : GRID - 1];
}

static void fill_between(const double *at_points, double *slots)
{
    for (int p = 0; p + 1 < POINTS; p++) {
        int from = WORKED_OUT[p], to = WORKED_OUT[p + 1];
        double step = 1.0 / (to - from);
        for (int s = from; s < to; s++) {
            double later = (s - from) * step;
            slots[s] = at_points[p] * (1.0 - later) + at_points[p + 1] * later;
        }
    }
    slots[SLOTS - 1] = at_points[POINTS - 1];
}

/* The speeds of all instances, with one call more on each. */
void kairos_speeds(const Table *table)
{
    for (int64_t row = 0; row < table->rows; row++) {
        double running = value(table, RUNNING, row), times = value(table, TIMES, row);
        const double *token = table->token_lines + 3 * table->kinds[row];
        const double *prompt = table->prompt_lines + 3 * table->kinds[row];
        double next_us = times * on_line(token, running + 1);
        table->speeds[TOKEN_US * table->rows + row] = greater(1.0, next_us);
        table->speeds[TOKEN_SLOPE_US * table->rows + row] =
            next_us - times * on_line(token, running);
        table->speeds[BEGINS_US * table->rows + row] = times * on_line(prompt, 0.0);
    }
}

/* Which of the instances have a forecast that is of another version, or as old as `renewed_us`:
   writes their places among `rows`, returns how many. */
int64_t kairos_stale(const Table *table, int64_t instances, const int64_t *rows, int64_t at,
                     int64_t renewed_us, int64_t *places)
{
    int64_t found = 0;
    for (int64_t i = 0; i < instances; i++) {
        int64_t row = rows[i];
        if (table->forecast_of[row] != table->versions[row] ||
            at - table->forecast_at[row] >= renewed_us)
            places[found++] = i;
    }
    return found;
}

/* Of which of the instances it must be found out again what prompts under way take: writes their
   rows, returns how many. */
int64_t kairos_computed(const Table *table, int64_t instances, const int64_t *rows, int64_t at,
                        int64_t *expired)
{
    int64_t found = 0;
    for (int64_t i = 0; i < instances; i++)
        if (value(table, COMPUTING_UNTIL, rows[i]) <= at)
            expired[found++] = rows[i];
    return found;
}

/* Tokens for calls. One on which nothing runs takes a call that may not fit in the end: it will fit
   nowhere better. */
static inline double capacity(const Table *table, int64_t row)
{
    if (value(table, RUNNING, row) == 0)
        return INFINITY;
    return value(table, KV_TOKENS, row) - value(table, UNSEEN, row);
}

/* The most that is free now on any of the instances. */
double kairos_headroom(const Table *table, int64_t instances, const int64_t *rows)
{
    double most = -INFINITY;
    for (int64_t i = 0; i < instances; i++)
        most = greater(most, capacity(table, rows[i]) - table->forecasts[rows[i] * SLOTS]);
    return most;
}

/* Tokens that are kept at the beginning of each slot, SLOTS, for contexts of which the columns are
   tokens and until when, `stride` numbers apart. */
static void kept_by_slot(int64_t contexts, const double *columns, int64_t stride, double at,
                         double *kept)
{
    for (int s = 0; s < SLOTS; s++)
        kept[s] = 0.0;
    for (int64_t c = 0; c < contexts; c++) {
        double slots = ceil((columns[stride + c] - at) / SLOT_US);
        if (slots > 0)
            kept[(int)lesser(slots, SLOTS) - 1] += columns[c];
    }
    for (int s = SLOTS - 1; s > 0; s--)
        kept[s - 1] += kept[s];
}

/* The forecast of one instance from what its calls were expected to hold (3 x SLOTS) and how many
   times as much that is by now; `free` (in the slots that begin within a second) and what is kept
   count as held. */
void kairos_forecast(const Table *table, int64_t row, double at, const double *held, double times,
                     double free, int64_t contexts, const double *columns, int64_t stride)
{
    double kept[SLOTS];
    kept_by_slot(contexts, columns, stride, at, kept);
    for (int plane = 0; plane < 3; plane++) {
        double *forecast = table->forecasts + (plane * table->rows + row) * SLOTS;
        for (int s = 0; s < SLOTS; s++) {
            forecast[s] = times * held[plane * SLOTS + s];
            if (plane != 1)
                forecast[s] += kept[s] + (s < 2 ? free : 0.0);
        }
    }
}

/* What all calls in flight on one instance are expected to hold, in sum; 3 x SLOTS. `columns` are
   those of `Flight`, `stride` numbers apart: prompt, begun_at, lasts_us, generated, grows_from,
   limit, first_at. Of each prompt `share` counts. Returns how many answers grow by now. */
int64_t kairos_together(int64_t calls, const double *columns, int64_t stride, const int64_t *curves,
                        const double *shares, const double *widths, double at, double token_us,
                        double share, double unfilled, double *future)
{
    const double *prompts = columns, *told = columns + 3 * stride, *since = columns + 4 * stride;
    const double *limits = columns + 5 * stride, *first_at = columns + 6 * stride;
    double mean[POINTS] = {0}, variance[POINTS] = {0}, most[POINTS] = {0};
    int64_t growing = 0;
    for (int64_t c = 0; c < calls; c++) {
        double grown_since = greater(0.0, at - since[c]) / token_us;
        double generated = greater(lesser(told[c] + grown_since, limits[c]), told[c]);
        double held = prompts[c] * share + generated + unfilled;
        double delay_us = greater(0.0, first_at[c] - at);
        double per_width = 1.0 / widths[curves[c]];
        const double *curve = shares + curves[c] * GRID;
        double now = share_at(curve, generated, per_width);
        growing += delay_us == 0.0;
        for (int p = 0; p < POINTS; p++) {
            double grown = greater(0.0, WORKED_OUT[p] * SLOT_US - delay_us) / token_us;
            double tokens = held + grown, alive = 0.0;
            if (generated + grown < limits[c] || grown == 0.0)
                alive = share_at(curve, generated + grown, per_width) / now;
            mean[p] += alive * tokens;
            variance[p] += (alive - alive * alive) * tokens * tokens;
            most[p] += tokens;
        }
    }
    fill_between(mean, future);
    fill_between(variance, future + SLOTS);
    fill_between(most, future + 2 * SLOTS);
    return growing;
}

/* A request that is to be placed. */
typedef struct {
    double prompt_tokens;
    double answer_tokens; /* expected */
    double limit;         /* of its answer */
    const double *curve;  /* of its answer's length */
    double width;
    const double *in_use; /* by row: tokens of its prompt that calls there hold; none: nowhere */
    const double *cached; /* by row: tokens of its prompt in the cache there; none: nowhere */
    int64_t kept_row;     /* where memory is kept for it, or -1 */
    double kept_tokens;
    int64_t reserved_row; /* where room is kept for another request, or -1 */
    const double *reserved; /* SLOTS */
    double waited_us;     /* that it has waited for an instance where more of it is cached */
    double spread;        /* standard deviations above the mean that must be free */
    double alike, alike_but_for_load; /* costs that differ by less count as the same */
} Wanted;

/* What is found out of it. The arrays have a place for each instance. */
typedef struct {
    double *shares;  /* its peak there as a share of the memory; `inf`: there is no room */
    double *costs;   /* what it costs there, where there is room */
    double least_us; /* the least of these */
    int64_t warm;    /* busy instances where more of its prompt is cached: how many, and which */
    int64_t *warm_places;
} Found;

static double held_there(const Table *table, const Wanted *wanted, int64_t row)
{
    double held = wanted->prompt_tokens + value(table, UNFILLED, row);
    if (wanted->in_use)
        held -= wanted->in_use[row];
    if (row == wanted->kept_row)
        held -= wanted->kept_tokens;
    return held;
}

/* What an instance would hold with the request, slot by slot. */
static void loads_with(const Table *table, const Wanted *wanted, int64_t row, double *loads)
{
    double per_width = 1.0 / wanted->width, now = wanted->curve[0];
    double held = held_there(table, wanted, row);
    double at_points[3][POINTS], own[3][SLOTS];
    for (int p = 0; p < POINTS; p++) {
        double since_us = greater(0.0, WORKED_OUT[p] * SLOT_US - speed(table, BEGINS_US, row));
        double grown = since_us / speed(table, TOKEN_US, row), alive = 0.0;
        if (grown < wanted->limit || grown == 0.0)
            alive = share_at(wanted->curve, grown, per_width) / now;
        double tokens = held + grown, mean = alive * tokens;
        at_points[0][p] = mean;
        at_points[1][p] = mean * (tokens - mean);
        at_points[2][p] = tokens;
    }
    for (int plane = 0; plane < 3; plane++)
        fill_between(at_points[plane], own[plane]);
    const double *mean = table->forecasts + row * SLOTS;
    const double *variance = mean + table->rows * SLOTS, *most = variance + table->rows * SLOTS;
    for (int s = 0; s < SLOTS; s++) {
        double likely = mean[s] + own[0][s] + wanted->spread * sqrt(variance[s] + own[1][s]);
        loads[s] = lesser(likely, most[s] + own[2][s]);
    }
}

/* The highest of these, beside what is reserved there. */
static double peak_of(const Table *table, const Wanted *wanted, int64_t row, const double *loads)
{
    const double *mean = table->forecasts + row * SLOTS;
    double peak = -INFINITY;
    for (int s = 0; s < SLOTS; s++) {
        double load = loads[s];
        if (row == wanted->reserved_row && wanted->reserved[s] > 0) {
            /* It is there to the end of the slot in which it ends: the other waits for that. */
            double more = loads[s] - mean[s];
            if (s > 0)
                more = greater(more, loads[s - 1] - mean[s - 1]);
            load = mean[s] + more + wanted->reserved[s];
        }
        peak = greater(peak, load);
    }
    return peak;
}

double kairos_cost_us(const Table *table, const Wanted *wanted, int64_t row)
{
    double cached = wanted->cached ? wanted->cached[row] : 0.0;
    double running = value(table, RUNNING, row), answer = wanted->answer_tokens;
    const double *line = table->prompt_lines + 3 * table->kinds[row];
    double until_us = value(table, TIMES, row) * on_line(line, wanted->prompt_tokens - cached);
    double compute_us = (until_us - speed(table, BEGINS_US, row)) * (1 + running);
    double decode_us = answer * speed(table, TOKEN_US, row);
    double slowed_us = running * answer * speed(table, TOKEN_SLOPE_US, row);
    return compute_us + decode_us + slowed_us;
}

/* How long until an instance has room for the request, in every slot from then on. */
double kairos_room_in_us(const Table *table, const Wanted *wanted, int64_t row)
{
    if (value(table, SUSPENDED, row) || value(table, KV_TOKENS, row) == INFINITY)
        return INFINITY;
    double loads[SLOTS], room = capacity(table, row);
    loads_with(table, wanted, row, loads);
    int begins = SLOTS;
    while (begins > 0 && !(loads[begins - 1] > room))
        begins--;
    return begins * SLOT_US;
}

/* The place among `rows` of the instance that costs least, or about that and of which least is
   taken; -1: none has room. See `slots.Kairos`. */
static int64_t best_of(const Table *table, const Wanted *wanted, int64_t instances,
                       const int64_t *rows, Found *found)
{
    double least = INFINITY, least_cached = INFINITY, most_cached = -INFINITY, loads[SLOTS];
    for (int64_t i = 0; i < instances; i++) {
        int64_t row = rows[i];
        loads_with(table, wanted, row, loads);
        double peak = peak_of(table, wanted, row, loads);
        double kv_tokens = value(table, KV_TOKENS, row);
        found->shares[i] = INFINITY;
        if (!(peak <= capacity(table, row)))
            continue;
        found->shares[i] = peak / (kv_tokens < INFINITY ? kv_tokens : 1.0);
        found->costs[i] = kairos_cost_us(table, wanted, row);
        double cached = wanted->cached ? wanted->cached[row] : 0.0;
        least = lesser(least, found->costs[i]);
        least_cached = lesser(least_cached, cached);
        most_cached = greater(most_cached, cached);
    }
    found->least_us = least;
    double margin = least_cached < most_cached ? wanted->alike : wanted->alike_but_for_load;
    double bound = least * (1 + margin), lowest = INFINITY;
    int64_t best = -1;
    for (int64_t i = 0; i < instances; i++) {
        if (found->shares[i] == INFINITY || !(found->costs[i] <= bound))
            continue;
        double taken = found->shares[i] + value(table, COMPUTING, rows[i]);
        if (best < 0 || taken < lowest) {
            best = i;
            lowest = taken;
        }
    }
    return best;
}

/* Where the request goes, as a place among `rows`: of the instance, or, -2 less that, of the one
   that it waits for, since more of its prompt is cached there; -1: none has room. It may wait for
   one of those among the `busy` that `found` lists, too: that is for the caller to say. The share of
   a step that prompts under way take must be known of all at `at`. */
int64_t kairos_choose(const Table *table, const Wanted *wanted, int64_t instances,
                      const int64_t *rows, int64_t busy, const int64_t *busy_rows, Found *found)
{
    int64_t best = best_of(table, wanted, instances, rows, found);
    found->warm = 0;
    if (best < 0 || !wanted->cached)
        return best;
    double here = wanted->cached[rows[best]];
    for (int64_t i = 0; i < instances; i++) {
        if (!(wanted->cached[rows[i]] > here) || found->shares[i] < INFINITY)
            continue;
        double cost = kairos_cost_us(table, wanted, rows[i]);
        if (!(wanted->waited_us + cost < found->least_us)) /* whenever there is room */
            continue;
        double room_us = kairos_room_in_us(table, wanted, rows[i]);
        if (wanted->waited_us + room_us + cost < found->least_us)
            return -2 - i;
    }
    for (int64_t i = 0; i < busy; i++)
        if (wanted->cached[busy_rows[i]] > here)
            found->warm_places[found->warm++] = i;
    return best;
}
