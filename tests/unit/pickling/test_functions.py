"""Functions that cannot be imported are saved by their exact source."""

import asyncio
import inspect
import io
import linecache
import textwrap
import traceback
from types import FunctionType

import pytest

import modpack
from modpack.errors import PicklingError
from modpack.pickling.functions import compiled_function
from modpack.saving.function_source import NoSourceError, find_function_text


@pytest.fixture
def cell(request):
    """Run source as a notebook runs a cell: in ``__main__``'s namespace, with a line cache."""
    filename = f"<cell of {request.node.name}>"

    def run(source: str, keep_source: bool = True, **names: object) -> dict:
        text = textwrap.dedent(source)
        namespace = {"__name__": "__main__", **names}
        exec(compile(text, filename, "exec", dont_inherit=True), namespace)
        if keep_source:
            lines = text.splitlines(keepends=True)
            linecache.cache[filename] = (len(text), None, lines, filename)
        return namespace

    yield run
    linecache.cache.pop(filename, None)


def reloaded(obj, *packages):
    buffer = io.BytesIO()
    importers = [*packages, modpack.sys_importer]
    with modpack.PackageExporter(buffer, importer=importers) as exporter:
        exporter.intern("**")
        exporter.save_pickle("model", "obj.pkl", obj)
    buffer.seek(0)
    return modpack.load(buffer)


def test_function_text_keeps_indentation_and_comments(cell):
    make = cell(
        """
        def make(factor):
            def scaled(x,   y = 2):  # a remark
                return (x *
                        factor)
            return scaled
        """
    )["make"]
    assert find_function_text(make(3)).source == (
        "    def scaled(x,   y = 2):  # a remark\n        return (x *\n                factor)"
    )


def test_lambdas_on_one_line_are_distinguished(cell):
    both = cell("both = [lambda x: x + 1, lambda x: x + 1.0, lambda y: y + 1]")["both"]
    assert [find_function_text(each).source for each in both] == [
        "lambda x: x + 1",
        "lambda x: x + 1.0",
        "lambda y: y + 1",
    ]
    assert [each(1) for each in reloaded(both)] == [2, 2.0, 2]


def test_lambda_in_lambda_defaults_is_distinguished(cell):
    outer = cell("outer = lambda x, y=(lambda: 5): x + y()")["outer"]
    assert find_function_text(outer.__defaults__[0]).source == "lambda: 5"
    assert reloaded(outer)(1) == 6


def test_lambdas_after_wide_characters_are_distinguished(cell):
    umlauts = cell('umlauts = "é𝄞", lambda: "ä", lambda: "ö"')["umlauts"]
    assert [each() for each in reloaded(umlauts[1:])] == ["ä", "ö"]


def test_same_code_detects_different_calls(cell):
    one = cell("def f(a, *b): return a, b")["f"]
    other = cell("def f(a, **b): return a, b")["f"]
    assert one.__code__.co_code == compiled_function(find_function_text(other), "x").co_code
    with pytest.raises(NoSourceError):
        find_function_text(one)  # the cell was run again with other text


def test_same_code_distinguishes_types_of_constants(cell):
    one = cell("f = lambda: (1, 0.0)")["f"]
    cell("f = lambda: (True, -0.0)")
    with pytest.raises(NoSourceError):
        find_function_text(one)


def test_function_text_keeps_multi_line_strings(cell):
    make = cell(
        '''
        def make():
            def text():
                return """one
                    two
            three"""
            return text
        '''
    )["make"]
    assert reloaded(make())() == make()() == "one\n            two\n    three"


def test_function_text_keeps_tabs(cell):
    source = "def make():\n\tdef deep(o):\n\t\tif o:\n\t\t\treturn 1\n\t\treturn 2\n\treturn deep\n"
    deep = cell(source)["make"]()
    again = reloaded(deep)
    assert (again(True), again(False)) == (1, 2)
    assert inspect.getsource(again).startswith("\tdef deep")


def test_function_text_ignores_form_feeds(cell):
    make = cell("\f\ndef make():\n    \f\n    def one(): return '\x1c'\n    return one\n")["make"]
    assert reloaded(make())() == "\x1c"


def test_function_keeps_defaults_attributes_names_and_doc(cell):
    make = cell(
        """
        def make(start):
            def add(x, y=start, /, *more, z=[start], **rest) -> "int":
                "Adds."
                return x + y + sum(more) + sum(z) + sum(rest.values())
            add.color = "red"
            return add
        """
    )["make"]
    add = reloaded(make(10))
    assert add(1, 2, 3, z=[4], k=5) == 15
    assert add(1) == 21
    assert (add.__name__, add.__qualname__) == ("add", "make.<locals>.add")
    assert (add.__doc__, add.color, add.__annotations__) == ("Adds.", "red", {"return": "int"})


def test_nested_closures_are_saved(cell):
    make = cell(
        """
        def make(a):
            def middle(b):
                def inner(c):
                    return [a + b + c + i for i in range(2)]
                return inner
            return middle
        """
    )["make"]
    assert reloaded(make(1))(10)(100) == [111, 112]
    assert reloaded(make(1)(10))(100) == [111, 112]


def test_recursive_closure_is_saved(cell):
    make = cell(
        """
        def make():
            def factorial(n):
                return 1 if n < 2 else n * factorial(n - 1)
            return factorial
        """
    )["make"]
    again = reloaded(make())
    assert again(5) == 120
    assert again.__closure__[0].cell_contents is again


def test_mutually_recursive_functions_are_saved(cell):
    make = cell(
        """
        def make():
            def even(n): return n == 0 or odd(n - 1)
            def odd(n): return n != 0 and even(n - 1)
            return even, odd
        """
    )["make"]
    even, odd = reloaded(make())
    assert even(10) and odd(7)
    assert even.__closure__[0].cell_contents is odd


def test_closures_share_nonlocal_variables_after_loading(cell):
    make = cell(
        """
        def make():
            count = 0
            def hit():
                nonlocal count
                count += 1
            def hits():
                return count
            return hit, hits
        """
    )["make"]
    hit, hits = reloaded(make())
    hit()
    hit()
    assert hits() == 2


def test_unbound_closure_variable_stays_unbound(cell):
    make = cell(
        """
        def make():
            def use():
                return later
            def bind(value):
                nonlocal later
                later = value
            return use, bind
            later = None
        """
    )["make"]
    use, bind = reloaded(make())
    with pytest.raises(NameError):
        use()
    bind(5)
    assert use() == 5


def test_functions_of_main_share_globals_after_loading(cell):
    main = cell(
        """
        COUNT = 0
        def bump():
            global COUNT
            COUNT += 1
            return COUNT
        def read():
            return COUNT
        """
    )
    bump, read = reloaded([main["bump"], main["read"]])
    assert (bump(), bump(), read()) == (1, 2, 2)
    assert main["COUNT"] == 0


def test_function_is_saved_with_used_globals_only(cell):
    main = cell(
        """
        import re
        data = re.match("a", "a")  # cannot be pickled
        unused = data
        SCALE = 3
        def scaled(batch):
            return [SCALE * x for x in batch.data]
        """
    )
    scaled = reloaded(main["scaled"])
    assert "data" not in scaled.__globals__
    assert scaled(type("Batch", (), {"data": [1, 2]})) == [3, 6]


def test_function_of_main_finds_itself_and_helpers(cell):
    main = cell(
        """
        import math
        def helper(x): return math.floor(x)
        def countdown(x): return [helper(x)] + (countdown(x - 1) if x >= 1 else [])
        """
    )
    assert reloaded(main["countdown"])(2.5) == [2, 1, 0]


def test_function_of_module_uses_module_globals(project, tmp_path):
    project(
        {
            "tally.py": """
                counts = []
                def count(x):
                    counts.append(x)
                counter = lambda x: counts.append(x)
                """
        }
    )
    import tally

    with modpack.PackageExporter(tmp_path / "t.pt") as exporter:
        exporter.intern("tally")
        exporter.save_pickle("model", "obj.pkl", [tally.count, tally.counter])
    importer = modpack.PackageImporter(tmp_path / "t.pt")
    count, counter = importer.load_pickle("model", "obj.pkl")
    count(1)
    counter(2)
    assert importer.import_module("tally").counts == [1, 2]
    assert tally.counts == []


def test_decorator_wrapper_uses_globals_of_its_module(project):
    project(
        {
            "timing.py": """
                import functools
                calls = []
                def counted(function):
                    @functools.wraps(function)
                    def wrapper(*args):
                        calls.append(function.__name__)
                        return function(*args)
                    return wrapper
                def seen(): return calls
                """,
            "using.py": """
                from timing import counted
                def make():
                    @counted
                    def double(x): return 2 * x
                    return double
                """,
        }
    )
    import timing
    import using

    double, seen = reloaded([using.make(), timing.seen])
    assert double(2) == 4
    assert seen() == ["double"]
    assert timing.calls == []


def test_redefined_function_is_saved_by_source(project):
    project({"shop.py": "def price(): return 1\nfirst = price\ndef price(): return 2\n"})
    import shop

    assert [price() for price in reloaded([shop.first, shop.price])] == [1, 2]


def test_coroutine_and_generator_functions_keep_their_kind(cell):
    make = cell(
        """
        def make(base):
            async def coroutine(): return base
            def generator():
                yield base
                yield base + 1
            async def both():
                yield base
            return coroutine, generator, both
        """
    )["make"]
    coroutine, generator, both = reloaded(make(5))
    assert asyncio.run(coroutine()) == 5
    assert list(generator()) == [5, 6]
    assert inspect.isasyncgenfunction(both)


PRIVATE = """
class Vault:
    def __init__(self): self.__code = 42
    def opener(self):
        def read(vault): return vault.__code
        return read
    def twice(self): return lambda vault: 2 * vault.__code
    def tripled(self):
\t    def read(vault): return 3 * vault.__code
\t    return read
    def __secret(self): return self.__code
class Named:
    def name(self): return "base"
class Sub(Named):
    def name(self): return "sub"
    def namer(self):
        def name(self): return super().name() + __class__.__name__
        return name
"""


@pytest.mark.parametrize(("method", "result"), [("opener", 42), ("twice", 84), ("tripled", 126)])
def test_method_text_keeps_private_names(project, method, result):
    project({"vault.py": PRIVATE})
    import vault

    made = getattr(vault.Vault(), method)()
    assert reloaded([made, vault.Vault()])[0](vault.Vault()) == result


def test_method_with_super_works_after_loading(project):
    project({"vault.py": PRIVATE})
    import vault

    name, sub = reloaded([vault.Sub().namer(), vault.Sub()])
    assert name(sub) == "baseSub"


def test_private_method_is_saved_by_mangled_name(project):
    project({"vault.py": PRIVATE})
    import vault

    secret = reloaded(vault.Vault()._Vault__secret)
    assert secret() == 42
    assert secret.__func__ is type(secret.__self__)._Vault__secret


def test_manually_bound_method_stays_bound(cell, project):
    project({"shop.py": "class Till: amount = 3\n"})
    import shop

    bound = FunctionType.__get__(cell("f = lambda self: self.amount")["f"], shop.Till())
    assert reloaded(bound)() == 3


def test_class_inside_function_is_saved_with_it(cell):
    make = cell(
        """
        def make(base):
            def build():
                class Point:
                    size = base
                    def here(self): return Point.size
                return Point()
            return build
        """
    )["make"]
    point = reloaded(make(7))()
    assert point.here() == 7
    assert type(point).__qualname__.endswith("build.<locals>.Point")


def test_decorated_function_is_saved_with_inner_function(cell):
    decorated = cell(
        """
        import functools
        def doubled(function):
            @functools.wraps(function)
            def wrapper(x): return 2 * function(x)
            return wrapper
        def make(y):
            @doubled
            @doubled
            def add(x): return x + y
            return add
        """
    )["make"](1)
    again = reloaded(decorated)
    assert again(2) == 12
    assert again.__wrapped__.__wrapped__(2) == 3


def test_postponed_annotations_stay_strings(cell):
    make = cell(
        """
        from __future__ import annotations
        def make():
            def hook(grad: Nowhere, *, scale: Unknown = 1) -> Missing:
                def inner(x: AlsoMissing): return x * scale
                return inner(grad)
            return hook
        """
    )["make"]
    hook = reloaded(make())
    assert hook(4, scale=2) == 8
    assert hook.__annotations__ == {"grad": "Nowhere", "scale": "Unknown", "return": "Missing"}


def test_function_keeps_scopes_of_comprehensions(cell):
    make = cell(
        """
        def make(limit):
            def kept(values):
                return [last for v in values if (last := v * limit) < 10], {v for v in values}
            return kept
        """
    )["make"]
    assert reloaded(make(3))([1, 2, 5]) == ([3, 6], {1, 2, 5})


def test_loaded_function_shows_source_at_original_lines(project):
    root = project(
        {
            "hooks.py": """
                # line 2
                def make(limit):
                    def strict(x):
                        y = x + limit
                        raise ValueError(y)
                    return strict, (lambda x:
                                    x / 0)
                """
        }
    )
    import hooks

    strict, divide = hooks.make(1)
    again, divided = reloaded([strict, divide])
    assert inspect.getsource(again) == inspect.getsource(strict)
    assert inspect.getsourcelines(again)[1] == inspect.getsourcelines(strict)[1]
    assert inspect.getsource(divided).startswith("lambda x:")
    with pytest.raises(ValueError) as caught:
        again(1)
    frame = traceback.extract_tb(caught.tb)[-1]
    assert (frame.lineno, frame.line) == (6, "raise ValueError(y)")
    assert "hooks:4 make.<locals>.strict" in frame.filename
    assert str(root) not in frame.filename
    with pytest.raises(ZeroDivisionError) as caught:
        divided(1)
    frame = traceback.extract_tb(caught.tb)[-1]
    assert (frame.lineno, frame.line) == (8, "x / 0")


def test_loaded_lambdas_of_one_line_show_own_source(cell):
    one, two = reloaded(cell("both = [lambda: 1, lambda: 2]")["both"])
    assert (inspect.getsource(one), inspect.getsource(two)) == ("lambda: 1\n", "lambda: 2\n")


AGAIN = """
import functools
def make(a):
    def outer(x):
        def inner(y): return x + y + a
        return inner
    return outer
def lambdas(a):
    return (lambda x:
            lambda y: x + y + a)
def shown(function):
    @functools.wraps(function)
    def wrapper(*args): return function(*args)
    return wrapper
def decorated(a):
    @shown
    def outer(x): return lambda y: x + y + a
    return outer
class Private:
    def make(self, a):
        __z = 0
        def outer(x):
            def inner(y): return x + y + a + __z
            return inner
        return outer
"""


@pytest.mark.parametrize("name", ["make", "lambdas", "decorated", "Private().make"])
def test_loaded_function_can_be_saved_again(project, name):
    project({"again.py": AGAIN})
    import again

    outer = eval(name, vars(again))(100)
    once = reloaded(outer)
    twice = reloaded(once, modpack.importer_of(once))
    assert twice(1)(10) == 111
    assert find_function_text(twice) == find_function_text(once) == find_function_text(outer)
    again = reloaded(
        twice(1), modpack.importer_of(twice)
    )  # also works for functions that it creates
    assert again(10) == 111


def test_functions_of_script_are_saved_in_spawned_process(clean_python, tmp_path):
    clean_python(
        """
        import multiprocessing
        import modpack
        LIMIT = 3
        def limited(x): return min(x, LIMIT)
        def work(): modpack.save(limited, path)
        if __name__ == "__main__":
            process = multiprocessing.get_context("spawn").Process(target=work)
            process.start()
            process.join()
            assert process.exitcode == 0
        """,
        path=tmp_path / "f.modpack",
    )
    assert modpack.load(tmp_path / "f.modpack")(5) == 3


def test_function_without_source_is_reported(cell):
    make = cell("def make(a):\n    return lambda x: x + a\n", keep_source=False)["make"]
    with pytest.raises(PicklingError) as caught:
        reloaded({"scorer": make(1)})
    said = str(caught.value)
    assert "model/obj.pkl" in said
    assert "obj['scorer']" in said
    assert "make.<locals>.<lambda>" in said
    assert "there is no source for '<cell of" in said
    assert "Define it with def at the top level of a module." in said


def test_changed_source_file_is_reported(project):
    root = project({"mutable.py": "def make(a):\n    return lambda x: x + a\n"})
    import mutable

    (root / "mutable.py").write_text("def make(a):\n    return lambda x: x - a\n")
    linecache.checkcache(str(root / "mutable.py"))
    with pytest.raises(PicklingError) as caught:
        reloaded([mutable.make(1)])
    said = str(caught.value)
    assert f"{root / 'mutable.py'}:2" in said
    assert "the file has changed since import" in said
    assert "Define it with def" in said


def test_stale_linecache_is_refreshed(project):
    root = project({"mutable.py": "f = lambda x: x + 1\n"})
    file = str(root / "mutable.py")
    linecache.getlines(file)
    (root / "mutable.py").write_text("\n\nf = lambda x: x + 22\n")
    import mutable

    assert find_function_text(mutable.f).source == "lambda x: x + 22"


def test_unparsable_source_file_is_reported(project):
    root = project({"broken.py": "f = lambda x: x + 1\n"})
    import broken

    (root / "broken.py").write_text("def (\n")
    linecache.checkcache(str(root / "broken.py"))
    with pytest.raises(PicklingError, match="cannot be parsed"):
        reloaded(broken.f)
