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

/* How many values there are, at most: each list or object, and each of theirs. */
int64_t kairos_values(const uint8_t *text, int64_t size)
{
    static const uint8_t STANDS_OUT[256] = {['"'] = 2, ['['] = 1, ['{'] = 1, [','] = 1};
    int64_t count = 1;
    for (int64_t at = 0; at < size;) {
        const uint8_t kind = STANDS_OUT[text[at++]];
        count += kind & 1;
        if (kind == 2)
            at = string_end(text, size, at);
    }
    return count;
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

enum { LIST = 1, ITEM = 2, PARTS = 3, PART = 4 }; /* how deep in a list of messages, or of tools */
enum { TEXTS_TOO = 1, MESSAGES = 2, NEEDS_ROLE = 4 };
enum { RIGHT, WRONG_ITEM, NO_ROLE, WRONG_ROLE, WRONG_CONTENT, WRONG_PART };

/* What is known of a list: where it is wrong, how many it has. */
typedef struct {
    int64_t item, part, place; /* the first two by number, from 0; in bytes */
    int64_t items, parts, media;
} Judged;

static int hexadecimal(uint8_t each)
{
    return (each >= '0' && each <= '9') || (each >= 'a' && each <= 'f') ||
           (each >= 'A' && each <= 'F');
}

static int digit_of(uint8_t each)
{
    return each <= '9' ? each - '0' : (each | 0x20) - 'a' + 10;
}

static uint32_t unit_at(const uint8_t *digits)
{
    uint32_t read = 0;
    for (int digit = 0; digit < 4; digit++)
        read = read << 4 | (uint32_t)digit_of(digits[digit]);
    return read;
}

/* The character of an escape that begins at `at`, in UTF-8; returns how many bytes it is spelt by,
   0: it has no end. */
static int64_t unescaped(const uint8_t *text, int64_t size, int64_t at, uint8_t *utf8, int64_t *length)
{
    static const char SPELT[] = "bfnrt", MEANT[] = "\b\f\n\r\t";
    enum { SHORT = 2, UNIT = 6 };
    if (size - at < SHORT)
        return 0;
    if (text[at + 1] != 'u') {
        const char *found = strchr(SPELT, text[at + 1]);
        utf8[0] = found && *found ? (uint8_t)MEANT[found - SPELT] : text[at + 1];
        *length = 1;
        return SHORT;
    }
    if (size - at < UNIT)
        return 0;
    uint32_t point = unit_at(text + at + 2);
    int64_t spelt = UNIT;
    if (point >= 0xD800 && point <= 0xDBFF && size - at >= 2 * UNIT) {
        const uint32_t low = unit_at(text + at + UNIT + 2);
        point = 0x10000 + ((point - 0xD800) << 10) + ((low - 0xDC00) & 0x3FF);
        spelt = 2 * UNIT;
    }
    const int more = point < 0x80 ? 0 : point < 0x800 ? 1 : point < 0x10000 ? 2 : 3;
    static const uint8_t FIRST[] = {0, 0xC0, 0xE0, 0xF0};
    for (int each = more; each > 0; each--, point >>= 6)
        utf8[each] = (uint8_t)(0x80 | (point & 0x3F));
    utf8[0] = (uint8_t)(FIRST[more] | point);
    *length = more + 1;
    return spelt;
}

/* Whether a key is this name, however it is spelt. */
static int is_key(const uint8_t *key, int64_t size, const char *name, int64_t length)
{
    int64_t at = 0, same = 0;
    if (size == length && memcmp(key, name, (size_t)size) == 0)
        return 1;
    if (size <= length || !memchr(key, '\\', (size_t)size))
        return 0;
    while (at < size) {
        uint8_t utf8[4] = {key[at]};
        int64_t bytes = 1;
        const int64_t spelt = key[at] == '\\' ? unescaped(key, size, at, utf8, &bytes) : 1;
        if (!spelt || length - same < bytes || memcmp(name + same, utf8, (size_t)bytes) != 0)
            return 0;
        at += spelt, same += bytes;
    }
    return same == length;
}

#define IS_KEY(key, size, name) is_key(key, size, name, (int64_t)sizeof name - 1)

/* Whether a part is one of those that are no media, by its type as it is spelt. */
static int is_of_text(const uint8_t *type, int64_t size)
{
    static const char TYPES[][17] = {"\"text\"",    "\"input_text\"",     "\"output_text\"",
                                     "\"refusal\"", "\"reasoning_text\"", "\"summary_text\""};
    for (size_t each = 0; each < sizeof TYPES / sizeof *TYPES; each++)
        if (size == (int64_t)strlen(TYPES[each]) && memcmp(type, TYPES[each], (size_t)size) == 0)
            return 1;
    return 0;
}

static int64_t wrong(Judged *found, int64_t code, int64_t item, int64_t part, int64_t place)
{
    found->item = item, found->part = part, found->place = place;
    return code;
}

/* Whether a list has objects alone, or, with TEXTS_TOO, texts as well; with MESSAGES, in each a
   `content` is a text, null or a list of parts, which are texts or objects, and a `role` is a text,
   or null; with NEEDS_ROLE it is there, and a text. */
int64_t kairos_judge_items(const uint8_t *text, int64_t size, int64_t rules, Judged *found)
{
    int64_t depth = 0, items = 0, parts = 0, part = 0, media = 0, at = 0;
    int expects_key = 0, has_role = 0, in_content = 0, of_text = 0;
    while (at < size) {
        const int64_t start = at;
        const uint8_t each = text[at++];
        if (each == '"') {
            at = string_end(text, size, at);
            if (depth == LIST) {
                if (!(rules & TEXTS_TOO))
                    return wrong(found, WRONG_ITEM, items, 0, start);
                items++;
            } else if (depth == PARTS && in_content) {
                part++, parts++;
            }
            if (!expects_key || !(depth == ITEM || (depth == PART && in_content)))
                continue;
            const uint8_t *key = text + start + 1;
            const int64_t length = at - start - 2;
            while (at < size && (is_json_space(text[at]) || text[at] == ':'))
                at++;
            if (at == size)
                break;
            expects_key = 0;
            if (depth == PART) {
                if (IS_KEY(key, length, "type"))
                    of_text = text[at] == '"' &&
                              is_of_text(text + at, string_end(text, size, at + 1) - at);
                continue;
            }
            in_content = IS_KEY(key, length, "content");
            if (in_content && text[at] != '"' && text[at] != '[' && text[at] != 'n')
                return wrong(found, WRONG_CONTENT, items - 1, 0, at);
            if (IS_KEY(key, length, "role")) {
                if (text[at] != '"' && (text[at] != 'n' || rules & NEEDS_ROLE))
                    return wrong(found, WRONG_ROLE, items - 1, 0, at);
                has_role = 1;
            }
        } else if (each == '{') {
            if (depth == LIST) {
                items++;
                expects_key = rules & MESSAGES;
                has_role = in_content = 0;
            } else if (depth == PARTS && in_content) {
                part++, parts++;
                expects_key = 1;
                of_text = 0;
            }
            depth++;
        } else if (each == '[') {
            if (depth == LIST)
                return wrong(found, WRONG_ITEM, items, 0, start);
            if (depth == PARTS && in_content)
                return wrong(found, WRONG_PART, items - 1, part, start);
            if (depth == ITEM)
                part = 0;
            depth++;
        } else if (each == '}' || each == ']') {
            depth--;
            if (depth == LIST && !has_role && (rules & NEEDS_ROLE))
                return wrong(found, NO_ROLE, items - 1, 0, start);
            media += depth == PARTS && in_content && !of_text;
        } else if (each == ',') {
            expects_key |= (depth == ITEM && rules & MESSAGES) || (depth == PART && in_content);
        } else if (!is_json_space(each)) {
            if (depth == LIST)
                return wrong(found, WRONG_ITEM, items, 0, start);
            if (depth == PARTS && in_content)
                return wrong(found, WRONG_PART, items - 1, part, start);
        }
    }
    found->items = items, found->parts = parts, found->media = media;
    return RIGHT;
}

/* The end of a number, of which the first byte is at `at`; -1: it is no token id. */
static int64_t id_end(const uint8_t *text, int64_t size, int64_t at)
{
    enum { LONGEST = 10 };
    const int is_negative = text[at] == '-';
    uint64_t value = 0;
    int64_t digits = 0;
    for (at += is_negative; at < size && text[at] >= '0' && text[at] <= '9'; at++) {
        if (++digits > LONGEST)
            return -1;
        value = 10 * value + (uint64_t)(text[at] - '0');
    }
    const int has_more = at < size && (text[at] == '.' || text[at] == 'e' || text[at] == 'E');
    return has_more || value > INT32_MAX || (is_negative && value) ? -1 : at;
}

/* Whether a list has texts, token ids and lists of these alone: `items` are those that are no ids,
   `parts` has a bit for each kind that there is. */
int64_t kairos_judge_prompts(const uint8_t *text, int64_t size, Judged *found)
{
    enum { TEXT = 1, ID = 2, IDS = 4 };
    int64_t depth = 0, items = 0, ids = 0, part = 0, kinds = 0;
    for (int64_t at = 0; at < size;) {
        const int64_t start = at;
        const uint8_t each = text[at++];
        if (each == ',' || is_json_space(each))
            continue;
        if (each == ']') {
            depth--;
        } else if (each == '[' && depth < 2) {
            if (depth++ == LIST)
                items++, part = 0, kinds |= IDS;
        } else if (each == '-' || (each >= '0' && each <= '9')) {
            at = id_end(text, size, start);
            if (at < 0)
                return wrong(found, depth == LIST ? WRONG_ITEM : WRONG_PART,
                             items + ids - (depth != LIST), part, start);
            if (depth == LIST)
                ids++, kinds |= ID;
            else
                part++;
        } else if (each == '"' && depth == LIST) {
            at = string_end(text, size, at);
            items++, kinds |= TEXT;
        } else {
            return wrong(found, depth == LIST ? WRONG_ITEM : WRONG_PART,
                         items + ids - (depth != LIST), part, start);
        }
    }
    found->items = items, found->parts = kinds;
    return RIGHT;
}

/* Where the value of a member of the body is, and how many it has, if it is a list or an object. */
typedef struct {
    int64_t key, start, end, items; /* start -1: there is no such member */
} Member;

static const uint64_t ONES = 0x0101010101010101u, HIGHS = 0x8080808080808080u;

/* Whether a byte of the eight ends what can be passed over in a string. */
static uint64_t stands_out(uint64_t eight)
{
    const uint64_t quote = eight ^ ONES * '"', slash = eight ^ ONES * '\\';
    return (((quote - ONES) & ~quote) | ((slash - ONES) & ~slash) |
            ((eight - ONES * 0x20) & ~eight)) &
           HIGHS;
}

/* The place behind a string that began before `at`; -1: it is malformed, or has no end. */
static int64_t checked_string_end(const uint8_t *text, int64_t size, int64_t at)
{
    int64_t low_due = 0; /* where the second half of a pair of surrogates must begin */
    for (;;) {
        uint64_t eight;
        while (size - at >= (int64_t)sizeof eight) {
            memcpy(&eight, text + at, sizeof eight);
            if (stands_out(eight))
                break;
            at += (int64_t)sizeof eight;
        }
        while (at < size && text[at] != '"' && text[at] != '\\' && text[at] >= 0x20)
            at++;
        if (low_due && (at != low_due || at == size || text[at] != '\\'))
            return -1;
        if (at == size || text[at] < 0x20)
            return -1;
        if (text[at++] == '"')
            return at;
        if (at == size)
            return -1;
        const uint8_t escaped = text[at++];
        if (escaped != 'u') {
            if (low_due || !strchr("\"\\/bfnrt", escaped) || !escaped)
                return -1;
            continue;
        }
        unsigned read = 0;
        if (size - at < 4)
            return -1;
        for (int digit = 0; digit < 4; digit++) {
            if (!hexadecimal(text[at]))
                return -1;
            read = read << 4 | (unsigned)digit_of(text[at++]);
        }
        const int is_low = read >= 0xDC00 && read <= 0xDFFF;
        if (is_low != (low_due != 0))
            return -1;
        low_due = read >= 0xD800 && read <= 0xDBFF ? at : 0;
    }
}

static int64_t digits_end(const uint8_t *text, int64_t size, int64_t at)
{
    while (at < size && text[at] >= '0' && text[at] <= '9')
        at++;
    return at;
}

/* The place behind a number or a literal that begins at `at`; -1: it is none. */
static int64_t checked_scalar_end(const uint8_t *text, int64_t size, int64_t at)
{
    static const char *const LITERALS[] = {"true", "false", "null"};
    for (size_t each = 0; each < sizeof LITERALS / sizeof *LITERALS; each++) {
        const int64_t length = (int64_t)strlen(LITERALS[each]);
        if (size - at >= length && memcmp(text + at, LITERALS[each], (size_t)length) == 0)
            return at + length;
    }
    at += text[at] == '-';
    const int64_t start = at;
    at = digits_end(text, size, at);
    if (at == start || (text[start] == '0' && at - start > 1))
        return -1;
    if (at < size && text[at] == '.') {
        const int64_t fraction = ++at;
        at = digits_end(text, size, at);
        if (at == fraction)
            return -1;
    }
    if (at < size && (text[at] | 0x20) == 'e') {
        at++;
        at += at < size && (text[at] == '+' || text[at] == '-');
        const int64_t exponent = at;
        at = digits_end(text, size, at);
        if (at == exponent)
            return -1;
    }
    return at;
}

/* The number of the name that a key is; -1: it is none. `names`: before each its size, in two
   bytes, the lower first. */
static int64_t named(const uint8_t *key, int64_t size, const uint8_t *names, int64_t count)
{
    const int is_escaped = memchr(key, '\\', (size_t)size) != NULL;
    for (int64_t each = 0; each < count; each++) {
        const int64_t length = names[0] | names[1] << 8;
        names += 2;
        if ((is_escaped || length == size) && is_key(key, size, (const char *)names, length))
            return each;
        names += length;
    }
    return -1;
}

enum { DEEPEST = 128 };
static const int64_t TOO_DEEP = -1, NO_OBJECT = -2, BROKEN_OFF = -3;

/* The members of an object that have these names, the last of each; `items` of one more are all
   members that there are. That all of it is well formed was seen then. Returns its size. Less: the
   byte at which it is not; TOO_DEEP, NO_OBJECT, BROKEN_OFF. The text is UTF-8. */
int64_t kairos_members(const uint8_t *text, int64_t size, const uint8_t *names, int64_t count,
                       Member *members)
{
    enum { VALUE, FIRST_VALUE, KEY, FIRST_KEY, AFTER, END } expects = VALUE;
    uint8_t lists[DEEPEST + 1] = {0};
    int64_t depth = 0, at = 0, items = 0;
    Member *member = NULL;
    for (int64_t each = 0; each < count; each++)
        members[each].start = -1;
    members[count].items = 0;
    for (;;) {
        while (at < size && is_json_space(text[at]))
            at++;
        if (at == size)
            return expects == END ? size : BROKEN_OFF;
        const int64_t start = at;
        const uint8_t each = text[at++];
        if (expects == END)
            return start;
        if (expects == KEY || (expects == FIRST_KEY && each != '}')) {
            if (each != '"' || (at = checked_string_end(text, size, at)) < 0)
                return start;
            const int64_t key_end = at - 1;
            while (at < size && is_json_space(text[at]))
                at++;
            if (at == size || text[at] != ':')
                return at < size ? at : BROKEN_OFF;
            at++;
            if (depth == 1) {
                members[count].items++;
                const int64_t number =
                    named(text + start + 1, key_end - start - 1, names, count);
                member = number < 0 ? NULL : members + number;
                if (member)
                    member->key = start, member->start = -1;
            }
            expects = VALUE;
            continue;
        }
        if (expects == AFTER && each == ',') {
            expects = lists[depth] ? VALUE : KEY;
            continue;
        }
        if ((each == ']' && lists[depth] && (expects == FIRST_VALUE || expects == AFTER) && depth) ||
            (each == '}' && depth && !lists[depth] && (expects == FIRST_KEY || expects == AFTER))) {
            depth--;
            if (depth == 1 && member)
                member->end = at, member->items = items;
            expects = depth ? AFTER : END;
            continue;
        }
        if (expects == AFTER || expects == FIRST_KEY)
            return start;
        /* a value */
        if (depth == 0 && each != '{')
            return NO_OBJECT;
        items = depth == 1 ? 0 : items + (depth == 2);
        if (depth == 1 && member)
            member->start = start;
        if (each == '{' || each == '[') {
            if (++depth > DEEPEST)
                return TOO_DEEP;
            lists[depth] = each == '[';
            expects = each == '[' ? FIRST_VALUE : FIRST_KEY;
            continue;
        }
        at = each == '"' ? checked_string_end(text, size, at) : checked_scalar_end(text, size, start);
        if (at < 0)
            return start;
        if (depth == 1 && member)
            member->end = at, member->items = 0;
        expects = AFTER;
    }
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

static const int64_t URL_HEAD = 5, URL_PARAMETERS = 255, LONGEST_NAME = 64, LEAST_BASE64 = 1024;

static int is_space_in_json(uint8_t each)
{
    return each == ' ' || (each >= '\t' && each <= '\r');
}

static int is_base64(uint8_t each)
{
    return (each >= '0' && each <= '9') || (each >= 'A' && each <= 'Z') ||
           (each >= 'a' && each <= 'z') || (each && strchr("+/=_-\\", each));
}

static int is_of_name(uint8_t each)
{
    return (each >= 'A' && each <= 'Z') || (each >= 'a' && each <= 'z') || each == '_';
}

/* Whether a field of this name has text: no name of media is one of these. */
static int has_text(const uint8_t *name, int64_t size)
{
    static const char NAMES[][18] = {
        "content",   "text",   "prompt",  "input",        "query",       "document",
        "arguments", "output", "refusal", "instructions", "description", "reasoning",
        "thinking",  "system", "reasoning_content"};
    for (size_t each = 0; each < sizeof NAMES / sizeof *NAMES; each++)
        if (size == (int64_t)strlen(NAMES[each]) && memcmp(name, NAMES[each], (size_t)size) == 0)
            return 1;
    return 0;
}

static int64_t spaces_end(const uint8_t *text, int64_t size, int64_t at)
{
    enum { MOST = 8 };
    for (int passed = 0; passed < MOST && at < size && is_space_in_json(text[at]); passed++)
        at++;
    return at;
}

/* The place behind a data URL of which the quote is at `at`; -1: there is none. */
static int64_t data_url_end(const uint8_t *text, int64_t size, int64_t at)
{
    static const char BASE64[] = ";base64";
    const int64_t length = sizeof BASE64 - 1, start = at + 1 + URL_HEAD;
    if (size - start < length || memcmp(text + start - 1, ":", 1) != 0)
        return -1;
    for (int64_t each = 0; each < URL_HEAD - 1; each++)
        if ((text[at + 1 + each] | 0x20) != "data"[each])
            return -1;
    int64_t looked_at = size - start;
    if (looked_at > URL_PARAMETERS + length + 1)
        looked_at = URL_PARAMETERS + length + 1;
    const uint8_t *comma = memchr(text + start, ',', (size_t)looked_at);
    if (!comma || comma - (text + start) < length || memcmp(comma - length, BASE64, length) != 0 ||
        memchr(text + start, '"', (size_t)(comma - (text + start))))
        return -1;
    const uint8_t *end = memchr(comma, '"', (size_t)(text + size - comma));
    return end ? end - text + 1 : -1;
}

/* The place behind a member of media of which the first quote is at `at`; -1: there is none. */
static int64_t media_member_end(const uint8_t *text, int64_t size, int64_t at)
{
    const int64_t name = at + 1;
    int64_t end = name;
    while (end < size && end - name <= LONGEST_NAME && is_of_name(text[end]))
        end++;
    if (end == name || end - name > LONGEST_NAME || end == size || text[end] != '"' ||
        has_text(text + name, end - name))
        return -1;
    at = spaces_end(text, size, end + 1);
    if (at == size || text[at] != ':')
        return -1;
    at = spaces_end(text, size, at + 1);
    if (at == size || text[at] != '"')
        return -1;
    const int64_t start = ++at;
    while (at < size && is_base64(text[at]))
        at++;
    return at < size && text[at] == '"' && at - start >= LEAST_BASE64 ? at + 1 : -1;
}

/* A text without the media in it, as `body.py` knows them; returns how many bytes are left. */
int64_t kairos_without_media(const uint8_t *text, int64_t size, uint8_t *left)
{
    int64_t count = 0;
    for (int64_t at = 0; at < size;) {
        const uint8_t *quote = memchr(text + at, '"', (size_t)(size - at));
        const int64_t next = quote ? quote - text : size;
        memcpy(left + count, text + at, (size_t)(next - at));
        count += next - at;
        if (!quote)
            break;
        at = data_url_end(text, size, next);
        if (at < 0)
            at = media_member_end(text, size, next);
        if (at < 0) {
            left[count++] = '"';
            at = next + 1;
        }
    }
    return count;
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
