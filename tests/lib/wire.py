"""The binary protocol by hand, for peers that do not keep to it: sockets and bytes, none of our libraries. What is not
asked for is written as api/protocol.md has it; every field can be given another value."""
import json
import os
import re
import socket
import struct

REQ, REP = 0x30, 0x31
MAGIC, VERSION = b"PRMD", 1
HEADER = struct.Struct("<4sBBHHH16sIQIIiIIQI")
ANSWER, CHECK, BODY_CRC = 1, 2, 4
FRAME_MAX = (4 << 20) + (64 << 10)
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def _methods():
    """Numbers by name, and the names of those that carry data, out of the list that makes the code."""
    with open(os.path.join(ROOT, "api", "wire.h")) as f:
        rows = re.findall(r"X\(\s*(\d+), (\w+),\s+(json|data)", f.read())
    return {name: int(number) for number, name, _ in rows}, {name for _, name, kind in rows if kind == "data"}


METHODS, DATA = _methods()
INIT, INIT_ENTRY = struct.Struct("<IIQI"), struct.Struct("<qQQQHBBBBH")
PUSH, PUSH_ENTRY = struct.Struct("<III"), struct.Struct("<QQQQQBBHI")
PULL, PULL_ENTRY = struct.Struct("<II"), struct.Struct("<QQQQQ")
WAIT, WAIT_ENTRY = struct.Struct("<III"), struct.Struct("<IIQQHBBI")
FAULT = struct.Struct("<IHHIII")
INIT_RESULT = struct.Struct("<QQQII")
F32 = 0


def _table():
    table = []
    for n in range(256):
        for _ in range(8):
            n = n >> 1 ^ (0x82F63B78 if n & 1 else 0)
        table.append(n)
    return table


_CRC = _table()


def crc32c(data, crc=0):
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc = _CRC[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def frame(method, fixed=b"", desc=b"", body=b"", *, worker=bytes(16), epoch=0, sequence=0, session=0, flags=0, status=0,
          reason=0, deadline=10000, priority=0, magic=MAGIC, version=VERSION, body_crc=0, header_crc=None, sizes=None,
          gap=None):
    """One frame. sizes: what the header says of fixed, desc and body, if not the truth."""
    number = METHODS[method] if isinstance(method, str) else method
    if gap is None:
        gap = bytes(-(4 + 76 + len(fixed) + len(desc)) % 16)
    said = sizes or (len(fixed), len(desc), len(body))
    head = HEADER.pack(magic, version, number, flags, status, reason, worker, epoch, sequence, session, deadline,
                       priority, *said, body_crc)
    crc = crc32c(head) if header_crc is None else header_crc
    return head + struct.pack("<I", crc) + fixed + desc + gap + body


def init_entry(name, dims=(4,), offset=0, size=None, total=None, *, dtype=F32, ndim=None, storage=0, reserved=0,
               name_size=None, key_type=None):
    text = name.encode() if isinstance(name, str) else name if isinstance(name, bytes) else b""
    whole = 4
    for d in dims:
        whole *= d
    kind = key_type if key_type is not None else int(not isinstance(name, int))
    e = INIT_ENTRY.pack(name if isinstance(name, int) else 0, offset, whole if size is None else size,
                        whole if total is None else total, len(text) if name_size is None else name_size, kind, dtype,
                        len(dims) if ndim is None else ndim, storage, reserved)
    e += b"".join(struct.pack("<q", d) for d in dims) + text
    return e + bytes(-len(e) % 8)


class Answer:
    def __init__(self, id_, data):
        self.id = id_
        f = HEADER.unpack_from(data)
        (self.magic, self.version, self.method, self.flags, self.status, self.reason, self.worker, self.epoch,
         self.sequence, self.session, _, _, fixed, desc, body, _) = f
        assert self.magic == MAGIC and self.version == VERSION and self.flags & ANSWER, data[:16]
        assert crc32c(data[:72]) == struct.unpack_from("<I", data, 72)[0], "header_crc of an answer"
        at = 76
        self.fixed = data[at:at + fixed]
        self.desc = data[at + fixed:at + fixed + desc]
        at += fixed + desc + -(4 + 76 + fixed + desc) % 16
        self.body = data[at:]
        assert len(self.body) == body, (len(self.body), body)

    @property
    def text(self):
        return self.body.decode("utf-8")

    def json(self):
        return json.loads(self.body)

    def faults(self, results=0):
        """The faults behind `results` bytes of results: (index, status, reason)."""
        return [FAULT.unpack_from(self.desc, at)[:3] for at in range(results, len(self.desc), FAULT.size)]


class Closed(Exception):
    """The daemon ended the connection."""


def connect(url, timeout=10, source=None, receive_buffer=None):
    kind, rest = url.split("://", 1)
    if kind in ("ipc", "unix"):
        s = socket.socket(socket.AF_UNIX)
        where = rest
    else:
        s = socket.socket()
        host, port = rest.rsplit(":", 1)
        where = (host, int(port))
        if source:  # its port is chosen when it connects, which goes faster when many are in use
            s.setsockopt(socket.IPPROTO_IP, 24, 1)
            s.bind((source, 0))
    if receive_buffer:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    s.settimeout(timeout)
    s.connect(where)
    if kind not in ("ipc", "unix"):
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return s


class Peer:
    """A connection. `id` of requests counts up; answers are taken in any order by receive."""

    def __init__(self, url, *, timeout=10, source=None, receive_buffer=None, greeting=None, greet=True):
        self.ipc = not url.startswith("tcp")
        self.socket = connect(url, timeout, source, receive_buffer)
        self.worker, self.epoch, self.session, self.next_id, self.sequence = os.urandom(16), 0, 0, 1, 1
        if greet:
            try:
                self.raw(b"\0SP\0" + struct.pack(">HH", REQ, 0) if greeting is None else greeting)
                if self.read(8) != b"\0SP\0" + struct.pack(">HH", REP, 0):
                    raise AssertionError("the daemon's greeting")
            except BaseException:
                self.close()
                raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.socket.close()

    def reset(self):
        """Closes it with an RST."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def read(self, size):
        data = bytearray()
        while len(data) < size:
            try:
                part = self.socket.recv(min(size - len(data), 1 << 20))
            except (ConnectionResetError, BrokenPipeError):
                part = b""
            if not part:
                raise Closed()
            data += part
        return bytes(data)

    def raw(self, data):
        try:
            self.socket.sendall(data)
        except (ConnectionResetError, BrokenPipeError):
            raise Closed() from None

    def message(self, data, id_=None):
        """A frame as it travels; length, request id."""
        if id_ is None:
            id_, self.next_id = self.next_id, self.next_id % 0x7FFFFFFF + 1
        return (b"\1" if self.ipc else b"") + struct.pack(">QI", len(data) + 4, 0x80000000 | id_) + data

    def me(self, **fields):
        return {"worker": self.worker, "epoch": self.epoch, "session": self.session, **fields}

    def send(self, data):
        self.raw(self.message(data))

    def receive(self):
        if self.ipc and self.read(1) != b"\1":
            raise AssertionError("the type of a message")
        size = struct.unpack(">Q", self.read(8))[0]
        if not 4 + 76 <= size <= FRAME_MAX:
            raise AssertionError(f"an answer of {size} bytes")
        data = self.read(size)
        return Answer(struct.unpack_from(">I", data)[0] & 0x7FFFFFFF, data[4:])

    def ask(self, data):
        self.send(data)
        return self.receive()

    def call(self, method, document=None, **fields):
        body = document if isinstance(document, bytes) else json.dumps(document if document is not None else {}).encode()
        return self.ask(frame(method, body=body, **self.me(**fields)))

    def hello(self, **document):
        a = self.call("Hello", {"client": "hand 1", **document})
        if a.status == 0:
            said = a.json()
            self.session, self.epoch = said["session"], said["epoch"]
        return a

    def closed(self, seconds):
        """Whether the daemon ends the connection within so many seconds, whatever it sends before that."""
        self.socket.settimeout(seconds)
        try:
            while self.socket.recv(1 << 16):
                pass
            return True
        except (ConnectionResetError, BrokenPipeError):
            return True
        except (TimeoutError, socket.timeout):
            return False

    # ---- the data methods ----

    def init(self, store, entries, body=b"", call=1, on_reinit=0, count=None, **fields):
        fixed = INIT.pack(store, len(entries) if count is None else count, call, on_reinit)
        return frame("Init", fixed, b"".join(entries), body, **self.me(**fields))

    def push(self, store, entries, body=b"", method="Push", count=None, force=0, **fields):
        """entries: (key, step, offset, size, total[, dtype, codec, flags, reserved])."""
        desc = b"".join(PUSH_ENTRY.pack(*(tuple(e) + (F32, 0, 0, 0)[len(e) - 5:])) for e in entries)
        if "sequence" not in fields:
            fields["sequence"] = self.sequence
            self.sequence += 1
        return frame(method, PUSH.pack(store, len(entries) if count is None else count, force), desc, body,
                     **self.me(**fields))

    def pull(self, store, entries, count=None, **fields):
        """entries: (key, version, newer, offset, size)."""
        desc = b"".join(PULL_ENTRY.pack(*e) for e in entries)
        return frame("Pull", PULL.pack(store, len(entries) if count is None else count), desc, **self.me(**fields))

    def wait(self, entries, want=1, time_ms=1000, count=None, **fields):
        """entries: (kind, store, key, number, name, key_type)."""
        desc = b""
        for kind, store, key, number, name, key_type in entries:
            e = WAIT_ENTRY.pack(kind, store, key, number, len(name), key_type, 0, 0) + name
            desc += e + bytes(-len(e) % 8)
        fixed = WAIT.pack(len(entries) if count is None else count, want, time_ms)
        return frame("Wait", fixed, desc, **self.me(**fields))

    def member(self, store="mine", type_="dist_async", **options):
        """HELLO, Create, Join; answers the store's id."""
        a = self.hello()
        assert a.status == 0, a.text
        a = self.call("Create", {"store": store, "type": type_, **options})
        assert a.status == 0, a.text
        id_ = a.json()["id"]
        a = self.call("Join", {"store": id_})
        assert a.status == 0, a.text
        return id_

    def key(self, store, name, count=4, call=1):
        """Creates a key of zeros in frames of 1 MiB; answers its id."""
        size, part = count * 4, 1 << 20
        for at in range(0, max(size, 1), part):
            n = min(part, size - at)
            e = init_entry(name, (count,), at, n, size)
            a = self.ask(self.init(store, [e], bytes(n), call=call))
            assert a.status == 0 and not a.faults(INIT_RESULT.size), (a.status, a.body)
        return INIT_RESULT.unpack_from(a.desc)[0]
