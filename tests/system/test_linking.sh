#!/bin/sh
# What README says of linking: a program outside this tree, linked with libparamd.so and with libparamd.a, runs.
set -u
cd "$(dirname "$0")/../.."
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
passed=0 failed=0

cat >"$dir/x.c" <<'C'
#include <paramd.h>
#include <stdio.h>

int main(void)
{
    struct paramd *kv;
    struct paramd_error e;

    if (paramd_create("local", NULL, &kv, &e) != 0) return fprintf(stderr, "%s\n", e.text), 1;
    printf("%s\n", paramd_version());
    paramd_close(kv);
    return 0;
}
C

# The line of README that links $1, with its program in place of x.c.
line() {
    grep -oE "gcc x\.c [^\`]*$1[^\`]*" README.md | head -n 1 | sed "s|x\.c|$dir/x.c -o $dir/x|"
}

for library in -lparamd libparamd.a; do
    command=$(line "$library")
    if [ -n "$command" ] && sh -c "$command" && LD_LIBRARY_PATH=build "$dir/x" | grep -q '^paramd '; then
        passed=$((passed + 1))
    else
        echo "FAILED: README's line for $library: ${command:-there is none}"
        failed=$((failed + 1))
    fi
done
echo "$passed passed, $failed failed"
