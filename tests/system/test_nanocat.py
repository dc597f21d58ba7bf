"""nanomsg's own command line client against both doors: the HELLO frame of api/protocol.md, sent by `nanocat` as it is,
is answered with the daemon's document. Ends with "N passed, N failed"."""
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "api", "python"))
sys.path.insert(0, os.path.join(ROOT, "tests", "lib"))

import counted  # noqa: E402

from paramd.daemon import Daemon  # noqa: E402


def hello():
    """The frame as it stands in the document."""
    with open(os.path.join(ROOT, "api", "protocol.md")) as file:
        block = re.search(r"\*\*Hello\*\*\n\n```hex\n(.*?)```", file.read(), re.S).group(1)
    return bytes.fromhex(block)


def nanocat(url, request):
    with tempfile.NamedTemporaryFile() as file:
        file.write(request)
        file.flush()
        done = subprocess.run(["nanocat", "--req", "--connect", url, "--file", file.name, "--recv-timeout", "5", "--raw"],
                              capture_output=True, timeout=20, start_new_session=True)
    return done.stdout


class Nanocat(unittest.TestCase):
    def test_hello_is_answered_at_both_doors(self):
        with Daemon() as daemon:
            for url in (daemon.url, daemon.bulk):
                answer = nanocat(url, hello())
                self.assertEqual(answer[:4], b"PRMD", url)
                self.assertEqual(answer[5], 1)                                  # Hello
                self.assertEqual(int.from_bytes(answer[8:10], "little"), 0)     # status
                document = json.loads(answer[answer.index(b"{"):].rstrip(b"\n"))
                self.assertIn("Push", document["methods"])
                self.assertEqual(document["epoch"] > 0, True)

    def test_what_is_no_frame_is_refused_with_a_sentence_and_the_door_stays_open(self):
        with Daemon() as daemon:
            for url in (daemon.url, daemon.bulk):
                answer = nanocat(url, b"good day")
                self.assertEqual(answer[:4], b"PRMD", url)
                self.assertEqual(int.from_bytes(answer[8:10], "little"), 3)     # INVALID_ARGUMENT
                self.assertIn(b"too short for its header", answer)
                self.assertIn(b"instance", nanocat(url, hello()))


if __name__ == "__main__":
    counted.main()
