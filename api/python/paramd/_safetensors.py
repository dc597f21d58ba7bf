"""Files in the safetensors format: 8 bytes length (little-endian), a JSON header that says of each tensor its dtype, shape
and place, then the tensors' bytes without gaps. Nothing in such a file is executed; a header is checked before any
of it is believed.
"""

import json
import os
import struct
import tempfile

import numpy as np

from . import _half, errors

_HEADER_MAX = 1 << 30               # bytes; other readers stop at 100 MB, which the states of 400,000 keys reach
_DIMENSIONS_MAX = 8
_NAMES = {'F64': np.dtype('<f8'), 'F32': np.dtype('<f4'), 'F16': np.dtype('<f2'), 'BF16': _half.bfloat16,
          'I64': np.dtype('<i8'), 'I32': np.dtype('<i4'), 'I8': np.dtype('i1'), 'U8': np.dtype('u1')}
_DTYPES = {dtype: name for name, dtype in _NAMES.items()} | {_half.BITS: 'BF16'}


def _bad(path, text):
    return errors.InvalidArgument(f'{path}: {text}', reason='invalid-argument')


# ---- writing --------------------------------------------------------------------------------------------------------

def _header(tensors, metadata):
    header, at = {'__metadata__': metadata}, 0
    for name, a in tensors.items():
        header[name] = {'dtype': _DTYPES[a.dtype.newbyteorder('<') if a.dtype.kind != 'V' else a.dtype],
                        'shape': list(a.shape), 'data_offsets': [at, at + a.nbytes]}
        at += a.nbytes
    text = json.dumps(header).encode()
    return text + b' ' * (-len(text) % 8)


def write(path, tensors, metadata):
    """Writes a file whole or not at all: one that was there stays until the new one is complete.
    tensors: name to array. metadata: text to text."""
    path = os.fspath(path)
    # Larger elements first, so that each lies at a multiple of its size.
    tensors = dict(sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0])))
    header = _header(tensors, metadata)
    with tempfile.NamedTemporaryFile(dir=os.path.dirname(path) or '.', prefix='.' + os.path.basename(path),
                                     delete=False) as f:
        try:
            f.write(struct.pack('<Q', len(header)) + header)
            for a in tensors.values():
                f.write(np.ascontiguousarray(a).reshape(-1).view(np.uint8).data)
            f.flush()
            os.fsync(f.fileno())
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(f.name, 0o666 & ~umask)    # as open() would have made it
            os.replace(f.name, path)
        except BaseException:
            os.unlink(f.name)
            raise


# ---- reading --------------------------------------------------------------------------------------------------------

def _once(pairs):
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError('a name occurs twice')
    return found


def _no_constant(name):
    raise ValueError(f'{name} is no number')


def loads(text):
    """A JSON document without repeated names and without NaN."""
    return json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)


def _read_header(path, f, size):
    if size < 8:
        raise _bad(path, f'{size} bytes are no safetensors file')
    length = struct.unpack('<Q', f.read(8))[0]
    if length > min(size - 8, _HEADER_MAX):
        raise _bad(path, f'no safetensors file, or cut off: by its first 8 bytes the header has {length} bytes, the file {size}')
    try:
        header = loads(f.read(length).decode('utf-8'))
    except (ValueError, RecursionError) as error:
        raise _bad(path, f'the header cannot be read: {error}') from None
    if not isinstance(header, dict):
        raise _bad(path, 'the header is no JSON object')
    return header, size - 8 - length


def _is_count(n):
    return type(n) is int and 0 <= n < 2**60


def _place(path, name, entry):
    """(from, to, dtype, shape) of a tensor."""
    if not isinstance(entry, dict) or set(entry) != {'dtype', 'shape', 'data_offsets'}:
        raise _bad(path, f'tensor {name!r:.80} has not dtype, shape and data_offsets')
    shape, offsets = entry['shape'], entry['data_offsets']
    dtype = _NAMES.get(entry['dtype']) if isinstance(entry['dtype'], str) else None
    if dtype is None:
        raise _bad(path, f'tensor {name!r:.80} is of dtype {entry["dtype"]!r:.20}, not of {", ".join(_NAMES)}')
    if not isinstance(shape, list) or len(shape) > _DIMENSIONS_MAX or not all(map(_is_count, shape)):
        raise _bad(path, f'tensor {name!r:.80} has shape {shape!r:.80}')
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_count, offsets)):
        raise _bad(path, f'tensor {name!r:.80} has data_offsets {offsets!r:.80}')
    size = dtype.itemsize
    for n in shape:
        size *= n
    if offsets[1] - offsets[0] != size:
        raise _bad(path, f'tensor {name!r:.80} has {offsets[1] - offsets[0]} bytes, its shape {size}')
    return offsets[0], offsets[1], dtype, shape


def read(path):
    """(tensors, metadata). The arrays are read-only and lie in the file until they are used."""
    with open(path, 'rb') as f:
        header, size = _read_header(path, f, os.fstat(f.fileno()).st_size)
        metadata = header.pop('__metadata__', {})
        if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
            raise _bad(path, '__metadata__ is not text by name')
        places = {name: _place(path, name, entry) for name, entry in header.items()}
        at = 0
        for name, (start, end, _, _) in sorted(places.items(), key=lambda item: item[1][:2]):
            if start != at:
                raise _bad(path, f'tensor {name!r:.80} begins at {start}, where {at} bytes come before it')
            at = end
        if at != size:
            raise _bad(path, f'the tensors have {at} bytes, the file has {size} for them')
        data = np.memmap(f, np.uint8, 'r', f.tell(), size) if size > 0 else np.empty(0, np.uint8)
    return {name: data[start:end].view(np.ndarray).view(dtype).reshape(shape)
            for name, (start, end, dtype, shape) in places.items()}, metadata
