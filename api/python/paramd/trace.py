"""Python functions as updaters of a daemon's store.

A daemon runs no Python. kv.set_updater(f) calls an ordinary function f(key, grad, stored) once for each key, with the key
itself and with symbolic arrays of its shape and dtype, which write down what is done to them. What they wrote is a
text in the updater language (gpu/updaters.md); that is set, and can be read with kv.get_updater().

    def f(key, grad, stored):          ->      stored += grad * 2.0
        stored += grad * 2

So Python itself runs at the time of tracing: loops, closures, the key, .shape and print work, and happen once, not at each
update. Of the elements only arithmetic, comparisons and these can be written down: numpy.where, minimum, maximum, clip,
abs, sqrt, exp, log, tanh, sign, square, copyto, zeros_like, ones_like, full_like, isnan, isfinite, and & | ~ of
comparisons, and whole powers, which are multiplied out. All of it is computed in the dtype of the key; a comparison in
arithmetic is 1 or 0. Anything else is
Unimplemented with the name of the operation and the line of the function.
"""

import contextlib
import itertools
import linecache
import math
import os
import sys

import numpy as np

from . import errors

__all__ = ['trace']

_HERE = os.path.abspath(__file__)
_NUMPY = os.path.dirname(os.path.abspath(np.__file__)) + os.sep


# ---- refusals -------------------------------------------------------------------------------------------------------

def _place():
    """Where the function is: the innermost line that is neither here nor numpy's."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        path = os.path.abspath(name)
        if path != _HERE and not path.startswith(_NUMPY) and not name.startswith('<__array_function__'):
            line = linecache.getline(name, frame.f_lineno).strip()
            return f'{name}, line {frame.f_lineno}' + (f': {line}' if line else '')
        frame = frame.f_back
    return 'the updater function'


def _refuse(what, cure=''):
    raise errors.Unimplemented(f'an updater function of a daemon is traced, and {what} cannot be written down'
                               f'{"; " + cure if cure else ""} ({_place()})', reason='unimplemented')


# ---- expressions ----------------------------------------------------------------------------------------------------

class _Node:
    """One operation or leaf. Never changes; `number` rises, so operands have smaller ones."""

    __slots__ = ('op', 'operands', 'number')
    _numbers = itertools.count()

    def __init__(self, op, *operands):
        self.op, self.operands, self.number = op, operands, next(_Node._numbers)


_INFIX = {'+': 2, '-': 2, '*': 3, '/': 3, '<': 1, '<=': 1, '>': 1, '>=': 1, '==': 1, '!=': 1}
_NEGATIVE, _ATOM = 4, 6
# Beyond these an expression gets a name: for readers, and within the language's bounds.
_LENGTH_MAX, _DEPTH_MAX = 100, 12


class _Text:
    """An expression as text, how close it binds, and how deep it is."""

    def __init__(self, text, binds=_ATOM, depth=0):
        self.text, self.binds, self.depth = text, binds, depth

    def within(self, least):
        return self.text if self.binds >= least else f'({self.text})'


def _number_text(value):
    text = repr(value)
    return _Text(text, _NEGATIVE if text.startswith('-') else _ATOM)


def _operation_text(op, parts):
    depth = 1 + max(p.depth for p in parts)
    if op in _INFIX:
        binds = _INFIX[op]
        left, right = parts[0].within(binds + (binds == 1)), parts[1].within(binds + 1)
        return _Text(f'{left} {op} {right}', binds, depth)
    if op == 'neg':
        return _Text('-' + parts[0].within(_NEGATIVE), _NEGATIVE, depth)
    return _Text(f'{op}({", ".join(p.text for p in parts)})', _ATOM, depth)


def _reachable(root):
    """All nodes of an expression, operands first."""
    found, todo = {root.number: root}, [root]
    while todo:
        for operand in todo.pop().operands:
            if isinstance(operand, _Node) and operand.number not in found:
                found[operand.number] = operand
                todo.append(operand)
    return [found[n] for n in sorted(found)]


def _statements(root):
    """An assignment of root to `stored`, after those to names for what is used more than once or is long."""
    nodes, uses, texts, lines = _reachable(root), {}, {}, []
    for node in nodes:
        for operand in node.operands:
            if isinstance(operand, _Node):
                uses[operand.number] = uses.get(operand.number, 0) + 1
    for node in nodes:
        if node.op == 'name':
            texts[node.number] = _Text(node.operands[0])
            continue
        if node.op == 'number':
            texts[node.number] = _number_text(node.operands[0])
            continue
        text = _operation_text(node.op, [texts[o.number] for o in node.operands])
        if node is not root and (uses[node.number] > 1 or text.depth > _DEPTH_MAX or len(text.text) > _LENGTH_MAX):
            name = f't{len(lines) + 1}'
            lines.append(f'{name} = {text.text}')
            text = _Text(name)
        texts[node.number] = text
    return lines + [_last_statement(root, texts)]


def _last_statement(root, texts):
    """Written as people write it: stored += x for stored = stored + x."""
    if root.op in ('+', '-', '*', '/') and root.operands[0].op == 'name' and root.operands[0].operands[0] == 'stored':
        return f'stored {root.op}= {texts[root.operands[1].number].text}'
    return f'stored = {texts[root.number].text}'


# ---- symbolic arrays ------------------------------------------------------------------------------------------------

def _constant(value):
    """A number as a node."""
    number = float(value)
    if not math.isfinite(number):
        _refuse(f'the number {number}', 'the language has finite numbers only')
    return _Node('number', number)


def _node_of(thing):
    """What an operand stands for: a symbolic array, a number, or an array that is the same number everywhere."""
    if isinstance(thing, SymbolicArray):
        return thing._node
    if isinstance(thing, (bool, int, float, np.bool_, np.integer, np.floating)):
        return _constant(thing)
    if isinstance(thing, np.ndarray):
        if thing.dtype.kind in 'biuf' and thing.size > 0 and (thing == thing.flat[0]).all():
            return _constant(thing.flat[0])
        _refuse('an array of different numbers as a constant', 'a number of the language is the same for all elements')
    _refuse(f'{type(thing).__name__} {thing!r:.40} as an operand')


def _is_mask(thing):
    if isinstance(thing, (SymbolicArray, np.ndarray)):
        return thing.dtype == np.bool_
    return isinstance(thing, (bool, np.bool_))


_CHOOSE = 'numpy.where(condition, a, b) chooses for each element, numpy.minimum and maximum do so by size'


class SymbolicArray(np.lib.mixins.NDArrayOperatorsMixin):
    """Stands for an array of a key while an updater function is traced. Has shape and dtype; its elements are not known."""

    def __init__(self, node, shape, key_dtype, mask=False):
        self._node, self.shape, self._key_dtype = node, tuple(shape), key_dtype
        self.dtype = np.dtype(np.bool_) if mask else key_dtype

    # -- what is known

    ndim = property(lambda self: len(self.shape))
    size = property(lambda self: math.prod(self.shape))
    itemsize = property(lambda self: self.dtype.itemsize)
    nbytes = property(lambda self: self.size * self.itemsize)

    def __len__(self):
        if not self.shape:
            raise TypeError('len() of unsized object')
        return self.shape[0]

    def __repr__(self):
        return f'<{self.dtype} {self.shape}, traced: {_statements(self._node)[-1].split("= ", 1)[1]}>'

    def __format__(self, _):
        return repr(self)

    # -- what is written down

    def _like(self, node, mask=False):
        return SymbolicArray(node, self.shape, self._key_dtype, mask)

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **options):
        name = ufunc.__name__
        if method != '__call__':
            _refuse(f'numpy.{name}.{method}', 'a value of one element may not depend on others')
        if any(option not in ('casting', 'subok') for option in options):
            _refuse(f'numpy.{name} with {", ".join(options)}')
        _check_shapes(self, inputs)
        node, mask = _ufunc_node(name, inputs)
        if out is None:
            return self._like(node, mask)
        return _store(out[0], node, mask)

    def __array_function__(self, function, _, args, kwargs):
        made = _FUNCTIONS.get(function.__name__)
        if made is None:
            _refuse(f'numpy.{function.__name__}')
        return made(*args, **kwargs)

    def copy(self, order='C'):
        return self._like(self._node, _is_mask(self))

    def astype(self, dtype, *_, **__):
        if np.dtype(dtype) != self._key_dtype:
            _refuse(f'astype({np.dtype(dtype)})', f'everything is computed in the dtype of the key, {self._key_dtype}')
        return self._like(self._node)

    def clip(self, min=None, max=None, out=None):
        return _clip(self, min, max, out)

    def fill(self, value):
        _store(self, _node_of(value), _is_mask(value))

    # -- elements as such

    def __getitem__(self, index):
        if not _is_all(index):
            _refuse(f'the index {index!r:.40}', 'a statement holds for every element')
        return self

    def __setitem__(self, index, value):
        if isinstance(index, SymbolicArray) and _is_mask(index) and not isinstance(value, np.ndarray):
            self._node = _Node('where', index._node, _node_of(value), self._node)
        elif _is_all(index):
            _check_shapes(self, (value,))
            _store(self, _node_of(value), _is_mask(value))
        else:
            _refuse(f'the index {index!r:.40}', 'a statement holds for every element')

    def __bool__(self):
        _refuse('the truth of elements (if, while, and, or, not, min, max)', _CHOOSE)

    def __iter__(self):
        _refuse('a loop over elements', 'a statement holds for every element')

    def __contains__(self, _):
        _refuse('a search for an element')

    def __array__(self, *_, **__):
        _refuse('its elements as a plain array (numpy.array, numpy.asarray, assignment into another array)')

    def __getattr__(self, name):
        if name.startswith('__') or not hasattr(np.ndarray, name) and name not in _NDARRAY:
            raise AttributeError(f'{type(self).__name__!r} object has no attribute {name!r}')
        _refuse(f'.{name} of an array')


# What MXNet's NDArray has beside numpy's.
_NDARRAY = ('asnumpy', 'asscalar', 'as_in_context', 'as_in_ctx', 'context', 'ctx', 'wait_to_read', 'norm', 'square',
            'sqrt')


def _refusing(what):
    def method(self, *_):
        _refuse(what)
    return method


for _name, _what in {'__float__': 'one element as a number (float)', '__int__': 'one element as a number (int)',
                     '__complex__': 'one element as a number (complex)', '__index__': 'an element as an index',
                     '__round__': 'round', '__trunc__': 'trunc', '__floor__': 'floor', '__ceil__': 'ceil'}.items():
    setattr(SymbolicArray, _name, _refusing(_what))


def _is_all(index):
    """[:], [...] and the like."""
    parts = index if isinstance(index, tuple) else (index,)
    return all(p is Ellipsis or isinstance(p, slice) and p == slice(None) for p in parts)


def _check_shapes(array, operands):
    for other in operands:
        if isinstance(other, (SymbolicArray, np.ndarray)) and other.shape not in ((), array.shape):
            try:
                fits = np.broadcast_shapes(other.shape, array.shape) == array.shape
            except ValueError:
                raise ValueError('operands could not be broadcast together with shapes '
                                 f'{array.shape} {other.shape}') from None
            if isinstance(other, SymbolicArray) or not fits:
                _refuse(f'a result of another shape than the key\'s {array.shape}')


def _store(target, node, mask=False):
    if not isinstance(target, SymbolicArray):
        _refuse('a result written into an array of the function\'s own',
                'what is kept from step to step is a slot: set a program, {"type": "program", "text": "slot m = 0; ..."}')
    if target.dtype == np.bool_ and not mask:
        raise TypeError(f'Cannot cast output from dtype({target._key_dtype}) to dtype("bool")')
    target._node = node
    return target


# ---- ufuncs and functions -------------------------------------------------------------------------------------------

def _one():
    return _Node('number', 1.0)


def _square(x):
    return _Node('*', x, x)


def _is_finite(x):
    return _Node('==', _Node('-', x, x), _Node('number', 0.0))


_BINARY = {'add': '+', 'subtract': '-', 'multiply': '*', 'divide': '/', 'true_divide': '/', 'minimum': 'min',
           'maximum': 'max'}
_UNARY = {'negative': 'neg', 'absolute': 'abs', 'fabs': 'abs', 'sqrt': 'sqrt', 'exp': 'exp', 'log': 'log', 'tanh': 'tanh',
          'sign': 'sign'}
_COMPARE = {'less': '<', 'less_equal': '<=', 'greater': '>', 'greater_equal': '>=', 'equal': '==', 'not_equal': '!='}
_LOGIC = {'logical_and': 'min', 'bitwise_and': 'min', 'logical_or': 'max', 'bitwise_or': 'max', 'logical_xor': '!=',
          'bitwise_xor': '!='}
_COMPOSED = {
    'positive': lambda x: x,
    'conjugate': lambda x: x,
    'square': _square,
    'reciprocal': lambda x: _Node('/', _one(), x),
}
_TESTS = {'isnan': lambda x: _Node('!=', x, x), 'isfinite': _is_finite}
_SIGNS = {'floor_divide': '//', 'remainder': '%', 'matmul': '@', 'left_shift': '<<', 'right_shift': '>>',
          'divmod': 'divmod'}
_CURES = {'fmin': 'numpy.minimum lets a NaN through, so that it is seen',
          'fmax': 'numpy.maximum lets a NaN through, so that it is seen',
          'expm1': 'write numpy.exp(x) - 1', 'log1p': 'write numpy.log(1 + x)',
          'log2': 'write numpy.log(x) / numpy.log(2)', 'log10': 'write numpy.log(x) / numpy.log(10)',
          'exp2': 'write numpy.exp(x * numpy.log(2))'}


def _ufunc_node(name, inputs):
    """The node of a ufunc, and whether it is a mask."""
    masks = [_is_mask(x) for x in inputs]
    if name in _LOGIC or name in ('add', 'multiply') and all(masks):
        return _logic_node(name, inputs, masks)
    if name in ('logical_not', 'invert'):
        if name == 'invert' and not masks[0]:
            _refuse('numpy.invert (~) of numbers')
        return _Node('==', _node_of(inputs[0]), _Node('number', 0.0)), True
    if name in ('subtract', 'negative') and all(masks):
        raise TypeError(f'numpy boolean {name}, the `-` operator, is not supported: use ~ or ^ of comparisons')
    if name == 'power':
        return _power_node(*inputs), False
    if name in _BINARY or name in _UNARY:
        return _Node(_BINARY.get(name) or _UNARY[name], *map(_node_of, inputs)), False
    if name in _COMPARE:
        return _Node(_COMPARE[name], *map(_node_of, inputs)), True
    if name in _COMPOSED:
        return _COMPOSED[name](_node_of(inputs[0])), False
    if name in _TESTS:
        return _TESTS[name](_node_of(inputs[0])), True
    _refuse(f'numpy.{name}' + (f' ({_SIGNS[name]})' if name in _SIGNS else ''), _CURES.get(name, ''))


def _logic_node(name, inputs, masks):
    if name.startswith('bitwise') and not all(masks):
        _refuse(f'numpy.{name} of numbers', '& | ^ are for comparisons')
    nodes = [_node_of(x) if mask else _Node('!=', _node_of(x), _Node('number', 0.0)) for x, mask in zip(inputs, masks)]
    return _Node({'add': 'max', 'multiply': 'min'}.get(name) or _LOGIC[name], *nodes), True


def _power_node(base, exponent):
    """Powers that numpy takes apart, too. The language's own are of single values."""
    if isinstance(exponent, SymbolicArray) or np.ndim(exponent) > 0:
        _refuse('a power with an exponent for each element', 'write numpy.exp(y * numpy.log(x))')
    x, p = _node_of(base), float(exponent)
    if p == 0.5:
        return _Node('sqrt', x)
    if p != int(p) or not 1 <= abs(p) <= 4:
        _refuse(f'the power {p:g}', 'from -4 to 4, and 0.5; write numpy.exp(y * numpy.log(x))')
    node = x
    for _ in range(int(abs(p)) - 1):
        node = _Node('*', node, x)
    return node if p > 0 else _Node('/', _one(), node)


def _first_symbolic(*things):
    return next(t for t in things if isinstance(t, SymbolicArray))


def _where(condition, *choices):
    if len(choices) != 2:
        _refuse('numpy.where with one argument', 'the places of elements are not known')
    first = _first_symbolic(condition, *choices)
    _check_shapes(first, (condition, *choices))
    return first._like(_Node('where', *map(_node_of, (condition, *choices))), all(map(_is_mask, choices)))


def _clip(a, a_min=None, a_max=None, out=None, **options):
    if options:
        _refuse(f'numpy.clip with {", ".join(options)}')
    if a_min is None and a_max is None:
        raise ValueError('One of max or min must be given')
    first = _first_symbolic(a, a_min, a_max)
    x, least, most = _node_of(a), *(None if bound is None else _node_of(bound) for bound in (a_min, a_max))
    node = (_Node('min', x, most) if least is None else _Node('max', x, least) if most is None
            else _Node('clamp', x, least, most))
    return first._like(node) if out is None else _store(out, node)


def _copyto(dst, src, casting='same_kind', where=True):
    if where is not True:
        src = _where(where, src, dst)
    _store(dst, _node_of(src), _is_mask(src))


def _full_like(a, fill_value, dtype=None, **_):
    if dtype is not None and np.dtype(dtype) != a._key_dtype:
        _refuse(f'an array of {np.dtype(dtype)}', f'everything is computed in the dtype of the key, {a._key_dtype}')
    return a._like(_node_of(fill_value))


_FUNCTIONS = {
    'where': _where, 'clip': _clip, 'copyto': _copyto, 'full_like': _full_like,
    'zeros_like': lambda a, dtype=None, **_: _full_like(a, 0.0, dtype),
    'ones_like': lambda a, dtype=None, **_: _full_like(a, 1.0, dtype),
    'copy': lambda a, **_: a.copy(), 'shape': lambda a: a.shape, 'ndim': lambda a: a.ndim,
    'size': lambda a, axis=None: a.size if axis is None else a.shape[axis],
}


# ---- tracing --------------------------------------------------------------------------------------------------------

def _name_of(function):
    name = getattr(function, '__name__', type(function).__name__)
    return ''.join(c if c.isascii() and c.isprintable() else '?' for c in name)[:60]


def trace(function, key, shape, dtype):
    """The text that function(key, grad, stored) writes for a key."""
    dtype = np.dtype(dtype)
    if dtype.kind != 'f':
        raise errors.FailedPrecondition(f'key {key!r} is {dtype}: an updater function of a daemon computes with '
                                        'fractions, so its keys are float32 or float64', reason='updater-incompatible')
    start = _Node('name', 'stored')
    grad, stored = (SymbolicArray(node, shape, dtype) for node in (_Node('name', 'grad'), start))
    function(key, grad, stored)
    if stored._node is start:
        raise errors.Unimplemented(f'{_name_of(function)}({key!r}, grad, stored) leaves stored as it is: change it in '
                                   'place, such as stored += x or stored[:] = x', reason='unimplemented')
    return '\n'.join([f'# traced from {_name_of(function)}(key, grad, stored)', *_statements(stored._node)]) + '\n'


class _Listener:
    """Standard output that remembers whether something was written."""

    def __init__(self, out):
        self._out, self.heard = out, False

    def write(self, text):
        self.heard = True
        return self._out.write(text)

    def __getattr__(self, name):
        return getattr(self._out, name)


class Updater:
    """A function that was set as the updater of a daemon's store, and the one text that it writes for all keys."""

    def __init__(self, function):
        self.function, self.text = function, None
        self._traced, self._first, self._noted = set(), None, False

    def document(self):
        return {'type': 'program', 'text': self.text}

    def trace(self, keys):
        """Traces it for each (key, shape, dtype) that is new. FailedPrecondition if two keys get different texts."""
        listener = _Listener(sys.stdout)
        with contextlib.redirect_stdout(listener):
            for key, shape, dtype in keys:
                if (key, shape, dtype) not in self._traced:
                    self._take(key, trace(self.function, key, shape, dtype))
                    self._traced.add((key, shape, dtype))
        if listener.heard and not self._noted:
            self._noted = True
            print(f'paramd: {_name_of(self.function)} was traced, so what it prints shows once for each key, not at each '
                  'update', file=sys.stderr)

    def _take(self, key, text):
        if self.text is None:
            self.text, self._first = text, key
        if text != self.text:
            raise errors.FailedPrecondition(
                f'{_name_of(self.function)} writes different programs for the keys {self._first!r} and {key!r}, and a store '
                f'has one updater: use a store for each kind of key. For {self._first!r}:\n{self.text}For {key!r}:\n{text}',
                reason='updater-incompatible')
