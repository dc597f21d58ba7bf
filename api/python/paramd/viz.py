"""Networks drawn, summed up and described: mx.viz, and more.

    from paramd import sym, viz

    net = sym.load('net-symbol.json')                          # or built with paramd.sym
    plot = viz.plot_network(net, shape={'data': (1, 3, 224, 224)})
    plot.render('net')                                         # net: DOT text, net.pdf: the drawing
    viz.print_summary(net, shape={'data': (1, 3, 224, 224)})   # every layer, every parameter
    print(viz.describe(net))                                   # numbered sentences

A network is a paramd Symbol, one of MXNet's (anything with tojson), the path of a symbol file or of an ONNX model, or the
bytes of one. With store=kv the parameters that are keys of the store have its shapes, versions and updater, and
color='version' colours by them.

The layout is paramd's own; nothing but libparamd is needed. png and pdf are made by rsvg-convert (Debian: librsvg2-bin).
web/viz/viz.md tells all options.
"""

import collections
import ctypes
import json
import os
import pathlib
import sys
import warnings

from . import _lib

__all__ = ['Plot', 'plot_network', 'print_summary', 'describe', 'draw']


def _functions():
    lib = _lib.load()
    render, free = lib.paramd_viz_render, lib.paramd_viz_free
    render.restype = ctypes.c_int
    render.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p),
                       ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(_lib.Error)]
    free.restype, free.argtypes = None, [ctypes.c_void_p]
    return render, free


def _file(symbol):
    """The bytes of a network's file."""
    if hasattr(symbol, 'tojson'):
        return symbol.tojson().encode()
    if isinstance(symbol, (bytes, bytearray)):
        return bytes(symbol)
    if isinstance(symbol, os.PathLike) or isinstance(symbol, str) and not symbol.lstrip().startswith('{'):
        return pathlib.Path(symbol).read_bytes()
    if isinstance(symbol, str):
        return symbol.encode()
    raise TypeError(f'a network is a Symbol, a path or a file\'s bytes, not {type(symbol).__name__}')


def _run(file, options):
    render, free = _functions()
    result, size, error = ctypes.c_void_p(), ctypes.c_size_t(), _lib.Error()
    text = json.dumps({key: value for key, value in options.items() if value is not None}).encode()
    code = render(file, len(file), text, ctypes.byref(result), ctypes.byref(size), ctypes.byref(error))
    if code != 0:
        raise error.exception(code)
    try:
        return ctypes.string_at(result, size.value)
    finally:
        free(result)


def _shapes(shape):
    """{'data': (1, 3)} as the library takes it."""
    if shape is None or isinstance(shape, str):
        return shape
    return {name: [d if isinstance(d, str) else int(d) for d in dims] for name, dims in dict(shape).items()}


def _dtypes(dtype):
    if dtype is None:
        return None
    return {name: getattr(t, '__name__', None) or str(t) for name, t in dict(dtype).items()}


# Colours for which a store measures, and how many keys it is asked for at once.
_MEASURED, _AT_ONCE = ('norm', 'grad_norm', 'update_ratio', 'staleness'), 256


def _norms(store, names):
    """What it has measured of each key; asking starts the measuring."""
    parts = [names[i:i + _AT_ONCE] for i in range(0, len(names), _AT_ONCE)]
    return [item or {} for part in parts for item in store._call('KeyStats', {'keys': part})['items']]


def _keys(store, color):
    """What a store knows of its keys."""
    if store is None:
        return None
    names = store.keys()
    updater = store.get_updater() if names else None
    kind = updater.get('type') if isinstance(updater, dict) else getattr(updater, '__name__', None)
    norms = _norms(store, names) if color in _MEASURED else [{}] * len(names)
    return [{**norm, 'key': str(name), 'dtype': str(info.dtype), 'shape': list(info.shape), 'version': info.version,
             **({'updater': kind} if kind else {})}
            for name, info, norm in zip(names, store.describe(names) if names else [], norms)]


def draw(symbol=None, format='svg', *, shape=None, dtype=None, store=None, **options):
    """A network in any form, as bytes: svg png pdf dot json summary summary-json text. Without a network the keys of the
    store are drawn. Options: view, direction, color, title, expand, hide_weights, node_attrs, style; engine='dot' lets
    Graphviz place the boxes."""
    return _run(b'' if symbol is None else _file(symbol),
                {'format': format, 'shapes': _shapes(shape), 'dtypes': _dtypes(dtype), 'keys': _keys(store, options.get('color')),
                 **options})


class Plot:
    """A drawing of a network. In a notebook it shows itself."""

    def __init__(self, symbol, options, save_format):
        self._symbol, self._options, self.format = symbol, options, save_format
        self.name = options['title']
        self.source = self.pipe('dot').decode()

    def pipe(self, format=None):
        """The drawing as bytes."""
        return _run(self._symbol, {**self._options, 'format': format or self.format})

    @property
    def svg(self):
        return self.pipe('svg').decode()

    def save(self, filename=None, directory=None):
        """Writes the DOT text, which Graphviz draws too. The path."""
        path = pathlib.Path(directory or '', filename or f'{self.name}.gv')
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.source, encoding='utf-8')
        return str(path)

    def render(self, filename=None, directory=None, view=False, cleanup=False, format=None):
        """Writes the DOT text to filename and the drawing to filename.format. The path of the drawing."""
        format = format or self.format
        drawing = self.pipe(format)
        source = self.save(filename, directory)
        path = f'{source}.{format}'
        pathlib.Path(path).write_bytes(drawing)
        if cleanup:
            os.unlink(source)
        if view:
            import webbrowser
            webbrowser.open(pathlib.Path(path).resolve().as_uri())
        return path

    def view(self, filename=None, directory=None, cleanup=False):
        return self.render(filename, directory, view=True, cleanup=cleanup)

    def _repr_svg_(self):
        return self.svg

    def __str__(self):
        return self.source

    def __repr__(self):
        return f'<Plot {self.name!r}>'


def _warn_of_repeated(file):
    """MXNet warns; paramd draws each node all the same."""
    try:
        names = [node['name'] for node in json.loads(file)['nodes']]
    except (ValueError, KeyError, TypeError):
        return
    repeated = sorted(name for name, count in collections.Counter(names).items() if count > 1)
    if repeated:
        warnings.warn(f'There are multiple variables with the same name in your graph: {", ".join(repeated)}', RuntimeWarning,
                      stacklevel=3)


def plot_network(symbol, title='plot', save_format='pdf', shape=None, dtype=None, node_attrs=None, hide_weights=True, *,
                 view=None, direction=None, color=None, store=None, expand=None):
    """Draws a network: a Plot, with source, render(filename, view=False, format='pdf'), save, pipe and svg.

    The arguments are those of mx.viz.plot_network. view='mxnet' keeps MXNet's colours and labels; otherwise parameters
    stand in their operator, and hide_weights=False makes them nodes (view='full'). shape writes shapes into the drawing,
    'N' stands for the batch: shape={'user': ('N',)}. node_attrs are for the DOT text.
    """
    file = _file(symbol)
    _warn_of_repeated(file)
    options = {'title': title, 'shapes': _shapes(shape), 'dtypes': _dtypes(dtype), 'direction': direction, 'color': color,
               'view': view or ('default' if hide_weights else 'full'), 'hide_weights': bool(hide_weights),
               'keys': _keys(store, color), 'expand': expand,
               'node_attrs': None if node_attrs is None else {k: str(v) for k, v in node_attrs.items()}}
    return Plot(file, options, save_format)


def print_summary(symbol, shape=None, line_length=120, positions=None, *, dtype=None, store=None, view=None,
                  file=None):
    """Prints a table of layers: shape, parameters, bytes, dtype, updater, inputs; and the totals.

    view='mxnet' prints what mx.viz.print_summary prints, line by line.

    positions: where columns end, as parts of line_length or in characters. Four of them, as in
    mx.viz.print_summary ([.44, .64, .74, 1.]), give its four columns."""
    text = draw(symbol, 'summary', shape=shape, dtype=dtype, store=store, line_length=line_length, view=view,
                positions=None if positions is None else list(positions))
    print(text.decode(), end='', file=file or sys.stdout)


def describe(symbol, shape=None, *, store=None):
    """The network in numbered sentences, from the inputs to the outputs."""
    return draw(symbol, 'text', shape=shape, store=store).decode()
