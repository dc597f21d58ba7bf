"""numpy arrays on their way to and from the library.

An array that is C-contiguous, aligned and of the machine's byte order is handed over as it is, by its address. Any
other one goes through a copy.
"""

import ctypes

import numpy as np

from . import errors, _half, _lib

_NAMES = {'float32': 0, 'float64': 1, 'float16': 2, 'bfloat16': 3, 'int8': 4, 'uint8': 5, 'int32': 6, 'int64': 7}
_DTYPES = {code: _half.bfloat16 if name == 'bfloat16' else np.dtype(name) for name, code in _NAMES.items()}
_CODES = {**{dtype: code for code, dtype in _DTYPES.items()}, _half.BITS: _NAMES['bfloat16']}
_SHORT = {'f32': 'float32', 'f64': 'float64', 'i8': 'int8', 'u8': 'uint8', 'i32': 'int32', 'i64': 'int64',
          'f16': 'float16', 'bf16': 'bfloat16'}

_INT64_MIN, _INT64_MAX = -2**63, 2**63 - 1


def refuse(text, reason='invalid-argument'):
    return errors.InvalidArgument(text, reason=reason)


def dtype_named(name):
    """numpy's dtype for the name that the service uses ("f32", also "float32")."""
    name = _SHORT.get(name, name)
    if name in _NAMES:
        return _DTYPES[_NAMES[name]]
    try:
        return np.dtype(name)
    except TypeError:
        raise errors.Unimplemented(f'numpy has no dtype {name}', reason='unimplemented') from None


# ---- keys -----------------------------------------------------------------------------------------------------------

def is_list(thing):
    return isinstance(thing, (list, tuple))


def as_key(key):
    """The key as int or str."""
    if isinstance(key, str):
        return as_name(key, 'key')
    if isinstance(key, (int, np.integer)) and not isinstance(key, bool):
        number = int(key)
        if not _INT64_MIN <= number <= _INT64_MAX:
            raise refuse(f'key {number} does not fit 64 bits: use a smaller number, or a string')
        return number
    raise refuse(f'a key is an int or a str, not {type(key).__name__}: {key!r:.60}')


def as_name(text, what):
    """A text that the protocol can carry as a name; said of the name itself before anything is made of it."""
    if '\0' in text:
        raise refuse(f'{what} {text!r:.60} has a NUL in it, which a name cannot hold: leave it out')
    try:
        text.encode('utf-8')
    except UnicodeEncodeError as error:
        raise refuse(f'{what} {text!r:.60} has half of a surrogate pair at position {error.start}, which UTF-8 cannot '
                     f'hold: leave it out') from None
    return text


def as_keys(key):
    """A key or a list of keys, as a list of keys."""
    return [as_key(k) for k in key] if is_list(key) else [as_key(key)]


def _name_bytes(key):
    if isinstance(key, int):
        return b''
    return key.encode('utf-8')


# _lib.Key and _lib.Tensor, to be filled in whole columns: a call may name a million keys.
_KEY_ROW = np.dtype([('name', np.uint64), ('name_size', np.uint64), ('number', np.int64)])
_TENSOR_ROW = np.dtype([('data', np.uint64), ('dtype', np.int32), ('ndim', np.int32), ('shape', np.uint64)])
assert _KEY_ROW.itemsize == ctypes.sizeof(_lib.Key) and _TENSOR_ROW.itemsize == ctypes.sizeof(_lib.Tensor)


def pack_keys(keys):
    """Keys as the library takes them. What is answered keeps alive what it points to."""
    rows, is_number = np.zeros(len(keys), _KEY_ROW), [isinstance(k, int) for k in keys]
    if all(is_number):
        rows['number'] = keys
        return (_lib.Key * len(keys)).from_buffer(rows)
    # Each ends with a zero, which one of no bytes needs.
    names = [_name_bytes(k) for k in keys]
    text = np.frombuffer(b'\0'.join(names) + b'\0', np.uint8)
    sizes = np.fromiter(map(len, names), np.uint64, len(names))
    starts = np.zeros(len(keys), np.uint64)
    np.cumsum(sizes[:-1] + np.uint64(1), out=starts[1:])
    rows['name'] = np.where(is_number, np.uint64(0), np.uint64(text.ctypes.data) + starts)
    rows['name_size'] = sizes
    rows['number'] = [k if n else 0 for k, n in zip(keys, is_number)]
    packed = (_lib.Key * len(keys)).from_buffer(rows)
    packed.text = text
    return packed


def unpack_key(lent):
    if not lent.name:
        return lent.number
    return ctypes.string_at(lent.name, lent.name_size or -1).decode('utf-8')


# ---- arrays ---------------------------------------------------------------------------------------------------------

def _code(dtype, what):
    code = _CODES.get(dtype)
    if code is not None:
        return code
    cure = {'u': 'use a.astype(numpy.int64), or for the bits of a bfloat16 a.view(paramd.bfloat16)',
            'b': 'use a.astype(numpy.uint8)', 'c': 'use a key for a.real and one for a.imag',
            'O': 'make an array of numbers of it (of an MXNet NDArray: a.asnumpy(); None is no value)'}.get(dtype.kind, 'use a.astype(numpy.float32) or another of these')
    raise refuse(f'{what}: dtype {dtype} is none of {", ".join(_NAMES)}; {cure}')


def same_type(a, b):
    """Whether two dtypes are the same to the store."""
    return _CODES.get(a) == _CODES.get(b)


def _native(dtype):
    return dtype if dtype.isnative else dtype.newbyteorder('=')


def _ready(array):
    return array.flags.c_contiguous and array.flags.aligned and array.dtype.isnative


def _is_number(thing):
    return isinstance(thing, (int, float, np.integer, np.floating)) and not isinstance(thing, bool)


def _is_numbers(thing):
    """Whether it is a list, perhaps nested, with nothing but numbers in it: then it is one value, not several."""
    if is_list(thing):
        return len(thing) > 0 and all(_is_numbers(t) for t in thing)
    return _is_number(thing)


def _check_finite(given, converted, dtype):
    """Refuses numbers that the dtype can only hold as infinity."""
    wide = _half.from_bfloat16(converted) if same_type(dtype, _half.BITS) else converted
    given = np.asarray(given, np.float64)
    lost = np.isfinite(given) & ~np.isfinite(wide)
    if lost.any():
        at = tuple(int(i) for i in np.argwhere(lost)[0])
        name = 'bfloat16' if same_type(dtype, _half.BITS) else dtype
        raise refuse(f'{given[at]!r:.40}{f" at index {at}" if at else ""} is too large for {name}; write '
                     'float("inf") if that is meant')


def _from_numbers(numbers, dtype):
    """Python numbers as an array of exactly that dtype."""
    try:
        array = np.asarray(numbers)
        with np.errstate(over='ignore', invalid='ignore'):
            converted = _half.to_bfloat16(array) if same_type(dtype, _half.BITS) else array.astype(dtype)
    except (ValueError, TypeError, OverflowError) as error:
        raise refuse(f'{numbers!r:.60} is no array of numbers: {error}') from None
    if dtype.kind in 'iu' and not np.array_equal(converted, array):
        raise refuse(f'{numbers!r:.60} does not fit the key\'s dtype {dtype} exactly')
    if dtype.kind not in 'iu':
        _check_finite(array, converted, dtype)
    return converted


def _view(thing):
    """Anything array-like as a numpy array, without a copy where it allows that."""
    if isinstance(thing, np.ma.MaskedArray):
        raise refuse('a masked array has no plain value: use its .filled(x)')
    if isinstance(thing, np.ndarray):
        return thing
    try:
        if hasattr(thing, '__dlpack__') and not hasattr(thing, '__array__'):
            return np.from_dlpack(thing)
        return np.asarray(thing)
    except Exception as error:
        raise refuse(f'{type(thing).__name__} is not usable as an array in host memory: {error}') from None


def _number_dtype(numbers):
    """What numbers are when nothing else says it: float32, as in MXNet, unless numpy has given them a dtype."""
    return numbers.dtype if isinstance(numbers, np.generic) else np.dtype(np.float32)


class OnGpu:
    """An array of another library on a GPU (a torch.Tensor, a cupy.ndarray), handed over by its address. What is under
    way on CUDA's default stream comes before that; other streams are the caller's to wait for."""

    def __init__(self, thing, written=False):
        said = thing.__cuda_array_interface__
        self._owner = thing
        self.shape = tuple(said['shape'])
        self.dtype = np.dtype(said['typestr'])
        self.ndim = len(self.shape)
        self.address, read_only = said['data']
        _code(self.dtype, 'an array on a GPU')
        if not self.dtype.isnative or not self._is_contiguous(said.get('strides')):
            raise refuse('an array on a GPU must be C-contiguous and of the machine\'s byte order: use .contiguous()')
        if written and read_only:
            raise refuse('out is read-only: give an array of your own')
        if said.get('stream') not in (None, 1):
            raise refuse('work is under way on a stream of its own for this array: synchronize it, and hand the array '
                         'over on the default stream')

    def _is_contiguous(self, strides):
        step = self.dtype.itemsize
        for n, stride in zip(reversed(self.shape), reversed(strides or ())):
            if n > 1 and stride != step:
                return False
            step *= n
        return True


def is_on_gpu(thing):
    return hasattr(thing, '__cuda_array_interface__')


def as_input(value, number_dtype=None):
    """One value as an array that can be handed over.

    number_dtype: None, or a function that answers the dtype for plain numbers; called only for those."""
    if is_on_gpu(value):
        return OnGpu(value)
    if _is_numbers(value):
        array = _from_numbers(value, number_dtype() if number_dtype else _number_dtype(value))
    else:
        array = _view(value)
    _code(_native(array.dtype), 'value')
    if not _ready(array):
        array = array.astype(_native(array.dtype), order='C')
    return array


def as_inputs(value, number_dtype=None):
    """The arrays that one key's value stands for: one, or each of a list."""
    if not is_list(value) or _is_numbers(value):
        return [as_input(value, number_dtype)]
    return [array for v in value for array in as_inputs(v, number_dtype)]


class Output:
    """An array to be filled: `array` is what the library writes to, and finish() brings that to the caller's."""

    def __init__(self, out):
        if is_on_gpu(out):
            self.target = self.array = OnGpu(out, written=True)
            return
        self.target = _writable(out)
        dtype = _native(self.target.dtype)
        _code(dtype, 'out')
        self.array = self.target if _ready(self.target) else np.empty(self.target.shape, dtype)

    def finish(self):
        if self.array is not self.target:
            np.copyto(self.target, self.array)


def _writable(out):
    if not isinstance(out, np.ndarray) and not hasattr(out, '__array_interface__'):
        try:
            memoryview(out)
        except TypeError:
            raise refuse(f'out is {type(out).__name__}, which cannot be filled: give a numpy array (numpy.empty(shape, '
                         'dtype); for a tensor of another library its view, such as tensor.numpy())') from None
    array = _view(out)
    if not array.flags.writeable:
        raise refuse('out is read-only: give an array of your own, or leave out out to get a new one')
    return array


def as_outputs(out):
    """The outputs that one key's out stands for."""
    if not is_list(out):
        return [Output(out)]
    return [output for o in out for output in as_outputs(o)]


class Tensors:
    """Arrays as the library takes them. Keeps them alive as long as it lives."""

    def __init__(self, arrays):
        self._arrays = arrays
        self._shapes = np.array([n for a in arrays for n in a.shape] or [0], np.int64)
        rows = np.zeros(len(arrays), _TENSOR_ROW)
        rows['ndim'] = [a.ndim for a in arrays]
        if len(arrays) > 0 and rows['ndim'].max() > _lib.DIMENSIONS_MAX:
            raise refuse(f'a value has at most {_lib.DIMENSIONS_MAX} dimensions, this one has {rows["ndim"].max()}')
        rows['data'] = [a.address if isinstance(a, OnGpu) else a.__array_interface__['data'][0] for a in arrays]
        rows['dtype'] = [_CODES[a.dtype] | (_lib.CUDA if isinstance(a, OnGpu) else 0) for a in arrays]
        rows['shape'][1:] = np.cumsum(rows['ndim'][:-1], dtype=np.uint64)
        rows['shape'] = rows['shape'] * np.uint64(8) + np.uint64(self._shapes.ctypes.data)
        self.packed = (_lib.Tensor * len(arrays)).from_buffer(rows)


def borrowed(tensor):
    """A numpy view of a tensor of the library, valid as long as that is."""
    shape = tuple(ctypes.cast(tensor.shape, ctypes.POINTER(ctypes.c_int64))[:tensor.ndim]) if tensor.ndim else ()
    dtype = _DTYPES[tensor.dtype]
    size = dtype.itemsize
    for n in shape:
        size *= n
    if size == 0:
        return np.empty(shape, dtype)
    return np.ndarray(shape, dtype, buffer=(ctypes.c_char * size).from_address(tensor.data))


# ---- states ---------------------------------------------------------------------------------------------------------

class States:
    """States as the library takes them. Keeps them alive as long as it lives."""

    def __init__(self, states):
        self._kept = []
        self.packed = (_lib.State * len(states))(*[self._pack(s) for s in states])

    def _pack(self, state):
        slots = []
        for name, value in state.items():
            array = as_input(value)
            self._kept.append(array)
            slots.append(_lib.Slot(name.encode(), _CODES[array.dtype], array.size, array.ctypes.data))
        packed = (_lib.Slot * len(slots))(*slots)
        self._kept.append(packed)
        return _lib.State(state.updater.encode(), _counter(state.updates), _counter(state.since_begun),
                          float(state.product), len(slots), ctypes.cast(packed, ctypes.c_void_p))


def _counter(n):
    if not isinstance(n, (int, np.integer)) or not 0 <= n < 2**63:
        raise refuse(f'a counter is a whole number from 0 on, not {n!r:.40}')
    return int(n)


def slot_array(slot, shape):
    """A copy of a slot of the library: of the shape of its key where it has as many elements, else a line."""
    count = 1
    for n in shape:
        count *= n
    dtype = _DTYPES[slot.dtype]
    array = np.empty(shape if count == slot.count else (slot.count,), dtype)
    if array.nbytes > 0:
        ctypes.memmove(array.ctypes.data, slot.data, array.nbytes)
    return array
