"""What refusals say: they name the key and the store, and the cure works where it is read. Ends with "N passed, N failed"."""
import os
import re
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "api", "python"))
sys.path.insert(0, os.path.join(ROOT, "tests", "lib"))

import counted  # noqa: E402
import numpy as np  # noqa: E402

import paramd  # noqa: E402
import paramd.daemon  # noqa: E402


class Sentences(unittest.TestCase):
    def test_each_names_the_thing_and_a_cure(self):
        with paramd.daemon.Daemon() as daemon, paramd.create("dist_async", url=daemon.url) as kv:
            kv.init("half", paramd.to_bfloat16(np.ones(2, np.float32)))
            kv.init("count", np.full(1, 127, np.int8))
            kv.set_optimizer("add")

            def overflow():
                kv.push("count", np.ones(1, np.int8))
                kv.pull("count")

            for call, *parts in (
                    (lambda: kv.push("half", np.ones(2, np.float32)), "half", "paramd.to_bfloat16(array)"),
                    (overflow, "count", "default", "does not fit int8"),
                    (lambda: kv.init("o", np.array([object()])), ".asnumpy()", "None"),
                    (lambda: kv.set_optimizer(3), "set_optimizer('sgd', learning_rate=0.1)")):
                with self.subTest(parts=parts):
                    with self.assertRaises(paramd.ParamdError) as caught:
                        call()
                    for part in parts:
                        self.assertIn(part, str(caught.exception))

    def test_the_protocol_document_has_each_number_of_a_dtype_and_a_reason(self):
        def read(*path):
            with open(os.path.join(ROOT, *path), encoding="utf-8") as f:
                return f.read()
        document = read("api", "protocol.md")
        dtypes = re.findall(r'X\((\d+), \w+, +\d, \w+, +"(\w+)"\)', read("gpu", "dtype.h"))
        reasons = re.findall(r'X\( ?(\d+), \w+, +"([a-z-]+)", ', read("service", "base", "status.h"))
        self.assertEqual([int(n) for n, _ in dtypes], list(range(len(dtypes))))
        self.assertGreater(len(reasons), 44)
        self.assertEqual([int(n) for n, _ in reasons], list(range(len(reasons))))
        for number, name in dtypes:
            self.assertIn(f" {number} {name}", document)
        for number, name in reasons:
            self.assertIn(f" {number} `{name}`", document)


if __name__ == "__main__":
    counted.main()
