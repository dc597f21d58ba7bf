"""How a test file in Python ends: it runs its tests, prints each reason for a skipped one, and then the line that
tests/run counts, "N passed, N failed, N skipped". A test of which several subtests fail counts once.

    if __name__ == "__main__":
        counted.main()
"""
import sys
import unittest


class Result(unittest.TextTestResult):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.passed = 0

    def addSuccess(self, test):
        super().addSuccess(test)
        self.passed += 1


class Runner(unittest.TextTestRunner):
    resultclass = Result


def main(**options):
    result = unittest.main(module="__main__", exit=False, testRunner=Runner, **options).result
    bad = [*result.failures, *result.errors, *((test, "") for test in result.unexpectedSuccesses)]
    failed = len({str(getattr(test, "test_case", test)) for test, _ in bad})
    sys.stderr.flush()
    for test, why in result.skipped:
        print(f"skipped {str(test).split()[0]}: {why}")
    print(f"{result.passed} passed, {failed} failed, {len(result.skipped)} skipped", flush=True)
    sys.exit(failed > 0 or not result.passed + len(result.skipped))
