#include "tests/lib/nets.h"
#include "tests/lib/test.h"
#include "web/viz/ops.h"
#include "web/viz/read.h"
#include "web/viz/viz.h"

#include <stdio.h>
#include <string.h>

static enum status read_text(struct viz_graph *g, const char *text, struct error *e)
{
    *g = (struct viz_graph){.arena = {.limit = VIZ_MEMORY_MAX}};
    enum status s = viz_read(g, bytes_text(text), e);
    if (s == STATUS_OK) viz_roles(g);
    return s;
}

static const struct viz_node *node(const struct viz_graph *g, const char *name)
{
    for (size_t i = 0; i < g->node_count; i++)
        if (strcmp(g->nodes[i].name, name) == 0) return &g->nodes[i];
    test_fail(__FILE__, __LINE__, "no node '%s'", name);
}

TEST(a_symbol_file_gives_nodes_inputs_attributes_and_roles)
{
    struct net n = {0};
    struct viz_graph g;
    struct error e;

    CHECK_OK(read_text(&g, net_factorization(&n, false).at, &e), &e);
    CHECK_EQ(g.node_count, 11);
    CHECK_EQ(g.edge_count, 10);
    CHECK_EQ(node(&g, "user")->role, ROLE_DATA);
    CHECK_EQ(node(&g, "user_weight")->role, ROLE_PARAM);
    CHECK_EQ(node(&g, "score")->role, ROLE_LABEL);
    CHECK_TEXT(viz_attr(node(&g, "sum_ reducci\u00f3n"), "axis"), "1");
    CHECK(node(&g, "loss")->head && !node(&g, "product")->head);
    CHECK_EQ(node(&g, "product")->inputs[1].node, 5);
    viz_graph_fini(&g);
    net_fini(&n);
}

TEST(files_of_0_8_have_param_and_attr_pairs_and_hidden_statistics)
{
    const char *text =
        "{\"nodes\": ["
        "{\"op\": \"null\", \"param\": {}, \"name\": \"data\", \"inputs\": [], \"backward_source_id\": -1},"
        "{\"op\": \"null\", \"param\": {}, \"name\": \"bn_gamma\", \"inputs\": [], \"backward_source_id\": -1, \"attr\": {\"lr_mult\": \"0.5\"}},"
        "{\"op\": \"null\", \"param\": {}, \"name\": \"bn_beta\", \"inputs\": [], \"backward_source_id\": -1},"
        "{\"op\": \"BatchNorm\", \"param\": {\"eps\": \"0.001\"}, \"name\": \"bn\", \"inputs\": [[0, 0], [1, 0], [2, 0]], "
        "\"backward_source_id\": -1, \"attr\": {\"ctx_group\": \"dev1\"}},"
        "{\"op\": \"Activation\", \"param\": {\"act_type\": \"relu\"}, \"name\": \"act\", \"inputs\": [[3, 0]], \"backward_source_id\": -1}],"
        "\"arg_nodes\": [0, 1, 2], \"heads\": [[4, 0]]}";
    struct viz_graph g;
    struct error e;

    CHECK_OK(read_text(&g, text, &e), &e);
    CHECK_EQ(g.node_count, 7);
    CHECK_EQ(node(&g, "bn")->input_count, 5);
    CHECK_EQ(node(&g, "bn_moving_var")->role, ROLE_AUX);
    CHECK_TEXT(viz_attr(node(&g, "bn"), "eps"), "0.001");
    CHECK_TEXT(viz_attr(node(&g, "bn"), "__ctx_group__"), "dev1");
    CHECK_TEXT(viz_attr(node(&g, "bn_gamma"), "__lr_mult__"), "0.5");
    CHECK_TEXT(viz_attr(node(&g, "act"), "act_type"), "relu");
    CHECK(node(&g, "act")->head);
    viz_graph_fini(&g);
}

TEST(files_from_0_9_on_have_attr_or_attrs_and_triples)
{
    static const char *const places[] = {"attr", "attrs"};

    for (size_t i = 0; i < 2; i++) {
        char text[600];
        struct viz_graph g;
        struct error e;
        snprintf(text, sizeof text,
                 "\xEF\xBB\xBF {\"nodes\": [{\"op\": \"null\", \"name\": \"x\", \"inputs\": []}, {\"op\": \"null\", \"name\": \"w\", "
                 "\"inputs\": []}, {\"op\": \"_npx_fully_connected\", \"name\": \"fc\", \"%s\": {\"num_hidden\": \"3\"}, "
                 "\"inputs\": [[0, 0, 0], [1, 0, 0]]}, {\"op\": \"SliceChannel\", \"name\": \"s\", \"inputs\": [[2, 0, 0]]}], "
                 "\"node_row_ptr\": [0, 1, 2, 3, 6], \"heads\": [[3, 2, 0]], \"attrs\": {\"mxnet_version\": [\"int\", 20000]}}", places[i]);
        CHECK_OK(read_text(&g, text, &e), &e);
        CHECK_TEXT(viz_attr(node(&g, "fc"), "num_hidden"), "3");
        CHECK_EQ(node(&g, "w")->role, ROLE_PARAM); /* by its place, not by its name */
        CHECK_EQ(node(&g, "s")->output_count, 3);
        viz_graph_fini(&g);
    }
}

#define VAR(name) "{\"op\": \"null\", \"name\": \"" name "\", \"inputs\": []}"

TEST(a_fault_is_told_with_its_place)
{
    static const struct { const char *text, *says; } rows[] = {
        {"", "empty"},
        {"  \n", "empty"},
        {"[1, 2]", "nodes"},
        {"{\"nodes\": 3}", "nodes"},
        {"{\"nodes\": []}", "no nodes"},
        {"{\"nodes\": [1]}", "node 0"},
        {"{\"nodes\": [{\"op\": \"null\"}]}", "no name"},
        {"{\"nodes\": [{\"name\": \"a\"}]}", "node 0 ('a'): no op"},
        {"{\"nodes\": [{\"op\": \"null\", \"name\": \"a\", \"attrs\": 3}]}", "attrs is no object"},
        {"{\"nodes\": [" VAR("a") ", {\"op\": \"f\", \"name\": \"b\", \"inputs\": [[1, 0, 0]]}]}",
         "node 1 ('b'): input 0 refers to node 1, which does not come before it"},
        {"{\"nodes\": [" VAR("a") ", {\"op\": \"f\", \"name\": \"b\", \"inputs\": [[7, 0]]}]}", "refers to node 7"},
        {"{\"nodes\": [" VAR("a") ", {\"op\": \"f\", \"name\": \"b\", \"inputs\": [[0]]}]}", "no list of two or three"},
        {"{\"nodes\": [" VAR("a") ", {\"op\": \"f\", \"name\": \"b\", \"inputs\": [[-1, 0]]}]}", "refers to no node"},
        {"{\"nodes\": [" VAR("a") ", {\"op\": \"f\", \"name\": \"b\", \"inputs\": [[0, 99999999]]}]}", "no such output"},
        {"{\"nodes\": [" VAR("a") "], \"heads\": [[1, 0, 0]]}", "head 0"},
        {"{\"nodes\": [" VAR("a") ", \n  {\"op\": }]}", "line 2"},
        {"{\"nodes\": [{\"op\": \"null\", \"op\": \"null\", \"name\": \"a\"}]}", "duplicate"},
        {"\x0a\xff\xff\xff\xff\xff", "byte 0"},
        {"\x08\x07", "no graph in it"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct viz_graph g;
        struct error e;
        CHECK(read_text(&g, rows[i].text, &e) != STATUS_OK);
        CHECK_SAYS(e.text, rows[i].says);
        viz_graph_fini(&g);
    }
}

TEST(deep_nesting_and_a_million_nodes_are_refused_before_they_are_parsed)
{
    struct buf deep = {0}, many = {0};
    struct viz_graph g;
    struct error e;

    for (int i = 0; i < 100000; i++) buf_text(&deep, "[");
    buf_add(&deep, "", 1);
    CHECK_EQ(read_text(&g, (const char *)deep.at, &e), STATUS_INVALID_ARGUMENT);
    CHECK_SAYS(e.text, "nested deeper");
    viz_graph_fini(&g);
    buf_text(&many, "{\"nodes\": [");
    for (int i = 0; i < 1000000; i++) buf_text(&many, "{},");
    buf_text(&many, "{}]}");
    buf_add(&many, "", 1);
    CHECK_EQ(read_text(&g, (const char *)many.at, &e), STATUS_INVALID_ARGUMENT);
    CHECK_EQ(e.reason, REASON_TOO_LARGE);
    viz_graph_fini(&g);
    buf_fini(&deep);
    buf_fini(&many);
}

TEST(a_huge_name_is_refused_and_a_huge_value_is_cut_at_a_character)
{
    struct buf text = {0};
    struct viz_graph g;
    struct error e;

    buf_text(&text, "{\"nodes\": [{\"op\": \"f\", \"name\": \"a\", \"attrs\": {\"x\": \"v");
    for (int i = 0; i < 5000; i++) buf_text(&text, "\u00f3");
    buf_text(&text, "\"}}]}");
    buf_add(&text, "", 1);
    CHECK_OK(read_text(&g, (const char *)text.at, &e), &e);
    CHECK_EQ(strlen(viz_attr(&g.nodes[0], "x")), VIZ_VALUE_MAX - 1);
    CHECK(bytes_is_utf8(bytes_text(viz_attr(&g.nodes[0], "x"))));
    viz_graph_fini(&g);
    buf_clear(&text);
    buf_text(&text, "{\"nodes\": [{\"op\": \"null\", \"name\": \"");
    for (int i = 0; i < 2000; i++) buf_text(&text, "n");
    buf_text(&text, "\"}]}");
    buf_add(&text, "", 1);
    CHECK(read_text(&g, (const char *)text.at, &e) != STATUS_OK);
    CHECK_SAYS(e.text, "2000 bytes");
    viz_graph_fini(&g);
    buf_fini(&text);
}

TEST(a_symbol_file_that_is_cut_anywhere_is_an_error)
{
    struct net n = {0};
    struct bytes file = net_factorization(&n, true);
    struct error e;

    for (size_t size = 0; size + 2 < file.size; size++) {
        char *guard = guard_new(size);
        struct viz_graph g = {0};
        memcpy(guard, file.at, size);
        CHECK(viz_read(&g, bytes_of(guard, size), &e) != STATUS_OK);
        viz_graph_fini(&g);
        guard_free(guard, size);
    }
    net_fini(&n);
}

/* ---- ONNX ---------------------------------------------------------------------------------------------------- */

static void put_varint(struct buf *b, uint64_t v)
{
    do {
        uint8_t byte = (uint8_t)((v & 0x7f) | (v > 0x7f ? 0x80 : 0));
        buf_add(b, &byte, 1);
    } while ((v >>= 7) > 0);
}

static void put_number(struct buf *b, unsigned field, uint64_t v)
{
    put_varint(b, field << 3);
    put_varint(b, v);
}

static void put_bytes(struct buf *b, unsigned field, const void *at, size_t size)
{
    put_varint(b, field << 3 | 2);
    put_varint(b, size);
    buf_add(b, at, size);
}

static void put_text(struct buf *b, unsigned field, const char *text) { put_bytes(b, field, text, strlen(text)); }

static void put_message(struct buf *b, unsigned field, struct buf *m)
{
    put_bytes(b, field, m->at, m->size);
    buf_fini(m);
    *m = (struct buf){0};
}

static void put_tensor(struct buf *graph, const char *name, unsigned dtype, const uint64_t *dims, size_t count,
                       const int64_t *ints)
{
    struct buf t = {0};

    for (size_t i = 0; i < count; i++) put_number(&t, 1, dims[i]);
    put_number(&t, 2, dtype);
    put_text(&t, 8, name);
    if (ints != NULL) put_bytes(&t, 9, ints, dims[0] * sizeof *ints);
    put_message(graph, 5, &t);
}

static void put_value_info(struct buf *graph, unsigned field, const char *name, const char *batch,
                           const uint64_t *dims, size_t count)
{
    struct buf dim = {0}, shape = {0}, tensor = {0}, type = {0}, info = {0};

    if (batch != NULL) {
        put_text(&dim, 2, batch);
        put_message(&shape, 1, &dim);
    }
    for (size_t i = 0; i < count; i++) {
        put_number(&dim, 1, dims[i]);
        put_message(&shape, 1, &dim);
    }
    put_number(&tensor, 1, 1);
    put_message(&tensor, 2, &shape);
    put_message(&type, 1, &tensor);
    put_text(&info, 1, name);
    put_message(&info, 2, &type);
    put_message(graph, field, &info);
}

static void put_ints(struct buf *node, const char *name, const uint64_t *v, size_t count)
{
    struct buf a = {0};

    put_text(&a, 1, name);
    for (size_t i = 0; i < count; i++) put_number(&a, 8, v[i]);
    put_message(node, 5, &a);
}

static void begin_node(struct buf *node, const char *op, const char *name, const char *in0, const char *in1,
                       const char *out)
{
    put_text(node, 1, in0);
    if (in1 != NULL) put_text(node, 1, in1);
    put_text(node, 2, out);
    if (name != NULL) put_text(node, 3, name);
    put_text(node, 4, op);
}

/* A convolution, a reshape by a constant, a matrix product. */
static void write_onnx(struct buf *out)
{
    struct buf graph = {0}, node = {0};
    const int64_t shape[] = {0, -1};

    begin_node(&node, "Conv", "/conv 1/\u00f3", "x", "c.w", "c");
    put_ints(&node, "kernel_shape", (const uint64_t[]){3, 3}, 2);
    put_ints(&node, "pads", (const uint64_t[]){1, 1, 1, 1}, 4);
    put_message(&graph, 1, &node);
    begin_node(&node, "Reshape", NULL, "c", "shape", "flat");
    put_message(&graph, 1, &node);
    begin_node(&node, "MatMul", "mm", "flat", "w", "y");
    put_message(&graph, 1, &node);
    put_tensor(&graph, "c.w", 1, (const uint64_t[]){8, 3, 3, 3}, 4, NULL);
    put_tensor(&graph, "shape", 7, (const uint64_t[]){2}, 1, shape);
    put_tensor(&graph, "w", 10, (const uint64_t[]){512, 10}, 2, NULL);
    put_value_info(&graph, 11, "x", "batch", (const uint64_t[]){3, 8, 8}, 3);
    put_value_info(&graph, 12, "y", "batch", (const uint64_t[]){10}, 1);
    put_number(out, 1, 8);
    put_message(out, 7, &graph);
}

TEST(onnx_gives_nodes_constants_shapes_and_types)
{
    struct buf file = {0};
    struct viz_graph g = {0};
    struct error e;
    char shape[VIZ_SHAPE_TEXT];

    write_onnx(&file);
    CHECK_OK(viz_read(&g, bytes_of(file.at, file.size), &e), &e);
    viz_roles(&g);
    CHECK_EQ(g.node_count, 7);
    CHECK_EQ(node(&g, "x")->role, ROLE_DATA);
    CHECK_TEXT(viz_shape_text(&node(&g, "x")->shapes[0], shape), "Nx3x8x8");
    CHECK_EQ(node(&g, "c.w")->role, ROLE_PARAM);
    CHECK_EQ(node(&g, "w")->dtype, VIZ_DTYPE_float16);
    CHECK_EQ(node(&g, "shape")->role, ROLE_AUX);
    CHECK_EQ(node(&g, "shape")->ints[1], -1);
    CHECK_TEXT(viz_attr(node(&g, "/conv 1/\u00f3"), "pad"), "(1, 1, 1, 1)");
    CHECK_EQ(node(&g, "Reshape1")->inputs[0].node, 2);
    CHECK(node(&g, "mm")->head);
    viz_graph_fini(&g);
    buf_fini(&file);
}

TEST(onnx_that_is_cut_anywhere_is_an_error_and_reads_no_further)
{
    struct buf file = {0};
    struct error e;

    write_onnx(&file);
    for (size_t size = 1; size < file.size; size++) {
        char *guard = guard_new(size);
        struct viz_graph g = {0};
        memcpy(guard, file.at, size);
        CHECK(viz_read(&g, bytes_of(guard, size), &e) != STATUS_OK);
        viz_graph_fini(&g);
        guard_free(guard, size);
    }
    buf_fini(&file);
}

TEST(onnx_with_a_cycle_or_a_missing_value_names_the_node)
{
    struct buf graph = {0}, node_text = {0}, file = {0};
    struct viz_graph g = {0};
    struct error e;

    begin_node(&node_text, "Relu", "first", "b", NULL, "a");
    put_message(&graph, 1, &node_text);
    begin_node(&node_text, "Relu", "second", "a", NULL, "b");
    put_message(&graph, 1, &node_text);
    put_message(&file, 7, &graph);
    CHECK_EQ(viz_read(&g, bytes_of(file.at, file.size), &e), STATUS_INVALID_ARGUMENT);
    CHECK_SAYS(e.text, "node 0 ('first'): input 0, 'b', is made by nothing before it");
    viz_graph_fini(&g);
    buf_fini(&file);
}

/* ---- keys ---------------------------------------------------------------------------------------------------- */

TEST(keys_become_a_tree_by_their_prefixes)
{
    const struct viz_key keys[] = {
        {.name = "a_1_conv_weight"},
        {.name = "a_1_bn_gamma"},
        {.name = "a_1_bn_moving_mean"},
        {.name = "a_2_conv_weight"},
        {.name = "b"},
        {.name = "a_1_conv_bias"},
        {.name = "a_2_bn_gamma"},
    };
    struct viz_graph g = {0};
    struct error e;

    CHECK_OK(viz_read_keys(&g, "default", keys, 7, &e), &e);
    CHECK_EQ(g.node_count, 7 + 9); /* default, a, a_1, a_2, and five groups */
    CHECK_EQ(node(&g, "a_1_bn")->input_count, 3);
    CHECK_TEXT(g.nodes[node(&g, "a_1_bn")->inputs[0].node].name, "a_1");
    CHECK_TEXT(g.nodes[node(&g, "a_2")->inputs[0].node].name, "a");
    viz_graph_fini(&g);
}

TEST(every_allocation_may_fail)
{
    struct net n = {0};
    struct buf onnx = {0};
    struct bytes files[2] = {net_factorization(&n, true)};

    write_onnx(&onnx);
    files[1] = bytes_of(onnx.at, onnx.size);
    for (size_t f = 0; f < 2; f++)
        for (uint64_t at = 1;; at++) {
            int64_t live = mem_live();
            struct buf out = {0};
            struct error e;
            const char *media;
            mem_fault_at(at);
            enum status s = viz_render(files[f], NULL, &out, &media, &e);
            int hit = mem_fault_hit();
            mem_fault_at(0);
            buf_fini(&out);
            CHECK_EQ(mem_live(), live);
            if (!hit) break;
            CHECK_EQ(s, STATUS_RESOURCE_EXHAUSTED);
        }
    buf_fini(&onnx);
    net_fini(&n);
}
