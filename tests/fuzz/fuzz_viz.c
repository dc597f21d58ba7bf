/* Network files: any bytes, drawn in every view and told in every form. The first byte chooses view and format,
 * the second how the rest becomes a file: as it is (ONNX, or JSON by luck), or byte by byte out of a table of
 * words of symbol files, since hardly any JSON is made by chance.
 *
 *   build/fuzz/fuzz_viz -max_total_time=180 build/fuzz/corpus_viz */
#include "service/base/mem.h"
#include "web/viz/viz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

#define MUST(condition)                                                                             \
    do {                                                                                            \
        if (!(condition)) {                                                                         \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition);          \
            abort();                                                                                \
        }                                                                                           \
    } while (0)

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    json_set_alloc_funcs(mem_new, mem_free);
    return 0;
}

static const char *const words[] = {
    "{", "}", "[", "]", ",", ":", "\"", " ", "\"nodes\":[", "]}", "{\"op\":\"null\",\"name\":\"", "\",\"inputs\":[]}", "{\"op\":\"",
    "\",\"name\":\"", "\",\"inputs\":[", "],\"attrs\":{", "}}", "[0,0,0]", "[1,0]", "[2,0,0]", "[3,1,0]", "[4,0]", "0", "1", "-1", "3",
    "64", "9999999999", "Convolution", "FullyConnected", "Embedding", "BatchNorm", "Reshape", "Concat", "Pooling", "elemwise_add", "sum",
    "transpose", "RNN", "SliceChannel", "dot", "softmax", "Activation", "_weight", "\"kernel\":\"(3, 3)\"", "\"shape\":\"(0, -1)\"",
    "\"axis\":\"(1, -2)\"", "\"num_hidden\":\"7\"", "\"num_filter\":\"8\"", "\"__shape__\":\"(2, 3)\"", "\"heads\":[[", "\"node_row_ptr\":[",
    "\"param\":{", "\"attr\":{", "\"dim\":\"0\"", "\"num_outputs\":\"2\"", "\"stride\":\"(0,)\"", "\"axes\":\"(1, 0)\"", "x", "\\u00e9", "block1_",
};

static void words_of(const uint8_t *data, size_t size, struct buf *out)
{
    for (size_t i = 0; i < size; i++) buf_text(out, words[data[i] % (sizeof words / sizeof words[0])]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const formats[] = {"svg", "dot", "json", "summary", "summary-json", "text"};
    static const char *const views[] = {"default", "full", "blocks", "mxnet"}, *const colors[] = {"op", "size",
                                                                                                  "version"};
    struct buf file = {0}, out = {0};
    const char *media;
    struct error e;

    if (size < 2) return 0;
    int64_t live = mem_live();
    if (data[1] % 2 == 0) buf_add(&file, data + 2, size - 2);
    else words_of(data + 2, size - 2, &file);
    json_t *options = json_pack("{s:s, s:s, s:s, s:[{s:s, s:[i, i], s:i}], s:s}", "format", formats[data[0] % 6],
                                "view", views[data[0] / 6 % 4], "color", colors[data[0] / 24 % 3], "keys", "key",
                                "x_weight", "shape", 3, 4, "version", 5, "expand", "n1,n2");
    MUST(options != NULL);
    enum status s = viz_render(bytes_of(file.at, file.size), options, &out, &media, &e);
    if (s == STATUS_OK) {
        MUST(out.size > 0 && bytes_is_utf8(bytes_of(out.at, out.size)));
        if (strcmp(media, "application/json") == 0) {
            json_t *j = json_loadb((const char *)out.at, out.size, 0, NULL);
            MUST(j != NULL);
            json_decref(j);
        }
    } else {
        MUST(e.text[0] != '\0' && bytes_is_utf8(bytes_text(e.text)));
    }
    json_decref(options);
    buf_fini(&file);
    buf_fini(&out);
    MUST(mem_live() == live);
    return 0;
}
