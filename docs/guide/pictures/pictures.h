/* SPDX-License-Identifier: MIT-0 */
/* pictures - drawing primitives, and the pictures of the guide. Each picture is drawn from results
 * of dpar; a test draws it again and compares. */
#ifndef PICTURES_H
#define PICTURES_H

#include "dpar_cost.h"
#include "dpar_debug.h"

/* Appends to a picture, as printf. */
void put(dpar_text *t, const char *format, ...);
/* Begins a picture. Its background is white, so that it can be read on dark pages too. */
void page(dpar_text *t, int wide, int high, const char *title);
void box(dpar_text *t, int x, int y, int wide, int high, const char *colour);
void outline(dpar_text *t, int x, int y, int wide, int high);
void word(dpar_text *t, int x, int y, const char *s);
/* Centres the text at x. `small`: in a smaller font. */
void centred(dpar_text *t, int x, int y, int small, const char *s);
/* Draws one entry of a legend. Returns the x of the next entry. */
int key(dpar_text *t, int x, int y, const char *colour, const char *name);

/* Colours: text is readable on the pale ones; the full ones are for areas without text. */
extern const char *const pale[8], *const full[8];

/* The pictures, in who.c, cost.c, ranks.c, points.c, partition.c and blocks.c. Return 0, or 1 with a
 * message in why if a call of dpar failed. */
int draw_layouts(dpar_text *t, dpar_why *why);
int draw_meshes(dpar_text *t, dpar_why *why);
int draw_moving(dpar_text *t, dpar_why *why);
int draw_memory(dpar_text *t, dpar_why *why);
int draw_time(dpar_text *t, dpar_why *why);
int draw_training(dpar_text *t, dpar_why *why);
int draw_points(dpar_text *t, dpar_why *why);
int draw_trouble(dpar_text *t, dpar_why *why);
int draw_partition(dpar_text *t, dpar_why *why);
int draw_blocks(dpar_text *t, dpar_why *why);

#endif
