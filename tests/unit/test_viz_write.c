/* What is written: texts, drawings, escapes. Golden files lie in tests/golden; WRITE_GOLDEN=1 writes them anew,
 * and the difference is then to be looked at. */
#include "tests/lib/nets.h"
#include "tests/lib/test.h"
#include "service/base/mem.h"
#include "web/viz/viz.h"
#include "web/viz/write.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Renders with options written as JSON with ' for ". The caller frees the text. */
static enum status render(struct bytes file, const char *options, struct buf *out, struct error *e)
{
    char text[2000];
    const char *media;

    snprintf(text, sizeof text, "%s", options);
    for (char *at = text; *at != '\0'; at++)
        if (*at == '\'') *at = '"';
    json_t *o = json_loads(text, 0, NULL);
    CHECK(o != NULL);
    enum status s = viz_render(file, o, out, &media, e);
    json_decref(o);
    if (s == STATUS_OK) buf_add(out, "", 1);
    return s;
}

static const char *text_of(const struct buf *b) { return (const char *)b->at; }

static void check_golden(const char *name, const struct buf *got)
{
    char path[200];
    struct buf want = {0};
    char piece[4096];
    size_t n;

    snprintf(path, sizeof path, "tests/golden/%s", name);
    FILE *f = fopen(path, getenv("WRITE_GOLDEN") != NULL ? "w" : "r");
    if (f == NULL) test_fail(__FILE__, __LINE__, "%s cannot be opened; tests run in the root", path);
    if (getenv("WRITE_GOLDEN") != NULL) fwrite(got->at, 1, got->size - 1, f);
    else {
        while ((n = fread(piece, 1, sizeof piece, f)) > 0) buf_add(&want, piece, n);
        buf_add(&want, "", 1);
        CHECK_TEXT(text_of(got), text_of(&want));
    }
    fclose(f);
    buf_fini(&want);
}

/* Elements are closed in order, and what stands between and in quotes has no bare < or &. */
static void check_xml(const char *at)
{
    const char *open[64];
    size_t size[64], depth = 0, elements = 0;

    for (; *at != '\0'; at++) {
        if (*at == '&') {
            CHECK(strncmp(at, "&amp;", 5) == 0 || strncmp(at, "&lt;", 4) == 0 || strncmp(at, "&gt;", 4) == 0 ||
                  strncmp(at, "&quot;", 6) == 0 || strncmp(at, "&#", 2) == 0);
            continue;
        }
        CHECK((unsigned char)*at >= 32 || *at == '\n');
        if (*at != '<') continue;
        const char *end = strchr(at, '>');
        CHECK(end != NULL && memchr(at + 1, '<', (size_t)(end - at - 1)) == NULL);
        if (at[1] == '/') {
            CHECK(depth > 0);
            depth--;
            CHECK(size[depth] == (size_t)(end - at - 2) && memcmp(open[depth], at + 2, size[depth]) == 0);
        } else if (end[-1] != '/') {
            CHECK(depth < 64);
            open[depth] = at + 1;
            size[depth++] = strcspn(at + 1, " >");
        }
        elements++;
        at = end;
    }
    CHECK_EQ(depth, 0);
    CHECK(elements > 3);
}

TEST(the_factorization_is_written_as_before)
{
    static const struct { const char *options, *golden; } rows[] = {
        {"{'format': 'text'}", "factorization.txt"},
        {"{'format': 'text', 'shapes': {'user': ['N'], 'item': ['N']}}", "factorization_shapes.txt"},
        {"{'format': 'summary', 'shapes': 'user=64;item=64'}", "factorization_summary.txt"},
        {"{'format': 'summary', 'positions': [0.44, 0.64, 0.74, 1.0]}", "factorization_summary_mxnet.txt"},
        {"{'format': 'summary', 'view': 'mxnet', 'shapes': 'user=64;item=64'}", "factorization_print_summary.txt"},
        {"{'format': 'dot', 'view': 'mxnet'}", "factorization_mxnet.dot"},
        {"{'format': 'dot', 'view': 'mxnet', 'shapes': {'user': ['N'], 'item': ['N']}, 'dtypes': {'user': 'float32'}, "
         "'node_attrs': {'shape': 'rect', 'fixedsize': 'false'}, 'hide_weights': false, 'title': 'mf'}", "factorization_mxnet_shapes.dot"},
        {"{'shapes': 'user=N;item=N', 'style': false}", "factorization.svg"},
    };
    struct net n = {0};
    struct bytes file = net_factorization(&n, false);

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct buf out = {0};
        struct error e;
        CHECK_OK(render(file, rows[i].options, &out, &e), &e);
        check_golden(rows[i].golden, &out);
        buf_fini(&out);
    }
    net_fini(&n);
}

/* One node of each kind that plot_network knows. */
TEST(labels_and_colours_of_mxnet_are_kept)
{
    struct net n = {0};
    struct buf out = {0};
    struct error e;

    unsigned data = net_var(&n, "data"), w = net_var(&n, "c_weight"), gamma = net_var(&n, "b_gamma"),
             odd = net_var(&n, "W");
    unsigned x = net_op(&n, "Convolution", "c",
                        "\"kernel\": \"(3, 5)\", \"stride\": \"(2, 1)\", \"num_filter\": \"64\"", data, w, -1);
    x = net_op(&n, "Convolution", "c2", "\"kernel\": \"(3, 3)\", \"num_filter\": \"8\"", x, odd, -1);
    x = net_op(&n, "BatchNorm", "b", "", x, gamma, -1);
    x = net_op(&n, "Activation", "a", "\"act_type\": \"relu\"", x, -1);
    x = net_op(&n, "LeakyReLU", "l", "", x, -1);
    x = net_op(&n, "LeakyReLU", "l2", "\"act_type\": \"elu\"", x, -1);
    x = net_op(&n, "Pooling", "p", "\"pool_type\": \"avg\", \"kernel\": \"(2, 2)\", \"stride\": \"(2, 2)\"", x, -1);
    x = net_op(&n, "Pooling", "p2", "\"pool_type\": \"max\", \"global_pool\": \"True\"", x, -1);
    x = net_op(&n, "Flatten", "f", "", x, -1);
    x = net_op(&n, "FullyConnected", "fc", "\"num_hidden\": \"10\"", x, -1);
    x = net_op(&n, "Custom", "cu", "\"op_type\": \"mine\"", x, -1);
    unsigned other = net_op(&n, "Reshape", "r", "\"shape\": \"(0, -1)\"", x, -1);
    x = net_op(&n, "Concat", "co", "", x, other, -1);
    unsigned soft = net_op(&n, "Softmax", "s", "", x, -1);
    CHECK_OK(render(net_end(&n, net_op(&n, "SoftmaxOutput", "so", "", soft, -1)),
                    "{'format': 'dot', 'view': 'mxnet'}", &out, &e),
             &e);
    check_golden("mxnet_labels.dot", &out);
    buf_fini(&out);
    net_fini(&n);
}

TEST(a_layer_more_is_described_rightly)
{
    struct net n = {0};
    struct buf out = {0};
    struct error e;

    CHECK_OK(render(net_factorization(&n, true), "{'format': 'text', 'shapes': 'user=8;item=8'}", &out, &e), &e);
    check_golden("factorization_hidden.txt", &out);
    CHECK_SAYS(text_of(&out), "3. `hidden`: fully connected layer over `item_embed` with 64 units.");
    CHECK_SAYS(text_of(&out), "4. `product`: elementwise product of `user_embed` and `hidden`.");
    CHECK_SAYS(text_of(&out), "100,160");
    buf_fini(&out);
    net_fini(&n);
}

TEST(a_block_that_repeats_is_one_sentence)
{
    struct net n = {0};
    struct buf out = {0};
    struct error e;

    CHECK_OK(render(net_residual(&n, 9), "{'format': 'text'}", &out, &e), &e);
    CHECK_SAYS(text_of(&out), "`unit0_bn1` to `unit8_plus`: a block, 9 times over, each behind the one before: "
                              "BatchNorm, Activation relu");
    CHECK(strstr(text_of(&out), "8. ") == NULL);
    buf_fini(&out);
    net_fini(&n);
}

TEST(every_parameter_is_counted_once)
{
    struct net n = {0};
    struct buf out = {0};
    struct error e;

    unsigned ids = net_var(&n, "ids"), table = net_var(&n, "table_weight");
    const char *attrs = "\"input_dim\": \"100\", \"output_dim\": \"4\"";
    unsigned a = net_op(&n, "Embedding", "a", attrs, ids, table, -1),
             b = net_op(&n, "Embedding", "b", attrs, ids, table, -1);
    unsigned sum = net_op(&n, "elemwise_add", "sum", "", a, b, -1), custom = net_var(&n, "odd_weight");
    CHECK_OK(render(net_end(&n, net_op(&n, "Custom", "c", "\"op_type\": \"x\"", sum, custom, -1)),
                    "{'format': 'summary-json', 'keys': [{'key': 'odd_weight', 'shape': [3, 5], 'dtype': 'float16', 'updater': 'adam'}]}", &out, &e), &e);
    json_t *j = json_loads(text_of(&out), 0, NULL), *total = json_object_get(j, "total");
    CHECK_EQ(json_integer_value(json_object_get(total, "parameters")), 400 + 15);
    CHECK_EQ(json_integer_value(json_object_get(total, "bytes")), 1600 + 30);
    CHECK_EQ(json_integer_value(json_object_get(total, "arrays")), 2);
    json_decref(j);
    buf_clear(&out);
    CHECK_OK(render(bytes_of(n.text.at, n.text.size - 1), "{'format': 'summary'}", &out, &e), &e);
    CHECK_SAYS(text_of(&out), "Not counted, as their shape is not known: 1 array");
    buf_fini(&out);
    net_fini(&n);
}

TEST(names_with_anything_in_them_survive_and_break_nothing)
{
    const char *name = "a <b> & \\\"c\\\" 'd' \\\\ sum_ reducci\u00f3n \u4e2d \\u0001 ]]> --\\n\uffff";
    static const char *const formats[] = {"svg", "json", "dot", "text", "summary", "summary-json"};
    static const char *const views[] = {"default", "full", "mxnet", "blocks"};
    struct net n = {0};
    struct error e;

    net_var(&n, name);
    net_op(&n, name, name, "\"k\\\"</title>\": \"<script>alert(1)</script>\"", 0, -1);
    struct bytes file = net_end(&n, 1);
    for (size_t f = 0; f < 6; f++)
        for (size_t v = 0; v < 4; v++) {
            struct buf out = {0};
            char options[200];
            snprintf(options, sizeof options, "{'format': '%s', 'view': '%s', 'title': 't<&>'}", formats[f],
                     views[v]);
            CHECK_OK(render(file, options, &out, &e), &e);
            CHECK(bytes_is_utf8(bytes_of(out.at, out.size - 1)));
            CHECK_SAYS(text_of(&out), "reducci\u00f3n \u4e2d");
            if (strcmp(formats[f], "svg") == 0) check_xml(text_of(&out));
            if (strcmp(formats[f], "svg") == 0) CHECK(strstr(text_of(&out), "<script") == NULL);
            if (strstr(formats[f], "json") != NULL) {
                json_t *j = json_loads(text_of(&out), 0, NULL);
                CHECK(j != NULL);
                json_decref(j);
            }
            buf_fini(&out);
        }
    net_fini(&n);
}

TEST(keys_colour_their_boxes_and_the_legend_tells_the_scale)
{
    struct net n = {0};
    struct buf out = {0};
    struct error e;
    struct bytes file = net_factorization(&n, false);

    CHECK_OK(render(file,
                    "{'color': 'version', 'keys': [{'key': 'user_weight', 'version': 3, 'shape': [1000, 64]}, "
                    "{'key': 'item_weight', 'version': 10, 'shape': [500, 64]}]}",
                    &out, &e),
             &e);
    CHECK_SAYS(text_of(&out), "class=\"b layer q0\" data-name=\"user_embed\"");
    CHECK_SAYS(text_of(&out), "class=\"p q6\" data-key=\"item_weight\"");
    CHECK_SAYS(text_of(&out), "graph colored");
    buf_clear(&out);
    CHECK_OK(render(file, "{'color': 'version', 'keys': [{'key': 'user_weight', 'version': 3}]}", &out, &e), &e);
    CHECK_SAYS(text_of(&out), "<g class=\"b q3\" transform=\"translate(0 0)\"><rect"); /* one swatch, where the title begins */
    buf_clear(&out);
    CHECK_OK(render(file, "{'color': 'norm'}", &out, &e), &e);
    CHECK_SAYS(text_of(&out), "not known of any parameter");
    buf_clear(&out);
    CHECK_OK(render(file, "{'format': 'json', 'color': 'size'}", &out, &e), &e);
    json_t *j = json_loads(text_of(&out), 0, NULL);
    CHECK_EQ(json_array_size(json_object_get(j, "nodes")), 9);
    CHECK_EQ(json_array_size(json_object_get(j, "edges")), 8);
    CHECK_EQ(json_integer_value(json_object_get(json_array_get(json_object_get(j, "nodes"), 1), "q")), 6);
    json_decref(j);
    buf_fini(&out);
    net_fini(&n);
}

TEST(a_store_without_a_network_is_drawn_as_a_tree)
{
    struct buf out = {0};
    struct error e;

    CHECK_OK(render((struct bytes){0},
                    "{'store': 'my store', 'keys': [{'key': 'fc1_weight', 'shape': [4, 2]}, {'key': 'fc1_bias', "
                    "'shape': [4]}]}",
                    &out, &e),
             &e);
    check_xml(text_of(&out));
    CHECK_SAYS(text_of(&out), ">my store</text>");
    CHECK_SAYS(text_of(&out), "data-key=\"fc1_weight\"");
    CHECK_SAYS(text_of(&out), ">weight 4x2</text>");
    buf_clear(&out);
    CHECK_OK(render((struct bytes){0}, "{'keys': []}", &out, &e), &e);
    check_xml(text_of(&out));
    buf_clear(&out);
    CHECK_EQ(render((struct bytes){0}, "{}", &out, &e), STATUS_INVALID_ARGUMENT);
    buf_fini(&out);
}

TEST(an_option_that_is_wrong_is_told_by_name)
{
    static const struct { const char *options, *says; } rows[] = {
        {"{'colour': 'op'}", "did you mean color?"},
        {"{'format': 'gif'}", "none of svg, png"},
        {"{'view': 3}", "view"},
        {"{'color': 'warm'}", "grad_norm"},
        {"{'direction': 'left'}", "down, up, right"},
        {"{'shapes': 'user'}", "data=1,3,224,224"},
        {"{'shapes': {'user': ['x', 'y', 1, 1, 1, 1, 1, 1, 1]}}", "'user'"},
        {"{'shapes': {'user': 'N,a'}}", "'user'"},
        {"{'shapes': [1]}", "object"},
        {"{'shapes': {'usre': [1]}}", "did you mean 'user'"},
        {"{'dtypes': {'user': 'float31'}}", "float32"},
        {"{'keys': 1}", "list"},
        {"{'keys': [{}]}", "key"},
        {"{'positions': [1, 2]}", "four"},
        {"{'line_length': 3}", "10 to 1000"},
        {"{'hide_weights': 'no'}", "true or false"},
        {"{'title': 1}", "title"},
    };
    struct net n = {0};
    struct bytes file = net_factorization(&n, false);

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct buf out = {0};
        struct error e;
        CHECK_EQ(render(file, rows[i].options, &out, &e), STATUS_INVALID_ARGUMENT);
        CHECK_SAYS(e.text, rows[i].says);
        buf_fini(&out);
    }
    net_fini(&n);
}

TEST(what_is_too_large_in_detail_is_drawn_by_blocks)
{
    struct net n = {0};
    struct buf out = {0};
    struct error e;

    net_var(&n, "data");
    for (int i = 0; i < 4000; i++) {
        char name[32];
        snprintf(name, sizeof name, "part%d_x%d", i / 100, i);
        net_op(&n, i % 7 == 0 ? "elemwise_mul" : i % 5 == 0 ? "Concat" : "elemwise_add", name, "", i, i / 2, -1);
    }
    CHECK_OK(render(net_end(&n, 4000), "{}", &out, &e), &e);
    CHECK(strstr(text_of(&out), ">part7</text>") != NULL);
    buf_fini(&out);
    net_fini(&n);
}

TEST(png_and_pdf_come_from_rsvg_convert_or_an_error_names_the_package)
{
    struct net n = {0};
    struct bytes file = net_factorization(&n, false);
    struct buf out = {0};
    struct error e;

    if (access("/usr/bin/rsvg-convert", X_OK) == 0) {
        CHECK_OK(render(file, "{'format': 'png'}", &out, &e), &e);
        CHECK(out.size > 1000 && memcmp(out.at, "\x89PNG", 4) == 0);
        buf_clear(&out);
        CHECK_OK(render(file, "{'format': 'pdf'}", &out, &e), &e);
        CHECK(memcmp(out.at, "%PDF", 4) == 0);
        buf_clear(&out);
    }
    char *path = strdup(getenv("PATH"));
    setenv("PATH", "/nowhere", 1);
    CHECK_EQ(render(file, "{'format': 'png'}", &out, &e), STATUS_UNIMPLEMENTED);
    CHECK_SAYS(e.text, "librsvg2-bin");
    setenv("PATH", path, 1);
    free(path);
    buf_fini(&out);
    net_fini(&n);
}

/* The number behind `name="`, which must be before `end`. */
static double number_of(const char *at, const char *end, const char *name)
{
    const char *found = strstr(at, name);

    if (found == NULL || found >= end) return -1;
    return strtod(found + strlen(name), NULL);
}

TEST(no_text_can_leave_its_box_whatever_the_font)
{
    static const char *const options[] = {"{}", "{'view': 'full'}", "{'view': 'mxnet'}", "{'view': 'blocks'}",
                                          "{'direction': 'right', 'shapes': 'user=64;item=64'}"};
    struct net n = {0};
    struct bytes file = net_factorization(&n, false);

    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        struct buf out = {0};
        struct error e;
        double box = -1;
        unsigned texts = 0;
        CHECK_OK(render(file, options[i], &out, &e), &e);
        for (const char *at = text_of(&out); (at = strchr(at, '<')) != NULL; at++) {
            const char *end = strchr(at, '>');
            if (strncmp(at, "<rect ", 6) == 0) box = number_of(at, end, " width=\"");
            if (strncmp(at, "<text ", 6) != 0) continue;
            double length = number_of(at, end, " textLength=\"");
            CHECK(length > 0);
            CHECK(strncmp(at, "<text class=\"l\"", 15) == 0 || length <= box); /* what is at an arrow has no box */
            CHECK(strstr(at, "lengthAdjust=\"spacingAndGlyphs\"") != NULL);
            texts++;
        }
        CHECK(texts > 8);
        buf_fini(&out);
    }
    net_fini(&n);
}

TEST(a_beginning_that_all_names_share_is_no_block)
{
    struct net n = {0};
    struct buf out = {0};
    struct error e;
    int last;

    net_var(&n, "data");
    last = (int)net_op(&n, "Activation", "net0_a_relu", "", 0, -1, -1, -1, -1);
    last = (int)net_op(&n, "Activation", "net0_a_tanh", "", last, -1, -1, -1, -1);
    last = (int)net_op(&n, "Activation", "net0_b_relu", "", last, -1, -1, -1, -1);
    last = (int)net_op(&n, "Activation", "net0_b_tanh", "", last, -1, -1, -1, -1);
    CHECK_OK(render(net_end(&n, (unsigned)last), "{'view': 'blocks'}", &out, &e), &e);
    CHECK_SAYS(text_of(&out), ">net0_a</text>");
    CHECK_SAYS(text_of(&out), ">net0_b</text>");
    buf_fini(&out);
    net_fini(&n);
}
