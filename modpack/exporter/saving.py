"""What an exporter is given to save: modules, sources, objects, models, text and bytes."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from modpack.core.arguments import require_type
from modpack.core.garbage import collection_paused
from modpack.core.names import require_module_name
from modpack.core.progress import Unit, phase
from modpack.exporter.workplace import Workplace
from modpack.packing.arguments import DEFAULT_PROTOCOL, record_of, require_protocol
from modpack.packing.sources import encoded, files_of
from modpack.resolution.importers import importer_of

if TYPE_CHECKING:
    from modpack.hooks.report import HookReport
    from modpack.hooks.selection import HookChoice
    from modpack.packing.hooked import HookOptions
    from modpack.trial.examples import Example
    from modpack.trial.saving import ExampleSaver

__all__ = ["ExporterSaving"]


class ExporterSaving(Workplace):
    """The part of an exporter that takes what goes into the package."""

    def save_module(self, module_name: str, dependencies: bool = True) -> None:
        """Intern a module, whatever the rules say. It is found and read, not imported.

        Args:
            module_name: its path; or the name that a module of a loaded package has in
                ``sys.modules``.
            dependencies: whether to follow what it imports.

        Raises:
            TypeError, ValueError: it is no module path.
            ObjNotFoundError: If it was loaded from a package whose importer is not listed.
        """
        self._check_open()
        require_module_name(module_name)
        require_type(dependencies, bool, "dependencies", "a bool")
        self._planner.add_module(self._own_name(module_name), dependencies)

    def add_dependency(self, module_name: str, dependencies: bool = True) -> None:
        """Let the rules decide a module, as if a saved object or saved code needed it.

        Args:
            module_name: its path, as for :meth:`save_module`.
            dependencies: whether to follow its imports, if it is interned.

        Raises:
            TypeError: If an argument has the wrong type.
            ValueError: If ``module_name`` is not a module path.
            ObjNotFoundError: If it was loaded from a package whose importer is not listed.
        """
        self._check_open()
        require_module_name(module_name)
        require_type(dependencies, bool, "dependencies", "a bool")
        self._planner.add_dependency(self._own_name(module_name), dependencies)

    def only_definitions(self, module_name: str) -> None:
        """Treat a module like the script that runs.

        Of what objects need from it, saved from now on, only the definitions are taken: classes
        and functions, and what those use, as a module of their own. The module itself, with the
        work that it does when it is imported, stays behind.

        Args:
            module_name: its path.

        Raises:
            TypeError, ValueError: it is no module path.
        """
        self._check_open()
        self._objects.add_script(require_module_name(module_name))

    def save_source_file(
        self, module_name: str, file_or_directory: str | os.PathLike[str], dependencies: bool = True
    ) -> None:
        """Intern a source file under a module path, or all ``.py`` files below a folder.

        Args:
            module_name: the module path of the file, or of the folder.
            file_or_directory: the file or folder.
            dependencies: whether to follow what they import.

        Raises:
            TypeError, ValueError: ``module_name`` is no module path.
            FileNotFoundError: there is no such file.
        """
        self._check_open()
        require_module_name(module_name)
        require_type(file_or_directory, (str, os.PathLike), "file_or_directory", "a path")
        require_type(dependencies, bool, "dependencies", "a bool")
        for module, file, is_package in files_of(module_name, Path(file_or_directory)):
            self._planner.holdings.given[module] = file.absolute()
            self._planner.add_source(module, file.read_bytes(), is_package, dependencies)

    def save_source_string(
        self, module_name: str, src: str, is_package: bool = False, dependencies: bool = True
    ) -> None:
        """Intern a module whose source is given.

        Args:
            module_name: its path.
            src: its source. A coding cookie in it (PEP 263) says how it is stored.
            is_package: whether it is a package's ``__init__``.
            dependencies: whether to follow what it imports.

        Raises:
            TypeError, ValueError: an argument is of the wrong type, or no module path.
        """
        self._check_open()
        require_module_name(module_name)
        require_type(src, str, "src", "source text (str)")
        require_type(is_package, bool, "is_package", "a bool")
        require_type(dependencies, bool, "dependencies", "a bool")
        self._planner.add_source(module_name, encoded(src), is_package, dependencies)

    def save_pickle(
        self,
        package: str,
        resource: str,
        obj: object,
        dependencies: bool = True,
        pickle_protocol: int = DEFAULT_PROTOCOL,
    ) -> None:
        """Save an object. Its tensors are written at once, as they are now.

        Args:
            package: the package that the resource belongs to (``"model"``).
            resource: its name (``"model.pkl"``).
            obj: the object.
            dependencies: whether to follow the classes and functions that it refers to.
            pickle_protocol: 2 to 5; torch.package reads 3 by default, and 4.

        Raises:
            TypeError, ValueError: a name or the protocol is none.
            PicklingError: something in the object cannot be saved. Names all such things, each by
                its attribute path. It is an ObjNotFoundError or ObjMismatchError too where a class
                or function is not what its name leads to.
            ObjMismatchError: two versions of one library would have to go into the package.
        """
        self._save(package, resource, obj, dependencies, pickle_protocol, None)

    def save_model(
        self,
        package: str,
        resource: str,
        model: object,
        optimizer: object = None,
        *,
        hooks: HookChoice = True,
        global_hooks: bool = False,
        reset_state: HookChoice = False,
        dependencies: bool = True,
        pickle_protocol: int = DEFAULT_PROTOCOL,
        example_inputs: object = None,
        example_kwargs: object = None,
    ) -> None:
        """Save a model with its hooks, and its optimizer if given.

        With example inputs, the model is run on them once, after it was saved and as it stands:
        in training or evaluation mode, with or without gradients. Its parameters, its buffers and
        the random states are put back afterwards; what its code or its hooks collect elsewhere
        stays. Inputs and output are stored in the package, which is tried with them on closing
        and can be tried again with :func:`modpack.replay`.

        Hooks that can be imported are stored by their names, others by their source. They are
        pickled in one graph with the model: what they share stays shared. Of a
        DistributedDataParallel wrapper the module inside is saved, with the wrapper's comm hook;
        :func:`modpack.hooks.restore_comm_hook` registers that on a new wrapper.

        Args:
            package: the package that the resource belongs to.
            resource: its name.
            model: the model.
            optimizer: its optimizer; ``load_model(..., optimizer=True)`` gives it back.
            hooks: which hooks to capture: True, False, names, or a predicate over specs.
            global_hooks: whether to capture the hooks of the whole process as well.
            reset_state: whether to leave behind what hooks have collected: True, False, names,
                or a predicate over specs. The lists, dicts, sets and deques among their closure
                variables, attributes and bound arguments are saved empty. The live ones stay.
            dependencies: whether to follow the classes and functions that it refers to.
            pickle_protocol: 2 to 5.
            example_inputs: what to call the model with: a tuple holds the positional arguments,
                a mapping with names of arguments the arguments by name, anything else is the
                one argument.
            example_kwargs: further arguments by name.

        Raises:
            TypeError, ValueError: an argument is none of these, or no hook has a name.
            PicklingError: something cannot be saved; named by its attribute path.
            ExampleError: the live model does not run on the example inputs.
        """
        with collection_paused():
            from modpack.packing.hooked import HookOptions, require_optimizer

        require_type(global_hooks, bool, "global_hooks", "a bool")
        require_optimizer(optimizer)
        example = self._example(model, example_inputs, example_kwargs)
        options = HookOptions(hooks, global_hooks, {"optimizer": optimizer}, reset_state)
        since = self._objects.generation
        self._save(package, resource, model, dependencies, pickle_protocol, options)
        if example is not None:
            records = self._saver().save_arguments(example, pickle_protocol)
            if not self._plans_only:
                place = (package, resource)
                self._saver().record(records, place, model, example, since, global_hooks)

    def hook_report(self) -> HookReport:
        """What became of every hook that was met so far: captured, native, or left out."""
        from modpack.hooks.report import HookReport

        return HookReport(tuple(self._objects.hook_statuses))

    def save_text(self, package: str, resource: str, text: str) -> None:
        """Save text, in UTF-8, as a resource of a package.

        Raises:
            TypeError, ValueError: an argument is of the wrong type, or no name.
        """
        require_type(text, str, "text", "a str")
        self.save_binary(package, resource, text.encode())

    def save_binary(self, package: str, resource: str, binary: bytes) -> None:
        """Save bytes as a resource of a package.

        Raises:
            TypeError, ValueError: an argument is of the wrong type, or no name.
        """
        self._check_open()
        record = record_of(package, resource)
        require_type(binary, (bytes, bytearray, memoryview), "binary", "bytes")
        data = bytes(binary)
        self._writer.write(record, data)
        self._guard.look_at_resource(record, data)
        self._planner.add_folder(record)

    def _save(
        self,
        package: str,
        resource: str,
        obj: object,
        dependencies: bool,
        pickle_protocol: int,
        hooks: HookOptions | None,
    ) -> None:
        self._check_open()
        record = record_of(package, resource)
        require_type(dependencies, bool, "dependencies", "a bool")
        require_protocol(pickle_protocol)
        with phase(f"saving {record}", Unit.BYTES, is_major=True):
            edges = self._objects.save(record, obj, pickle_protocol, hooks, dependencies)
        self._objects.note_resource(package, resource, main=hooks is not None)
        self._objects.pin_homes(self._planner.walker)
        self._planner.add_folder(record)
        self._planner.add_resource(f"<{record}>", edges, dependencies)

    def _own_name(self, module_name: str) -> str:
        """The path of a module that may be given by its name in ``sys.modules``."""
        live = sys.modules.get(module_name)
        if live is None or importer_of(live) is None:
            return module_name
        local = self._objects.module_name(live)
        self._objects.pin_homes(self._planner.walker)
        return local

    def _example(self, model: object, inputs: object, kwargs: object) -> Example | None:
        """The example to try the model with, if one was given and is wanted."""
        if inputs is None and kwargs is None:
            return None
        from modpack.trial.examples import as_example

        example = as_example(model, inputs, kwargs)
        return example if self._trial else None

    def _saver(self) -> ExampleSaver:
        from modpack.trial.saving import ExampleSaver

        if self._examples is None:
            self._examples = ExampleSaver(self._objects, self._writer, self._planner)
        return self._examples
