/* SPDX-License-Identifier: MIT-0 */
/* pictures - the marks that the guide's pictures are made of, and the pictures. Each is drawn from
 * what dpar answers; a test draws it again and compares. */
#ifndef PICTURES_H
#define PICTURES_H

#include "dpar_cost.h"

/* Appends to a picture, as printf. */
void put(dpar_text *t, const char *format, ...);
/* Begins a picture. It is white, so that it can be read on dark pages too. */
void page(dpar_text *t, int wide, int high, const char *title);
void box(dpar_text *t, int x, int y, int wide, int high, const char *colour);
void outline(dpar_text *t, int x, int y, int wide, int high);
void word(dpar_text *t, int x, int y, const char *s);
/* The middle of the text is at x; `small`: in small letters. */
void centred(dpar_text *t, int x, int y, int small, const char *s);
/* A colour and what it stands for; returns where the next one begins. */
int key(dpar_text *t, int x, int y, const char *colour, const char *name);

/* Colours: on the first numbers can be read, on the second nothing stands. */
extern const char *const pale[8], *const full[8];

/* The pictures; 1, and a sentence in why: dpar refused something. who.c, cost.c, ranks.c,
 * points.c, partition.c. */
int draw_layouts(dpar_text *t, dpar_why *why);
int draw_meshes(dpar_text *t, dpar_why *why);
int draw_moving(dpar_text *t, dpar_why *why);
int draw_memory(dpar_text *t, dpar_why *why);
int draw_time(dpar_text *t, dpar_why *why);
int draw_training(dpar_text *t, dpar_why *why);
int draw_points(dpar_text *t, dpar_why *why);
int draw_trouble(dpar_text *t, dpar_why *why);
int draw_partition(dpar_text *t, dpar_why *why);

#endif
