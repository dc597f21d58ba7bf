#!/usr/bin/python3
"""Each C file lies in one layer and includes only from its own and from those below."""
import fnmatch
import os
import re
import sys

# From the bottom to the top. A pattern is matched against the path from the root; the first layer that fits has the file.
LAYERS = [
    ("base", "service/base/*"),
    ("wire", "api/limits.h api/wire* api/sp.* api/crc32c.*"),
    ("gpu", "gpu/*"),
    ("core", "service/key.* service/order.* service/state.* service/store.* service/round.* service/worker.* service/updater.* "
             "service/updater_document.* service/swap.* service/version.* service/account.* "
             "service/state_copy.* service/plane.* "
             "service/staging.* service/watch.* service/share.* service/wait.* service/core.* service/options.*"),
    ("edge", "service/op.* service/op_* service/session.* service/transport.* service/transport_* "
             "service/server.*"),
    ("face", "web/* api/client/* api/paramctl/*"),
    ("top", "service/main.c service/settings.* service/notify.*"),
    ("tests", "tests/*"),
]
ROOTS = ("service", "api", "gpu", "web", "tests")
SUFFIXES = (".c", ".h", ".cu", ".cuh", ".inc")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]*)"', re.M)


def layer_of(path):
    for level, (_, patterns) in enumerate(LAYERS):
        if any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns.split()):
            return level
    return None


def faults(path, text):
    """What is wrong with a file, as sentences."""
    level = layer_of(path)
    if level is None:
        return ["is in no layer"]
    wrong = []
    for name in INCLUDE.findall(text):
        other = layer_of(name)
        if other is None:
            wrong.append(f'includes "{name}", which is in no layer; paths start at the root')
        elif other > level:
            wrong.append(f'is {LAYERS[level][0]} and includes "{name}", which is {LAYERS[other][0]}')
    return wrong


def sources(root):
    for top in ROOTS:
        for folder, _, names in os.walk(os.path.join(root, top)):
            for name in names:
                if name.endswith(SUFFIXES):
                    yield os.path.relpath(os.path.join(folder, name), root)


# The rule itself: a path, a text, and whether there is something to object to.
SAMPLES = [
    ("service/base/map.c", '#include "service/base/mem.h"\n#include <string.h>\n', False),
    ("service/base/map.c", '#include "service/store.h"\n', True),
    ("service/base/map.c", '  # include "api/limits.h"\n', True),
    ("api/wire.c", '#include "gpu/device.h"\n', True),
    ("gpu/device.h", '#include "api/limits.h"\n', False),
    ("service/core.c", '#include "service/server.h"\n', True),
    ("service/server.c", '#include "service/core.h"\n', False),
    ("service/dispatch.c", '#include "web/routes.h"\n', True),
    ("web/routes.c", '#include "service/settings.h"\n', True),
    ("service/main.c", '#include "web/routes.h"\n', False),
    ("service/main.c", '#include "tests/lib/test.h"\n', True),
    ("service/surprise.c", "", True),
    ("service/store.c", '#include "key.h"\n', True),
    ("service/store.c", '/* #include "web/routes.h" */\n', False),
]


def main():
    root = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
    passed = failed = 0
    for path, text, wrong in SAMPLES:
        if bool(faults(path, text)) == wrong:
            passed += 1
        else:
            failed += 1
            print(f"FAILED the rule on {path}: {text!r}")
    for path in sorted(sources(root)):
        with open(os.path.join(root, path), encoding="utf-8") as f:
            wrong = faults(path, f.read())
        for sentence in wrong:
            print(f"FAILED {path} {sentence}")
        passed += not wrong
        failed += bool(wrong)
    print(f"{passed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
