/* See font.h.
 *
 * A glyph is its width and its strokes, separated by spaces. A stroke is a letter and points, two
 * base-36 digits each (x, y): `l` a chain of straight lines, `c` a curve from the first point to
 * the last that is pulled towards the points between (a quadratic B-spline), `o` the same closed,
 * `d` a dot. Capitals reach from 0 to c (12), small letters from 4 to c, tails down to g (16). */
#include "font.h"

#include <stddef.h>
#include <string.h>

struct glyph {
    unsigned char width;
    const char *strokes;
};

/* Shown for what the table does not have: an empty box. */
static const struct glyph missing = {7, "l0070707c7c0c0c00"};

static const struct glyph glyphs[128] = {
    [' '] = {3, ""},
    ['!'] = {2, "l1018 d1c"},
    ['"'] = {4, "l1013 l4043"},
    ['#'] = {8, "l301c l705c l0484 l0888"},
    ['%'] = {10, "o00404505 o67a7ac6c l901c"},
    ['\''] = {2, "l1013"},
    ['('] = {3, "c3003093c"},
    [')'] = {3, "c0033390c"},
    ['*'] = {6, "l3137 l0265 l6205"},
    ['+'] = {6, "l0767 l343a"},
    [','] = {2, "l1b1c0e"},
    ['-'] = {5, "l0757"},
    ['.'] = {2, "d1c"},
    ['/'] = {5, "l0d50"},
    ['0'] = {7, "o00707c0c"},
    ['1'] = {7, "l13404c l1c7c"},
    ['2'] = {7, "c030070750c l0c7c"},
    ['3'] = {7, "c0200707636 c36767c0c0a"},
    ['4'] = {7, "l5c500979"},
    ['5'] = {7, "l701006 c0624747c0c0a"},
    ['6'] = {7, "o04747c0c c600008"},
    ['7'] = {7, "l00702c"},
    ['8'] = {7, "o10606616 o06767c0c"},
    ['9'] = {7, "o00707808 c1c7c74"},
    [':'] = {2, "d15 d1c"},
    [';'] = {2, "d15 l1b1c0e"},
    ['<'] = {6, "l63076b"},
    ['='] = {6, "l0565 l0969"},
    ['>'] = {6, "l03670b"},
    ['?'] = {6, "c020060663738 d3c"},
    ['A'] = {8, "l0c408c l1979"},
    ['B'] = {8, "l4000 l000c l0c4c c40707646 l0646 c46868c4c"},
    ['C'] = {8, "c8280000c8c8a"},
    ['D'] = {8, "l3000 l000c l0c3c c30808c3c"},
    ['E'] = {7, "l70000c7c l0666"},
    ['F'] = {7, "l70000c l0666"},
    ['G'] = {8, "c8280000c8c87 l5787"},
    ['H'] = {8, "l000c l808c l0686"},
    ['I'] = {2, "l101c"},
    ['J'] = {6, "l6068 c686c0c09"},
    ['K'] = {7, "l000c l7007 l347c"},
    ['L'] = {6, "l000c6c"},
    ['M'] = {9, "l0c0058909c"},
    ['N'] = {8, "l0c008c80"},
    ['O'] = {9, "o00909c0c"},
    ['P'] = {8, "l0c00 l0040 c40808747 l4707"},
    ['Q'] = {9, "o00909c0c l689d"},
    ['R'] = {8, "l0c00 l0040 c40808747 l4707 l478c"},
    ['S'] = {7, "c72700006767c0c0a"},
    ['T'] = {8, "l0080 l404c"},
    ['U'] = {8, "l0007 c070c8c87 l8780"},
    ['V'] = {8, "l004c80"},
    ['W'] = {10, "l002c538ca0"},
    ['X'] = {8, "l008c l800c"},
    ['Y'] = {8, "l004680 l464c"},
    ['Z'] = {7, "l00700c7c"},
    ['['] = {3, "l30000d3d"},
    ['\\'] = {5, "l005d"},
    [']'] = {3, "l00303d0d"},
    ['^'] = {6, "l043064"},
    ['_'] = {7, "l0e7e"},
    ['a'] = {6, "o04646c0c l646c"},
    ['b'] = {6, "l000c o04646c0c"},
    ['c'] = {6, "c6664040c6c6a"},
    ['d'] = {6, "l606c o04646c0c"},
    ['e'] = {6, "l0868 c6864040c6c6a"},
    ['f'] = {5, "c502024 l242c l0444"},
    ['g'] = {6, "o04646c0c l646c c6c6g0g0f"},
    ['h'] = {6, "l000c c08046468 l686c"},
    ['i'] = {2, "l141c d11"},
    ['j'] = {3, "l242d c2d2g0g d21"},
    ['k'] = {6, "l000c l6409 l276c"},
    ['l'] = {2, "l101c"},
    ['m'] = {10, "l040c c07045457 l575c c5754a4a7 la7ac"},
    ['n'] = {6, "l040c c08046468 l686c"},
    ['o'] = {6, "o04646c0c"},
    ['p'] = {6, "l040g o04646c0c"},
    ['q'] = {6, "l646g o04646c0c"},
    ['r'] = {4, "l040c c080444"},
    ['s'] = {5, "c56540408585c0c0a"},
    ['t'] = {5, "l2129 c292c5c l0444"},
    ['u'] = {6, "l0408 c080c6c68 l646c"},
    ['v'] = {6, "l043c64"},
    ['w'] = {8, "l042c466c84"},
    ['x'] = {6, "l046c l640c"},
    ['y'] = {6, "l043c l642f"},
    ['z'] = {6, "l04640c6c"},
    ['|'] = {2, "l101e"},
};

static const struct glyph *find(unsigned char character)
{
    return character < 128 && glyphs[character].strokes ? &glyphs[character] : &missing;
}

int font_width(unsigned char character)
{
    return find(character)->width;
}

static float digit(char c)
{
    return (float)(c <= '9' ? c - '0' : c - 'a' + 10);
}

static void add(struct font_stroke *stroke, float x, float y)
{
    if (stroke->count < FONT_MAX_POINTS) {
        stroke->x[stroke->count] = x;
        stroke->y[stroke->count] = y;
        stroke->count++;
    }
}

/* One piece of a quadratic curve from the chain's end, by way of (cx, cy), to (x, y). */
static void add_curve(struct font_stroke *stroke, float cx, float cy, float x, float y)
{
    enum { STEPS = 8 };
    const float x0 = stroke->x[stroke->count - 1], y0 = stroke->y[stroke->count - 1];
    for (int i = 1; i <= STEPS; i++) {
        const float t = (float)i / STEPS, u = 1 - t;
        add(stroke, u * u * x0 + 2 * u * t * cx + t * t * x,
            u * u * y0 + 2 * u * t * cy + t * t * y);
    }
}

static void add_spline(struct font_stroke *out, const float *x, const float *y, int count,
                       int closed)
{
    if (closed) {
        add(out, (x[count - 1] + x[0]) / 2, (y[count - 1] + y[0]) / 2);
        for (int i = 0; i < count; i++) {
            const int next = (i + 1) % count;
            add_curve(out, x[i], y[i], (x[i] + x[next]) / 2, (y[i] + y[next]) / 2);
        }
        return;
    }
    add(out, x[0], y[0]);
    for (int i = 1; i + 1 < count; i++) {
        const int last = i + 2 == count;
        add_curve(out, x[i], y[i], last ? x[i + 1] : (x[i] + x[i + 1]) / 2,
                  last ? y[i + 1] : (y[i] + y[i + 1]) / 2);
    }
}

int font_stroke(unsigned char character, int index, struct font_stroke *out)
{
    enum { MAX_CONTROLS = 10 };
    const char *text = find(character)->strokes;
    for (; index > 0 && text; index--) {
        text = strchr(text, ' ');
        text = text ? text + 1 : NULL;
    }
    if (!text || !*text) {
        return 0;
    }
    float x[MAX_CONTROLS], y[MAX_CONTROLS];
    int count = 0;
    for (const char *p = text + 1; *p && *p != ' ' && count < MAX_CONTROLS; p += 2, count++) {
        x[count] = digit(p[0]);
        y[count] = digit(p[1]);
    }
    out->count = 0;
    if (count == 0) {
        return 1;
    }
    if (*text == 'c' || *text == 'o') {
        add_spline(out, x, y, count, *text == 'o');
    } else {
        for (int i = 0; i < count; i++) {
            add(out, x[i], y[i]);
        }
    }
    return 1;
}
