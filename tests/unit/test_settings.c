/* The daemon's settings: which source counts, where a value is said to be from, and every fault with its place. */
#include "service/settings.h"

#include "tests/lib/test.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

static char file[] = "/tmp/paramd_settings_XXXXXX";
static struct settings s;
static struct error e;

/* Everything begins without PARAMD_* and without a file. */
static void begin(void)
{
    settings_fini(&s);
    memset(&s, 0, sizeof s);
    for (char **at = environ; *at != NULL;) {
        char name[100];
        size_t size = strcspn(*at, "=");
        if (strncmp(*at, "PARAMD_", 7) != 0 || size >= sizeof name) {
            at++;
            continue;
        }
        memcpy(name, *at, size);
        name[size] = '\0';
        unsetenv(name);
        at = environ;
    }
}

static void write_file(const char *text)
{
    static bool made;
    int fd = made ? open(file, O_WRONLY | O_TRUNC) : mkstemp(file);

    made = true;
    CHECK(fd >= 0);
    CHECK_EQ(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
}

__attribute__((destructor)) static void remove_file(void) { unlink(file); }

static enum status read_args(const char *const *flags)
{
    char *argv[20] = {(char *)(uintptr_t)"paramd"};
    int argc = 1;

    for (; flags[argc - 1] != NULL; argc++) argv[argc] = (char *)(uintptr_t)flags[argc - 1];
    settings_fini(&s);
    return settings_read(argc, argv, &s, &e);
}
#define READ(...) read_args((const char *const[]){__VA_ARGS__ __VA_OPT__(,) NULL})

static const char *printed(void)
{
    static char text[8192];
    FILE *to = fmemopen(text, sizeof text, "w");

    settings_print(&s, to);
    fclose(to);
    return text;
}

TEST(standards_hold_when_nothing_is_said)
{
    begin();
    CHECK_OK(READ(), &e);
    CHECK_EQ(s.listen.count, 1);
    CHECK_TEXT(s.listen.at[0], "tcp://127.0.0.1:7700");
    CHECK_TEXT(s.admin, "127.0.0.1:7780");
    CHECK(s.bulk == NULL && s.token_file == NULL && !s.insecure);
    CHECK_EQ(s.memory_max, 0);
    CHECK_EQ(s.drain_timeout, 5000);
    CHECK_EQ(s.round_timeout, 60000);
    CHECK_TEXT(s.log, "info");
    CHECK_EQ(s.origins[SETTING_log].from, ORIGIN_STANDARD);
    CHECK_OK(settings_check(&s, &e), &e);
}

TEST(flag_counts_before_environment_before_file_before_standard)
{
    static const struct { bool file, environment, flag; const char *value; enum setting_origin from; } table[] = {
        {false, false, false, "info", ORIGIN_STANDARD}, {true, false, false, "error", ORIGIN_FILE},
        {false, true, false, "warn", ORIGIN_ENVIRONMENT}, {true, true, false, "warn", ORIGIN_ENVIRONMENT},
        {false, false, true, "debug", ORIGIN_FLAG},       {true, false, true, "debug", ORIGIN_FLAG},
        {false, true, true, "debug", ORIGIN_FLAG},        {true, true, true, "debug", ORIGIN_FLAG},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        begin();
        write_file(table[i].file ? "\n# a file\nlog = error\n" : "");
        if (table[i].environment) setenv("PARAMD_LOG", "warn", 1);
        CHECK_OK(table[i].flag ? READ("--config", file, "--log", "debug") : READ("--config", file), &e);
        CHECK_TEXT(s.log, table[i].value);
        CHECK_EQ(s.origins[SETTING_log].from, table[i].from);
        CHECK_EQ(s.origins[SETTING_log].line, table[i].from == ORIGIN_FILE ? 3 : 0);
    }
}

TEST(a_list_is_replaced_as_a_whole_by_the_next_source)
{
    begin();
    write_file("listen = tcp://127.0.0.1:1\nlisten = tcp://127.0.0.1:2\n");
    CHECK_OK(READ("--config", file), &e);
    CHECK_EQ(s.listen.count, 2);
    CHECK_TEXT(s.listen.at[1], "tcp://127.0.0.1:2");
    setenv("PARAMD_LISTEN", "tcp://127.0.0.1:3,ipc:///tmp/a,tcp://127.0.0.1:4", 1);
    CHECK_OK(READ("--config", file), &e);
    CHECK_EQ(s.listen.count, 3);
    CHECK_TEXT(s.listen.at[2], "tcp://127.0.0.1:4");
    CHECK_OK(READ("--config", file, "--listen", "tcp://127.0.0.1:5"), &e);
    CHECK_EQ(s.listen.count, 1);
    CHECK_TEXT(s.listen.at[0], "tcp://127.0.0.1:5");
}

TEST(the_file_takes_comments_blanks_and_both_kinds_of_names)
{
    begin();
    write_file("# all\n\n  token_file = /run/a#b   # why\n\tdrain-timeout=2.5\r\ninsecure = yes\nmemory-max =  3g");
    CHECK_OK(READ("--config", file), &e);
    CHECK_TEXT(s.token_file, "/run/a#b");
    CHECK_EQ(s.drain_timeout, 2500);
    CHECK(s.insecure);
    CHECK_EQ(s.memory_max, (uint64_t)3 << 30);
    CHECK_EQ(s.origins[SETTING_memory_max].line, 6);
}

TEST(the_file_may_be_named_in_the_environment)
{
    begin();
    write_file("log = debug\n");
    setenv("PARAMD_CONFIG", file, 1);
    CHECK_OK(READ(), &e);
    CHECK_TEXT(s.log, "debug");
}

TEST(an_empty_variable_is_none)
{
    begin();
    setenv("PARAMD_LOG", "", 1);
    setenv("PARAMD_TOKEN_FILE", "", 1);
    CHECK_OK(READ(), &e);
    CHECK_TEXT(s.log, "info");
    CHECK(s.token_file == NULL);
}

TEST(numbers_of_each_kind)
{
    static const struct { const char *flag, *value; bool good; uint64_t want; } table[] = {
        {"--memory-max", "0", true, 0}, {"--memory-max", "1024", true, 1024}, {"--memory-max", "2k", true, 2048},
        {"--memory-max", "3M", true, 3 << 20}, {"--memory-max", "1t", true, (uint64_t)1 << 40},
        {"--memory-max", "18446744073709551615", true, UINT64_MAX}, {"--memory-max", "18446744073709551616", false, 0},
        {"--memory-max", "17592186044416m", false, 0}, {"--memory-max", "12q", false, 0}, {"--memory-max", "1kk", false, 0},
        {"--memory-max", "-1", false, 0}, {"--memory-max", " 1", false, 0}, {"--memory-max", "", false, 0},
        {"--memory-max", "k", false, 0}, {"--memory-max", "0x10", false, 0},
        {"--drain-timeout", "0", true, 0}, {"--drain-timeout", "0.25", true, 250}, {"--drain-timeout", "604800", true, 604800000},
        {"--drain-timeout", "604801", false, 0}, {"--drain-timeout", "nan", false, 0}, {"--drain-timeout", "inf", false, 0},
        {"--drain-timeout", "1e3", true, 1000000}, {"--drain-timeout", "-1", false, 0}, {"--drain-timeout", "1s", false, 0},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        begin();
        enum status st = READ(table[i].flag, table[i].value);
        CHECK_EQ(st == STATUS_OK, table[i].good);
        if (table[i].good) CHECK_EQ(table[i].flag[2] == 'm' ? s.memory_max : s.drain_timeout, table[i].want);
        else CHECK_SAYS(e.text, table[i].flag);
    }
    begin();
    CHECK_EQ(READ("--round-timeout", "0"), STATUS_INVALID_ARGUMENT);
    CHECK_SAYS(e.text, "0.001");
    CHECK_EQ(READ("--threads", "1025"), STATUS_INVALID_ARGUMENT);
    CHECK_EQ(READ("--threads", "2k"), STATUS_INVALID_ARGUMENT);
}

TEST(every_fault_of_a_flag_is_told)
{
    static const struct { const char *flags[3]; const char *says; } table[] = {
        {{"--lisen", "tcp://127.0.0.1:1"}, "--lisen: no such flag; did you mean --listen?"},
        {{"--confg=x"}, "did you mean --config?"},
        {{"--print-confi"}, "did you mean --print-config?"},
        {{"--help=3"}, "--help takes no value"},
        {{"--utterly-else"}, "--utterly-else: no such flag; see --help"},
        {{"--listen"}, "--listen needs URL"},
        {{"--config"}, "--config needs FILE"},
        {{"--log", "loud"}, "--log: 'loud' is no choice: it is one of error|warn|info|debug"},
        {{"--log-format", "xml"}, "text|json"},
        {{"--insecure=perhaps"}, "--insecure: 'perhaps' is no flag: it is true or false"},
        {{"--token-file="}, "--token-file: '' is no FILE"},
        {{"--listen="}, "--listen: ''"},
        {{"serve"}, "'serve' is no flag"},
        {{"-x"}, "'-x' is no flag"},
        {{"--config", "/nonexistent/paramd.conf"}, "/nonexistent/paramd.conf: No such file"},
        {{"--config", "/tmp"}, "--config /tmp: Is a directory"},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        begin();
        CHECK_EQ(read_args(table[i].flags), STATUS_INVALID_ARGUMENT);
        CHECK_SAYS(e.text, table[i].says);
    }
}

TEST(every_fault_of_a_file_is_told_with_its_line)
{
    static const struct { const char *text, *says; } table[] = {
        {"log = info\nlisen = tcp://127.0.0.1:1\n", ":2: 'lisen' is no setting; did you mean listen?"},
        {"utterly_else = 1\n", ":1: 'utterly_else' is no setting; see --help"},
        {"config = other\n", ":1: 'config' is no setting"},
        {"\n\nlog\n", ":3: an entry is written NAME = VALUE"},
        {"= info\n", ":1: an entry is written NAME = VALUE"},
        {"log info\n", ":1: an entry is written NAME = VALUE"},
        {"log = loud\n", ":1: log: 'loud' is no choice"},
        {"staging_max = lots\n", ":1: staging-max: 'lots' is no number of bytes, such as 512m"},
        {"token-file =\n", ":1: token-file: '' is no FILE"},
        {"insecure = si\n", ":1: insecure: 'si' is no flag"},
        {"listen=a\nlisten=a\nlisten=a\nlisten=a\nlisten=a\nlisten=a\nlisten=a\nlisten=a\nlisten=a\n", ":9: listen: 'a'"},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        begin();
        write_file(table[i].text);
        CHECK_EQ(READ("--config", file), STATUS_INVALID_ARGUMENT);
        CHECK_SAYS(e.text, table[i].says);
        CHECK_SAYS(e.text, file);
    }
}

TEST(a_file_that_is_no_text_or_too_long_is_refused)
{
    static char big[SETTINGS_FILE_SIZE_MAX + 2];

    begin();
    memset(big, '\n', sizeof big - 2);
    write_file(big);
    CHECK_OK(READ("--config", file), &e);
    memset(big, '\n', sizeof big - 1);
    write_file(big);
    CHECK_EQ(READ("--config", file), STATUS_INVALID_ARGUMENT);
    CHECK_EQ(READ("--config", "/proc/self/environ"), STATUS_INVALID_ARGUMENT);
    CHECK_SAYS(e.text, "no text");
}

TEST(every_fault_of_the_environment_is_told_with_its_name)
{
    begin();
    setenv("PARAMD_STAGING_MAX", "lots", 1);
    CHECK_EQ(READ(), STATUS_INVALID_ARGUMENT);
    CHECK_SAYS(e.text, "PARAMD_STAGING_MAX: 'lots'");
    begin();
    setenv("PARAMD_LISTEN", "tcp://127.0.0.1:1,", 1);
    CHECK_EQ(READ(), STATUS_INVALID_ARGUMENT);
    CHECK_SAYS(e.text, "PARAMD_LISTEN: ''");
}

static int strangers;
static char stranger[100], nearest[100];

static void note_stranger(const char *name, const char *near)
{
    strangers++;
    snprintf(stranger, sizeof stranger, "%s", name);
    snprintf(nearest, sizeof nearest, "%s", near != NULL ? near : "-");
}

TEST(an_unknown_variable_is_told_and_no_fault)
{
    begin();
    setenv("PARAMD_LOG", "warn", 1);
    setenv("PARAMD_URL", "tcp://127.0.0.1:1", 1); /* a client's */
    strangers = 0;
    settings_strangers(note_stranger);
    CHECK_EQ(strangers, 0);
    setenv("PARAMD_LISTN", "tcp://127.0.0.1:1", 1);
    CHECK_OK(READ(), &e);
    settings_strangers(note_stranger);
    CHECK_EQ(strangers, 1);
    CHECK_TEXT(stranger, "PARAMD_LISTN");
    CHECK_TEXT(nearest, "PARAMD_LISTEN");
    begin();
    setenv("PARAMD_PORT_7700_TCP_PROTO", "tcp", 1);
    settings_strangers(note_stranger);
    CHECK_EQ(strangers, 2);
    CHECK_TEXT(nearest, "-");
}

TEST(doors_that_others_reach_need_a_token_and_loopback_is_loopback)
{
    static const struct { const char *flag, *value; bool good; } table[] = {
        {"--listen", "tcp://127.0.0.1:0", true},     {"--listen", "tcp://127.255.0.9:0", true},
        {"--listen", "tcp://localhost:0", true},     {"--listen", "tcp://[::1]:0", true},
        {"--listen", "ipc:///tmp/x", true},          {"--listen", "tcp://0.0.0.0:0", false},
        {"--listen", "tcp://*:0", false},            {"--listen", "tcp://[::]:0", false},
        {"--listen", "tcp://127.0.0.1.evil.example:0", false},
        {"--listen", "tcp://localhost.example:0", false},
        {"--bulk", "off", true},                     {"--bulk", "tcp://10.0.0.1:0", false},
        {"--admin", "127.0.0.1:0", true},            {"--admin", "0.0.0.0:0", false},
        {"--admin", "off", true},                    {"--probe", "0.0.0.0:0", true},
        {"--probe", "off", true},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        begin();
        CHECK_OK(READ(table[i].flag, table[i].value), &e);
        CHECK_EQ(settings_check(&s, &e) == STATUS_OK, table[i].good);
        if (!table[i].good) CHECK_SAYS(e.text, "--token-file");
        CHECK_OK(READ(table[i].flag, table[i].value, "--insecure"), &e);
        CHECK_OK(settings_check(&s, &e), &e);
        CHECK_OK(READ(table[i].flag, table[i].value, "--token-file", "/run/token"), &e);
        CHECK_OK(settings_check(&s, &e), &e);
    }
}

TEST(urls_and_devices_are_checked_beforehand)
{
    static const struct { const char *flag, *value, *says; } table[] = {
        {"--listen", "ws://127.0.0.1:1", "--listen: "}, {"--listen", "tcp://127.0.0.1", "--listen: "},
        {"--listen", "tcp://127.0.0.1:70000", "--listen: "}, {"--bulk", "on", "off means"}, {"--admin", "7780", "--admin: "},
        {"--admin", "of", "HOST:PORT is expected, or off"},
        {"--probe", "127.0.0.1:x", "--probe: "},        {"--device", "tpu", "one of auto, cpu, cuda:N"},
        {"--device", "cuda:", "one of auto, cpu"},      {"--device", "cuda:0,", "cuda:N,M"},
        {"--device", "cuda:0,1,0", "none twice"},       {"--device", "cuda:0,,1", "cuda:N,M"},
        {"--device", "cuda:0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16", "16 at most"}, {"--device", "cuda0", "cuda:N"},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        begin();
        CHECK_OK(READ(table[i].flag, table[i].value), &e);
        CHECK_EQ(settings_check(&s, &e), STATUS_INVALID_ARGUMENT);
        CHECK_SAYS(e.text, table[i].says);
    }
}

TEST(what_is_printed_tells_origins_and_can_be_read_again)
{
    begin();
    write_file("\nmemory-max = 5g\nlisten = ipc:///tmp/a\nlisten = tcp://127.0.0.1:0\n");
    setenv("PARAMD_DRAIN_TIMEOUT", "1.5", 1);
    CHECK_OK(READ("--config", file, "--log=warn", "--insecure", "--token-file", "/run/secret"), &e);
    const char *text = printed();
    char origin[64];
    snprintf(origin, sizeof origin, "# %s:2\n", file);
    CHECK_SAYS(text, origin);
    CHECK_SAYS(text, "# PARAMD_DRAIN_TIMEOUT\n");
    CHECK_SAYS(text, "log            = warn                           # flag\n");
    CHECK_SAYS(text, "round-timeout  = 60                             # default\n");
    CHECK_SAYS(text, "# bulk is not set\n");
    CHECK_SAYS(text, "token-file     = /run/secret                    # flag; what stands in it is not shown\n");
    char again[8192];
    snprintf(again, sizeof again, "%s", text);
    begin();
    write_file(again);
    CHECK_OK(READ("--config", file), &e);
    CHECK_EQ(s.memory_max, (uint64_t)5 << 30);
    CHECK_EQ(s.listen.count, 2);
    CHECK_EQ(s.drain_timeout, 1500);
    CHECK(s.insecure);
    CHECK_TEXT(s.token_file, "/run/secret");
    CHECK_TEXT(s.log, "warn");
}

TEST(help_lists_every_setting_within_100_columns)
{
    static char text[16384];
    FILE *to = fmemopen(text, sizeof text, "w");

    settings_help(to);
    fclose(to);
#define HELP_HAS(kind, field, flag, ...) CHECK_SAYS(text, "  --" flag " ");
    SETTINGS(HELP_HAS)
    for (char *line = text, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) CHECK(end - line <= 100);
    CHECK_SAYS(text, "Exit status: 0 ");
}

TEST(only_live_settings_may_differ_at_a_reload)
{
    static const struct { const char *flag, *value, *fixed; } table[] = {
        {"--log", "debug", NULL}, {"--log-format", "json", NULL}, {"--token-file", "/run/t", NULL},
        {"--memory-max", "1g", NULL}, {"--staging-max", "1g", NULL}, {"--mailbox-max", "1g", NULL},
        {"--drain-timeout", "1", NULL},
        {"--round-timeout", "1", NULL}, {"--worker-timeout", "1", NULL}, {"--start-timeout", "1", NULL},
        {"--listen", "tcp://127.0.0.1:1", "listen"}, {"--bulk", "off", "bulk"}, {"--admin", "127.0.0.1:1", "admin"},
        {"--probe", "127.0.0.1:1", "probe"}, {"--threads", "3", "threads"}, {"--device", "cpu", "device"},
        {"--insecure", "--insecure", "insecure"}, {"--advertise", "h", "advertise"},
        {"--address-connections", "9", "address-connections"},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        begin();
        CHECK_OK(READ(), &e);
        struct settings old = s;
        memset(&s, 0, sizeof s);
        CHECK_OK(READ(table[i].flag, table[i].value), &e);
        const char *fixed = settings_fixed_difference(&old, &s);
        CHECK_EQ(fixed == NULL, table[i].fixed == NULL);
        if (fixed != NULL) CHECK_TEXT(fixed, table[i].fixed);
        CHECK(settings_fixed_difference(&s, &s) == NULL);
        settings_fini(&old);
    }
}

TEST(asking_for_help_or_version_is_answered_whatever_else_is_wrong)
{
    begin();
    setenv("PARAMD_LOG", "loud", 1);
    CHECK_OK(READ("--help"), &e);
    CHECK(s.help);
    CHECK_OK(READ("-h"), &e);
    CHECK_OK(READ("--version", "--config", "/nonexistent"), &e);
    CHECK(s.version);
    CHECK_EQ(READ("--print-config"), STATUS_INVALID_ARGUMENT);
}
