#!/bin/sh
# Every header compiles alone and twice: it includes what it needs and has a guard.
# CC names the compiler; the flags are the makefile's.

# Bodies for one includer that defines names first; they are no headers but in name.
TEMPLATES="gpu/whole_rules.h gpu/program_loops.h gpu/program_math.h gpu/half_ops.h gpu/loops_half.h gpu/loops_integer.h gpu/loops_real.h gpu/whole_real.h"

cd "$(dirname "$0")/../.." || exit 2
warn=$(sed -n 's/^WARN := //p' Makefile)
cuda=${CUDA_HOME:-/usr/local/cuda}/include
flags="-std=c17 -D_GNU_SOURCE -I. -isystem $cuda -pthread $warn"
passed=0
failed=0
skipped=0

if [ -z "$warn" ]; then echo "the makefile names no WARN flags"; failed=1; fi
for header in $(find service api gpu web -name '*.h' | sort); do
    case " $TEMPLATES " in *" $header "*) continue ;; esac
    # Directly or by another header; -MG lists what is not there.
    if [ ! -e "$cuda/cuda_runtime_api.h" ] && ${CC:-gcc} $flags -M -MG -x c "$header" | grep -q cuda_runtime_api.h; then
        echo "skipped $header: it needs CUDA's headers"
        skipped=$((skipped + 1))
        continue
    fi
    if said=$(printf '#include "%s"\n#include "%s"\nextern int nothing;\n' "$header" "$header" |
        ${CC:-gcc} $flags -fsyntax-only -x c - 2>&1); then
        passed=$((passed + 1))
    else
        printf 'FAILED %s does not compile alone\n%s\n' "$header" "$said" | head -12
        failed=$((failed + 1))
    fi
done
if [ "$passed" -eq 0 ]; then failed=$((failed + 1)); fi
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
