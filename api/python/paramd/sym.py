"""Networks as symbols: a small builder after mx.sym, for tutorials that build a network without MXNet.

    from paramd import sym, viz

    user = sym.Variable('user')
    item = sym.Variable('item')
    user = sym.Embedding(data=user, input_dim=1000, output_dim=64, name='user_embed')
    item = sym.Embedding(data=item, input_dim=500, output_dim=64, name='item_embed')
    score = sym.Flatten(sym.sum_axis(user * item, axis=1))
    net = sym.LinearRegressionOutput(data=score, label=sym.Variable('score'), name='loss')

    viz.plot_network(net)                     # a drawing; in a notebook it is shown
    net.save('net-symbol.json')               # a symbol file as MXNet writes it

A symbol describes; it computes nothing. Parameters that are not given are made, named after their operator
(`fc1_weight`). Operators without a function here: op('name', a, b, axis=1).
"""

import itertools
import json
import threading

__all__ = ['Symbol', 'Variable', 'var', 'Group', 'op', 'load', 'load_json', 'fromjson']

_MXNET_VERSION = 10901

_DTYPES = {'float32': 0, 'float64': 1, 'float16': 2, 'uint8': 3, 'int32': 4, 'int8': 5, 'int64': 6, 'bool': 7}

_numbers = threading.local()


def _new_name(hint):
    """activation0, activation1, ...: a count for each hint and thread, as in MXNet."""
    counts = _numbers.__dict__.setdefault('counts', {})
    number = counts.setdefault(hint, itertools.count())
    return f'{hint}{next(number)}'


def _text(value):
    """An attribute's value as symbol files have it."""
    return value if isinstance(value, str) else str(tuple(value)) if isinstance(value, list) else str(value)


class _Node:
    __slots__ = ('op', 'name', 'attrs', 'inputs', 'outputs', 'aux')

    def __init__(self, kind, name, attrs, inputs=(), outputs=1, aux=False):
        if not isinstance(name, str) or not name or '\0' in name:
            raise ValueError(f'a name is a text that is not empty, not {name!r}')
        self.op, self.name, self.attrs, self.inputs = kind, name, attrs, list(inputs)
        self.outputs, self.aux = outputs, aux

    def output_name(self, index):
        if self.op is None:
            return self.name
        return f'{self.name}_output' if self.outputs == 1 else f'{self.name}_output{index}'


class Symbol:
    """One output of a network, or a group of several. Immutable."""

    __slots__ = ('_entries',)
    __array_priority__ = 1000        # numpy scalars leave arithmetic to us

    def __init__(self, entries):
        self._entries = list(entries)

    # -- what it is

    @property
    def name(self):
        """The name of its node; None for a group."""
        return self._entries[0][0].name if len(self._entries) == 1 else None

    def attr(self, key):
        """The value of an attribute of its node, as text; None if it has none."""
        return self._only()[0].attrs.get(key)

    def list_attr(self):
        return dict(self._only()[0].attrs)

    def attr_dict(self):
        """Name of node: its attributes, for all that have some."""
        return {node.name: dict(node.attrs) for node in self._nodes() if node.attrs}

    def list_outputs(self):
        return [node.output_name(index) for node, index in self._entries]

    def list_arguments(self):
        """Names of the variables, inputs and parameters, in the order of use."""
        return [node.name for node in self._nodes() if node.op is None and not node.aux]

    def list_auxiliary_states(self):
        """Names of the variables that are kept but not learned, such as running means."""
        return [node.name for node in self._nodes() if node.op is None and node.aux]

    def list_inputs(self):
        return [node.name for node in self._nodes() if node.op is None]

    def get_internals(self):
        """All outputs of all nodes, as a group: iterate it, or pick one by name, `net.get_internals()['fc1_output']`."""
        return Symbol([(node, index) for node in self._nodes() for index in range(node.outputs)])

    def get_children(self):
        """The direct inputs as a group; None for a variable."""
        inputs = self._only()[0].inputs
        return Symbol(inputs) if inputs else None

    def __len__(self):
        return len(self._entries)

    def __iter__(self):
        return (Symbol([entry]) for entry in self._entries)

    def __getitem__(self, index):
        if isinstance(index, str):
            names = self.list_outputs()
            if names.count(index) != 1:
                raise ValueError(f'{index!r} names {names.count(index)} outputs; there are {", ".join(names[:20])}')
            index = names.index(index)
        if isinstance(index, slice):
            return Symbol(self._entries[index])
        return Symbol([self._entries[index]])

    def __repr__(self):
        if len(self._entries) == 1:
            return f'<Symbol {self.name}>'
        return f'<Symbol group [{", ".join(node.name for node, _ in self._entries)}]>'

    def __bool__(self):
        raise TypeError('a symbol has no truth value; nothing is computed')

    # -- arithmetic

    def __add__(self, other):
        return _arithmetic('_plus', 'elemwise_add', '_plus_scalar', self, other)

    def __sub__(self, other):
        return _arithmetic('_minus', 'elemwise_sub', '_minus_scalar', self, other)

    def __mul__(self, other):
        return _arithmetic('_mul', 'elemwise_mul', '_mul_scalar', self, other)

    def __truediv__(self, other):
        return _arithmetic('_div', 'elemwise_div', '_div_scalar', self, other)

    def __pow__(self, other):
        return _arithmetic('_power', '_power', '_power_scalar', self, other)

    __radd__, __rmul__ = __add__, __mul__

    def __rsub__(self, other):
        return _arithmetic('_rminus', None, '_rminus_scalar', self, other)

    def __rtruediv__(self, other):
        return _arithmetic('_rdiv', None, '_rdiv_scalar', self, other)

    def __neg__(self):
        return self * -1.0

    # -- files

    def tojson(self):
        """The text of a symbol file, which MXNet reads too."""
        nodes = self._nodes()
        number = {id(node): i for i, node in enumerate(nodes)}

        def entry(node, index):
            return [number[id(node)], index, 0]

        def written(node):
            out = {'op': node.op or 'null', 'name': node.name}
            if node.attrs:
                out['attrs'] = {key: node.attrs[key] for key in sorted(node.attrs)}
            return {**out, 'inputs': [entry(*i) for i in node.inputs]}

        return json.dumps({
            'nodes': [written(node) for node in nodes],
            'arg_nodes': [i for i, node in enumerate(nodes) if node.op is None],
            'node_row_ptr': list(itertools.accumulate((node.outputs for node in nodes), initial=0)),
            'heads': [entry(*e) for e in self._entries],
            'attrs': {'mxnet_version': ['int', _MXNET_VERSION]},
        }, indent=2, ensure_ascii=False)

    def save(self, fname):
        with open(fname, 'w', encoding='utf-8') as file:
            file.write(self.tojson())

    # -- below: the walk

    def _only(self):
        if len(self._entries) != 1:
            raise ValueError('this is a group of symbols; pick one')
        return self._entries[0]

    def _nodes(self):
        """Inputs before those who use them, in the order in which a walk from the outputs leaves them."""
        found, seen, stack = [], set(), []
        for head, _ in self._entries:
            stack.append((head, iter(head.inputs)))
            while stack:
                node, rest = stack[-1]
                child = next(rest, None) if id(node) not in seen else None
                if child is not None:
                    if id(child[0]) not in seen:
                        stack.append((child[0], iter(child[0].inputs)))
                    continue
                stack.pop()
                if id(node) not in seen:
                    seen.add(id(node))
                    found.append(node)
        return found


def _single(thing, what):
    if not isinstance(thing, Symbol):
        raise TypeError(f'{what} is a Symbol, not {type(thing).__name__}')
    return thing._only()


def _arithmetic(hint, of_two, of_scalar, left, right):
    if isinstance(right, Symbol) and of_two is not None:
        entries = [left._only(), right._only()]
        return Symbol([(_Node(of_two, _new_name(hint), {}, entries), 0)])
    try:
        scalar = float(right)
    except (TypeError, ValueError):
        return NotImplemented
    return Symbol([(_Node(of_scalar, _new_name(hint + 'scalar'), {'scalar': str(scalar)}, [left._only()]), 0)])


def Variable(name, attr=None, shape=None, lr_mult=None, wd_mult=None, dtype=None, init=None, **more):
    """An input or a parameter. shape may have 0 for what is not known."""
    attrs = {key: _text(value) for key, value in {**(attr or {}), **more}.items()}
    hidden = {'__shape__': None if shape is None else str(tuple(shape)), '__lr_mult__': lr_mult, '__wd_mult__': wd_mult,
              '__init__': init}
    attrs.update({key: _text(value) for key, value in hidden.items() if value is not None})
    if dtype is not None:
        known = getattr(dtype, '__name__', None) or str(dtype)
        if known not in _DTYPES:
            raise ValueError(f'dtype {dtype!r} is none of {", ".join(_DTYPES)}')
        attrs['__dtype__'] = str(_DTYPES[known])
    return Symbol([(_Node(None, name, attrs), 0)])


var = Variable


def Group(symbols):
    """Several outputs of one network."""
    symbols = list(symbols)
    if not symbols or not all(isinstance(s, Symbol) for s in symbols):
        raise TypeError('Group takes a list of symbols')
    return Symbol([entry for s in symbols for entry in s._entries])


def op(kind, *inputs, name=None, num_outputs=1, **attrs):
    """Any operator: op('LRN', x, nsize=5). Symbols in attrs are inputs too, behind the others."""
    entries = [_single(i, f'an input of {kind}') for i in inputs]
    entries += [v._only() for v in attrs.values() if isinstance(v, Symbol)]
    texts = {k: _text(v) for k, v in attrs.items() if v is not None and not isinstance(v, Symbol)}
    node = _Node(kind, name or _new_name(kind.lower().lstrip('_')), texts, entries, num_outputs)
    return Symbol([(node, i) for i in range(num_outputs)])


# ---- operators ------------------------------------------------------------------------------------------------------

# name: inputs in order. With a star the parameters that are made when they are not given, with two stars the statistics
# among them; a ? behind: only when something says so (_wanted).
_WITH_PARAMETERS = {
    'FullyConnected': 'data *weight *bias?', 'Convolution': 'data *weight *bias?', 'Deconvolution': 'data *weight *bias?',
    'Embedding': 'data *weight', 'BatchNorm': 'data *gamma *beta **moving_mean **moving_var',
    'LayerNorm': 'data *gamma *beta', 'InstanceNorm': 'data *gamma *beta', 'LeakyReLU': 'data *gamma?',
    'RNN': 'data *parameters *state *state_cell?',
    'SoftmaxOutput': 'data *label', 'Softmax': 'data *label', 'LinearRegressionOutput': 'data *label',
    'LogisticRegressionOutput': 'data *label', 'MAERegressionOutput': 'data *label', 'SVMOutput': 'data *label',
    'softmax_cross_entropy': 'data label',
}
_OF_ONE = ('Activation Flatten Reshape Dropout Pooling SoftmaxActivation BlockGrad MakeLoss LRN L2Normalization UpSampling Pad '
           'SwapAxis Cast relu sigmoid tanh softsign softmax log_softmax exp log sqrt square abs negative sum sum_axis mean max '
           'min prod norm argmax argmin transpose expand_dims squeeze slice_axis clip identity one_hot flatten reshape').split()
_OF_TWO = ('elemwise_add elemwise_sub elemwise_mul elemwise_div broadcast_add broadcast_sub broadcast_mul broadcast_div '
           'broadcast_maximum broadcast_minimum maximum minimum dot batch_dot').split()
_OF_MANY = 'Concat concat add_n ElementWiseSum stack'.split()

_BIAS_STANDARD = {'FullyConnected': False, 'Convolution': False, 'Deconvolution': True}


def _wanted(kind, slot, attrs):
    if slot == 'bias':
        said = attrs.get('no_bias', _BIAS_STANDARD[kind])
        return str(said) not in ('True', 'true', '1')
    if slot == 'gamma':
        return attrs.get('act_type') == 'prelu'
    return attrs.get('mode') == 'lstm'


def _made(name, slot, aux):
    node = _Node(None, f'{name}_{slot}', {}, aux=aux)
    return (node, 0)


def _inputs(kind, slots, given, name, attrs):
    """The entries of an operator whose inputs have names."""
    entries = []
    for word in slots.split():
        slot, stars, maybe = word.strip('*?'), word.count('*'), word.endswith('?')
        if slot in given:
            node, index = _single(given.pop(slot), f'{slot} of {kind}')
            node.aux = node.aux or stars == 2
            entries.append((node, index))
        elif maybe and not _wanted(kind, slot, attrs):
            continue
        elif stars == 0:
            raise TypeError(f'{kind} needs {slot}=')
        else:
            entries.append(_made(name, slot, stars == 2))
    return entries


def _named(kind, slots):
    names = [word.strip('*?') for word in slots.split()]

    def build(*inputs, name=None, **attrs):
        if len(inputs) > len(names):
            raise TypeError(f'{kind} takes at most {len(names)} inputs')
        given = dict(zip(names, inputs))
        for slot in names:
            if isinstance(attrs.get(slot), Symbol):
                if slot in given:
                    raise TypeError(f'{kind}: {slot} is given twice')
                given[slot] = attrs.pop(slot)
        own = name or _new_name(kind.lower().lstrip('_'))
        entries = _inputs(kind, slots, given, own, attrs)
        texts = {key: _text(value) for key, value in attrs.items() if value is not None}
        return Symbol([(_Node(kind, own, texts, entries), 0)])

    return _finish(build, kind, f'{kind}({", ".join(n + "=" for n in names)} ..., name=None)')


def _many(kind):
    def build(*inputs, name=None, **attrs):
        attrs.setdefault('num_args', len(inputs))
        return op(kind, *inputs, name=name, **attrs)

    return _finish(build, kind, f'{kind}(a, b, ..., name=None)')


def _finish(build, kind, use):
    build.__name__ = build.__qualname__ = kind
    build.__doc__ = f'{use}: as the operator of this name in MXNet.'
    __all__.append(kind)
    return build


for _kind, _slots in _WITH_PARAMETERS.items():
    globals()[_kind] = _named(_kind, _slots)
for _kind in _OF_ONE:
    globals()[_kind] = _named(_kind, 'data')
for _kind in _OF_TWO:
    globals()[_kind] = _named(_kind, 'lhs rhs')
for _kind in _OF_MANY:
    globals()[_kind] = _many(_kind)
take = _finish(_named('take', 'a indices'), 'take', 'take(a=, indices=, ..., name=None)')


def SliceChannel(data, num_outputs, axis=1, squeeze_axis=False, name=None):
    """SliceChannel(data, num_outputs): as the operator of this name in MXNet; a group of num_outputs."""
    attrs = {'num_outputs': str(num_outputs), 'axis': str(axis), 'squeeze_axis': str(squeeze_axis)}
    node = _Node('SliceChannel', name or _new_name('slicechannel'), attrs, [_single(data, 'data')], num_outputs)
    return Symbol([(node, i) for i in range(num_outputs)])


split = SliceChannel
__all__ += ['SliceChannel', 'split']


# ---- reading --------------------------------------------------------------------------------------------------------

def load_json(text):
    """The network of a symbol file of any age."""
    file = json.loads(text)
    if not isinstance(file, dict) or not isinstance(file.get('nodes'), list):
        raise ValueError('this is no symbol file: it has no list `nodes`')
    nodes, rows = [], file.get('node_row_ptr') or []
    for i, item in enumerate(file['nodes']):
        nodes.append(_read_node(i, item, nodes, rows))
    heads = file.get('heads') or [[len(nodes) - 1, 0]]
    return Symbol([(nodes[head[0]], head[1]) for head in heads])


def _read_node(i, item, before, rows):
    attrs = {}
    for place in ('param', 'attr', 'attrs'):
        attrs.update({key: _text(value) for key, value in (item.get(place) or {}).items()})
    inputs = []
    for entry in item.get('inputs', []):
        if not 0 <= entry[0] < i:
            raise ValueError(f'node {i} ({item.get("name")!r}) refers to node {entry[0]}, which does not come before it')
        inputs.append((before[entry[0]], entry[1]))
    kind = None if item['op'] == 'null' else item['op']
    slots = _WITH_PARAMETERS.get(kind, '').split()
    for word, (node, _) in zip(slots, inputs):
        node.aux = node.aux or word.startswith('**')
    return _Node(kind, item['name'], attrs, inputs, rows[i + 1] - rows[i] if len(rows) > i + 1 else 1)


fromjson = load_json


def load(fname):
    """The network of a symbol file."""
    with open(fname, encoding='utf-8-sig') as file:
        return load_json(file.read())
