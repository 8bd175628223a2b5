/* SPDX-License-Identifier: MIT-0 */
/* config_members - private: what a config.json says, by object and member. */
#ifndef DPARI_COST_CONFIG_MEMBERS_H
#define DPARI_COST_CONFIG_MEMBERS_H

#include "../base/text.h"
#include "config_types.h"
#include "json.h"
#include "model_fields.h"

/* Members of a file that are not fields of dpar_model. Their keys follow those of the fields, so
 * that one array holds the values of both: first the numbers, then the members that are true or
 * false, then the lists and words, which have no value. */
enum {
    DPARI_C_SHARED_COUNT = DPARI_M_INTEGERS, /* shared experts; each is as wide as a routed one */
    DPARI_C_IMAGE_SIDE,                      /* pixels along a side of a square image */
    DPARI_C_NEW_KV,    /* key-value heads; Falcon has them if new_decoder_architecture */
    DPARI_C_EXPANSION, /* ffn / hidden, in 1/10000 */
    DPARI_C_DENSE_FFN, /* ffn of dense layers, in files whose intermediate_size is an expert's */
    DPARI_C_ENCODER_LAYERS,
    DPARI_C_EMBED_DIM,        /* width of a tower; also the hidden size, if that is not given */
    DPARI_C_TOKEN_TYPES,      /* token types, each of which has a row like a position */
    DPARI_C_POSITION_BUCKETS, /* DeBERTa: half of the rows of relative positions */
    DPARI_C_SOURCE_POSITIONS, /* Whisper: positions of the encoder */
    DPARI_C_MEL_BINS,         /* Whisper: channels of the input */
    DPARI_C_PADDED_VOCAB,
    DPARI_C_EXPAND,        /* channels of a scan / hidden */
    DPARI_C_INNER,         /* channels of a scan */
    DPARI_C_MULTIPLE_OF,   /* Meta's params.json: ffn is a multiple of it */
    DPARI_C_FFN_TIMES,     /* Meta's params.json: factor of ffn, in 1/10000 */
    DPARI_C_PERIOD,        /* one layer in each such number of layers has (full) attention */
    DPARI_C_PERIOD_OFFSET, /* the first such layer */
    DPARI_C_MERGE,         /* side of the square of patches that become one token */
    DPARI_C_FRAMES,        /* frames of a patch */
    DPARI_C_TOWER_POSITIONS,
    DPARI_C_MORE_LAYERS,    /* layers of a tower in addition to its number of layers */
    DPARI_C_PROJECTION_DIM, /* width of the output of CLIP's models with projection */
    DPARI_C_TOWER_OUT,      /* width of a tower's output */
    DPARI_C_FLAGS,
    DPARI_C_TIED = DPARI_C_FLAGS,
    DPARI_C_NO_BIAS,
    DPARI_C_BIAS,
    DPARI_C_ONE_KV, /* multi-query attention: one key-value head */
    DPARI_C_NEW_DECODER,
    DPARI_C_GATED, /* T5 v1.1: the feed-forward parts are gated */
    DPARI_C_USES_WINDOW,
    DPARI_C_Q_GATE,
    DPARI_C_BIASED_INPUT, /* DeBERTa: has absolute positions too */
    DPARI_C_USE_MLA,
    DPARI_C_ADJUSTS_FFN,
    DPARI_C_KEYS,
    DPARI_C_MIX = DPARI_C_KEYS, /* a word per layer: how it mixes tokens */
    DPARI_C_FULL_AT_LAYER,      /* a number per layer: 1 for full attention, 0 for linear */
    DPARI_C_WINDOW_AT_LAYER,    /* a number per layer: 1 for a window, 0 for full attention */
    DPARI_C_FEED,               /* a word per layer: dense, or experts */
    DPARI_C_FULL_INDICES,       /* indices of the layers with attention */
    DPARI_C_DENSE_INDICES,      /* indices of the dense layers */
    DPARI_C_DEEPSTACK,          /* one entry for each additional projector of a tower */
    DPARI_C_TYPE,
    DPARI_C_ARCHITECTURE,
    DPARI_C_ACTIVATION,
    DPARI_C_PROJECTION, /* T5's feed_forward_proj */
    DPARI_C_ADAPTER,
    DPARI_C_ALL
};

/* The objects of a file whose members are read: the outermost one, the language model of a
 * multi-modal model, its towers, and the description of linear attention. Then the values that are
 * not objects of this kind: one that is skipped, a list, and id2label, which has a member for each
 * class of the output. */
enum {
    DPARI_OBJECT_WHOLE,
    DPARI_OBJECT_TEXT,
    DPARI_OBJECT_VISION,
    DPARI_OBJECT_AUDIO,
    DPARI_OBJECT_LINEAR,
    DPARI_OBJECTS,
    DPARI_OBJECT_SKIPPED = DPARI_OBJECTS,
    DPARI_OBJECT_LIST,
    DPARI_OBJECT_LABELS
};

enum { DPARI_MAX_LISTED = 512 }; /* most layers that a list may describe */

/* What the reader has collected from a file so far. */
typedef struct dpari_config_state {
    int32_t value[DPARI_OBJECTS][DPARI_C_KEYS]; /* by key; -1 if the object does not have it */
    dpari_slice type[DPARI_OBJECTS];            /* model_type, or diffusers' _class_name */
    dpari_slice architecture[DPARI_OBJECTS], activation[DPARI_OBJECTS];
    int8_t object[66];          /* DPARI_OBJECT_* of the members at each depth */
    int8_t seen[DPARI_OBJECTS]; /* 1 if the file has the object */
    /* the list that is being read: its key, its object, its name, and its elements so far */
    int32_t list_key, list_object;
    dpari_slice list_name;
    double list_sum, list_low, list_high;
    int32_t list_count;
    /* the kind of each layer, as lists give it */
    char mix[DPARI_MAX_LISTED];    /* letters as in dpar_model.pattern */
    int8_t feed[DPARI_MAX_LISTED]; /* DPAR_MODEL_FFN_* */
    int32_t mixes, feeds;          /* their numbers, which may exceed DPARI_MAX_LISTED */
    int32_t labels;                /* classes of the output */
    dpar_text note;
} dpari_config_state;

/* Reads one item of the file: a member of an object, an element of a list, or the end of an object
 * or list. Objects and lists that are not needed are skipped with all that they contain. */
DPARI_INTERNAL dpar_status dpari_config_member(dpari_config_state *state,
                                               const dpari_json_item *item, dpar_why *why);
/* Returns all names of a member, separated by blanks. */
DPARI_INTERNAL const char *dpari_config_names_of(int32_t key);
/* Adds a line to the note. */
DPARI_INTERNAL void dpari_config_note(dpari_config_state *state, const char *form, ...)
    DPARI_PRINTF(2, 3);
/* Returns how many characters of a name a message or a note shows. */
DPARI_INTERNAL int32_t dpari_config_shown(size_t n);

#endif
