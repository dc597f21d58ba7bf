#!/bin/sh
# The suites of rules and texts on a GPU once more, with the kernels that nvcc makes in place of those that the host's compiler
# makes of the same source: build/paramd-ptx.so has their PTX and interprets it (tests/cusim/ptxi.h).
build=$(cd "$(dirname "$0")/../../build" && pwd)
if [ ! -e "$build/paramd-ptx.so" ]; then
    echo "skipped: it needs nvcc: package cuda-nvcc-13-0, see README.md"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi
passed=0 failed=0
for suite in test_rules:on_a_gpu test_program:on_a_gpu test_program:on_several_cards; do
    said=$(PARAMD_TEST_SIM=paramd-ptx.so "$build/tests/device/${suite%:*}" "${suite#*:}" 2>&1)
    status=$?
    counts=$(printf '%s\n' "$said" | tail -n 1)
    n=${counts%% passed*}
    if [ $status -eq 0 ] && [ "$n" -gt 0 ] 2>/dev/null; then
        passed=$((passed + n))
    else
        failed=$((failed + 1))
        printf '%s, %s:\n%s\n' "$suite" "status $status" "$said"
    fi
done
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
