#!/bin/sh
# What tests of CUDA do on a machine without CUDA's headers or without NVRTC, on any machine: those that need them are skipped,
# the others pass, and nothing that a skip jumps over leaks. The address sanitizer's build, for it sees the leaks.
# PROGRAM[:PART] runs the tests whose name contains PART.
SUITES="unit/test_plane unit/test_program_cuda device/test_cuda device/test_cuda_program device/test_kernels
    device/test_program:on_a_gpu device/test_program:on_several_cards device/test_rules:on_a_gpu
    device/test_rules:on_several_cards device/test_sums system/test_plane system/test_same_host"

cd "$(dirname "$0")/../.." || exit 2
passed=0
failed=0

check() { # NAME, then what to run; it must end well, have something skipped and nothing failed
    name=$1
    shift
    if said=$("$@" 2>&1) && printf '%s\n' "$said" | tail -n 1 | grep -q ' 0 failed, [1-9][0-9]* skipped'; then
        passed=$((passed + 1))
    else
        printf 'FAILED %s\n%s\n' "$name" "$said" | tail -n 40
        failed=$((failed + 1))
    fi
}

for suite in $SUITES; do
    part=${suite#*:}
    [ "$part" != "$suite" ] || part=
    check "$suite without CUDA" env PARAMD_TEST_BARE="cuda nvrtc" "build/asan/tests/${suite%:*}" $part
done
check "unit/test_program_cuda without NVRTC" env PARAMD_TEST_BARE=nvrtc build/asan/tests/unit/test_program_cuda
if [ -e build/asan/paramd-cusim.so ]; then
    check "device/test_cuda_program without NVRTC" env PARAMD_TEST_BARE=nvrtc build/asan/tests/device/test_cuda_program
fi
check "the headers without CUDA's" env CUDA_HOME=/nonexistent sh tests/unit/test_headers.sh
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
