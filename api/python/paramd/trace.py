"""Python functions as updaters of a daemon's store.

A daemon runs no Python. kv.set_updater(f) calls an ordinary function f(key, grad, stored) for each key, with the key itself
and with symbolic arrays of its shape and dtype, which write down what is done to them. The result is a text in the
updater language (gpu/updaters.md); it is set, and can be read with kv.get_updater().

    class Momentum:                                              # traced from Momentum(key, grad, stored)
        def __init__(self):                                      slot mom = 0
            self.mom = {}                                        mom = 0.9 * mom + grad
                                                         ->      stored -= 0.1 * mom
        def __call__(self, key, grad, stored):
            self.mom[key] = 0.9 * self.mom.get(key, 0) + grad
            stored -= 0.1 * self.mom[key]

Python itself runs at the time of tracing: loops, closures, branches on the key, .shape and print happen then, not at each
update. Prints show once for each key. The function and all that it reaches is afterwards as it was found.

Elements
    Arithmetic, comparisons, numpy.where, minimum, maximum, clip, abs, sqrt, exp, log, tanh, sign, square, copyto, zeros_like,
    ones_like, full_like, isnan, isfinite, & | ~ of comparisons, and whole powers, which are multiplied out. All of it
    is computed in the dtype of the key, where numpy may compute in float64; a comparison in arithmetic is 1 or 0.
    What looks at elements (if, float, indices, sums) is refused.

What a function keeps
    It is called three times for each key, with other symbols each time. What the calls leave in attributes, closures, globals,
    default arguments, containers and objects is compared:

    arrays          for each key, such as self.m[key]: a slot. It begins as 0 or as `stored`; another first update, such as
                    `if key not in self.m`, becomes where(step == 1, ...).
    counts          for each key, such as self.t[key] += 1: `step`, plus what it was before. math.sqrt and the like
                    and numpy take them. A branch may tell the first update from later ones; a branch that tells later ones
                    apart (if t > 100, min, max) is refused: numpy.where, minimum and maximum choose.
    what is made    once, at the first update, and then stays (a dict, a flag): constant.
    anything else   that changes is refused, with its name and line: other numbers, lists that grow, random numbers, clocks,
                    generators, state that begins later than the first update or that several keys share. A daemon updates each
                    key by itself, so self.t += 1 counts updates of a key only while the store has one key; a
                    second key is then refused.

    Slots and `step` begin when the text is set; where the store has the same text already, from another worker or an
    earlier start, they go on.

All keys of a store must write the same text. At most KEYS_MAX keys are traced; for more, or to set it elsewhere, trace()
answers the text.

When the store gets it
    At once if it has keys, whoever made them. Else before this client's first init makes some, or before its next push
    or barrier once another client has.

A refusal is Unimplemented (FailedPrecondition for what another text or dtype would cure), and changes nothing.
"""

import contextlib
import functools
import gc
import itertools
import linecache
import math
import os
import re
import sys
import threading
import types
import weakref

import numpy as np

from . import errors, _world

__all__ = ['trace']

_PACKAGE = os.path.dirname(os.path.abspath(__file__))
_NUMPY = os.path.dirname(os.path.abspath(np.__file__)) + os.sep


# ---- refusals -------------------------------------------------------------------------------------------------------

def _place():
    """Where the function is: the innermost line that is neither here nor numpy's."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        path = os.path.abspath(name)
        if os.path.dirname(path) != _PACKAGE and not path.startswith(_NUMPY) and not name.startswith('<__array_function__'):
            line = linecache.getline(name, frame.f_lineno).strip()
            return f'{name}, line {frame.f_lineno}' + (f': {line}' if line else '')
        frame = frame.f_back
    return 'the updater function'


def _refuse(what, cure=''):
    error = errors.Unimplemented(f'an updater function of a daemon is traced, and {what} cannot be written down'
                                 f'{"; " + cure if cure else ""} ({_place()})', reason='unimplemented')
    if _tracing.now is not None:
        _tracing.now.raised = error
    raise error


# ---- expressions ----------------------------------------------------------------------------------------------------

class _Node:
    """One operation or leaf. Never changes, and equal ones are the same object, so that traces compare by identity.
    `number` rises: operands have smaller ones."""

    __slots__ = ('op', 'operands', 'number', '__weakref__')
    _numbers = itertools.count()
    _known = weakref.WeakValueDictionary()

    def __init__(self, op, operands):
        self.op, self.operands, self.number = op, operands, next(_Node._numbers)

    @classmethod
    def of(cls, op, *operands):
        # 0.0 == -0.0, and they are not the same number.
        known = (op, repr(operands[0])) if op == 'number' else (op, *operands)
        node = cls._known.get(known)
        if node is None:
            node = cls._known[known] = cls(op, operands)
        return node


_INFIX = {'+': 2, '-': 2, '*': 3, '/': 3, '<': 1, '<=': 1, '>': 1, '>=': 1, '==': 1, '!=': 1, '^': 5}
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
        left, right = parts[0].within(binds + (op == '^' or binds == 1)), parts[1].within(binds + 1)
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


def _uses(roots):
    """How often each node is an operand or a root, by its number."""
    nodes = {n.number: n for root in roots for n in _reachable(root)}
    uses = dict.fromkeys(nodes, 0)
    for node in (*roots, *(o for n in nodes.values() for o in n.operands if isinstance(o, _Node))):
        uses[node.number] += 1
    return uses


class _Writer:
    """Writes assignments: each of `targets`, a dict of name to node, becomes what its node says of the values before the
    first of them. What is used more than once or is long gets a name of its own."""

    def __init__(self, targets):
        self._todo, self._lines, self._named, self._temporaries = dict(targets), [], {}, 0
        self._uses = _uses(targets.values())

    def lines(self):
        while self._todo:
            name = next((n for n in self._todo if not self._is_read_by_others(n)), None)
            if name is not None:
                self._assign(name, self._todo.pop(name))
            else:
                # All read the old values of one another. One is computed before its turn.
                node = next(n for n in self._todo.values() if n.number not in self._named)
                self._name(node, self._text(node))
        return self._lines

    def _is_read_by_others(self, name):
        """Does what is left read the value that a name has now? What has a name of its own is not computed again."""
        todo = [n for other, n in self._todo.items() if other != name]
        seen = {self._todo[name].number} if self._todo[name].op not in ('name', 'number') else set()
        while todo:
            node = todo.pop()
            if node.number in seen or node.number in self._named:
                continue
            seen.add(node.number)
            if node.op == 'name' and node.operands[0] == name:
                return True
            todo += [o for o in node.operands if isinstance(o, _Node)]
        return False

    def _text(self, root):
        """The text of a node, after assignments to what it needs and has no name yet. Without recursion, for expressions
        may be deep."""
        wanted, todo, texts = {}, [root], {}
        while todo:
            node = todo.pop()
            if node.number not in wanted:
                wanted[node.number] = node
                if node.number not in self._named:
                    todo += [o for o in node.operands if isinstance(o, _Node)]
        for number in sorted(wanted):
            texts[number] = self._text_of(wanted[number], root, texts)
        return texts[root.number]

    def _text_of(self, node, root, texts):
        if node.number in self._named:
            return _Text(self._named[node.number])
        if node.op == 'name':
            return _Text(node.operands[0])
        if node.op == 'number':
            return _number_text(node.operands[0])
        text = _operation_text(node.op, [texts[o.number] for o in node.operands])
        if node is root or (self._uses[node.number] == 1 and text.depth <= _DEPTH_MAX and len(text.text) <= _LENGTH_MAX):
            return text
        return self._name(node, text)

    def _name(self, node, text):
        self._temporaries += 1
        self._named[node.number] = f't{self._temporaries}'
        self._lines.append(f't{self._temporaries} = {text.text}')
        return _Text(f't{self._temporaries}')

    def _assign(self, name, node):
        first = node.operands[0] if node.op in ('+', '-', '*', '/') and node.number not in self._named else None
        if first is not None and first.op == 'name' and first.operands[0] == name:
            # As people write it: stored += x for stored = stored + x.
            self._lines.append(f'{name} {node.op}= {self._text(node.operands[1]).text}')
        else:
            self._lines.append(f'{name} = {self._text(node).text}')
        if node.op not in ('name', 'number'):
            self._named[node.number] = name


def _expression_text(root):
    return _Writer({'stored': root}).lines()[-1].split('= ', 1)[1]


# ---- symbolic arrays ------------------------------------------------------------------------------------------------

def _constant(value):
    """A number as a node."""
    number = float(value)
    if not math.isfinite(number):
        _refuse(f'the number {number}', 'the language has finite numbers only')
    return _Node.of('number', number)


def _node_of(thing):
    """What an operand stands for: a symbolic array, a number, or an array that is the same number everywhere."""
    if isinstance(thing, (SymbolicArray, SymbolicNumber)):
        return thing._node
    if isinstance(thing, (bool, int, float, np.bool_, np.integer, np.floating)):
        return _constant(thing)
    if isinstance(thing, np.ndarray):
        if thing.dtype.kind in 'biuf' and thing.size > 0 and (thing == thing.flat[0]).all():
            return _constant(thing.flat[0])
        _refuse('an array of different numbers as a constant', 'a number of the language is the same for all elements')
    _refuse(f'{type(thing).__name__} {thing!r:.40} as an operand')


def _is_mask(thing):
    if isinstance(thing, SymbolicNumber):
        return thing._is_mask
    if isinstance(thing, (SymbolicArray, np.ndarray)):
        return thing.dtype == np.bool_
    return isinstance(thing, (bool, np.bool_))


_CHOOSE = 'numpy.where(condition, a, b) chooses for each element, numpy.minimum and maximum do so by size'


_BOOL = np.dtype(np.bool_)


def _operator(ufunc, general):
    """An operator that looks first whether the same was computed before, which many keys do."""
    name = general.__name__
    reflected, in_place = name.startswith('__r'), name.startswith('__i')

    def operate(self, other):
        run = _tracing.now
        mark = _mark_of(other)
        made = run and run.made.get((ufunc, mark, self._mark) if reflected else (ufunc, self._mark, mark))
        if made is None or type(other) is SymbolicArray and type(self) is SymbolicArray and other.shape != self.shape:
            return general(self, other)
        if type(made) is SymbolicNumber:
            return made
        if not in_place or type(self) is SymbolicNumber:
            return SymbolicArray(made._node, (other if type(self) is SymbolicNumber else self).shape, run.dtype)
        self._node = self._mark = made._node
        return self
    operate.__name__ = name
    return operate


def _mark_of(thing):
    """What stands for an operand in run.made. Operations on what has none are not kept there."""
    kind = type(thing)
    if kind is SymbolicArray or kind is SymbolicNumber:
        return thing._mark
    # 0.0 == -0.0, and they are not the same number.
    return thing if (kind is float or kind is int) and thing != 0 else _NO_MARK


# Never part of a key of run.made.
_NO_MARK = object()


class SymbolicArray(np.lib.mixins.NDArrayOperatorsMixin):
    """Stands for an array of a key while an updater function is traced. Has shape and dtype; its elements are not known."""

    def __init__(self, node, shape, key_dtype, mask=False):
        self._node, self.shape, self._key_dtype = node, shape, key_dtype
        self.dtype = _BOOL if mask else key_dtype
        self._mark = _NO_MARK if mask else node

    # -- what is known

    __class__ = property(lambda self: np.ndarray)       # isinstance() must answer what it answers for real arrays
    ndim = property(lambda self: len(self.shape))
    size = property(lambda self: math.prod(self.shape))
    itemsize = property(lambda self: self.dtype.itemsize)
    nbytes = property(lambda self: self.size * self.itemsize)

    def __len__(self):
        if not self.shape:
            raise TypeError('len() of unsized object')
        return self.shape[0]

    def __repr__(self):
        return f'<{self.dtype} {self.shape}, traced: {_expression_text(self._node)}>'

    def __format__(self, _):
        return repr(self)

    # -- what is written down

    def _like(self, node, mask=False):
        return SymbolicArray(node, self.shape, self._key_dtype, mask)

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **options):
        return _apply(ufunc, method, inputs, out, options)

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
            _store(self, _Node.of('where', index._node, _node_of(value), self._node), _is_mask(self) and _is_mask(value))
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
        if _tracing.now is not None:
            _tracing.now.promote(None)
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


class SymbolicNumber(np.lib.mixins.NDArrayOperatorsMixin):
    """Stands for a number that is another at each update: `step` of the language plus `offset`, or what is computed of it.
    truth: what a comparison is at all updates but the first; None when it is not the same at all of them."""

    def __init__(self, node, offset=None, is_mask=False, truth=None):
        self._node, self._offset, self._is_mask, self._truth = node, offset, is_mask, truth
        self._mark = _NO_MARK if is_mask else (SymbolicNumber, node, offset)

    @classmethod
    def of_step(cls, offset):
        """step + offset."""
        step = _Node.of('name', 'step')
        node = step if offset == 0 else _Node.of('+-'[offset < 0], step, _constant(abs(offset)))
        return cls(node, offset)

    shape, ndim, size = (), 0, 1

    def __repr__(self):
        return f'<number, traced: {_expression_text(self._node)}>'

    def __format__(self, _):
        return repr(self)

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **options):
        return _apply(ufunc, method, inputs, out, options)

    __array_function__ = SymbolicArray.__array_function__

    def __bool__(self):
        truth = self._truth if self._offset is None else _compare_steps('!=', self._offset, 0)
        if truth is None:
            _refuse('a branch (if, while, min, max) on a number that changes with each update',
                    'numpy.where, numpy.minimum and numpy.maximum take it')
        return truth

    def __hash__(self):
        _refuse('a number that changes with each update as a key of a dict or set')


# Numbers are not changed in place: other names of them stay what they were.
for _name in ('add', 'sub', 'mul', 'truediv', 'pow'):
    setattr(SymbolicNumber, f'__i{_name}__', getattr(SymbolicNumber, f'__{_name}__'))
for _name in ('float', 'int', 'complex', 'index', 'round', 'trunc', 'floor', 'ceil'):
    setattr(SymbolicNumber, f'__{_name}__',
            _refusing(f'{_name}() of a number that changes with each update'))


for _class in (SymbolicArray, SymbolicNumber):
    for _name, _ufunc in {'add': np.add, 'sub': np.subtract, 'mul': np.multiply, 'truediv': np.true_divide,
                          'pow': np.power}.items():
        for _name in (f'__{_name}__', f'__r{_name}__', f'__i{_name}__'):
            setattr(_class, _name, _operator(_ufunc, getattr(_class, _name)))


def _compare_steps(sign, offset, number):
    """What step + offset compared with a number is for all steps from 2 on, or None."""
    least = 2 + offset
    never = {'<': least >= number, '<=': least > number, '==': number < least or number != int(number)}
    if sign in never:
        return False if never[sign] else None
    return True if never[{'>=': '<', '>': '<=', '!=': '=='}[sign]] else None


_FLIPPED = {'<': '>', '>': '<', '<=': '>=', '>=': '<=', '==': '==', '!=': '!='}


def _number_of(name, inputs, node, mask):
    """The result of an operation on single values alone."""
    left, right = inputs if len(inputs) == 2 else (inputs[0], None)
    flip = not isinstance(left, SymbolicNumber)
    number, other = (right, left) if flip else (left, right)
    if number._offset is None or isinstance(other, SymbolicNumber) or other is None or not math.isfinite(other):
        return SymbolicNumber(node, None, mask)
    if name in ('add', 'subtract') and float(other).is_integer() and not (flip and name == 'subtract'):
        return SymbolicNumber.of_step(number._offset + int(other) * (1 if name == 'add' else -1))
    sign = _COMPARE.get(name)
    truth = sign and _compare_steps(_FLIPPED[sign] if flip else sign, number._offset, other)
    return SymbolicNumber(node, None, mask, truth)


def _apply(ufunc, method, inputs, out, options):
    if len(inputs) == 1 and method == '__call__' and out is None and not options and _tracing.now is not None:
        made = _tracing.now.made.get((ufunc, _mark_of(inputs[0])))
        if made is not None:
            return made if type(made) is SymbolicNumber else SymbolicArray(made._node, inputs[0].shape,
                                                                                  inputs[0]._key_dtype)
    name = ufunc.__name__
    if method != '__call__':
        _refuse(f'numpy.{name}.{method}', 'a value of one element may not depend on others')
    if any(option not in ('casting', 'subok') for option in options):
        _refuse(f'numpy.{name} with {", ".join(options)}')
    arrays = [x for x in (*inputs, *(out or ())) if isinstance(x, SymbolicArray)]
    several = arrays or _tracing.now is not None and any(isinstance(x, np.ndarray) and x.ndim for x in (*inputs, *(out or ())))
    first = arrays[0] if arrays else _tracing.now.constant(0.0) if several else None
    if first is not None:
        _check_shapes(first, inputs)
    node, mask = _ufunc_node(name, inputs)
    made = _number_of(name, inputs, node, mask) if first is None else first._like(node, mask)
    marks = [_mark_of(x) for x in inputs]
    if _tracing.now is not None and not mask and _NO_MARK not in marks:
        _tracing.now.made[ufunc, *marks] = made if first is None else made.copy()
    return made if out is None else _store(out[0], made._node, _is_mask(made))


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
        if _tracing.now is not None and isinstance(target, np.ndarray):
            _tracing.now.promote(target)
        _refuse('a result written into an array of the function\'s own',
                'make it with numpy.zeros_like(stored), and keep it for each key, such as self.m[key]')
    if target.dtype == np.bool_ and not mask:
        raise TypeError(f'Cannot cast output from dtype({target._key_dtype}) to dtype("bool")')
    target._node, target._mark = node, _NO_MARK if mask else node
    return target


# ---- ufuncs and functions -------------------------------------------------------------------------------------------

def _one():
    return _Node.of('number', 1.0)


def _square(x):
    return _Node.of('*', x, x)


def _is_finite(x):
    return _Node.of('==', _Node.of('-', x, x), _Node.of('number', 0.0))


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
    'reciprocal': lambda x: _Node.of('/', _one(), x),
}
_TESTS = {'isnan': lambda x: _Node.of('!=', x, x), 'isfinite': _is_finite}
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
        return _Node.of('==', _node_of(inputs[0]), _Node.of('number', 0.0)), True
    if name in ('subtract', 'negative') and all(masks):
        raise TypeError(f'numpy boolean {name}, the `-` operator, is not supported: use ~ or ^ of comparisons')
    if name == 'power':
        return _power_node(*inputs), False
    if name in _BINARY or name in _UNARY:
        return _Node.of(_BINARY.get(name) or _UNARY[name], *map(_node_of, inputs)), False
    if name in _COMPARE:
        return _Node.of(_COMPARE[name], *map(_node_of, inputs)), True
    if name in _COMPOSED:
        return _COMPOSED[name](_node_of(inputs[0])), False
    if name in _TESTS:
        return _TESTS[name](_node_of(inputs[0])), True
    _refuse(f'numpy.{name}' + (f' ({_SIGNS[name]})' if name in _SIGNS else ''), _CURES.get(name, ''))


def _logic_node(name, inputs, masks):
    if name.startswith('bitwise') and not all(masks):
        _refuse(f'numpy.{name} of numbers', '& | ^ are for comparisons')
    nodes = [_node_of(x) if mask else _Node.of('!=', _node_of(x), _Node.of('number', 0.0)) for x, mask in zip(inputs, masks)]
    return _Node.of({'add': 'max', 'multiply': 'min'}.get(name) or _LOGIC[name], *nodes), True


def _power_node(base, exponent):
    """Powers that numpy takes apart, too. The language's own are of single values."""
    if isinstance(base, (bool, int, float, np.number, SymbolicNumber)) and isinstance(exponent, (
            bool, int, float, np.number, SymbolicNumber)):
        return _Node.of('^', _node_of(base), _node_of(exponent))
    if isinstance(exponent, (SymbolicArray, SymbolicNumber)) or np.ndim(exponent) > 0:
        _refuse('a power with an exponent for each element', 'write numpy.exp(y * numpy.log(x))')
    x, p = _node_of(base), float(exponent)
    if p == 0.5:
        return _Node.of('sqrt', x)
    if p != int(p) or not 1 <= abs(p) <= 4:
        _refuse(f'the power {p:g}', 'from -4 to 4, and 0.5; write numpy.exp(y * numpy.log(x))')
    node = x
    for _ in range(int(abs(p)) - 1):
        node = _Node.of('*', node, x)
    return node if p > 0 else _Node.of('/', _one(), node)


def _first_symbolic(*things):
    return next((t for t in things if isinstance(t, SymbolicArray)), None)


def _result(first, node, mask=False):
    return SymbolicNumber(node, None, mask) if first is None else first._like(node, mask)


def _where(condition, *choices):
    if len(choices) != 2:
        _refuse('numpy.where with one argument', 'the places of elements are not known')
    first = _first_symbolic(condition, *choices)
    if first is None and any(isinstance(x, np.ndarray) and x.ndim for x in choices) and _tracing.now is not None:
        first = _tracing.now.constant(0.0)
    if first is not None:
        _check_shapes(first, (condition, *choices))
    return _result(first, _Node.of('where', *map(_node_of, (condition, *choices))), all(map(_is_mask, choices)))


def _clip(a, a_min=None, a_max=None, out=None, **options):
    if options:
        _refuse(f'numpy.clip with {", ".join(options)}')
    if a_min is None and a_max is None:
        raise ValueError('One of max or min must be given')
    first = _first_symbolic(a, a_min, a_max)
    x, least, most = _node_of(a), *(None if bound is None else _node_of(bound) for bound in (a_min, a_max))
    node = (_Node.of('min', x, most) if least is None else _Node.of('max', x, least) if most is None
            else _Node.of('clamp', x, least, most))
    return _result(first, node) if out is None else _store(out, node)


def _copyto(dst, src, casting='same_kind', where=True):
    if where is not True:
        src = _where(where, src, dst)
    _store(dst, _node_of(src), _is_mask(src))


_UNDEFINED = object()
_NOTHING = 'what numpy.empty leaves'


def _undefined():
    return _Node.of('name', _NOTHING)


def _full_like(a, fill_value, dtype=None, **_):
    if dtype is not None and np.dtype(dtype).kind != 'f':
        _refuse(f'an array of {np.dtype(dtype)}', f'everything is computed in the dtype of the key, {a._key_dtype}')
    return a._like(_undefined() if fill_value is _UNDEFINED else _node_of(fill_value))


_FUNCTIONS = {
    'where': _where, 'clip': _clip, 'copyto': _copyto, 'full_like': _full_like,
    'empty_like': lambda a, dtype=None, **_: _full_like(a, _UNDEFINED, dtype),
    'zeros_like': lambda a, dtype=None, **_: _full_like(a, 0.0, dtype),
    'ones_like': lambda a, dtype=None, **_: _full_like(a, 1.0, dtype),
    'copy': lambda a, **_: a.copy(), 'shape': lambda a: a.shape, 'ndim': lambda a: a.ndim,
    'size': lambda a, axis=None: a.size if axis is None else a.shape[axis],
}


# ---- while a function runs ------------------------------------------------------------------------------------------

class _Tracing(threading.local):
    now = None                  # the _Run of this thread whose function runs


_tracing = _Tracing()


class _Promote(BaseException):
    """An array that was there before turns out to hold results: the function is to be traced anew with a symbolic one
    in its place. array: None when it is not known which one."""

    def __init__(self, array):
        self.array, self.place = array, _place()


def _creating(original, fill):
    """numpy.zeros and the like: of the shape of the key they are symbolic, for results may be written into them."""
    def create(shape, *args, **kwargs):
        run, made = _tracing.now, original(shape, *args, **kwargs)
        if run is None or made.shape != run.shape or made.dtype.kind != 'f':
            return made
        value = _undefined() if fill is _UNDEFINED else made.flat[0] if made.size > 0 else 0.0
        return run.constant(value)
    return create


def _of_number(original, function):
    """math.sqrt and the like take numbers that change with each update, too."""
    def compute(*args):
        return (function if any(isinstance(a, SymbolicNumber) for a in args) else original)(*args)
    return compute


_REPLACED = [(np, name, _creating(getattr(np, name), fill))
             for name, fill in {'zeros': 0, 'ones': 1, 'full': None, 'empty': _UNDEFINED}.items()]
_REPLACED += [(math, name, _of_number(getattr(math, name), function))
              for name, function in {'sqrt': np.sqrt, 'exp': np.exp, 'log': np.log, 'tanh': np.tanh, 'fabs': np.abs,
                                     'pow': np.power}.items()]
_ORIGINAL = {id(getattr(where, name)): made for where, name, made in _REPLACED}
_lock = threading.RLock()


class _Muted:
    """Standard output without what this thread writes; with the first writing noted."""

    def __init__(self, out, shows):
        self._out, self._shows, self._thread, self.heard = out, shows, threading.get_ident(), False

    def write(self, text):
        if threading.get_ident() == self._thread:
            self.heard = True
            if not self._shows:
                return len(text)
        return self._out.write(text)

    def __getattr__(self, name):
        return getattr(self._out, name)


@contextlib.contextmanager
def _replaced():
    """While a function is traced numpy.zeros and others are those of above. Other threads get what they are used to."""
    with _lock:
        originals = [(where, name, getattr(where, name)) for where, name, _ in _REPLACED]
        try:
            for where, name, made in _REPLACED:
                setattr(where, name, made)
            yield
        finally:
            for where, name, original in originals:
                setattr(where, name, original)


@contextlib.contextmanager
def _without_collector():
    """Many keys make many objects, all of which stay: to look through them again and again takes most of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


# What gives another answer each time, by the module or class that it is a function of.
_CLOCKS = {'time', 'posix', 'nt', '_random', 'datetime.datetime', 'datetime.date'}
_HARMLESS = {'sleep', 'fspath', 'getpid', 'stat'}


def _watch_calls(frame, event, function):
    """A profiler: refuses calls of clocks and sources of chance from the function's own code."""
    if event != 'c_call' or _world._is_foreign(frame.f_globals.get('__name__', '')):
        return
    of = getattr(function, '__self__', None)
    name = f'{of.__module__}.{of.__name__}' if isinstance(of, type) else getattr(function, '__module__', None)
    if name is None and isinstance(of, types.ModuleType):
        name = of.__name__
    if name in _CLOCKS and function.__name__ not in _HARMLESS:
        if name in ('posix', 'nt') and function.__name__ not in ('urandom', 'getrandom', 'times'):
            return
        sys.setprofile(None)
        _refuse(f'{name}.{function.__name__}(), which answers something else each time,',
                'the daemon computes the same formula at each update')


# ---- one key ----------------------------------------------------------------------------------------------------------

def _frozen(value):
    if isinstance(value, SymbolicArray):
        return 'symbol', value._node.number, value._key_dtype, value.dtype
    if isinstance(value, SymbolicNumber):
        return 'number', value._node.number
    return None


def _identity(value, path):
    """What two places share when a change of the one is a change of the other."""
    return path if _is_number(value) else id(value)


def _is_number(value):
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, (bool, np.bool_))


class _Run:
    """A function as it is traced for one key at a time."""

    def __init__(self, function):
        self.function, self.shape, self.dtype = function, None, None
        self.world = _world.World(function, _frozen, self._refuse_place)
        self.heard, self.raised = False, None       # raised: the last refusal within the function
        self.made = {}                              # results of operations, by the ufunc and the marks of operands

    def _refuse_place(self, what, path):
        _refuse_at(f'{what} ({_world.path_text(path)})', 'keep state in arrays, for each key', None)

    def constant(self, value):
        node = value if isinstance(value, _Node) else _constant(value)
        return SymbolicArray(node, self.shape, self.dtype)

    def leaf(self, name):
        return SymbolicArray(_Node.of('name', name), self.shape, self.dtype)

    def promote(self, array):
        self.raised = _Promote(array)
        raise self.raised

    def check_raised(self):
        """A function that goes on after a refusal (try, except) would do something else with elements."""
        if self.raised is not None:
            raise self.raised

    def set_key(self, shape, dtype):
        self.shape, self.dtype = tuple(shape), dtype

    def begin(self):
        """Functions that were imported by name are replaced as well."""
        look = self.world.look()
        names = {p: _ORIGINAL[id(v)] for p, v in look.value.items() if id(v) in _ORIGINAL}
        self.world.put(look, names)

    def call(self, key, number, shows=False, watched=False):
        """Calls the function once with symbols of this number; answers what it made of `stored`."""
        grad, stored = self.leaf(f'grad#{number}'), self.leaf(f'stored#{number}')
        out, err = _Muted(sys.stdout, shows), _Muted(sys.stderr, shows)
        # Where somebody measures or debugs, that goes on.
        watched, before = watched and sys.getprofile() is None, _tracing.now
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            _tracing.now = self
            if watched:
                sys.setprofile(_watch_calls)
            self.raised = None
            try:
                self.function(key, grad, stored)
            finally:
                _tracing.now = before
                if watched:
                    sys.setprofile(None)
        self.check_raised()
        self.heard |= out.heard and shows
        return stored._node

    def state(self, value, number, index):
        """The symbol of what a slot holds when trace `number` begins."""
        return SymbolicArray(_Node.of('name', f'slot {index}#{number}'), self.shape, self.dtype, _is_mask(value))

    def node(self, value, path):
        """What a slot holds as a node; refuses what is not the same in all elements."""
        if type(value) is SymbolicArray:
            return value._node
        if isinstance(value, np.ndarray) and value.shape != self.shape:
            _refuse(f'{_world.path_text(path)} of the shape {value.shape}', f'the key has {self.shape}')
        if isinstance(value, np.ndarray) and value.size == 0:
            return _constant(0)
        return _node_of(value)

    def is_slot(self, value):
        return type(value) is SymbolicArray or (isinstance(value, np.ndarray) and value.shape == self.shape
                                                    and value.dtype.kind == 'f')


class _Traced:
    """What three traces of a function for a key have shown. slots and counters are dicts from place to index and offset."""

    def __init__(self):
        self.first = self.later = None              # what becomes of stored in the first update, and later
        self.slots, self.counters, self.fixed, self.promoted = {}, {}, set(), set()
        self.firsts, self.laters = [], []           # the same of slots, by their index


class _OneKey:
    """Three traces of a function for one key. Leaves everything as it was."""

    def __init__(self, run, key, shows):
        self.run, self.key, self.shows, self.world = run, key, shows, run.world

    def trace(self):
        start = self.world.save()
        promoted, place = set(), None
        try:
            while True:
                try:
                    return self._rounds(promoted)
                except _Promote as wanted:
                    self.world.restore(start)
                    more = self._candidates(wanted.array) - promoted
                    if not more:
                        raise errors.Unimplemented(
                            'an updater function of a daemon is traced, and elements of an array as such (numpy.array, '
                            'numpy.asarray, results written into an array of the function\'s own) cannot be written '
                            'down; make arrays that are kept with numpy.zeros_like(stored), for each key, such as '
                            f'self.m[key] ({wanted.place})', reason='unimplemented') from None
                    promoted |= more
        finally:
            self.world.restore(start)

    def _candidates(self, array):
        look = self.world.look()
        return {p for p, v in look.value.items() if type(v) is not SymbolicArray and self.run.is_slot(v)
                and (v is array if array is not None else v.size == 0 or bool((v == v.flat[0]).all()))}

    def _rounds(self, promoted):
        run, done = self.run, _Traced()
        done.promoted = set(promoted)
        run.begin()
        look = self.world.look()
        self.world.put(look, {p: run.constant(run.node(look.value[p], p)) for p in promoted})
        self._entry, self._number, before = None, 1, self.world.look()
        done.first = self._call(1)
        self.shows = False
        one = self.world.look()
        changed = {p for p in one.content if before.content.get(p) != one.content[p]}
        gone = before.content.keys() - one.content.keys()
        done.fixed = changed | gone
        for path in (p for p in one.content if p in changed and p in one.value):
            if run.is_slot(one.value[path]):
                done.slots[path] = len(done.slots)
        after_one = self.world.save(one)
        while True:
            later, two = self._next(2, one, done)
            if not self._take_scalars(changed, before, one, two, done):
                break
            self.world.restore(after_one)
            one = self.world.look()
        done.firsts = [run.node(one.value[p], p) for p in done.slots]
        done.fixed -= done.slots.keys() | done.counters.keys()
        results = self._check_same(one, two, done)
        again, three = self._next(3, two, done)
        results_again = self._check_same(two, three, done)
        done.later, done.laters = _renamed(later, 2), [_renamed(n, 2) for n in results]
        if done.later is not _renamed(again, 3) or done.laters != [_renamed(n, 3) for n in results_again]:
            self._refuse_change(later, again)
        done.first, done.firsts = _renamed(done.first, 1), [_renamed(n, 1) for n in done.firsts]
        for node in (done.first, done.later, *done.firsts, *done.laters):
            _check_leaves(node)
        return done

    def _call(self, number):
        self._number = number
        self._entry = self.world.save()
        before = _world.random_state()
        node = self.run.call(self.key, number, self.shows, watched=True)
        if _world.random_state() != before:
            line = self._line(_world.random_state)
            if line:
                _refuse_at('a random number, which is another each time,',
                           'the daemon computes the same formula at each update', line)
        return node

    def _next(self, number, look, done):
        """The next trace: with symbols for what slots hold and for what counters have come to."""
        symbols, values = {}, {}
        for path, index in done.slots.items():
            value = look.value[path]
            values[path] = symbols.setdefault(_identity(value, path), self.run.state(value, number, index))
        values.update((p, SymbolicNumber.of_step(offset - 1)) for p, offset in done.counters.items())
        self.world.put(look, values)
        return self._call(number), self.world.look()

    def _take_scalars(self, changed, before, one, two, done):
        """Finds out what numbers that changed are, from the first two updates. Answers whether some are new."""
        found = False
        for path in changed:
            if path in done.slots or path in done.counters or path not in one.value or not _is_number(one.value[path]):
                continue
            first, second = one.value[path], two.value.get(path)
            if two.content.get(path) == one.content[path]:
                continue
            if isinstance(second, SymbolicArray):
                done.slots[path] = len(done.slots)
            elif _is_number(second) and second - first == 1 and float(first).is_integer():
                done.counters[path] = int(first) - 1
            else:
                self._refuse_cell(path, f'changes from {before.value.get(path, "nothing")!r:.30} to {first!r:.30} to '
                                        f'{second!r:.30}', 'a number may count the updates of its key; others are computed '
                                        'of that count, such as beta ** self.t[key]')
            found = True
        return found

    def _check_same(self, was, now, done):
        """All but slots and counters is as it was. Answers the nodes of slots."""
        for path in {**was.content, **now.content}:
            if path in done.slots and path in now.value and (self.run.is_slot(now.value[path])
                                                             or _is_number(now.value[path])):
                if _is_mask(was.value[path]) == _is_mask(now.value[path]):
                    continue
            if path in done.counters:
                value = now.value.get(path)
                if isinstance(value, SymbolicNumber) and value._offset == done.counters[path]:
                    continue
            elif path not in done.slots and was.content.get(path) == now.content.get(path):
                continue
            self._refuse_cell(path, 'changes with later updates in another way than a slot or a count of the updates',
                              'an array for each key is kept as a slot and a number that counts its updates as step')
        groups = [{p: _identity(look.value[p], p) for p in done.slots} for look in (was, now)]
        if self._partition(groups[1], done) != self._partition(groups[0], done):
            _refuse('one array under two names that are different arrays in a later update', 'keep copies: x.copy()')
        return [self.run.node(now.value[p], p) for p in done.slots]

    def _partition(self, group, done):
        first = {}
        return [first.setdefault(group[p], i) for i, p in enumerate(done.slots)]

    # -- refusals that name the place and the line

    def _refuse_cell(self, path, what, cure):
        line = self._line(lambda: self.world.look().content.get(path))
        _refuse_at(f'{_world.path_text(path)}, which {what},', cure, line)

    def _refuse_change(self, later, again):
        for node, number in ((later, 2), (again, 3)):
            _check_leaves(_renamed(node, number))
        _refuse_at('a function that computes something else at the second and the third update', 'the texts are '
                   f'{_expression_text(_renamed(later, 2))!r:.80} and {_expression_text(_renamed(again, 3))!r:.80}', None)

    def _line(self, watched):
        """The line of the function that changes what `watched` answers, by another run of the last trace."""
        self.world.restore(self._entry)
        seen, last, found = [watched()], [None], []

        def check():
            now = watched()
            if now != seen[0] and last[0] is not None and not found:
                found.append(last[0])

        def trace_lines(frame, event, _):
            if _world._is_foreign(frame.f_globals.get('__name__', '')) or found:
                return None
            if event != 'call':
                check()
            if event == 'line':
                last[0] = (frame.f_code.co_filename, frame.f_lineno)
            return trace_lines
        tracer = sys.gettrace()
        sys.settrace(trace_lines)
        try:
            self.run.call(self.key, self._number)
        except (Exception, _Promote):
            pass
        finally:
            sys.settrace(tracer)
        check()
        return found[0] if found else None


def _refuse_at(what, cure, line):
    where = 'the updater function'
    if line is not None:
        text = linecache.getline(*line).strip()
        where = f'{line[0]}, line {line[1]}' + (f': {text}' if text else '')
    raise errors.Unimplemented(f'an updater function of a daemon is traced, and {what} cannot be written down; {cure} '
                               f'({where})', reason='unimplemented')


def _mapped(root, change):
    """A node with others for some of its parts: change(node, operands) answers the new one."""
    new = {}
    for node in _reachable(root):
        operands = [new[o.number] if isinstance(o, _Node) else o for o in node.operands]
        new[node.number] = change(node, operands)
    return new[root.number]


def _renamed(root, number):
    """With the names of symbols without the number of their trace."""
    end = f'#{number}'

    def rename(node, operands):
        if node.op == 'name' and operands[0].endswith(end):
            return _Node.of('name', operands[0][:-len(end)])
        return _Node.of(node.op, *operands)
    return _mapped(root, rename)


def _check_leaves(root):
    for node in _reachable(root):
        if node.op == 'name' and node.operands[0] == _NOTHING:
            _refuse('what numpy.empty leaves in an array', 'begin with numpy.zeros_like(stored)')
        if node.op == 'name' and '#' in node.operands[0]:
            _refuse('an array that is kept from an earlier update at a place that is not seen (functools.lru_cache, a '
                    'generator, a library)', 'keep it in an attribute or a dict, for each key')


# ---- the text ---------------------------------------------------------------------------------------------------------

_WORDS = {'grad', 'stored', 'step', 'contributors', 'num_workers', 'staleness', 'pi', 'e', 'param', 'slot', 'master', 'min',
          'max', 'abs', 'sqrt', 'exp', 'log', 'tanh', 'sign', 'clamp', 'where'}
_NAME_MAX = 28


def _slot_names(paths, key):
    """Names of slots after the attributes and variables that hold them; what tells members of one apart only if it must."""
    def labels_of(path):
        labels = [x for x in path if x not in ('self', '', '.__class__')]
        if _world.Item(key) in labels:
            labels.remove(_world.Item(key))
        return labels

    def text(labels):
        return '_'.join(str(x.key) if isinstance(x, _world.Item) else x for x in labels)
    found = [labels_of(p) for p in paths]
    short = [text([x for x in labels if not isinstance(x, _world.Item)]) for labels in found]
    names = []
    for labels, name in zip(found, short):
        name = text(labels) if short.count(name) > 1 else name
        name = re.sub('[^A-Za-z0-9]+', '_', name).strip('_')[:_NAME_MAX].rstrip('_') or 'state'
        if not name[0].isalpha() or re.fullmatch(r't\d+', name) or name in _WORDS:
            name = f'slot_{name}'
        plain, n = name, 2
        while name in names:
            name, n = f'{plain}_{n}', n + 1
        names.append(name)
    return names


def _fold(node, operands):
    """A node of numbers alone is a number; 0 + x is x."""
    numbers = [o.operands[0] if isinstance(o, _Node) and o.op == 'number' else None for o in operands]
    if node.op in ('name', 'number'):
        return _Node.of(node.op, *operands)
    if node.op == 'where' and numbers[0] is not None:
        return operands[1] if numbers[0] != 0 else operands[2]
    if None not in numbers:
        try:
            value = float(_COMPUTED[node.op](*numbers))
        except (ArithmeticError, ValueError, TypeError, KeyError):
            return _Node.of(node.op, *operands)
        return _Node.of('number', value) if math.isfinite(value) else _Node.of(node.op, *operands)
    if node.op == '+' and numbers[0] == 0 or node.op in '+-' and numbers[1] == 0:
        return operands[1] if numbers[0] == 0 else operands[0]
    return _Node.of(node.op, *operands)


_COMPUTED = {'+': lambda a, b: a + b, '-': lambda a, b: a - b, '*': lambda a, b: a * b, '/': lambda a, b: a / b,
             '^': lambda a, b: a ** b, 'neg': lambda a: -a, 'abs': abs, 'sqrt': math.sqrt, 'exp': math.exp,
             'log': math.log, 'tanh': math.tanh, 'min': min, 'max': max, '<': lambda a, b: a < b,
             '<=': lambda a, b: a <= b, '>': lambda a, b: a > b, '>=': lambda a, b: a >= b, '==': lambda a, b: a == b,
             '!=': lambda a, b: a != b, 'sign': lambda a: math.copysign(1, a) if a else a,
             'where': lambda c, a, b: a if c else b, 'clamp': lambda x, a, b: min(max(x, a), b)}


def _begun(root, starts):
    """A later update as it is when it is the first: with what the slots start as."""
    def change(node, operands):
        if node.op == 'name' and operands[0] in starts:
            return starts[operands[0]]
        return _fold(node, operands)
    return _mapped(root, change)


def _folded(root):
    return _mapped(root, _fold)


def _live(done):
    """The slots that later values depend on, in order."""
    def read(root):
        return {int(n.operands[0][5:]) for n in _reachable(root) if n.op == 'name' and n.operands[0].startswith('slot ')}
    live, todo = set(), read(done.later)
    while todo:
        index = todo.pop()
        if index not in live:
            live.add(index)
            todo |= read(done.laters[index])
    return sorted(live)


_CHOICES_MAX = 10


def _program(done, key, title):
    """The text of what was traced."""
    live = _live(done)
    names = dict(zip(live, _slot_names([list(done.slots)[i] for i in live], key)))
    parts = [('stored', done.first, done.later)] + [(f'slot {i}', done.firsts[i], done.laters[i]) for i in live]
    first = [_folded(f) for _, f, _ in parts]

    def differing(stored):
        """The parts whose first update differs from a later one, where these slots start as stored and others as 0."""
        starts = {f'slot {i}': _Node.of('name', 'stored') if i in stored else _Node.of('number', 0.0) for i in live}
        starts['step'] = _Node.of('number', 1.0)
        return [name for (name, _, later), f in zip(parts, first) if _begun(later, starts) is not f]
    best, as_stored = differing(()), ()
    for some in itertools.chain.from_iterable(itertools.combinations(live[:_CHOICES_MAX], n)
                                              for n in range(1, len(live) + 1)):
        if not best:
            break
        fewer = differing(some)
        if len(fewer) < len(best):
            best, as_stored = fewer, some
    begins = _Node.of('==', _Node.of('name', 'step'), _Node.of('number', 1.0))
    finals = {name: _Node.of('where', begins, f, later) if name in best else later for name, f, later in parts}

    def name_slots(node, operands):
        if node.op == 'name' and operands[0].startswith('slot '):
            return _Node.of('name', names[int(operands[0][5:])])
        return _Node.of(node.op, *operands)
    order = [f'slot {i}' for i in live] + ['stored']
    lines = _Writer({names[int(n[5:])] if n != 'stored' else n: _mapped(finals[n], name_slots) for n in order}).lines()
    slots = [f'slot {names[i]} = {"stored" if i in as_stored else "0"}' for i in live]
    return '\n'.join([title, *slots, *lines]) + '\n'


# ---- tracing --------------------------------------------------------------------------------------------------------

# Tracing calls the function at least three times for each key.
KEYS_MAX = 100_000
# So many keys are traced one by one, and so show their own places of state; others have theirs where these have it.
_ALONE_MAX = 16
# Of more, those that are not alone are traced twice: they must become what the others have become in three traces.
_THRICE_MAX = 1000


def _name_of(function):
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, '__name__', type(function).__name__)
    return ''.join(c if c.isascii() and c.isprintable() else '?' for c in name)[:60]


def _trace_alone(run, key, shape, dtype, shows):
    """(what was traced, its text) of one key."""
    dtype = np.dtype(dtype)
    if dtype.kind != 'f':
        raise errors.FailedPrecondition(f'key {key!r} is {dtype}: an updater function of a daemon computes with '
                                        'fractions, so its keys are float32 or float64', reason='updater-incompatible')
    run.set_key(shape, dtype)
    name = _name_of(run.function)
    done = _OneKey(run, key, shows).trace()
    start = _Node.of('name', 'stored')
    if done.later is start and done.first is start:
        raise errors.Unimplemented(f'{name}({key!r}, grad, stored) leaves stored as it is: change it in '
                                   'place, such as stored += x or stored[:] = x', reason='unimplemented')
    return done, _program(done, key, f'# traced from {name}(key, grad, stored)')


def trace(function, key, shape, dtype):
    """The text that function(key, grad, stored) writes for a key, as it can be set with
    kv.set_updater({'type': 'program', 'text': text}). The function is left as it was found."""
    with _replaced():
        return _trace_alone(_Run(function), key, shape, dtype, True)[1]


# ---- many keys --------------------------------------------------------------------------------------------------------

def _place_for(path, key, other):
    """The place of another key's state where this key has it at `path`; None when the key is not part of it."""
    at = next((i for i, label in enumerate(path) if label == _world.Item(key)), None)
    return None if at is None else path[:at] + (_world.Item(other),) + path[at + 1:]


class _Places:
    """Where a key's slots and counters are."""

    def __init__(self, done, key=None, other=None):
        def moved(path):
            return path if other is None else _place_for(path, key, other)
        self.slots = [moved(p) for p in done.slots]
        self.counters = {moved(p): offset for p, offset in done.counters.items()}
        self.promoted = [moved(p) for p in done.promoted]

    def all(self):
        return [*self.slots, *self.counters]


class _Together:
    """Three traces of a function for many keys, one after another as a store would update them: each key must become what
    it becomes alone. places: of each key."""

    def __init__(self, run, keys, places, alone):
        self.run, self.keys, self.places, self.alone, self.world = run, keys, places, alone, run.world
        self._known = {}

    def _short(self, node, number):
        """The node without the number of its trace; the same for many keys, so made once."""
        known = self._known.get((node.number, number))
        if known is None:
            known = self._known[node.number, number] = (_renamed(node, number), node)
        return known[0]

    def trace(self, shown):
        """Answers what became of stored and of slots, for each key; `shown` tells for which keys prints show."""
        start = self.world.save()
        try:
            self.run.begin()
            look = self.world.look()
            self._put(look, lambda key, places: {p: self.run.constant(self.run.node(look.value[p], p))
                                                 for p in places.promoted if p in look.value})
            firsts, look = self._round(1, shown), self.world.look()
            one = look.content
            results = [[first, None, self._nodes(key, look, 1), None] for key, first in zip(self.keys, firsts)]
            before = None
            for number in (2, 3) if len(self.keys) <= _THRICE_MAX else (2,):
                self._enter(look, number)
                laters, look = self._round(number, ()), self.world.look()
                rest = {p: c for p, c in look.content.items() if p not in self._own}
                before = before or {p: c for p, c in one.items() if p not in self._own}
                if rest != before:
                    path = next(p for p in {**rest, **before} if rest.get(p) != before.get(p))
                    _refuse_at(f'{_world.path_text(path)}, which changes with each round of updates,', _BY_KEY, None)
                for key, later, result in zip(self.keys, laters, results):
                    nodes = self._nodes(key, look, number)
                    if number == 3 and (later is not result[1] or nodes != result[3]):
                        self._refuse_key(key[0])
                    result[1], result[3] = later, nodes
            return results
        except _Promote as wanted:
            raise errors.Unimplemented(f'an updater function of a daemon is traced, and an array that several keys write '
                                       f'into cannot be written down; {_BY_KEY} ({wanted.place})',
                                       reason='unimplemented') from None
        finally:
            self.world.restore(start)

    def _round(self, number, shown):
        run, results = self.run, []
        before, out, err = _tracing.now, sys.stdout, sys.stderr
        random_before = _world.random_state()
        muted = _Muted(out, False), _Muted(err, False)
        with contextlib.redirect_stdout(muted[0]), contextlib.redirect_stderr(muted[1]):
            _tracing.now, run.raised = run, None
            try:
                for key, shape, dtype in self.keys:
                    for m in muted:
                        m.shows = key in shown
                    run.set_key(shape, dtype)
                    grad, stored = run.leaf(f'grad#{number}'), run.leaf(f'stored#{number}')
                    run.function(key, grad, stored)
                    results.append(self._short(stored._node, number))
            finally:
                _tracing.now = before
        run.check_raised()
        run.heard |= muted[0].heard and bool(shown)
        if _world.random_state() != random_before:
            _refuse_at('a random number, which is another each time,', 'the daemon computes the same formula at each '
                       'update', None)
        return results

    def _put(self, look, values_of):
        values = {}
        for key, shape, dtype in self.keys:
            self.run.set_key(shape, dtype)
            values.update(values_of(key, self.places[key]))
        self.world.put(look, values)

    def _enter(self, look, number):
        """Symbols for what slots hold, and for what counters have come to."""
        owner, self._own = {}, set()

        def values_of(key, places):
            symbols, values = {}, {}
            for index, path in enumerate(places.slots):
                value = look.value[path]
                same = _identity(value, path)
                if owner.setdefault(same, key) != key:
                    _refuse_shared(path, owner[same], key)
                if same not in symbols:
                    symbols[same] = self.run.state(value, number, index)
                values[path] = symbols[same]
            values.update((p, SymbolicNumber.of_step(offset - 1)) for p, offset in places.counters.items())
            self._own.update(values)
            return values
        self._put(look, values_of)

    def _nodes(self, key, look, number):
        """What the slots of a key hold after a round; its counters have counted it."""
        self.run.set_key(*key[1:])
        places = self.places[key[0]]
        for path, offset in places.counters.items():
            value = look.value.get(path)
            if not (value == offset + 1 if number == 1 else isinstance(value, SymbolicNumber) and value._offset == offset):
                self._refuse_key(key[0])
        if any(p not in look.value for p in places.slots):
            self._refuse_key(key[0])
        return [self._short(self.run.node(look.value[p], p), number) for p in places.slots]

    def _refuse_key(self, key):
        _refuse_at(f'{_name_of(self.run.function)}, which makes something else of key {key!r} after updates of other '
                   'keys,', _BY_KEY, None)


_BY_KEY = 'a daemon updates each key by itself: keep state for each key, such as self.m[key] and self.t[key]'


def _refuse_shared(path, key, other):
    _refuse_at(f'{_world.path_text(path)}, which the keys {key!r} and {other!r} both change,', _BY_KEY, None)


class Updater:
    """A function that was set as the updater of a daemon's store, and the one text that it writes for all keys.
    is_set: the store has it."""

    def __init__(self, function):
        self.function, self.text, self.is_set = function, None, False
        self._traced, self._alone, self._owner, self._noted = set(), {}, {}, False

    def document(self):
        return {'type': 'program', 'text': self.text}

    def trace(self, keys):
        """Traces it for each (key, shape, dtype) that is new. FailedPrecondition if two keys get different texts; then,
        and when it is refused, the updater is as it was before."""
        with _lock:
            new = list(dict.fromkeys(k for k in keys if k not in self._traced))
            if new:
                self._take(new)

    def _take(self, new):
        if len(self._traced) + len(new) > KEYS_MAX:
            self._refuse_many(len(self._traced) + len(new), new[0])
        kept = self.text, dict(self._alone), dict(self._owner)
        run = _Run(self.function)
        try:
            with _replaced(), _without_collector():
                self._trace_new(run, new)
        except BaseException:
            self.text, self._alone, self._owner = kept
            raise
        self._traced.update(new)
        if run.heard and not self._noted:
            self._noted = True
            print(f'paramd: {_name_of(self.function)} was traced, so what it prints shows once for each key, not at each '
                  'update', file=sys.stderr)

    def _refuse_many(self, count, example):
        with _replaced():
            text = _trace_alone(_Run(self.function), *example, False)[1]
        raise errors.Unimplemented(
            f'an updater function of a daemon is traced for each key, for {KEYS_MAX} at most, not {count}: set its text, '
            f"which paramd.trace.trace(function, key, shape, dtype) answers. For {example[0]!r}: set_updater({{'type': "
            f"'program', 'text': {text!r}}})", reason='unimplemented')

    def _trace_new(self, run, new):
        for key in new[:_ALONE_MAX]:
            self._trace_one(run, key, True)
        by_key, found = {k[0]: k for k in self._alone}, {d for d in self._alone.values()}
        example = next(iter(self._alone))
        keys = [*([example] if example not in new else []), *new]
        if len(keys) == 1:
            return
        places = {k: _Places(self._alone[by_key[k]]) if k in by_key else
                  _Places(self._alone[example], example[0], k) for k, _, _ in keys}
        for key in new[_ALONE_MAX:]:
            self._own(key[0], places[key[0]].all())
        results = _Together(run, keys, places, self._alone).trace({k for k, _, _ in new[_ALONE_MAX:]})
        expected = {(d.first, d.later, *d.firsts, *d.laters) for d in found}
        for key, (first, later, firsts, laters) in zip(keys, results):
            if (first, later, *firsts, *laters) not in expected:
                self._trace_one(run, key, False)
                done = self._alone[key]
                if (first, later, *firsts, *laters) != (done.first, done.later, *done.firsts, *done.laters):
                    _Together._refuse_key(types.SimpleNamespace(run=run), key[0])

    def _trace_one(self, run, key, shows):
        done, text = _trace_alone(run, *key, shows)
        first = next(iter(self._alone), None)
        if self.text is None:
            self.text = text
        elif text != self.text:
            raise errors.FailedPrecondition(
                f'{_name_of(self.function)} writes different programs for the keys {first[0]!r} and {key[0]!r}, and a '
                f'store has one updater: use a store for each kind of key. For {first[0]!r}:\n{self.text}For {key[0]!r}:\n'
                f'{text}', reason='updater-incompatible')
        self._own(key[0], [*done.slots, *done.counters])
        self._alone[key] = done

    def _own(self, key, paths):
        """No two keys change the same place."""
        for path in paths:
            if path is None:
                _refuse_at('state of so many keys that is not kept by key', _BY_KEY, None)
            if self._owner.setdefault(path, key) != key:
                _refuse_shared(path, self._owner[path], key)
