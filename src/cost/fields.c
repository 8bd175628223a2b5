/* SPDX-License-Identifier: MIT-0 */
/* Reads settings by a table of fields. The readers of models, strategies and machines call it with
 * their tables. */
#include "fields.h"

#include "../base/base_private.h"

/* ---- numbers and words ----------------------------------------------------------------------- */

DPARI_INTERNAL DPARI_NOINLINE size_t dpari_until(const char *s, size_t n, char letter)
{
    size_t i = 0;
    while (i < n && s[i] != letter) {
        i++;
    }
    return i;
}

DPARI_INTERNAL DPARI_NOINLINE const char *dpari_behind(const char *text)
{
    return text + dpari_length(text) + 1;
}

DPARI_INTERNAL DPARI_NOINLINE int dpari_whole(const char *s, size_t n, int64_t low, int64_t high,
                                              int64_t *value)
{
    const size_t sign = n > 0 && s[0] == '-';
    int64_t v = 0;
    size_t i;
    for (i = sign; i < n; i++) {
        if (s[i] < '0' || s[i] > '9' || v > (int64_t)1 << 53) {
            return 0;
        }
        v = v * 10 + (s[i] - '0');
    }
    *value = sign ? -v : v;
    return n > sign && *value >= low && *value <= high;
}

DPARI_INTERNAL DPARI_COLD int32_t dpari_extents(const char *s, size_t n, int64_t *extent,
                                                int32_t most)
{
    size_t at = 0;
    int32_t k;
    for (k = 0; at <= n && k < most; k++) {
        const size_t length = dpari_until(s + at, n - at, 'x');
        if (!dpari_whole(s + at, length, 1, INT32_MAX, &extent[k])) {
            return 0;
        }
        at += length + 1;
    }
    return at > n ? k : 0;
}

/* Reads a number of 0 to 1e15. The limit keeps sums and products finite. */
static int dpari_real(const char *s, size_t n, double *v)
{
    return n > 0 && dpari_text_number(s, n, v) == n && *v >= 0.0 && *v <= 1e15;
}

DPARI_INTERNAL DPARI_COLD int dpari_reals(const char *s, size_t n, double *number, int32_t count)
{
    size_t at = 0;
    int32_t k;
    for (k = 0; at <= n && k < count; k++) {
        const size_t length = dpari_until(s + at, n - at, 'x');
        if (!dpari_real(s + at, length, &number[k]) || number[k] <= 0.0) {
            return 0;
        }
        at += length + 1;
    }
    return at > n && k == count;
}

DPARI_INTERNAL DPARI_COLD int32_t dpari_unlike(const char *s, size_t n, const char *name)
{
    int32_t row[32], k, m = dpari_edits(s, n, name, row), best = 6 * row[m];
    for (k = 0; k < m; k++) {
        int32_t i = 0;
        while (k + i < m && i < (int32_t)n && name[k + i] == dpari_lower(s[i])) {
            i++;
        }
        if (n > 2 && i == (int32_t)n) { /* a part of the name: 4090 */
            best = (int32_t)dpari_least(best, m - i);
        } else if (k == 0 && i == m) { /* the name and more: p5.48xlarge */
            best = (int32_t)dpari_least(best, 5 * ((int32_t)n - m));
        }
        best = (int32_t)dpari_least(best, 6 * row[k] + m - k);
    }
    return best;
}

/* ---- messages -------------------------------------------------------------------------------- */

DPARI_INTERNAL DPARI_COLD dpar_status dpari_text_bad(const char *s, size_t n, dpar_why *why,
                                                     const char *expected)
{
    return dpari_say(DPAR_E_PARSE, why, "'%.*s': %s was expected", (int32_t)(n < 60 ? n : 60), s,
                     expected);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_setting_bad(const dpari_setting *setting, dpar_why *why,
                                                        const char *expected)
{
    return dpari_text_bad(setting->text, setting->length, why, expected);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_one_of(const char *s, size_t n,
                                                   const char *(*name)(int32_t), int32_t first,
                                                   int32_t end, dpar_why *why)
{
    char text[160];
    dpar_text t;
    int32_t i;
    dpar_text_init(&t, text, sizeof(text));
    for (i = first; i < end; i++) {
        dpari_text_print(&t, "%s%s", i > first ? ", " : "one of ", name(i));
    }
    return dpari_text_bad(s, n, why, text);
}

/* ---- settings -------------------------------------------------------------------------------- */

DPARI_INTERNAL DPARI_COLD dpar_status dpari_setting_find(dpari_setting *setting,
                                                         const dpari_fields *fields, const char *s,
                                                         size_t n, dpar_why *why)
{
    const size_t key = dpari_until(s, n, '=');
    int32_t i, nearest = 0;
    setting->text = s;
    setting->length = n;
    setting->value = s + key + 1;
    setting->value_length = n - key - (key < n);
    setting->field = -1;
    if (key == n && n > 0 && s[0] >= '0' && s[0] <= '9') {
        return DPAR_OK;
    }
    for (i = 0; i < fields->count; i++) {
        if (dpari_spells_any_case(s, key, fields->list[i].name)) {
            const int alias = fields->list[i].kind == DPARI_FIELD_ALIAS;
            setting->field = alias ? fields->list[i].place : i;
            return key < n ? DPAR_OK : dpari_setting_bad(setting, why, "key=value");
        }
    }
    for (i = 1; i < fields->count; i++) {
        if (dpari_unlike(s, key, fields->list[i].name) <
            dpari_unlike(s, key, fields->list[nearest].name)) {
            nearest = i;
        }
    }
    return dpari_say(DPAR_E_PARSE, why, "no setting of %s is called '%.*s'; the nearest is '%s'%s",
                     fields->of, (int32_t)(key < 40 ? key : 40), s, fields->list[nearest].name,
                     fields->more);
}

/* Reads an int32_t of one of the first five kinds. */
static DPARI_COLD dpar_status dpari_setting_int32(const dpari_setting *setting, int32_t kind,
                                                  int32_t *field, dpar_why *why)
{
    static const int8_t least[] = {0, 1, -4, 0, -1};
    const int64_t low = least[kind], high = kind >= DPARI_FIELD_YES_NO ? 1 : INT32_MAX;
    char text[64];
    dpar_text t;
    int64_t v = 0;
    if (dpari_whole(setting->value, setting->value_length, low, high, &v)) {
        *field = (int32_t)v;
        return DPAR_OK;
    }
    dpar_text_init(&t, text, sizeof(text));
    dpari_text_print(&t, "a whole number of %ld to %ld", low, high);
    return dpari_setting_bad(setting, why, text);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_setting_read(const dpari_setting *setting,
                                                         const dpari_fields *fields, void *object,
                                                         dpar_why *why)
{
    static const double unit[] = {1.0, 1e-3, 1e-6, 1e-9, 1e6, 1e9, 1e12};
    const dpari_field *field = &fields->list[setting->field < 0 ? 0 : setting->field];
    void *place;
    double v = 0.0;
    if (setting->field < 0 || field->kind >= DPARI_FIELD_OWN) {
        return fields->own(object, setting, why);
    }
    place = (char *)object + field->place;
    if (field->kind < DPARI_FIELD_REAL) {
        return dpari_setting_int32(setting, field->kind, (int32_t *)place, why);
    }
    if (!dpari_real(setting->value, setting->value_length, &v)) {
        return dpari_setting_bad(setting, why, "a number of 0 to 1e15");
    }
    *(double *)place = v * unit[field->kind - DPARI_FIELD_REAL];
    return DPAR_OK;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_settings_read(const dpari_fields *fields, const char *s,
                                                          size_t n, void *object, uint64_t seen[2],
                                                          dpar_why *why)
{
    size_t at = 0;
    seen[0] = seen[1] = 0;
    while (at <= n) {
        const size_t length = dpari_until(s + at, n - at, ',');
        dpari_setting setting;
        dpar_status st;
        if (length == 0) {
            return dpari_say(DPAR_E_PARSE, why,
                             "'%.*s': a setting (key=value) is missing next to a comma",
                             (int32_t)(n < 60 ? n : 60), s);
        }
        st = dpari_setting_find(&setting, fields, s + at, length, why);
        if (st != DPAR_OK) {
            return st;
        }
        if (setting.field >= 0) {
            const uint64_t bit = (uint64_t)1 << setting.field % 64;
            if (seen[setting.field / 64] & bit) {
                return dpari_say(DPAR_E_PARSE, why, "'%.*s' is given twice",
                                 (int32_t)(length < 60 ? length : 60), s + at);
            }
            seen[setting.field / 64] |= bit;
        }
        st = dpari_setting_read(&setting, fields, object, why);
        if (st != DPAR_OK) {
            return st;
        }
        at += length + 1;
    }
    return DPAR_OK;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_setting_choice(const dpari_setting *setting,
                                                           const char *(*name)(int32_t),
                                                           int32_t first, int32_t end,
                                                           int32_t *value, dpar_why *why)
{
    int32_t i;
    for (i = first; i < end; i++) {
        if (dpari_spells(setting->value, setting->value_length, name(i))) {
            *value = i;
            return DPAR_OK;
        }
    }
    return dpari_one_of(setting->text, setting->length, name, first, end, why);
}
