/* Commands that create, delete and reset stores, and that delete keys. */
#include "api/paramctl/paramctl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- keys ------------------------------------------------------------------------------------------------------- */

/* A key as the store has them: in a store of names "3" is a name. NULL: it is not UTF-8. */
static json_t *key_json(const struct ctl *c, const char *text, const char *store_type)
{
    const char *type = c->key_type != NULL ? c->key_type : store_type;
    char *end;

    errno = 0;
    long long n = strtoll(text, &end, 10);
    bool is_number = errno == 0 && end != text && *end == '\0';
    if (is_number && (type == NULL || strcmp(type, "int") == 0)) return json_integer(n);
    return json_string(text);
}

json_t *ask_keys(const struct ctl *c, struct paramd *kv, int *code)
{
    json_t *store = ask_on(c, kv, "GetStore", of_store(c), code);
    json_t *keys = store != NULL ? json_array() : NULL;

    for (int i = 0; keys != NULL && i < c->arg_count; i++) {
        if (json_array_append_new(keys, key_json(c, c->args[i], json_string_value(json_object_get(store, "key_type")))) == 0)
            continue;
        *code = complain_usage("a name is not UTF-8");
        json_decref(keys);
        keys = NULL;
    }
    json_decref(store);
    return keys;
}

int run_delete(const struct ctl *c)
{
    int code = EXIT_ERROR;
    struct paramd *kv = open_daemon(c, &code);
    json_t *keys = kv != NULL ? ask_keys(c, kv, &code) : NULL, *in, *said = NULL;

    if (keys != NULL) {
        in = of_store(c);
        json_object_set_new(in, "keys", keys);
        if (c->force) json_object_set_new(in, "force", json_true());
        said = ask_on(c, kv, "Delete", in, &code);
    }
    paramd_close(kv);
    if (said == NULL) return code;
    if (c->json) return show_json(said);
    say(stdout, "%llu of store %s deleted", whole(said, "deleted"), store_name(c));
    json_decref(said);
    return 0;
}

/* ---- stores ----------------------------------------------------------------------------------------------------- */

/* {"type": WORD}, or the options as they stand. NULL: what is wrong has been said. */
static json_t *create_options(const char *text)
{
    json_error_t why = {.text = "it is something else"};
    json_t *j;

    if (text == NULL || text[0] != '{') return json_pack("{s:s}", "type", text != NULL ? text : "dist_sync");
    j = json_loads(text, JSON_REJECT_DUPLICATES, &why);
    if (j == NULL) complain_usage("the options of a store are a JSON object: %s", why.text);
    else if (json_object_get(j, "type") == NULL) json_object_set_new(j, "type", json_string("dist_sync"));
    return j;
}

static void print_created(const struct ctl *c, json_t *said)
{
    char type[CELL_SIZE];

    say(stdout, "store %s, %s, %s", c->args[1], cell(json_object_get(said, "type"), LOOK_TEXT, type),
           json_is_true(json_object_get(said, "created")) ? "is created" : "was there already");
}

static void print_deleted(const struct ctl *c, json_t *said)
{
    (void)said;
    say(stdout, "store %s is deleted", c->args[1]);
}

static void print_reset(const struct ctl *c, json_t *said)
{
    say(stdout, "store %s is reset: %llu keys are deleted", c->args[1], whole(said, "deleted"));
}

static const struct action {
    const char *name, *method;
    int least, most;                             /* arguments, the name of the action included */
    void (*print)(const struct ctl *c, json_t *said);
} actions[] = {
    {"create", "Create", 2, 3, print_created},
    {"delete", "DeleteStore", 2, 2, print_deleted},
    {"reset", "ResetStore", 2, 2, print_reset},
};

int run_store(const struct ctl *c)
{
    int code = EXIT_ERROR;
    const struct action *a = actions, *end = actions + sizeof actions / sizeof actions[0];
    json_t *in, *said;

    while (a < end && strcmp(a->name, c->args[0]) != 0) a++;
    if (a == end || c->arg_count < a->least || c->arg_count > a->most)
        return complain_usage("usage: paramctl store create NAME [TYPE|JSON], store delete NAME, store reset NAME");
    in = a->most > 2 ? create_options(c->arg_count > 2 ? c->args[2] : NULL) : json_object();
    if (in == NULL) return EXIT_USAGE;
    if (json_object_set_new(in, "store", json_string(c->args[1])) != 0) {
        json_decref(in);
        return complain_usage("a name is no UTF-8");
    }
    said = ask(c, a->method, in, &code);
    if (said == NULL) return code;
    if (c->json) return show_json(said);
    a->print(c, said);
    json_decref(said);
    return 0;
}
