/* What is read of every call's body and of every answer: whether it is formed as it must be
   (`shape.py`), the passages of texts (`passages.py`), and what stays the same of an agent's prompt
   (`fingerprint.py`).

   Plain C without Python's headers, so that any C compiler will do; `native.py` loads it, and Python
   and numpy find the same where it is missing. Sizes are checked by the caller. No memory is
   allocated here. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* What is below reads JSON of which a parser has found that it is well formed (`shape.py`). */

/* The place behind the quote that ends a string, of which the first one is before `at`. */
static int64_t string_end(const uint8_t *text, int64_t size, int64_t at)
{
    const int64_t start = at;
    while (at < size) {
        const uint8_t *quote = memchr(text + at, '"', (size_t)(size - at));
        if (!quote)
            break;
        const int64_t end = quote - text;
        int64_t slashes = 0;
        while (end - slashes > start && text[end - slashes - 1] == '\\')
            slashes++;
        at = end + 1;
        if (slashes % 2 == 0)
            return at;
    }
    return size;
}

static int is_json_space(uint8_t each)
{
    return each == ' ' || (each >= '\t' && each <= '\n') || each == '\r';
}

/* How many lists and objects are within each other, at most. */
int64_t kairos_depth(const uint8_t *text, int64_t size)
{
    static const uint8_t STANDS_OUT[256] = {['"'] = 1, ['['] = 1, ['{'] = 1, [']'] = 1, ['}'] = 1};
    int64_t depth = 0, deepest = 0;
    for (int64_t at = 0; at < size;) {
        const uint8_t each = text[at++];
        if (!STANDS_OUT[each])
            continue;
        if (each == '"')
            at = string_end(text, size, at);
        else if (each == ']' || each == '}')
            depth--;
        else if (++depth > deepest)
            deepest = depth;
    }
    return deepest;
}

/* Whether it is UTF-8: without surrogates, and no character is longer than it must be. */
int64_t kairos_is_utf8(const uint8_t *text, int64_t size)
{
    for (int64_t at = 0; at < size;) {
        uint64_t eight;
        if (size - at >= (int64_t)sizeof eight) {
            memcpy(&eight, text + at, sizeof eight);
            if (!(eight & 0x8080808080808080u)) {
                at += (int64_t)sizeof eight;
                continue;
            }
        }
        const uint8_t first = text[at++];
        if (first < 0x80)
            continue;
        const int more = first < 0xE0 ? 1 : first < 0xF0 ? 2 : 3;
        if (first < 0xC2 || first > 0xF4 || size - at < more)
            return 0;
        const uint8_t second = text[at];
        const uint8_t least = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
        const uint8_t most = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
        if (second < least || second > most)
            return 0;
        for (int each = 1; each < more; each++)
            if ((text[at + each] & 0xC0) != 0x80)
                return 0;
        at += more;
    }
    return 1;
}

enum { LIST = 1, ITEM = 2, PARTS = 3 }; /* how deep in a list of messages, or of tools */
enum { TEXTS_TOO = 1, NEEDS_ROLE = 2 };

static int is_key(const uint8_t *key, int64_t size, const char *name)
{
    return size == (int64_t)strlen(name) && memcmp(key, name, (size_t)size) == 0;
}

/* Whether this is surely a list of objects, or, with TEXTS_TOO, of texts as well; of at most so
   many, and with at most so many parts. In each a `content` is a text, null or a list of parts,
   which are texts or objects; and a `role` is a text, which with NEEDS_ROLE is there. */
int64_t kairos_is_list_of_items(const uint8_t *text, int64_t size, int64_t rules, int64_t most,
                                int64_t most_parts)
{
    int64_t depth = 0, items = 0, parts = 0, at = 0;
    int expects_key = 0, has_role = 0, in_content = 0;
    if (size == 0 || text[0] != '[')
        return 0;
    while (at < size) {
        const int64_t start = at;
        const uint8_t each = text[at++];
        if (each == '"') {
            at = string_end(text, size, at);
            if (depth == LIST && !(rules & TEXTS_TOO))
                return 0;
            items += depth == LIST;
            if (depth != ITEM || !expects_key)
                continue;
            const uint8_t *key = text + start + 1;
            const int64_t length = at - start - 2;
            while (at < size && (is_json_space(text[at]) || text[at] == ':'))
                at++;
            if (at == size || memchr(key, '\\', (size_t)length))
                return 0;
            expects_key = 0;
            in_content = is_key(key, length, "content");
            const int is_role = is_key(key, length, "role");
            if (text[at] == '"' ? 0 : is_role || (in_content && text[at] != '[' && text[at] != 'n'))
                return 0;
            has_role |= is_role;
        } else if (each == '{') {
            if (depth == LIST) {
                items++;
                expects_key = 1;
                has_role = 0;
            }
            depth++;
        } else if (each == '[') {
            if (depth == LIST || (depth == PARTS && in_content))
                return 0;
            parts += depth == ITEM && in_content;
            depth++;
        } else if (each == '}' || each == ']') {
            depth--;
            if (depth == LIST && !has_role && (rules & NEEDS_ROLE))
                return 0;
        } else if (each == ',') {
            expects_key |= depth == ITEM;
            parts += depth == PARTS && in_content;
        } else if ((depth == LIST || (depth == PARTS && in_content)) && !is_json_space(each)) {
            return 0;
        }
    }
    return items <= most && parts <= most_parts;
}

/* Whether this is surely a list of token ids, each of at most nine digits, or a list of at most so
   many of them. Where a number ends is chance, so that is found without a branch. */
int64_t kairos_is_token_ids(const uint8_t *text, int64_t size, int64_t most)
{
    enum { OTHER, BETWEEN, DIGIT, OPENS, CLOSES };
    static const uint8_t KINDS[256] = {
        ['0'] = DIGIT,    ['1'] = DIGIT,   ['2'] = DIGIT,   ['3'] = DIGIT,    ['4'] = DIGIT,
        ['5'] = DIGIT,    ['6'] = DIGIT,   ['7'] = DIGIT,   ['8'] = DIGIT,    ['9'] = DIGIT,
        [','] = BETWEEN,  [' '] = BETWEEN, ['\t'] = BETWEEN, ['\n'] = BETWEEN, ['\r'] = BETWEEN,
        ['['] = OPENS,    [']'] = CLOSES};
    enum { LONGEST = 9, DEPTH = 2 };
    int64_t depth = 0, lists = 0, digits = 0;
    int has_ids = 0, is_wrong = 0;
    for (int64_t at = 0; at < size; at++) {
        const uint8_t kind = KINDS[text[at]];
        digits = (digits + 1) & -(int64_t)(kind == DIGIT);
        is_wrong |= (digits > LONGEST) | (kind == OTHER) | (depth > DEPTH);
        has_ids |= (kind == DIGIT) & (depth == LIST);
        if (kind >= OPENS) {
            depth += kind == OPENS ? 1 : -1;
            lists += kind == OPENS && depth == DEPTH;
        }
    }
    if (is_wrong)
        return 0;
    return has_ids ? lists == 0 && most >= 1 : lists <= most;
}

enum { WORD = 8, WINDOW = 32 }; /* bytes: see `passages.py`, as for the numbers below */
static const uint64_t FACTOR = 0x9E3779B97F4A7C15u;
static const uint64_t FACTORS[WINDOW / WORD] = {0xC2B2AE3D27D4EB4Fu, 0x165667B19E3779F9u,
                                                0xD6E8FEB86659FD93u, 0xFF51AFD7ED558CCDu};
static const uint64_t CHOSEN = (uint64_t)1 << 61;

static inline uint64_t word(const uint8_t *at)
{
    uint64_t read;
    memcpy(&read, at, sizeof read);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    read = __builtin_bswap64(read);
#endif
    return read * FACTOR;
}

static inline uint32_t window(const uint8_t *at)
{
    uint64_t sum = 0;
    for (int place = 0; place < WINDOW / WORD; place++) {
        const uint64_t each = word(at + WORD * place);
        sum += (each ^ each >> 32) * FACTORS[place];
    }
    return (uint32_t)(sum >> 32);
}

enum { HALF = 1 << 16, IN_A_WORD = 64 };

/* Some hashes: bits for the halves of each. */
typedef struct {
    uint64_t low[HALF / IN_A_WORD], high[HALF / IN_A_WORD];
} Halves;

static inline uint64_t has(const uint64_t *set, uint32_t half)
{
    return set[half / IN_A_WORD] >> half % IN_A_WORD & 1;
}

/* Whether it is perhaps one of them: almost never, where it is not. */
static inline uint64_t may_be_in(const Halves *halves, uint32_t hash)
{
    return has(halves->low, hash % HALF) & has(halves->high, hash / HALF);
}

static void add(Halves *halves, uint32_t hash)
{
    halves->low[hash % HALF / IN_A_WORD] |= (uint64_t)1 << hash % IN_A_WORD;
    halves->high[hash / HALF / IN_A_WORD] |= (uint64_t)1 << hash / HALF % IN_A_WORD;
}

/* Whose passage each is: `slots` is a power of two. */
typedef struct {
    int64_t slots;
    uint32_t *hashes;
    int64_t *owners; /* reply and workflow, of each slot; 0: it is free */
    Halves *waiting; /* those of replies that wait to be remembered */
    uint16_t *tenants; /* of each slot, by number */
    int32_t *held; /* slots that each tenant has */
} Passages;

/* A tenant's number: a part of its scope. Those that have the same are as one in what they hold. */
static uint16_t tenant_of(uint32_t scope)
{
    return (uint16_t)scope;
}

/* Whether the tenant has the slot from now on: it is free, or its own, or of one that holds no
   fewer. */
static int takes(const Passages *known, int64_t slot, uint16_t tenant)
{
    const uint16_t owner = known->tenants[slot];
    if (known->owners[2 * slot]) {
        if (owner == tenant)
            return 1;
        if (known->held[owner] < known->held[tenant])
            return 0;
        known->held[owner]--;
    }
    known->tenants[slot] = tenant;
    known->held[tenant]++;
    return 1;
}

/* The hashes of a text's passages, in order; returns how many. Which places are chosen is chance,
   so it is found without a branch. */
int64_t kairos_passages(const uint8_t *text, int64_t size, uint32_t *hashes)
{
    enum { STRIDE = 512 };
    uint16_t chosen[STRIDE];
    int64_t count = 0;
    for (int64_t start = 0; start + WINDOW <= size; start += STRIDE) {
        const uint8_t *from = text + start;
        const int64_t places = size - start - WINDOW + 1;
        const int end = places < STRIDE ? (int)places : STRIDE;
        int here = 0;
        for (int at = 0; at < end; at++) {
            chosen[here] = (uint16_t)at;
            here += word(from + at) < CHOSEN;
        }
        for (int each = 0; each < here; each++)
            hashes[count++] = window(from + chosen[each]);
    }
    return count;
}

/* The same of a reply, which waits to be remembered. */
int64_t kairos_passages_of_reply(const Passages *known, const uint8_t *text, int64_t size,
                                 uint32_t scope, uint32_t *hashes)
{
    const int64_t count = kairos_passages(text, size, hashes);
    for (int64_t each = 0; each < count; each++)
        add(known->waiting, hashes[each] ^ scope);
    return count;
}

static const int64_t COMMON = -1;

/* Of the passages that are known: their hashes, and whose they are; returns how many. -1: there may
   be one of a reply that waits. */
int64_t kairos_carried(const Passages *known, const uint32_t *found, int64_t count, uint32_t scope,
                       uint32_t *hashes, int64_t *replies)
{
    int64_t same = 0;
    for (int64_t each = 0; each < count; each++) {
        const uint32_t hash = found[each] ^ scope;
        const int64_t slot = hash & (known->slots - 1);
        if (may_be_in(known->waiting, hash))
            return -1;
        if (known->hashes[slot] == hash) {
            hashes[same] = hash;
            replies[same++] = known->owners[2 * slot];
        }
    }
    return same;
}

static int compare(const void *one, const void *other)
{
    const uint32_t a = *(const uint32_t *)one, b = *(const uint32_t *)other;
    return (a > b) - (a < b);
}

/* The first place in a sorted array whose value is no less. */
static int64_t place_of(uint32_t value, const uint32_t *sorted, int64_t count)
{
    int64_t low = 0, high = count;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (sorted[middle] < value)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

enum { IN_PROMPT = 1, KNOWN = 2, ANOTHERS = 4 };

/* Sets `IN_PROMPT` for each that is found in the prompt, too. `sorted` has room for `count`, and so
   has `is_in`. */
static void mark_prompt(const uint32_t *found, int64_t count, const uint32_t *prompt,
                        int64_t prompt_count, uint32_t *sorted, uint8_t *is_in, uint8_t *marks)
{
    Halves halves = {{0}, {0}};
    uint64_t shared = 0;
    for (int64_t each = 0; each < count; each++)
        add(&halves, found[each]);
    for (int64_t each = 0; each < prompt_count; each++)
        shared |= may_be_in(&halves, prompt[each]);
    if (!shared)
        return;
    memcpy(sorted, found, (size_t)count * sizeof *found);
    qsort(sorted, (size_t)count, sizeof *sorted, compare);
    memset(is_in, 0, (size_t)count);
    for (int64_t each = 0; each < prompt_count; each++) {
        if (!may_be_in(&halves, prompt[each]))
            continue;
        const int64_t place = place_of(prompt[each], sorted, count);
        if (place < count && sorted[place] == prompt[each])
            is_in[place] = 1;
    }
    for (int64_t each = 0; each < count; each++)
        marks[each] |= is_in[place_of(found[each], sorted, count)] ? IN_PROMPT : 0;
}

/* Makes what is found in a reply its own, but for what others have as well, or its prompt, and
   where a tenant with fewer has the slot.
   `sorted` has room for `count`, `marks` for twice as many. */
void kairos_remember(const Passages *known, const uint32_t *found, int64_t count, uint32_t scope,
                     int64_t reply, int64_t workflow, const uint32_t *prompt, int64_t prompt_count,
                     uint32_t *sorted, uint8_t *marks)
{
    memset(marks, 0, (size_t)count);
    mark_prompt(found, count, prompt, prompt_count, sorted, marks + count, marks);
    for (int64_t each = 0; each < count; each++) {
        const uint32_t hash = found[each] ^ scope;
        const int64_t slot = hash & (known->slots - 1);
        if (known->hashes[slot] == hash && known->owners[2 * slot])
            marks[each] |= known->owners[2 * slot + 1] == workflow ? KNOWN : KNOWN | ANOTHERS;
    }
    for (int64_t each = 0; each < count; each++) {
        const uint32_t hash = found[each] ^ scope;
        const int64_t slot = hash & (known->slots - 1);
        if (marks[each] & KNOWN || !takes(known, slot, tenant_of(scope)))
            continue;
        known->hashes[slot] = hash;
        known->owners[2 * slot] = reply;
        known->owners[2 * slot + 1] = workflow;
    }
    for (int64_t each = 0; each < count; each++) {
        const int64_t slot = (found[each] ^ scope) & (known->slots - 1);
        if (marks[each] & (IN_PROMPT | ANOTHERS) && known->tenants[slot] == tenant_of(scope))
            known->owners[2 * slot] = COMMON;
    }
}

/* The words of a prompt of ASCII, as `fingerprint.py` masks them. */

static int is_space(uint8_t each) /* as Python has it */
{
    return each == ' ' || (each >= 0x09 && each <= 0x0d) || (each >= 0x1c && each <= 0x1f);
}

static int is_digit(uint8_t each)
{
    return each >= '0' && each <= '9';
}

static uint8_t lower(uint8_t each)
{
    return each >= 'A' && each <= 'Z' ? each + ('a' - 'A') : each;
}

static int is_letter(uint8_t each) /* of a name; an underscore is a part of one, too */
{
    return (lower(each) >= 'a' && lower(each) <= 'z') || each == '_';
}

/* Whether it is the name of a month or a day, or begins like one and ends like one. */
static int is_date(const uint8_t *name, int64_t size)
{
    static const char BEGINS[][4] = {"jan", "feb", "mar", "apr", "may", "jun", "jul",
                                     "aug", "sep", "oct", "nov", "dec", "mon", "tue",
                                     "wed", "thu", "fri", "sat", "sun"};
    static const char ENDS[][8] = {"",     "uary",  "ruary", "ch",   "il",     "e",     "y",    "ust",
                                   "tember", "ober", "ember", "day", "sday", "nesday", "rsday", "urday"};
    enum { BEGIN = 3, LONGEST = 10 };
    char read[LONGEST + 1] = {0};
    if (size < BEGIN || size > LONGEST)
        return 0;
    for (int64_t at = 0; at < size; at++)
        read[at] = (char)lower(name[at]);
    for (size_t begin = 0; begin < sizeof BEGINS / sizeof *BEGINS; begin++) {
        if (memcmp(read, BEGINS[begin], BEGIN) != 0)
            continue;
        for (size_t end = 0; end < sizeof ENDS / sizeof *ENDS; end++)
            if (strcmp(read + BEGIN, ENDS[end]) == 0)
                return 1;
    }
    return 0;
}

static int64_t masked_word(const uint8_t *word, int64_t size, uint8_t *masked)
{
    int64_t count = 0;
    for (int64_t at = 0; at < size; at++)
        if (is_digit(word[at])) {
            masked[0] = '#';
            return 1;
        }
    for (int64_t at = 0, end; at < size; at = end) {
        for (end = at; end < size && is_letter(word[end]); end++)
            ;
        if (end == at) {
            masked[count++] = word[end++];
        } else if (is_date(word + at, end - at)) {
            masked[count++] = '#';
        } else {
            memcpy(masked + count, word + at, (size_t)(end - at));
            count += end - at;
        }
    }
    return count;
}

/* A space between words. Returns the size of what is masked, which is no more than the text's. */
int64_t kairos_masked(const uint8_t *text, int64_t size, uint8_t *masked)
{
    int64_t count = 0;
    for (int64_t at = 0, end; at < size; at = end) {
        for (end = at; end < size && !is_space(text[end]); end++)
            ;
        if (end == at) {
            end++;
            continue;
        }
        if (count)
            masked[count++] = ' ';
        count += masked_word(text + at, end - at, masked + count);
    }
    return count;
}
