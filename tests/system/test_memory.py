"""What the daemon holds of the machine's memory: never more than --memory-max allows, and little once stores have gone.
Ends with "N passed, N failed"."""
import json
import os
import sys
import time
import unittest
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "api", "python"))
sys.path.insert(0, os.path.join(ROOT, "tests", "lib"))

import counted  # noqa: E402
import numpy as np  # noqa: E402

import paramd  # noqa: E402
import paramd.daemon  # noqa: E402

MIB = 1 << 20
SANITIZED = any(word in paramd.daemon.find() for word in ("asan", "tsan"))


def memory(daemon):
    with urllib.request.urlopen(daemon.admin + "/v1/info", timeout=5) as answer:
        return json.load(answer)["memory"]


def resident(daemon):
    with open(f"/proc/{daemon.process.pid}/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")


class Memory(unittest.TestCase):
    def test_keys_states_and_pushes_together_stay_below_memory_max(self):
        with paramd.daemon.Daemon("--memory-max", "64m") as daemon, \
                paramd.kv.create("dist_async", url=daemon.url) as kv:
            begin, value, count = resident(daemon), np.ones(MIB // 4, "float32"), 0
            with self.assertRaisesRegex(paramd.ParamdError, "--memory-max") as refused:
                for count in range(64):
                    kv.init(count, value)
            self.assertEqual((count, refused.exception.reason), (30, "limit-reached"))
            with self.assertRaisesRegex(paramd.ParamdError, f"the state of 30 keys under adam needs {60 * MIB} bytes more"):
                kv.set_optimizer("adam")
            kv.delete(list(range(15, 30)))
            kv.set_optimizer("adam")
            for _ in range(2):
                kv.push(list(range(15)), [value] * 15)
                kv.pull(list(range(15)))
                self.assertLessEqual(memory(daemon)["device"], 64 * MIB)
            self.assertEqual(memory(daemon)["used"], 15 * (4 * MIB + 1024) + (16 << 10))
            if not SANITIZED:  # which keep what is freed
                self.assertLess(resident(daemon) - begin, (64 + 24) * MIB)  # and frames on their way

    @unittest.skipIf(SANITIZED, "a sanitizer keeps what is freed")
    def test_a_store_that_is_deleted_leaves_its_memory_to_the_machine(self):
        with paramd.daemon.Daemon() as daemon:
            with paramd.kv.create("dist_async", url=daemon.url, store="large") as kv:
                begin = resident(daemon)
                kv.set_optimizer("adam")
                for key in range(8):
                    kv.init(key, np.ones(16 * MIB // 4, "float32"))
                for _ in range(2):
                    kv.push(list(range(8)), [np.ones(16 * MIB // 4, "float32")] * 8)
                    kv.wait()
                self.assertGreater(resident(daemon) - begin, 4 * 128 * MIB)
            with paramd.kv.create("dist_async", url=daemon.url, store="small") as kv:  # training elsewhere is no rest
                urllib.request.urlopen(urllib.request.Request(daemon.admin + "/v1/stores/large", method="DELETE"))
                kv.init("w", np.zeros(100, "float32"))
                deadline = time.monotonic() + 60
                while resident(daemon) - begin > 16 * MIB and time.monotonic() < deadline:
                    kv.push("w", np.ones(100, "float32"))
                    time.sleep(0.1)
                self.assertLess(resident(daemon) - begin, 16 * MIB, memory(daemon))
                self.assertEqual(memory(daemon)["cached"], 0)


if __name__ == "__main__":
    counted.main()
