/* A picture of a graph: what becomes a box, what folds into one, what stands in it, and where everything goes.
 *
 * Pure; any thread. A picture refers to its graph and lives no longer; all it has lies in its own arena. */
#ifndef WEB_VIZ_VIEW_H
#define WEB_VIZ_VIEW_H

#include "web/viz/graph.h"
#include "web/viz/layout.h"
#include "web/viz/ops.h"

/* default: parameters stand in their operator, repeated blocks are one box with a count. full: every node is a box.
 * blocks: what has a common prefix is one box. mxnet: the colours and label texts of MXNet's plot_network. */
#define VIZ_VIEWS(X) X(default) X(full) X(blocks) X(mxnet)
enum viz_view {
#define VIZ_VIEW_ENUM(name) VIEW_##name,
    VIZ_VIEWS(VIZ_VIEW_ENUM)
#undef VIZ_VIEW_ENUM
    VIEW_COUNT
};

enum viz_direction { DIRECTION_DOWN, DIRECTION_UP, DIRECTION_RIGHT };

/* What boxes are coloured by: their operator, the size of their parameters, a measure of the store, the updater. */
enum { COLOR_OP, COLOR_SIZE, COLOR_UPDATER, COLOR_MEASURE }; /* COLOR_MEASURE + enum viz_measure */
enum { QUANTA = 7, QUANTUM_NONE = -1 };

struct viz_look {
    enum viz_view view;
    enum viz_direction direction;
    int color;
    bool show_weights;               /* mxnet: parameters are boxes too */
    bool edge_shapes, edge_dtypes;   /* mxnet: shapes, and types behind them, stand at the arrows */
    const char *const *expanded;     /* ids of blocks that are drawn in full; ends with NULL. May be NULL. */
};

enum viz_line_kind { LINE_TITLE, LINE_NAME, LINE_DETAIL, LINE_CHIP, LINE_SHAPE };

struct viz_line {
    const char *text;                /* fits the box */
    enum viz_line_kind kind;
    uint32_t node;                   /* of a chip: the parameter */
};

struct viz_box {
    uint32_t first, last;            /* nodes of the graph, parameters between them included */
    uint32_t copies;                 /* of a repeated block; 1: it is none */
    uint32_t line_first, line_count;
    enum viz_family family;
    int8_t quantum;                  /* of its colour */
    bool is_group;                   /* stands for several operators */
    double width, height;
};

struct viz_arrow {
    const char *label;               /* or NULL */
    uint32_t node, output;           /* where it comes from */
};

struct viz_legend {
    const char *title;               /* NULL: there is none */
    const char *texts[QUANTA];       /* of the colours; NULL: not used */
};

struct viz_picture {
    struct arena arena;
    const struct viz_graph *graph;
    struct viz_look look;
    struct viz_box *boxes;
    struct viz_line *lines;
    struct viz_arrow *arrows;        /* beside layout.arrows */
    struct layout layout; /* from the top to the bottom; viz_turn makes places in the picture of its places */
    size_t line_count;
    uint32_t *box_of;                /* of a node; VIZ_NO_BOX: it is folded or hidden */
    int8_t *quantum_of;              /* of a parameter */
    struct viz_legend legend;
};

#define VIZ_NO_BOX UINT32_MAX

/* Decides what becomes a box and writes its lines; places nothing. */
enum status viz_picture_make(const struct viz_graph *g, const struct viz_look *look, struct viz_picture *p,
                             struct error *e) MUST_CHECK;
/* Runs the layout. */
enum status viz_picture_place(struct viz_picture *p, struct error *e) MUST_CHECK;
void viz_picture_fini(struct viz_picture *p);

/* A point of the layout in the picture. */
struct layout_point viz_turn(const struct viz_picture *p, struct layout_point at);
/* Fills in quantum_of, the quanta of the boxes and the legend, as the look says. For viz_picture_make. */
enum status viz_picture_color(struct viz_picture *p, struct error *e) MUST_CHECK;

/* Metrics that boxes and writers share, in pixels. */
enum {
    FONT_SIZE = 13,
    SMALL_SIZE = 11,
    LINE_HEIGHT = 16,
    BOX_PAD = 10,
    BOX_PAD_Y = 7,
    CHIP_PAD = 6,
    TEXT_MAX = 300
};

enum viz_view viz_view_find(const char *name);       /* VIEW_COUNT: no such */
int viz_color_find(const char *name);                /* -1: no such */
const char *viz_color_name(int color);
/* "(keys)" is no operator of anybody's. */
static inline bool viz_is_group_of_keys(const struct viz_node *n) { return n->op != NULL && n->op[0] == '('; }
/* What a parameter is called beside its operator: "weight" of "fc1_weight". */
const char *viz_short_name(const struct viz_node *of, size_t input, const struct viz_node *param,
                           char out[VIZ_NAME_MAX + 1]);

#endif
