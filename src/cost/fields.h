/* SPDX-License-Identifier: MIT-0 */
/* fields - private: reads settings "key=value" into the fields of a struct, by a table of fields.
 * Models, machines, strategies and requests for plans have such a text form. */
#ifndef DPARI_COST_FIELDS_H
#define DPARI_COST_FIELDS_H

#include "../base/arith.h"
#include "../base/base.h"

/* What a field takes. */
enum {
    DPARI_FIELD_COUNT,    /* int32_t: a whole number of at least 0 */
    DPARI_FIELD_POSITIVE, /* int32_t: a whole number of at least 1 */
    DPARI_FIELD_SPECIAL,  /* int32_t: a whole number of at least -4 */
    DPARI_FIELD_YES_NO,   /* int32_t: 0 or 1 */
    DPARI_FIELD_SIGN,     /* int32_t: -1, 0 or 1 */
    DPARI_FIELD_REAL,     /* double: a number of 0 to 1e15 */
    DPARI_FIELD_MILLI,    /* the same in units of 1e-3, and so on */
    DPARI_FIELD_MICRO,
    DPARI_FIELD_NANO,
    DPARI_FIELD_MEGA,
    DPARI_FIELD_GIGA,
    DPARI_FIELD_TERA,
    DPARI_FIELD_ALIAS, /* another name of the field whose index is `place` */
    DPARI_FIELD_OWN    /* the first kind that the owner of the table defines */
};

/* A field. The table has no pointers, so that it is constant wherever it is loaded. */
typedef struct dpari_field {
    char name[17]; /* in lower case */
    int8_t kind;   /* DPARI_FIELD_*, or a kind of the owner's */
    int16_t place; /* bytes from the beginning of the struct to the field */
} dpari_field;
#define DPARI_PLACE(type, field) (int16_t) offsetof(type, field)

/* A setting: "key=value" as it stands in the text, and its value. */
typedef struct dpari_setting {
    const char *text, *value;
    size_t length, value_length;
    int32_t field; /* index in the table; -1 for a text without '=' that begins with a digit */
} dpari_setting;

/* A table, and what its owner says in messages. */
typedef struct dpari_fields {
    const dpari_field *list;
    int32_t count;
    const char *of;   /* "a model" */
    const char *more; /* end of the message about an unknown key */
    /* Reads a setting of a kind of the owner's, or without a field, into the struct. */
    dpar_status (*own)(void *object, const dpari_setting *setting, dpar_why *why);
} dpari_fields;

/* Splits the setting [s, s + n) and finds its field, in upper or lower case. Fails with
 * DPAR_E_PARSE if there is no such field, or no '='. */
DPARI_INTERNAL dpar_status dpari_setting_find(dpari_setting *setting, const dpari_fields *fields,
                                              const char *s, size_t n, dpar_why *why);
/* Reads the value of a setting into the struct `object`. Fails with DPAR_E_PARSE if the field does
 * not take it. */
DPARI_INTERNAL dpar_status dpari_setting_read(const dpari_setting *setting,
                                              const dpari_fields *fields, void *object,
                                              dpar_why *why);
/* Reads settings that are separated by commas, each field at most once. `seen` receives a bit for
 * each field that the text has. */
DPARI_INTERNAL dpar_status dpari_settings_read(const dpari_fields *fields, const char *s, size_t n,
                                               void *object, uint64_t seen[2], dpar_why *why);
/* Reads a value that has a name: *value is `first` to end - 1. */
DPARI_INTERNAL dpar_status dpari_setting_choice(const dpari_setting *setting,
                                                const char *(*name)(int32_t), int32_t first,
                                                int32_t end, int32_t *value, dpar_why *why);
/* Reports "'seq=x': a whole number was expected". */
DPARI_INTERNAL dpar_status dpari_setting_bad(const dpari_setting *setting, dpar_why *why,
                                             const char *expected);
/* The same for a text that is no setting; and "'lama': one of gpt, llama was expected". */
DPARI_INTERNAL dpar_status dpari_text_bad(const char *s, size_t n, dpar_why *why,
                                          const char *expected);
DPARI_INTERNAL dpar_status dpari_one_of(const char *s, size_t n, const char *(*name)(int32_t),
                                        int32_t first, int32_t end, dpar_why *why);

/* Returns the number of letters before the first `letter`, or n. */
DPARI_INTERNAL size_t dpari_until(const char *s, size_t n, char letter);
/* Returns the value in [low, high] that is nearest to v. */
DPARI_FN int32_t dpari_within(int64_t v, int64_t low, int64_t high)
{
    return (int32_t)dpari_most(low, dpari_least(v, high));
}
/* Returns the text that follows a text and its NUL. */
DPARI_INTERNAL const char *dpari_behind(const char *text);
/* Reads a whole number of low to high, at most 2^53. Returns 0 if the slice is not one. */
DPARI_INTERNAL int dpari_whole(const char *s, size_t n, int64_t low, int64_t high, int64_t *value);
/* Reads "1440x720x100". Returns how many numbers of 1 to 2^31 - 1 there are, or 0 if there are more
 * than `most` or the text is not of this form. */
DPARI_INTERNAL int32_t dpari_extents(const char *s, size_t n, int64_t *extent, int32_t most);
/* Reads `count` positive numbers of at most 1e15: "2x65536x1.7". Returns 0 if the text is not of
 * this form. */
DPARI_INTERNAL int dpari_reals(const char *s, size_t n, double *number, int32_t count);
/* Returns how much the n letters at s differ from `name`: 6 for each edit that turns s into a
 * prefix of `name`, and 1 for each letter of `name` that then remains. So "a100" is near "a100-80".
 * A part of a name ("4090") and a name with a suffix ("p5.48xlarge") are also near. */
DPARI_INTERNAL int32_t dpari_unlike(const char *s, size_t n, const char *name);

#endif
